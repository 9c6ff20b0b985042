//! Every message survives its round trip; nothing that is not a message is taken for one.

#![allow(clippy::unwrap_used)] // in helpers of tests too

mod generate;

use dafs_protocol::*;
use generate::{OPERATIONS, OUTCOMES, Random};

const HEAD: RequestHead = RequestHead { slot: SlotId(3), sequence: 7, cred: CredHandle(0) };

fn request(operations: &[Operation<'_>]) -> Vec<u8> {
    let mut bytes = vec![];
    encode_request(&HEAD, operations, &mut bytes).unwrap();
    bytes
}

fn refused(operation: Operation<'_>) -> DecodeError {
    let mut bytes = vec![1, 2, 3];
    let error = encode_request(&HEAD, &[operation], &mut bytes).unwrap_err();
    assert_eq!(bytes, [1, 2, 3], "nothing was appended");
    error
}

fn reply(results: Vec<OpResult>) -> Vec<u8> {
    let mut bytes = vec![];
    encode_reply(&Reply { slot: SlotId(3), sequence: 7, results: Ok(results) }, &mut bytes);
    bytes
}

/// All prefixes of a message that stands alone are errors.
fn no_prefix<T>(bytes: &[u8], decode: impl Fn(&[u8]) -> Result<T, DecodeError>) {
    for len in 0..bytes.len() {
        assert!(decode(&bytes[..len]).is_err(), "{len} of {}", bytes.len());
    }
    let longer = [bytes, &[0]].concat();
    assert!(decode(&longer).is_err());
}

/// What can be decoded after damage can be encoded, and means the same then.
fn take_anything(bytes: &[u8]) {
    if let Ok(request) = decode_request(bytes) {
        let mut again = vec![];
        encode_request(&request.head, &request.operations, &mut again).unwrap();
        let second = decode_request(&again).unwrap();
        assert_eq!(second.head, request.head);
        assert_eq!(second.operations.as_slice(), request.operations.as_slice());
    }
    if let Ok(reply) = decode_reply(bytes) {
        let mut again = vec![];
        encode_reply(&reply, &mut again);
        assert_eq!(decode_reply(&again).unwrap(), reply);
    }
    if let Ok(message) = decode_setup_request(bytes) {
        let mut again = vec![];
        encode_setup_request(&message, &mut again);
        assert_eq!(decode_setup_request(&again).unwrap(), message);
    }
    if let Ok(message) = decode_setup_reply(bytes) {
        let mut again = vec![];
        encode_setup_reply(&message, &mut again);
        assert_eq!(decode_setup_reply(&again).unwrap(), message);
    }
    if let Ok(entries) = decode_dir_entries(bytes) {
        let mut again = vec![];
        entries.iter().for_each(|entry| encode_dir_entry(entry, &mut again));
        assert_eq!(decode_dir_entries(&again).unwrap(), entries);
    }
}

#[test]
fn every_operation_survives() {
    let mut r = Random(1);
    for which in (0..OPERATIONS).cycle().take(50 * OPERATIONS as usize) {
        let names = generate::names(&mut r);
        let operation = generate::operation(which, &mut r, &names);
        let (mut bytes, head) = (vec![], r.head());
        encode_request(&head, std::slice::from_ref(&operation), &mut bytes).unwrap();
        let request = decode_request(&bytes).unwrap();
        assert_eq!(request.head, head);
        assert_eq!(request.operations.as_slice(), [operation]);
        assert!(bytes.len() <= HEADER_BYTES_MAX);
        no_prefix(&bytes, |bytes| decode_request(bytes).map(drop));
    }
}

#[test]
fn the_generator_makes_every_operation() {
    let mut r = Random(1);
    let mut made: Vec<u16> = (0..OPERATIONS)
        .map(|which| {
            let names = generate::names(&mut r);
            generate::operation(which, &mut r, &names).opcode()
        })
        .collect();
    made.sort_unstable();
    let own = |entry: &&opcode::Entry| !entry.reserved && !entry.name.starts_with("CB_");
    let mut all: Vec<u16> = opcode::ALL.iter().filter(own).map(|entry| entry.number).collect();
    all.sort_unstable();
    assert_eq!(made, all);
}

#[test]
fn every_outcome_survives() {
    let mut r = Random(2);
    for which in (0..OUTCOMES).cycle().take(50 * OUTCOMES as usize) {
        let outcome = generate::outcome(which, &mut r);
        let bytes = reply(vec![Ok(outcome.clone())]);
        assert_eq!(decode_reply(&bytes).unwrap().results, Ok(vec![Ok(outcome)]));
        no_prefix(&bytes, decode_reply);
    }
}

#[test]
fn chains_and_refusals_survive() {
    let mut r = Random(3);
    for _ in 0..500 {
        let reply = generate::reply(&mut r);
        let mut bytes = vec![];
        encode_reply(&reply, &mut bytes);
        assert_eq!(decode_reply(&bytes).unwrap(), reply);
        assert!(bytes.len() <= REPLY_BYTES_MAX);
        no_prefix(&bytes, decode_reply);
        let bytes = generate::request_bytes(&mut r);
        no_prefix(&bytes, |bytes| decode_request(bytes).map(drop));
    }
}

#[test]
fn setup_messages_survive() {
    let mut r = Random(4);
    for _ in 0..200 {
        let (mut one, mut two) = (vec![], vec![]);
        let (request, reply) = (generate::setup_request(&mut r), generate::setup_reply(&mut r));
        encode_setup_request(&request, &mut one);
        encode_setup_reply(&reply, &mut two);
        assert_eq!(decode_setup_request(&one).unwrap(), request);
        assert_eq!(decode_setup_reply(&two).unwrap(), reply);
        no_prefix(&one, decode_setup_request);
        no_prefix(&two, decode_setup_reply);
    }
}

#[test]
fn directory_entries_survive() {
    let mut r = Random(5);
    for _ in 0..100 {
        let entries: Vec<DirEntry> = (0..r.below(20)).map(|_| r.entry()).collect();
        let (mut bytes, mut ends) = (vec![], vec![0]);
        for entry in &entries {
            encode_dir_entry(entry, &mut bytes);
            assert_eq!(bytes.len() - ends.last().unwrap(), dir_entry_bytes(entry));
            ends.push(bytes.len());
        }
        assert_eq!(decode_dir_entries(&bytes).unwrap(), entries);
        for len in 0..bytes.len() {
            let whole = ends.iter().position(|end| *end == len);
            match decode_dir_entries(&bytes[..len]) {
                Ok(some) => assert_eq!(some, entries[..whole.unwrap()]),
                Err(_) => assert_eq!(whole, None),
            }
        }
    }
}

#[test]
fn damage_is_an_error_or_another_message_but_no_panic() {
    let mut r = Random(6);
    for round in 0..20_000 {
        let mut bytes = vec![];
        match round % 6 {
            0 | 1 => bytes = generate::request_bytes(&mut r),
            2 => encode_reply(&generate::reply(&mut r), &mut bytes),
            3 => encode_setup_request(&generate::setup_request(&mut r), &mut bytes),
            4 => encode_setup_reply(&generate::setup_reply(&mut r), &mut bytes),
            _ => encode_dir_entry(&r.entry(), &mut bytes),
        }
        for _ in 0..=r.below(4) {
            let (at, bit) = (r.below(bytes.len() as u64) as usize, r.below(8));
            bytes[at] ^= 1 << bit;
        }
        take_anything(&bytes);
    }
}

#[test]
fn noise_is_no_message() {
    let mut r = Random(7);
    for _ in 0..20_000 {
        take_anything(&r.bytes(80));
    }
}

#[test]
fn a_read_is_short_on_the_wire() {
    let read = Operation::Read {
        state: StateId(u64::MAX - 5),
        extents: ExtentList::one(1 << 40, 1 << 20),
    };
    assert!(request(&[read]).len() <= 48);
    let bytes = reply(vec![Ok(Outcome::Read { bytes: 1 << 20, end_of_file: false })]);
    assert!(bytes.len() <= 48);
}

#[test]
fn the_largest_reply_fits() {
    let mut r = Random(8);
    let mut opened = || Outcome::Opened {
        handle: FileHandle([7; 64]),
        state: StateId(1),
        attr: Attr { created: Some(Timestamp::default()), ..r.attr() },
        created: true,
    };
    let results = (0..CHAIN_MAX).map(|_| Ok(opened())).collect();
    assert!(reply(results).len() <= REPLY_BYTES_MAX);
    let entry = DirEntry { attr: Some(r.attr()), name: vec![b'n'; 255], ..r.entry() };
    assert!(dir_entry_bytes(&entry) < 512);
}

#[test]
fn unknown_status_codes_survive() {
    let status = Status::from_code(77_777);
    assert_eq!(status, Status::Other(77_777));
    let bytes = reply(vec![Ok(Outcome::Done), Err(status)]);
    let results = decode_reply(&bytes).unwrap().results;
    assert_eq!(results, Ok(vec![Ok(Outcome::Done), Err(status)]));
}

#[test]
fn success_is_never_taken_for_failure() {
    let zero = Reply { slot: SlotId(0), sequence: 0, results: Err(Status::Other(0)) };
    let mut bytes = vec![];
    encode_reply(&zero, &mut bytes);
    assert_eq!(decode_reply(&bytes).unwrap().results, Err(Status::ServerFault));
}

#[test]
fn previous_is_a_single_byte() {
    let by = |handle| request(&[Operation::ReadLink { handle }]).len();
    assert_eq!(by(FileHandle::PREVIOUS), by(FileHandle::default()));
    assert_eq!(by(FileHandle([1; 64])), by(FileHandle::default()) + 64);
}

#[test]
fn one_extent_equals_a_list_of_one() {
    assert_eq!(ExtentList::new(&[Extent::one(5, 6)]), Some(ExtentList::one(5, 6)));
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let dir = FileHandle::default();
    for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b"] {
        let value = DecodeError::Value("name");
        assert_eq!(refused(Operation::Remove { dir, name, directory: false }), value);
        assert_eq!(
            refused(Operation::Link { handle: dir, state: StateId::NONE, dir, name }),
            value
        );
    }
    let name = &[b'x'; 256];
    let limit = DecodeError::Limit("name");
    assert_eq!(refused(Operation::Remove { dir, name, directory: false }), limit);
}

