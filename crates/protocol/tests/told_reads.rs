//! What clients tell of their own reads, with a request.

use dafs_protocol::*;

const HEAD: RequestHead = RequestHead { slot: SlotId(3), sequence: 7, cred: CredHandle(0) };

fn telling(told: &ToldReads) -> Vec<u8> {
    let mut bytes = vec![];
    encode_request(&HEAD, &[Operation::Null], &mut bytes).expect("short");
    assert!(encode_told_reads(told, &mut bytes));
    bytes
}

#[test]
fn what_is_told_comes_with_a_request_and_changes_nothing_of_it() {
    for fields in [[0; 3], [1, 2, 3], [u64::MAX, 0, u64::MAX]] {
        let told = ToldReads::of_fields(fields);
        assert_eq!(told.fields(), fields);
        let request = telling(&told);
        let decoded = decode_request(&request).expect("well-formed");
        assert_eq!((decoded.head, decoded.told), (HEAD, Some(told)));
        assert_eq!(decoded.operations.as_slice(), [Operation::Null]);
    }
    let mut bytes = vec![];
    encode_request(&HEAD, &[Operation::Null], &mut bytes).expect("short");
    assert_eq!(decode_request(&bytes).expect("well-formed").told, None);
}

#[test]
fn what_is_told_has_one_length_and_is_of_an_operation() {
    let good = telling(&ToldReads { hits: 5, unknown: 6, stale: 7 });
    let before = good.len() - 30;
    // Cut anywhere but before it; then with lengths that are said to be others.
    for end in before + 1..good.len() {
        assert!(decode_request(&good[..end]).is_err(), "{end}");
    }
    for len in [0u16, 8, 23, 25, u16::MAX] {
        let mut bad = good.clone();
        bad[before + 4..before + 6].copy_from_slice(&len.to_le_bytes());
        bad.resize(before + 6 + usize::from(len).min(100), 0);
        assert!(decode_request(&bad).is_err(), "{len}");
    }
    let mut bad = good.clone();
    bad[before + 2] = 1;
    assert_eq!(decode_request(&bad), Err(DecodeError::Value("trailer")));
    // A reply has none; there it is as any other that is not known.
    let mut reply = vec![];
    let done = Reply { slot: SlotId(3), sequence: 7, results: Ok(vec![Ok(Outcome::Done)]) };
    encode_reply(&done, &mut reply);
    assert_eq!(decode_reply(&[&reply, &good[before..]].concat()), Ok(done));
}

#[test]
fn a_request_without_room_is_sent_without() {
    let path = [b'x'; 640];
    let lookup = Operation::Lookup { dir: FileHandle::default(), path: &path, no_follow: false };
    let mut bytes = vec![];
    encode_request(&HEAD, &[lookup], &mut bytes).expect("one fits");
    bytes.resize(HEADER_BYTES_MAX - 29, 0);
    let before = bytes.clone();
    assert!(!encode_told_reads(&ToldReads::default(), &mut bytes));
    assert_eq!(bytes, before);
    bytes.truncate(HEADER_BYTES_MAX - 30);
    assert!(encode_told_reads(&ToldReads::default(), &mut bytes));
    assert_eq!(bytes.len(), HEADER_BYTES_MAX);
}

#[test]
fn fewer_than_before_are_nothing_new() {
    let before = ToldReads { hits: 10, unknown: u64::MAX, stale: 3 };
    let now = ToldReads { hits: 12, unknown: 0, stale: 3 };
    assert_eq!(now.since(&before), ToldReads { hits: 2, unknown: 0, stale: 0 });
}
