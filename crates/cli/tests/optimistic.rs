//! Reads without the server: of what is cached, as the server would have answered, and of nothing else.

mod common;

use std::collections::HashSet;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use common::cached::{BYTES, Dice, PAGE, contents, open, read, serving};
use common::{Server, dafs_as, good, is_root, open_url, text};
use dafs_client::{File, OpenOptions, Session};

const PATIENCE: Duration = Duration::from_secs(60);

fn hits(session: &Session) -> u64 {
    session.info().optimistic.hits
}

/// Reads all of the file in small pieces until that needs no server.
fn warm(session: &Session, file: &File, bytes: usize) {
    let start = Instant::now();
    loop {
        let before = hits(session);
        let pieces = bytes.div_ceil(16 * PAGE);
        (0..pieces).for_each(|piece| drop(read(file, piece * 16 * PAGE, 16 * PAGE)));
        if hits(session) - before == pieces as u64 {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "never without the server: {:?}", session.info());
    }
}

#[test]
fn what_is_cached_is_read_without_a_message() {
    let server = serving(&[]);
    let (session, file) = open(&server, "transport=shm");
    warm(&session, &file, BYTES);
    let (all, mut dice) = (contents(), Dice(1));
    let (before, had) = (session.info(), hits(&session));
    for _ in 0..2000 {
        let (at, len) = (dice.below(BYTES), 1 + dice.below(64 << 10));
        let expected = &all[at..(at + len).min(BYTES)];
        assert!(read(&file, at, len) == expected, "{len} at {at}");
    }
    let after = session.info();
    // Of a block behind the end nobody knows: those reads ask.
    assert!(hits(&session) - had >= 1950, "{after:?}");
    assert!(after.round_trips - before.round_trips <= 100, "{after:?}");
    // A large one asks.
    assert!(read(&file, 5, BYTES) == all[5..]);
    assert!(session.info().round_trips > after.round_trips);
}

#[test]
fn it_can_be_switched_off_at_either_end() {
    let on = serving(&[]);
    let off = serving(&["--optimistic", "off"]);
    let cases = [(&on, "optimistic=off"), (&off, "transport=shm"), (&on, "transport=tcp")];
    for (server, options) in cases {
        let (session, file) = open(server, options);
        for at in (0..100).map(|at| at % 10 * PAGE) {
            assert!(read(&file, at, PAGE) == contents()[at..at + PAGE]);
        }
        let info = session.info();
        assert_eq!(info.optimistic.hits, 0, "{options}: {info:?}");
        assert!(info.optimistic.asked <= 1, "{options}: {info:?}");
    }
}

/// Whatever ends the meaning of a block, by another client, was acknowledged before the next read begins.
#[test]
fn a_read_sees_all_that_was_acknowledged() {
    let server = serving(&[]);
    let (session, reader) = open(&server, "transport=shm");
    let (other, writer) = open(&server, "transport=tcp");
    let mut model = contents().to_vec();
    warm(&session, &reader, BYTES);
    let mut dice = Dice(7);
    for step in 0..1500u32 {
        let at = dice.below(model.len().max(1));
        let len = 1 + dice.below(3 * PAGE);
        match dice.below(12) {
            0..=4 => {
                let end = (at + len).max(model.len());
                model.resize(end, 0);
                model[at..at + len].fill(step as u8);
                writer.write_at(&vec![step as u8; len], at as u64).expect("written");
            }
            5 => {
                model.extend(vec![step as u8; len]);
                writer.append(&vec![step as u8; len]).expect("appended");
            }
            6 => {
                let size = model.len().saturating_sub(dice.below(5 * PAGE));
                model.truncate(size);
                writer.set_len(size as u64).expect("cut");
            }
            7 => {
                model.resize(model.len() + len, 0);
                writer.set_len(model.len() as u64).expect("grown");
            }
            8 => {
                let end = (at + len).min(model.len());
                model[at..end].fill(0);
                // A hole.
                writer.fallocate(3, at as u64, (end - at).max(1) as u64).expect("punched");
            }
            9 => {
                let (len, to) = (len.min(model.len() - at), dice.below(model.len()));
                let len = len.min(to.abs_diff(at)).min(model.len() - to);
                if len > 0 {
                    model.copy_within(at..at + len, to);
                    let copied = writer.copy_range(at as u64, &writer, to as u64, len as u64);
                    assert_eq!(copied.expect("copied"), len as u64);
                }
            }
            10 => drop(writer.flush()),
            _ if dice.below(8) == 0 => {
                writer.flush().expect("flushed");
                writer.advise(0, 0, dafs_client::Advice::DontNeed).expect("dropped");
            }
            _ => {}
        }
        for _ in 0..4 {
            let near = at.saturating_sub(dice.below(2 * PAGE)) + dice.below(PAGE);
            let len = 1 + dice.below(4 * PAGE);
            let expected = model.get(near..(near + len).min(model.len())).unwrap_or(&[]);
            assert!(read(&reader, near, len) == expected, "step {step}: {len} at {near}");
        }
    }
    assert!(hits(&session) > 500, "{:?}", session.info());
    drop(other);
}