#[test]
fn a_decoder_refuses_what_the_encoder_does() {
    let dir = FileHandle::default();
    let mut bytes = request(&[Operation::Remove { dir, name: b"a.b", directory: false }]);
    let len = bytes.len();
    bytes[len - 2] = b'/';
    assert_eq!(decode_request(&bytes), Err(DecodeError::Value("name")));
    bytes[len - 2] = 0;
    assert_eq!(decode_request(&bytes), Err(DecodeError::Value("name")));
    let mut bytes = request(&[Operation::Lookup { dir, path: b"a/b", no_follow: true }]);
    let len = bytes.len();
    bytes[len - 1] = 0;
    assert_eq!(decode_request(&bytes), Err(DecodeError::Value("path")));
}

#[test]
fn extents_stay_within_files_and_limits() {
    let read = |extents: &[Extent]| Operation::Read {
        state: StateId(1),
        extents: ExtentList::new(extents).unwrap(),
    };
    let (value, data) = (DecodeError::Value("extent"), DecodeError::Limit("data"));
    let strided = |len, count, stride| Extent { offset: 0, len, count, stride };
    assert_eq!(refused(read(&[Extent::one(u64::MAX, 1)])), value);
    assert_eq!(refused(read(&[Extent::one(i64::MAX as u64, 1)])), value);
    assert_eq!(refused(read(&[strided(1, 0, 0)])), value);
    assert_eq!(refused(read(&[strided(0, 2, 1)])), value);
    assert_eq!(refused(read(&[strided(1, 3, u64::MAX / 2)])), value);
    assert_eq!(refused(read(&[strided(1, 65_537, 2)])), DecodeError::Limit("pieces"));
    assert_eq!(refused(read(&[Extent::one(0, (4 << 20) + 1)])), data);
    assert_eq!(refused(read(&[Extent::one(0, 4 << 20), Extent::one(0, 1)])), data);
    request(&[read(&[Extent::one(0, 4 << 20)])]);
    request(&[read(&[strided(64, 65_536, 128)])]);
}

