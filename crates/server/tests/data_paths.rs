//! Data paths beside the unifier: what is theirs alone. All else is in `operations.rs`.

mod raw;

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use dafs_fabric::sim::{SimConfig, SimNet};
use dafs_fabric_tcp::TcpProvider;
use dafs_protocol::{
    CacheHint, CommitLevel, Extent, ExtentList, OpenFlags, Operation, Outcome, Stability, StateId,
    Status,
};
use dafs_server::{Config, DataPath, Server, StartError};
use raw::{BOTH, MAKE, READ, Raw, Served};

const PAGED: [DataPath; 3] = [DataPath::Normal, DataPath::Mmap, DataPath::Sendfile];

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

fn append(raw: &mut Raw, state: StateId, data: &[u8]) -> u64 {
    let bytes = u32::try_from(data.len()).expect("short");
    let append = Operation::Append { state, bytes, stability: Stability::Unstable };
    match raw.chain(&[append], data).expect("append").0.as_slice() {
        [Outcome::Written { offset, .. }] => *offset,
        other => panic!("not written: {other:?}"),
    }
}

/// Bytes and whether the file ends there.
fn read(raw: &mut Raw, state: StateId, extents: ExtentList) -> (Vec<u8>, bool) {
    let read = Operation::Read { state, extents };
    let (outcomes, data) = raw.chain(&[read], b"").expect("read");
    match outcomes.as_slice() {
        [Outcome::Read { bytes, end_of_file }] => {
            assert_eq!(*bytes as usize, data.len());
            (data, *end_of_file)
        }
        other => panic!("not read: {other:?}"),
    }
}

#[test]
fn local_programs_and_clients_see_each_other_at_once() {
    for path in PAGED {
        let served = Served::on(path);
        let mut raw = Raw::connect(&served);
        let (_, state) = raw.open("f", MAKE, 0o644).expect("open");
        let data = pattern(300_000);
        raw.write(state, 0, &data).expect("write");
        // No close, no commit: it is there all the same.
        assert!(std::fs::read(served.path("f")).expect("read") == data, "{path}");
        let local = std::fs::OpenOptions::new().write(true).open(served.path("f")).expect("open");
        local.write_all_at(b"local", 100_000).expect("write");
        assert_eq!(
            raw.read(state, 99_999, 7).expect("read"),
            [&data[99_999..100_000], b"local", &data[100_005..100_006]].concat()
        );
        local.set_len(100_003).expect("cut");
        assert_eq!(raw.read(state, 100_000, 1 << 20).expect("read"), b"loc", "{path}");
        assert_eq!(read(&mut raw, state, ExtentList::one(100_003, 10)), (Vec::new(), true));
        local.set_len(3 << 30).expect("made longer than any map");
        local.write_all_at(b"far", (3 << 30) - 3).expect("write");
        let end = ExtentList::one((3 << 30) - 3, 10);
        assert_eq!(read(&mut raw, state, end), (b"far".to_vec(), true), "{path}");
        assert_eq!(read(&mut raw, state, ExtentList::one(200_000, 5)), (vec![0; 5], false));
    }
}

#[test]
fn a_read_that_ends_with_the_file_says_so() {
    for path in DataPath::ALL {
        let served = Served::on(path);
        let mut raw = Raw::connect(&served);
        std::fs::write(served.path("f"), pattern(70_000)).expect("write");
        let (_, state) = raw.open("f", READ, 0).expect("open");
        for (offset, len, ends) in [
            (0, 70_000, true),
            (0, 69_999, false),
            (69_999, 1, true),
            (0, 0, false),
            (70_000, 0, true),
            (u64::from(u32::MAX), 5, true),
        ] {
            let got = read(&mut raw, state, ExtentList::one(offset, len));
            assert_eq!(got.1, ends, "{path}: {len} at {offset}");
        }
        let far = ExtentList::one(i64::MAX as u64, 0);
        assert_eq!(read(&mut raw, state, far), (Vec::new(), true), "{path}");
    }
}

/// One byte of each 64 KiB: all pages, or buffers, that they are in are more than there is.
#[test]
fn a_chain_of_many_small_pieces_is_answered() {
    const STEP: u64 = 64 << 10;
    const PIECES: u64 = 1000;
    for path in DataPath::ALL {
        let served = Served::on(path);
        let file = std::fs::File::create(served.path("f")).expect("create");
        file.set_len(3 * PIECES * STEP).expect("long");
        for piece in 0..3 * PIECES {
            file.write_all_at(&[(piece % 251) as u8], piece * STEP).expect("write");
        }
        let mut raw = Raw::connect(&served);
        let (_, state) = raw.open("f", READ, 0).expect("open");
        let cache = CacheHint { unit: 64 << 10, ..CacheHint::default() };
        raw.one(Operation::Advise { state, offset: 0, len: 0, advice: 0, cache }).expect("advice");
        let read = |part: u64| {
            let offset = part * PIECES * STEP;
            let pieces = Extent { offset, len: 1, count: PIECES as u32, stride: STEP };
            let extents = ExtentList::new(&[pieces]).expect("one");
            Operation::Read { state, extents }
        };
        let (_, data) = raw.chain(&[read(0), read(1), read(2)], b"").expect("read");
        assert!(data == pattern(3 * PIECES as usize), "{path}");
        let extents = || ExtentList::one(0, 1 << 20);
        let large = || Operation::Read { state, extents: extents() };
        assert_eq!(raw.chain(&[large(), large()], b""), Err(Status::TooBig), "of one request");
    }
}

