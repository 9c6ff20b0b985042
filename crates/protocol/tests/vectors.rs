//! Messages as they are on the wire, written down once: an end of today reads what one of another release
//! says, and says it in the same bytes. `vectors-6.txt` has a line for each: kind, bytes in hexadecimal, and
//! what they mean. Lines are added, for what is new; those that are there change with the version only.
//!
//! `cargo test -p dafs-protocol --test vectors -- --ignored` writes the file.

mod generate;

use std::fmt::{Debug, Write};

use dafs_protocol::*;
use generate::{OPERATIONS, OUTCOMES, Random};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors-6.txt");

/// What bytes of a kind mean, and the bytes that say it.
fn again(kind: &str, bytes: &[u8]) -> Result<(String, Vec<u8>), DecodeError> {
    let mut out = vec![];
    let meaning = match kind {
        "request" => {
            let request = decode_request(bytes)?;
            encode_request(&request.head, &request.operations, &mut out)?;
            let told = request.told.map_or_else(String::new, |told| {
                assert!(encode_told_reads(&told, &mut out));
                format!(" {told:?}")
            });
            format!("{:?} {:?}{told}", request.head, request.operations)
        }
        "reply" => said(decode_reply(bytes)?, |reply| encode_reply(reply, &mut out)),
        "setup-request" => {
            said(decode_setup_request(bytes)?, |request| encode_setup_request(request, &mut out))
        }
        "setup-reply" => {
            said(decode_setup_reply(bytes)?, |reply| encode_setup_reply(reply, &mut out))
        }
        "callback" => said(decode_callback(bytes)?, |request| encode_callback(request, &mut out)),
        "callback-reply" => {
            said(decode_callback_reply(bytes)?, |reply| encode_callback_reply(reply, &mut out))
        }
        "directory" => said(decode_dir_entries(bytes)?, |entries| {
            entries.iter().for_each(|entry| encode_dir_entry(entry, &mut out));
        }),
        other => panic!("unknown kind {other}"),
    };
    Ok((meaning, out))
}

fn said<M: Debug>(message: M, encode: impl FnOnce(&M)) -> String {
    encode(&message);
    format!("{message:?}")
}

#[test]
fn messages_of_this_version_stay_as_they_are() {
    let file = std::fs::read_to_string(PATH).expect("vectors");
    let mut kinds = std::collections::BTreeMap::<&str, usize>::new();
    for line in file.lines() {
        let [kind, hex, meaning]: [&str; 3] =
            line.splitn(3, ' ').collect::<Vec<_>>().try_into().expect("three fields");
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
        let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        let (read, written) = again(kind, &bytes).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!((read.as_str(), written), (meaning, bytes));
        *kinds.entry(kind).or_default() += 1;
    }
    let operations = usize::try_from(OPERATIONS).expect("few");
    let outcomes = usize::try_from(OUTCOMES).expect("few");
    assert!(kinds["request"] >= operations && kinds["reply"] >= outcomes, "{kinds:?}");
    assert_eq!(kinds.len(), 7, "{kinds:?}");
}

#[test]
#[ignore = "writes the vectors: see the head of this file"]
fn write_vectors() {
    let mut r = Random(6);
    let mut file = String::new();
    let mut line = |kind: &str, bytes: Vec<u8>| {
        let (meaning, written) = again(kind, &bytes).expect("well-formed");
        assert_eq!(written, bytes);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(file, "{kind} {hex} {meaning}").expect("a string");
    };
    let encoded = |encode: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = vec![];
        encode(&mut bytes);
        bytes
    };
    for which in 0..OPERATIONS {
        let names = generate::names(&mut r);
        let operation = generate::operation(which, &mut r, &names);
        let head = r.head();
        line(
            "request",
            encoded(&|out| {
                encode_request(&head, std::slice::from_ref(&operation), out).expect("well-formed")
            }),
        );
    }
    for which in 0..OUTCOMES {
        let (slot, sequence) = (SlotId(r.below(64) as u16), r.u32());
        let results = Ok(vec![Ok(Outcome::Done), Ok(generate::outcome(which, &mut r))]);
        let reply = Reply { slot, sequence, results };
        line("reply", encoded(&|out| encode_reply(&reply, out)));
    }
    for results in [Ok(vec![Err(r.status())]), Err(r.status())] {
        let reply = Reply { slot: SlotId(1), sequence: r.u32(), results };
        line("reply", encoded(&|out| encode_reply(&reply, out)));
    }
    for _ in 0..6 {
        let (request, reply) = (generate::setup_request(&mut r), generate::setup_reply(&mut r));
        line("setup-request", encoded(&|out| encode_setup_request(&request, out)));
        line("setup-reply", encoded(&|out| encode_setup_reply(&reply, out)));
    }
    for _ in 0..4 {
        let (mut callback, entries) = (r.callback(), [r.entry(), r.entry()]);
        callback.slot.0 %= CALLBACK_SLOTS;
        line("callback", encoded(&|out| encode_callback(&callback, out)));
        let reply =
            CallbackReply { slot: callback.slot, sequence: callback.sequence, result: Ok(()) };
        line("callback-reply", encoded(&|out| encode_callback_reply(&reply, out)));
        line("directory", encoded(&|out| entries.iter().for_each(|e| encode_dir_entry(e, out))));
    }
    let told = ToldReads { hits: 1 << 40, unknown: 7, stale: u64::MAX };
    line(
        "request",
        encoded(&|out| {
            let head = RequestHead { slot: SlotId(5), sequence: 9, cred: CredHandle(0) };
            encode_request(&head, &[Operation::Null], out).expect("well-formed");
            assert!(encode_told_reads(&told, out));
        }),
    );
    std::fs::write(PATH, file).expect("write");
}