#[test]
fn the_data_of_a_chain_is_bounded_each_way() {
    let half = Operation::Append {
        state: StateId(1),
        bytes: (2 << 20) + 1,
        stability: Stability::Unstable,
    };
    let read = Operation::Read { state: StateId(1), extents: ExtentList::one(0, (2 << 20) + 1) };
    request(&[half.clone(), read.clone()]);
    let mut bytes = vec![];
    let limit = Err(DecodeError::Limit("data"));
    assert_eq!(encode_request(&HEAD, &[half.clone(), half], &mut bytes), limit);
    assert_eq!(encode_request(&HEAD, &[read.clone(), read], &mut bytes), limit);
}

#[test]
fn chains_have_one_to_sixteen_operations() {
    let mut bytes = vec![];
    let null = vec![Operation::Null; 17];
    assert_eq!(encode_request(&HEAD, &[], &mut bytes), Err(DecodeError::Value("chain")));
    assert_eq!(encode_request(&HEAD, &null, &mut bytes), Err(DecodeError::Limit("chain")));
    let mut bytes = request(&null[..16]);
    assert_eq!(decode_request(&bytes).unwrap().operations.len(), 16);
    bytes[2] = 17;
    assert_eq!(decode_request(&bytes), Err(DecodeError::Limit("chain")));
    bytes[2] = 0;
    assert_eq!(decode_request(&bytes), Err(DecodeError::Value("chain")));
}

