//! Reads over TCP by a reference that the server checks (`--optimistic checked`): as a request would be answered.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::cached::{BYTES, Dice, PAGE, contents, open, read, serving};
use common::{Server, good};
use dafs_client::{File, OpenOptions, Session};

#[test]
fn what_is_cached_is_read_without_a_request() {
    let server = serving(&["--optimistic", "checked"]);
    for options in ["transport=tcp", "transport=tcp&local=off", "transport=tcp&tags=off"] {
        let (session, file) = open(&server, options);
        assert!(read(&file, 0, BYTES) == contents());
        (0..4).for_each(|_| drop(read(&file, 0, PAGE)));
        let (all, mut dice) = (contents(), Dice(1));
        let before = session.info();
        for _ in 0..2000 {
            let (at, len) = (dice.below(BYTES), 1 + dice.below(64 << 10));
            let expected = &all[at..(at + len).min(BYTES)];
            assert!(read(&file, at, len) == expected, "{len} at {at}, {options}");
        }
        let after = session.info();
        let hits = after.optimistic.hits - before.optimistic.hits;
        assert!(hits >= 1990, "{options}: {:?}", after.optimistic);
        assert!(after.round_trips - before.round_trips <= 10, "{options}: {after:?}");
        assert_eq!(read(&file, BYTES, 100), b"");
    }
}

#[test]
fn it_is_not_done_where_one_end_does_without() {
    let [checked, usual, off] =
        [&["--optimistic", "checked"][..], &[], &["--optimistic", "off"]].map(serving);
    let cases = [
        (&checked, "optimistic=off&transport=tcp"),
        (&usual, "transport=tcp"),
        (&off, "transport=tcp"),
    ];
    for (server, options) in cases {
        let (session, file) = open(server, options);
        for at in (0..100).map(|at| at % 10 * PAGE) {
            assert!(read(&file, at, PAGE) == contents()[at..at + PAGE]);
        }
        let told = session.info().optimistic;
        assert_eq!((told.hits, told.asked), (0, 0), "{options}");
    }
    let explain = |server: &Server, options: &str| -> serde_json::Value {
        let told = good(&["explain", "--json", &server.at(&format!("file?{options}"))]);
        serde_json::from_str(&told).expect("an object")
    };
    let told = explain(&checked, "transport=tcp");
    assert_eq!((&told["optimistic"], &told["optimistic_mode"]), (&true.into(), &"checked".into()));
    let said = good(&["explain", &checked.at("file?transport=tcp")]);
    assert!(said.contains("without a request"), "{said}");
    assert_eq!(explain(&usual, "transport=tcp")["optimistic"], false);
    // Nobody is told of places.
    assert_eq!(explain(&checked, "transport=shm")["optimistic"], false);
}

/// Versions are written, acknowledged, and only then expected of reads that begin later; blocks are never torn.
#[test]
fn a_storm_of_writers_tears_nothing() {
    const BLOCKS: usize = 16;
    let server = serving(&["--optimistic", "both"]);
    let done = AtomicBool::new(false);
    let acknowledged: Vec<AtomicU64> = (0..BLOCKS).map(|_| AtomicU64::new(0)).collect();
    let (session, writer) = open_url_to_write(&server);
    for block in 0..BLOCKS {
        writer.write_at(&[0; PAGE], (block * PAGE) as u64).expect("written");
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut dice = Dice(3);
            for version in 1..3000_u64 {
                let block = dice.below(BLOCKS);
                let bytes = version.to_le_bytes().repeat(PAGE / 8);
                writer.write_at(&bytes, (block * PAGE) as u64).expect("written");
                acknowledged[block].store(version, Ordering::SeqCst);
                if version % 500 == 0 {
                    writer.flush().expect("flushed");
                }
            }
            done.store(true, Ordering::SeqCst);
        });
        for seed in 0..2 {
            let (done, acknowledged, server) = (&done, &acknowledged, &server);
            scope.spawn(move || {
                let (session, file) = open(server, "transport=tcp");
                let mut dice = Dice(seed + 10);
                while !done.load(Ordering::SeqCst) {
                    let block = dice.below(BLOCKS);
                    let least = acknowledged[block].load(Ordering::SeqCst);
                    let got = read(&file, block * PAGE, PAGE);
                    let version = u64::from_le_bytes(*got.first_chunk().expect("eight bytes"));
                    assert!(version >= least, "{version} after {least} was acknowledged");
                    assert!(got == version.to_le_bytes().repeat(PAGE / 8), "torn");
                }
                assert!(session.info().optimistic.hits > 100, "{:?}", session.info().optimistic);
            });
        }
    });
    drop(session);
}

#[test]
fn reads_go_on_when_the_server_was_killed() {
    let options = &["--optimistic", "checked"];
    let mut server = serving(options);
    let (session, file) = open(&server, "transport=tcp");
    let mut dice = Dice(5);
    for _ in 0..4 {
        let before = session.info().optimistic.hits;
        for _ in 0..300 {
            let at = dice.below(BYTES / 16 / PAGE) * PAGE;
            assert!(read(&file, at, PAGE) == contents()[at..at + PAGE], "at {at}");
        }
        let told = session.info().optimistic;
        assert!(told.hits > before, "{told:?}");
        server.crash_and_restart_with(&[&["--arena", "64m"][..], options].concat());
    }
}

fn open_url_to_write(server: &Server) -> (Session, File) {
    let (session, _) = open(server, "transport=tcp&optimistic=off");
    let file = session.open(b"file", OpenOptions { read: true, ..OpenOptions::write() });
    (session, file.expect("open"))
}