/// A block of a file that is gone is not taken for one of its successor, also under the same name and number.
#[test]
fn a_file_that_replaces_another_is_itself() {
    let server = serving(&[]);
    let (session, first) = open(&server, "transport=shm");
    let (other, _) = open(&server, "transport=tcp");
    for round in 0..20u8 {
        let options = OpenOptions { write: true, create: true, ..OpenOptions::read() };
        let file = other.open(b"new", options).expect("made");
        file.write_at(&vec![round; 64 * PAGE], 0).expect("written");
        file.close().expect("closed");
        let mine = session.open(b"new", OpenOptions::read()).expect("opens");
        warm(&session, &mine, 64 * PAGE);
        match round % 2 {
            0 => other.rename(b"new", b"file").expect("renamed"),
            _ => other.remove(b"new").expect("removed"),
        }
        let before = hits(&session);
        assert_eq!(read(&mine, 3 * PAGE, PAGE), vec![round; PAGE], "still open");
        assert!(hits(&session) > before || round % 2 == 1, "its pages went with its name only");
    }
    assert!(read(&first, 0, PAGE) == contents()[..PAGE], "the first one, which is open");
}

#[test]
fn nothing_is_read_behind_a_close() {
    let server = serving(&[]);
    let (session, file) = open(&server, "transport=shm");
    warm(&session, &file, BYTES);
    let (clone, mut into) = (file.clone(), vec![0; PAGE]);
    file.close().expect("closed");
    assert!(clone.read_at(&mut into, 0).is_err(), "of a closed file");
    let again = session.open(b"file", OpenOptions::read()).expect("opens");
    warm(&session, &again, BYTES);
    session.clone().close();
    assert!(again.read_at(&mut into, 0).is_err(), "of a closed session");
}

/// The memory of a dead server stays mapped, and says nothing any more.
#[test]
fn a_server_that_died_is_believed_nothing() {
    let mut server = serving(&[]);
    let (session, file) = open(&server, "transport=shm");
    for round in 0..6u8 {
        warm(&session, &file, BYTES);
        let local = std::fs::File::options().write(true).open(server.file("file")).expect("opens");
        match round % 2 {
            0 => server.crash_and_restart(),
            _ => server.restart(),
        }
        local.write_all_at(&vec![round; 3 * PAGE], 0).expect("written");
        // Before the client has noticed anything.
        let (other, theirs) = open(&server, "transport=tcp");
        theirs.write_at(&vec![0x40 | round; PAGE], 5 * PAGE as u64).expect("written");
        assert_eq!(read(&file, 5 * PAGE, PAGE), vec![0x40 | round; PAGE], "round {round}");
        assert_eq!(read(&file, 0, 3 * PAGE), vec![round; 3 * PAGE], "round {round}");
        drop(other);
    }
}

/// Files in memory that a process maps, in this way.
fn memory_files(process: &str, how: &str) -> HashSet<u64> {
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).expect("mappings");
    let inode = |line: &str| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let is_so = words.next()?.starts_with(how) && line.contains("/memfd:dafs");
        words.nth(2)?.parse().ok().filter(|_| is_so)
    };
    maps.lines().filter_map(inode).collect()
}