#[test]
fn a_request_that_is_too_long_is_not_sent() {
    let path = [b'x'; PATH_BYTES_MAX];
    let lookup = Operation::Lookup { dir: FileHandle([1; 64]), path: &path, no_follow: false };
    request(std::slice::from_ref(&lookup));
    let mut bytes = vec![];
    let error = encode_request(&HEAD, &[lookup.clone(), lookup], &mut bytes);
    assert_eq!((error, bytes.len()), (Err(DecodeError::Limit("request")), 0));
    assert_eq!(decode_request(&[0; 1025]), Err(DecodeError::Limit("request")));
}

#[test]
fn operations_of_other_versions_are_told_apart() {
    let bytes = request(&[Operation::Null]);
    let used = |number| opcode::ALL.iter().any(|e| e.number == number && !e.reserved);
    for number in (0..=u16::MAX).filter(|number| !used(*number)) {
        let mut bytes = bytes.clone();
        bytes[12..14].copy_from_slice(&number.to_le_bytes());
        bytes[14] = 3;
        assert_eq!(decode_request(&bytes), Err(DecodeError::Short));
        bytes.extend_from_slice(b"new");
        let decoded = decode_request(&bytes).unwrap();
        let unknown = Operation::Unknown { opcode: number, body: b"new" };
        assert_eq!(decoded.operations.as_slice(), [unknown]);
    }
}

/// Kind, operation, length, body.
fn trailer(operation: u16, body: &[u8]) -> Vec<u8> {
    let len = u16::try_from(body.len()).unwrap();
    let head = [77, operation, len].map(u16::to_le_bytes);
    [head.as_flattened(), body].concat()
}

#[test]
fn trailers_of_other_versions_are_left_out() {
    let (asked, answered) = (request(&[Operation::Null]), reply(vec![Ok(Outcome::Done)]));
    let more = [trailer(0, b"a reference"), trailer(0, b"")].concat();
    let with = |bytes: &[u8], more: &[u8]| [bytes, more].concat();
    let longer = with(&asked, &more);
    let plain = decode_request(&asked).unwrap();
    let request = decode_request(&longer).unwrap();
    assert_eq!((request.head, &request.operations), (plain.head, &plain.operations));
    // Not the same request again.
    assert_ne!(request.hash, plain.hash);
    let plain = decode_reply(&answered).unwrap();
    assert_eq!(decode_reply(&with(&answered, &more)).unwrap(), plain);
    for bad in [&trailer(1, b"of nothing")[..], &more[..7], &more[..more.len() - 1]] {
        assert!(decode_request(&with(&asked, bad)).is_err());
        assert!(decode_reply(&with(&answered, bad)).is_err());
    }
}