#[test]
fn appends_of_all_sessions_are_one_after_the_other() {
    for path in DataPath::ALL {
        let served = Served::on(path);
        let both = OpenFlags { append: true, ..MAKE };
        std::thread::scope(|scope| {
            for id in 1..=3u8 {
                let served = &served;
                scope.spawn(move || {
                    let mut raw = Raw::connect(served);
                    let (_, state) = raw.open("log", both, 0o644).expect("open");
                    for _ in 0..40 {
                        append(&mut raw, state, &[id; 1000]);
                    }
                    raw.one(Operation::Close { state }).expect("close");
                });
            }
        });
        let log = std::fs::read(served.path("log")).expect("read");
        assert_eq!(log.len(), 3 * 40 * 1000, "{path}");
        assert!(log.chunks(1000).all(|line| line.iter().all(|b| *b == line[0])), "{path}: torn");
    }
}

#[test]
fn what_is_appended_says_where() {
    for path in PAGED {
        let served = Served::on(path);
        let mut raw = Raw::connect(&served);
        let (_, state) = raw.open("log", OpenFlags { append: true, ..MAKE }, 0o644).expect("open");
        assert_eq!(append(&mut raw, state, b"one"), 0);
        let mut local =
            std::fs::OpenOptions::new().append(true).open(served.path("log")).expect("open");
        local.write_all(b"two").expect("write");
        assert_eq!(append(&mut raw, state, b"three"), 6, "{path}");
        assert_eq!(raw.write(state, 0, b"no"), Err(Status::Inval));
        assert_eq!(std::fs::read(served.path("log")).expect("read"), b"onetwothree");
    }
}

#[test]
fn commits_and_stable_writes_answer_one_verifier() {
    for path in PAGED {
        let served = Served::on(path);
        let mut raw = Raw::connect(&served);
        let (_, state) = raw.open("f", MAKE, 0o644).expect("open");
        let mut verifiers = Vec::new();
        for stability in [Stability::Unstable, Stability::Data, Stability::File] {
            let write = Operation::Write {
                state,
                extents: ExtentList::one(0, 3),
                stability,
                within: false,
            };
            match raw.chain(&[write], b"abc").expect("write").0.remove(0) {
                Outcome::Written { verifier, bytes: 3, .. } => verifiers.push(verifier),
                other => panic!("not written: {other:?}"),
            }
        }
        for level in [CommitLevel::Flush, CommitLevel::Data, CommitLevel::File] {
            match raw.one(Operation::Commit { state, offset: 0, len: 0, level }).expect("commit") {
                Outcome::Committed { verifier } => verifiers.push(verifier),
                other => panic!("not committed: {other:?}"),
            }
        }
        assert!(verifiers.iter().all(|verifier| *verifier == verifiers[0]), "{path}");
        let (_, reader) = raw.open("f", READ, 0).expect("open");
        assert_eq!(raw.write(reader, 0, b"no"), Err(Status::BadF));
        raw.open("f", BOTH, 0).expect("open");
    }
}

#[test]
fn one_directory_has_one_data_path() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(directory.path().join("inner")).expect("mkdir");
    let mut config = Config::for_directory(directory.path());
    config.listen = vec!["tcp://127.0.0.1:0".into()];
    config.state = Some(directory.path().join("state"));
    config.exports[0].name = "outer".into();
    let mut inner = config.exports[0].clone();
    (inner.name, inner.path) = ("inner".into(), directory.path().join("./inner"));
    config.exports.push(inner);
    Server::start(&config, Arc::new(TcpProvider::new()), &dafs_store_posix::open)
        .expect("one data path")
        .stop();
    config.exports[1].data_path = DataPath::Normal;
    let error = Server::start(&config, Arc::new(TcpProvider::new()), &dafs_store_posix::open)
        .err()
        .expect("two data paths");
    assert!(error.to_string().contains("another data path"), "{error}");
}

#[test]
fn a_transport_that_cannot_send_from_files_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let net = SimNet::new(SimConfig::new(1));
    for path in [DataPath::Mmap, DataPath::Sendfile] {
        let mut config = Config::for_directory(directory.path());
        config.exports[0].data_path = path;
        let error = Server::start(&config, Arc::new(net.provider(1)), &dafs_store_posix::open)
            .err()
            .expect("cannot");
        assert!(matches!(error, StartError::DataPath { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(path.name()) && text.contains("'sim'"), "{text}");
    }
}