/// It is a part of the machine's memory, which the next server needs: also who reads nothing lets it go.
#[test]
fn the_cache_of_a_dead_server_stays_mapped_nowhere() {
    let mut server = serving(&[]);
    let (session, file) = open(&server, "transport=shm");
    warm(&session, &file, BYTES);
    let theirs = memory_files(&server.child.id().to_string(), "");
    let of_dead = || memory_files("self", "r--s").intersection(&theirs).count();
    assert!(of_dead() >= 2, "the cache, and its entries");
    // Nobody calls for so long that the keeper has begun to listen.
    std::thread::sleep(Duration::from_millis(500));
    server.crash_and_restart();
    let start = Instant::now();
    while of_dead() > 0 {
        assert!(start.elapsed() < PATIENCE, "{} are still mapped", of_dead());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(read(&file, PAGE, 5) == contents()[PAGE..PAGE + 5]);
}

/// Its pages are replaced by others under its eyes.
#[test]
fn a_cache_that_is_too_small_gives_what_it_has() {
    let server = Server::start(&["--arena", "16m"]);
    let all: Vec<u8> = contents().repeat(5);
    std::fs::write(server.file("file"), &all).expect("written");
    let (session, file) = open(&server, "transport=shm");
    let mut dice = Dice(3);
    for _ in 0..6000 {
        // One part is hot.
        let most = if dice.below(4) == 0 { all.len() } else { 2 << 20 };
        let (at, len) = (dice.below(most), 1 + dice.below(2 * PAGE));
        assert!(read(&file, at, len) == all[at..(at + len).min(all.len())], "{len} at {at}");
    }
    let seen = session.info().optimistic;
    assert!(seen.hits > 500 && seen.unknown + seen.stale > 500, "{seen:?}");
    // Questions are few.
    assert!(seen.asked < (seen.unknown + seen.stale) / 4, "{seen:?}");
    let told = good(&["status", "--json", &server.url]);
    let told: serde_json::Value = serde_json::from_str(&told).expect("an object");
    assert!(told["counters"]["references_told"].as_u64() > Some(0));
}

/// The server never hears of these reads, and keeps what they use.
#[test]
fn what_is_hot_stays_beside_a_scan() {
    const HOT: usize = BYTES / 2;
    let server = Server::start(&["--arena", "16m"]);
    std::fs::write(server.file("file"), contents()).expect("written");
    std::fs::write(server.file("large"), contents().repeat(12)).expect("written");
    let (session, file) = open(&server, "transport=shm");
    let (_other, large) = open_url(&server.at("large?transport=tcp"));
    warm(&session, &file, HOT);
    let before = session.info().optimistic;
    let mut dice = Dice(5);
    for piece in 0..12 * BYTES / (32 * PAGE) {
        for _ in 0..64 {
            let at = dice.below(HOT / PAGE) * PAGE;
            assert!(read(&file, at, PAGE) == contents()[at..at + PAGE]);
        }
        read(&large, piece * 32 * PAGE, 32 * PAGE);
    }
    let after = session.info().optimistic;
    let (hits, missed) =
        (after.hits - before.hits, after.unknown + after.stale - before.unknown - before.stale);
    assert!(missed * 200 < hits, "{missed} of {} went", hits + missed);
}

#[test]
fn explain_says_how_reads_go_and_why() {
    let on = serving(&[]);
    let off = serving(&["--optimistic", "off"]);
    let explain = |server: &Server, options: &str| -> serde_json::Value {
        let told = good(&["explain", "--json", &server.at(&format!("file?{options}"))]);
        serde_json::from_str(&told).expect("an object")
    };
    good(&["cat", &on.at("file")]);
    let told = explain(&on, "");
    assert_eq!((&told["transport"], &told["optimistic"]), (&"shm".into(), &true.into()), "{told}");
    assert_eq!(
        (told["size"].as_u64(), told["cached_bytes"].as_u64()),
        (Some(8 << 20), Some(8 << 20))
    );
    for (server, options, why) in [
        (&on, "transport=tcp", "shared memory"),
        (&on, "optimistic=off", "optimistic=off"),
        (&off, "", "--optimistic off"),
    ] {
        let told = explain(server, options);
        assert_eq!(told["optimistic"], false, "{told}");
        let said = told["why_not_optimistic"].as_str().expect("why");
        assert!(said.contains(why), "{said}");
    }
    let said = good(&["explain", &on.at("file")]);
    assert!(said.contains("8.0M in its cache") && said.contains("without the server"), "{said}");
    // Another user may map what is shared, or what everybody may open, and nothing else.
    if is_root() {
        let shared = serving(&["--share-cache"]);
        let roots = serving(&["--optimistic-scope", "root"]);
        for (server, is_told) in [(&shared, true), (&on, true), (&roots, false)] {
            let output = dafs_as(65_534, &["explain", "--json", &server.at("file")]);
            let told = text(&output.stdout);
            let told: serde_json::Value = serde_json::from_str(&told).expect("an object");
            assert_eq!(told["optimistic"], is_told, "{told}");
        }
    }
}