#[test]
fn the_hash_covers_operations_and_credential_but_not_the_slot() {
    let of = |head: RequestHead, operation: Operation<'_>| {
        let mut bytes = vec![];
        encode_request(&head, &[operation], &mut bytes).unwrap();
        decode_request(&bytes).unwrap().hash
    };
    let close = |state| Operation::Close { state: StateId(state) };
    let one = of(HEAD, close(1));
    assert_eq!(one, of(RequestHead { slot: SlotId(9), sequence: 1, ..HEAD }, close(1)));
    assert_ne!(one, of(HEAD, close(2)));
    assert_ne!(one, of(RequestHead { cred: CredHandle(1), ..HEAD }, close(1)));
}

fn hello(version: u32, oldest: u32) -> SetupRequest {
    SetupRequest::Hello {
        version,
        oldest,
        features: Features(1 << 63),
        attempt: 3,
        nonce: [0; 32],
        class: SizeClass::Any,
        keyed: false,
        purpose: Purpose::Bind { session: SessionId([1; 16]), secret: [2; 16] },
    }
}

fn setup_bytes(request: &SetupRequest) -> Vec<u8> {
    let mut bytes = vec![];
    encode_setup_request(request, &mut bytes);
    bytes
}

#[test]
fn a_hello_of_another_version_is_told_apart() {
    let newer = hello(9, PROTOCOL_VERSION);
    let mut bytes = setup_bytes(&newer);
    assert_eq!(decode_setup_request(&bytes), Ok(newer));
    bytes.push(1);
    assert_eq!(decode_setup_request(&bytes), Err(DecodeError::Version(9)));
    // As version 5 had it, which began alike.
    let older = &setup_bytes(&hello(5, 5))[..60];
    assert_eq!(decode_setup_request(older), Err(DecodeError::Version(5)));
    let upside_down = setup_bytes(&hello(PROTOCOL_VERSION, PROTOCOL_VERSION + 1));
    assert_eq!(decode_setup_request(&upside_down), Err(DecodeError::Value("oldest version")));
}

#[test]
fn options_of_other_versions_are_left_out_unless_they_must_be_understood() {
    let option = |kind: u16| [&kind.to_le_bytes()[..], &[2, 0, 7, 7]].concat();
    let ours = hello(PROTOCOL_VERSION, PROTOCOL_VERSION);
    let bytes = setup_bytes(&ours);
    assert_eq!(decode_setup_request(&[&bytes[..], &option(77)].concat()), Ok(ours));
    let critical = [&bytes[..], &option(77), &option(0x8001)].concat();
    assert!(decode_setup_request(&critical).is_err());
    let mut bytes = vec![];
    let refused =
        SetupReply::Refused { status: Status::Delay, text: "not now".into(), proof: None };
    encode_setup_reply(&refused, &mut bytes);
    // Before the proof: the length of the options, and its flag.
    let with = |option: &[u8]| {
        let mut longer = bytes.clone();
        let at = longer.len() - 3;
        longer[at] += u8::try_from(option.len()).unwrap();
        longer.splice(at + 2..at + 2, option.iter().copied());
        longer
    };
    assert_eq!(decode_setup_reply(&with(&option(77))), Ok(refused));
    assert!(decode_setup_reply(&with(&option(0x8001))).is_err());
}

#[test]
fn attributes_of_later_versions_are_left_out() {
    let mut r = Random(9);
    let mut replies = std::iter::repeat_with(|| generate::setup_reply(&mut r));
    let ready = replies.find(|reply| matches!(reply, SetupReply::Ready { .. })).unwrap();
    let mut bytes = vec![];
    encode_setup_reply(&ready, &mut bytes);
    // Before the attributes: magic, kind, version, features, session, secret.
    let at = 4 + 2 + 4 + 8 + 16 + 16;
    let len = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    bytes[at..at + 2].copy_from_slice(&(len + 3).to_le_bytes());
    let end = at + 2 + usize::from(len);
    bytes[end - 1] |= 0x80;
    bytes.splice(end..end, [1, 2, 3]);
    assert_eq!(decode_setup_reply(&bytes), Ok(ready));
}

#[test]
fn what_a_server_says_cannot_command_a_terminal() {
    let text = format!("\x1b[31m{}", "ö".repeat(300));
    let mut bytes = vec![];
    let refused = SetupReply::Refused { status: Status::Version, text, proof: None };
    encode_setup_reply(&refused, &mut bytes);
    let Ok(SetupReply::Refused { text, .. }) = decode_setup_reply(&bytes) else { panic!() };
    assert!(text.starts_with(" [31mö") && text.len() <= 200);
    bytes[11] = 0x1b;
    assert_eq!(decode_setup_reply(&bytes), Err(DecodeError::Value("text")));
}

/// The chapter of the book is written by hand; its lists of numbers must not go stale.
#[test]
fn the_documentation_has_all_numbers() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.md");
    let text = std::fs::read_to_string(path).unwrap();
    for entry in opcode::ALL {
        let row = format!("| {} | {} |", entry.number, entry.name);
        let found = if entry.reserved { entry.name } else { &row };
        assert!(text.contains(found), "{}", entry.name);
    }
    let outcomes = text.split("Outcomes:").nth(1).and_then(|rest| rest.split("\n\n**").next());
    for outcome in 1..=opcode::outcome::LAST {
        let row = format!("\n| {outcome} | ");
        assert!(outcomes.is_some_and(|table| table.contains(&row)), "outcome {outcome}");
    }
    assert_eq!(OUTCOMES, u64::from(opcode::outcome::LAST));
    for status in Status::ALL {
        assert!(text.contains(&format!("| {} | {status:?} |", status.code())), "{status:?}");
        assert!(text.contains(status.text()), "{status:?}");
    }
}

#[test]
fn every_callback_survives() {
    let mut r = Random(11);
    for _ in 0..500 {
        let callback = CallbackRequest { slot: SlotId(r.below(4) as u16), ..r.callback() };
        let mut bytes = vec![];
        encode_callback(&callback, &mut bytes);
        assert_eq!(decode_callback(&bytes).unwrap(), callback);
        no_prefix(&bytes, decode_callback);
        let result = if r.bool() { Ok(()) } else { Err(r.status()) };
        let reply = CallbackReply { slot: callback.slot, sequence: r.u32(), result };
        let mut bytes = vec![];
        encode_callback_reply(&reply, &mut bytes);
        assert_eq!(decode_callback_reply(&bytes).unwrap(), reply);
        no_prefix(&bytes, decode_callback_reply);
    }
}

#[test]
fn a_callback_slot_that_is_not_there_is_refused() {
    let callback = CallbackRequest {
        slot: SlotId(CALLBACK_SLOTS),
        sequence: 1,
        referring: None,
        what: Callback::Null,
    };
    let mut bytes = vec![];
    encode_callback(&callback, &mut bytes);
    assert_eq!(decode_callback(&bytes), Err(DecodeError::Value("slot")));
}

#[test]
fn file_extents_survive_and_are_in_order() {
    let one = |offset, len| FileExtent { offset, len, unwritten: true, shared: false };
    let mut bytes = vec![];
    encode_file_extent(&one(4096, 8192), &mut bytes);
    encode_file_extent(&one(1 << 40, 1), &mut bytes);
    assert_eq!(decode_file_extents(&bytes).unwrap(), [one(4096, 8192), one(1 << 40, 1)]);
    encode_file_extent(&one(0, 1), &mut bytes);
    assert!(decode_file_extents(&bytes).is_err());
}

#[test]
fn cached_ranges_survive_and_are_in_order() {
    let one = |offset, len| CachedRange { offset, len, dirty: offset > 5000 };
    let mut bytes = vec![];
    encode_cached_range(&one(4096, 8192), &mut bytes);
    encode_cached_range(&one(1 << 40, 1), &mut bytes);
    assert_eq!(decode_cached_ranges(&bytes).unwrap(), [one(4096, 8192), one(1 << 40, 1)]);
    for wrong in [one(0, 1), one((1 << 40) + 1, 0), one(u64::MAX, 2)] {
        let mut bytes = bytes.clone();
        encode_cached_range(&wrong, &mut bytes);
        assert!(decode_cached_ranges(&bytes).is_err(), "{wrong:?}");
    }
    assert!(decode_cached_ranges(&bytes[..33]).is_err());
}
