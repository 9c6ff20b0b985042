//! What the server's cache lends: as it was, for as long as it is held, whatever becomes of the session and the
//! server; and copied where it cannot be lent.

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Mounted, Server, good, open_url};
use dafs_client::{Lent, Session};
use dafs_protocol::Status;

const BYTES: usize = 8 << 20;
const PIECE: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

fn contents() -> Vec<u8> {
    (0..BYTES as u32 / 4).flat_map(|word| word.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect()
}

fn serving(arena: &str) -> Server {
    let server = Server::start(&["--arena", arena]);
    std::fs::write(server.file("file"), contents()).expect("written");
    File::open(server.file("file")).and_then(|file| file.sync_all()).expect("sync");
    cache(&server);
    server
}

/// Has all of the file cached.
fn cache(server: &Server) {
    good(&["cat", &server.at("file?transport=tcp")]);
}

fn open(server: &Server, transport: &str) -> (Session, dafs_client::File) {
    open_url(&server.at(&format!("file?transport={transport}")))
}

/// A number of the admin port.
fn number(server: &Server, key: &str) -> u64 {
    let shown = good(&["status", "--json", &server.url]);
    let status: serde_json::Value = serde_json::from_str(&shown).expect("an object");
    status["counters"][key].as_u64().unwrap_or_else(|| panic!("no {key} in {shown}"))
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
    }
}

fn bytes(lent: &Lent) -> Vec<u8> {
    lent.pieces().flatten().copied().collect()
}

#[test]
fn a_loan_is_what_was_there_when_it_was_made() {
    let server = serving("64m");
    let (_session, file) = open(&server, "shm");
    let at = 3 * PIECE / 2;
    let lent = file.lend(at as u64, 300_000).expect("lent");
    assert!(lent.is_mapped());
    let expected = &contents()[at..at + 300_000];
    assert!(bytes(&lent) == expected);
    // Others write there, and more than the cache takes comes by.
    let (_other, writer) = open(&server, "shm");
    writer.write_at(&vec![0xaa; BYTES], 0).expect("written");
    assert!(bytes(&lent) == expected);
    let again = file.lend(at as u64, 100).expect("lent");
    assert_eq!(bytes(&again), [0xaa; 100]);
    for round in 1..13 {
        writer.write_at(&vec![round; BYTES], u64::from(round) * BYTES as u64).expect("written");
    }
    assert!(bytes(&lent) == expected);
    assert_eq!(bytes(&again), [0xaa; 100]);
}

#[test]
fn the_end_of_the_file_and_large_ranges() {
    let server = serving("512m");
    let (_session, file) = open(&server, "shm");
    let all = contents();
    for (offset, len) in [(0, 100), (12_345, 3 * PIECE), (BYTES - 70_000, PIECE), (BYTES - 7, 9)] {
        let lent = file.lend(offset as u64, len).expect("lent");
        let expected = &all[offset..(offset + len).min(BYTES)];
        assert_eq!(lent.len(), expected.len());
        // Little goes with the answer.
        assert_eq!(lent.is_mapped(), expected.len() > 4096, "{len} bytes at {offset}");
        assert!(bytes(&lent) == expected, "{len} bytes at {offset}");
        let one = lent.as_slice();
        assert!(one.is_none_or(|one| one == expected), "{len} bytes at {offset}");
    }
    let whole = file.lend(0, 3 * BYTES).expect("lent");
    assert!(bytes(&whole) == all);
    assert!(file.lend(BYTES as u64 + 5, 100).expect("nothing").is_empty());
    assert!(file.lend(9, 0).expect("nothing").is_empty());
    // Beyond what an offset can be.
    for len in [9, 3 * PIECE] {
        let error = file.lend(u64::MAX - 3, len).expect_err("no such range");
        assert_eq!(error.status(), Some(Status::FBig), "{len} bytes");
        let error = file.read_or_lend(&mut vec![0; len], u64::MAX - 3).expect_err("no such range");
        assert_eq!(error.status(), Some(Status::FBig), "{len} bytes");
    }
}

#[test]
fn what_cannot_be_lent_is_copied() {
    let server = serving("256m");
    let (_session, file) = open(&server, "tcp");
    let lent = file.lend(5, PIECE).expect("copied");
    assert!(!lent.is_mapped() && bytes(&lent) == contents()[5..5 + PIECE]);
    // By one connection a 64th of the cache is lent at a time: four of these, where they touch no more of it than they
    // are, or three. A session has two.
    let (_session, file) = open(&server, "shm");
    let lend = |at: usize| file.lend((at * PIECE) as u64, PIECE).expect("lent");
    let pieces = BYTES / PIECE;
    let mut held: Vec<Lent> = (0..2 * pieces).map(|at| lend(at % pieces)).collect();
    let mapped = held.iter().filter(|lent| lent.is_mapped()).count();
    assert!((2..=8).contains(&mapped), "{mapped} of 16");
    assert!(held.iter().flat_map(bytes).eq([contents(), contents()].concat()));
    // Reads go on by themselves, and what is returned is lent again.
    let mut into = vec![0; BYTES];
    assert_eq!(file.read_at(&mut into, 0).expect("read"), BYTES);
    assert!(into == contents());
    held.clear();
    assert!(lend(7).is_mapped());
}

/// Of the smallest cache a session's share is one large request.
#[test]
fn who_holds_a_loan_asks_for_more() {
    const SMALL: usize = 64 << 10;
    let server = serving("16m");
    let (_session, file) = open(&server, "shm");
    // What was lent of the first piece is held while the next one is read.
    let at = PIECE - SMALL;
    let lent = file.lend(at as u64, SMALL + PIECE).expect("lent");
    assert!(bytes(&lent) == contents()[at..2 * PIECE]);
    drop(lent);
    let lent = file.lend(0, SMALL).expect("lent");
    assert!(lent.is_mapped());
    file.write_at(&vec![0x55; PIECE], 0).expect("written");
    let mut into = vec![0; PIECE];
    assert_eq!(file.read_at(&mut into, 0).expect("read"), PIECE);
    assert!(into.iter().all(|byte| *byte == 0x55));
    assert!(bytes(&lent) == contents()[..SMALL]);
}

#[test]
fn loans_outlive_the_session_and_the_server() {
    let mut server = serving("512m");
    let (session, file) = open(&server, "shm");
    let lent = file.lend(0, 2 * PIECE).expect("lent");
    assert!(lent.is_mapped());
    drop((session, file));
    let expected = &contents()[..2 * PIECE];
    assert!(bytes(&lent) == expected);
    assert!(number(&server, "lent_bytes") >= 2 * PIECE as u64);
    // Nobody waits for it: others come and go.
    for _ in 0..3 {
        let (_session, file) = open(&server, "shm");
        assert!(bytes(&file.lend(0, PIECE).expect("lent")) == expected[..PIECE]);
    }
    drop(lent);
    wait_for("all is let go", || number(&server, "lent_bytes") == 0);
    // Nor does the end of the server.
    let (_session, file) = open(&server, "shm");
    let lent = file.lend(0, PIECE).expect("lent");
    server.restart();
    assert!(bytes(&lent) == expected[..PIECE]);
    cache(&server);
    // Its cache is smaller, and so is what it lends.
    let again = file.lend(0, PIECE / 4).expect("lent");
    assert!(again.is_mapped() && bytes(&again) == expected[..PIECE / 4]);
    server.crash_and_restart();
    assert!(bytes(&file.lend(0, PIECE).expect("lent")) == expected[..PIECE]);
    assert!(bytes(&again) == expected[..PIECE / 4] && bytes(&lent) == expected[..PIECE]);
}

/// The kernel copies out of the cache, and the server copies nothing.
#[test]
fn a_mount_answers_large_reads_with_loans() {
    let server = serving("512m");
    let Some(mounted) = Mounted::new(&server, &[]) else { return };
    let (path, all) = (mounted.join("file"), contents());
    let before = number(&server, "copied_bytes");
    assert!(std::fs::read(&path).expect("read") == all);
    let direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(&path);
    let direct = direct.expect("opens");
    let mut into = vec![0; 2 * PIECE];
    for at in [0, 3 * PIECE + 4096, BYTES - PIECE - 4096] {
        let bytes = direct.read_at(&mut into, at as u64).expect("read");
        assert_eq!(bytes, into.len().min(BYTES - at));
        assert!(into[..bytes] == all[at..at + bytes], "at {at}");
    }
    let by_server = number(&server, "copied_bytes") - before;
    assert!(by_server < BYTES as u64 / 4, "{by_server}");
    // What is written is read by the next.
    let (_session, file) = open(&server, "shm");
    file.write_at(&vec![0x77; PIECE], PIECE as u64).expect("written");
    assert_eq!(direct.read_at(&mut into, PIECE as u64 / 2).expect("read"), 2 * PIECE);
    assert!(into[PIECE / 2..3 * PIECE / 2].iter().all(|byte| *byte == 0x77));
    assert!(into[..PIECE / 2] == all[PIECE / 2..PIECE]);
    wait_for("all is let go", || number(&server, "lent_bytes") == 0);
}

/// What another process of this program does.
#[test]
fn holds_for_another_test() {
    let Ok(url) = std::env::var("DAFS_TEST_HOLD") else { return };
    let (_session, file) = open_url(&url);
    let lent = file.lend(0, PIECE).expect("lent");
    println!("holds: {}", lent.is_mapped());
    loop {
        std::thread::park();
    }
}

#[test]
fn a_client_that_dies_holds_nothing() {
    let server = serving("512m");
    let program = std::env::current_exe().expect("a program");
    let url = server.at("file?transport=shm");
    for _ in 0..3 {
        let mut holder = Command::new(&program);
        holder.args(["--exact", "holds_for_another_test", "--nocapture"]);
        holder.env("DAFS_TEST_HOLD", &url).stdout(Stdio::piped());
        let mut holder = holder.spawn().expect("starts");
        let said = BufReader::new(holder.stdout.take().expect("a pipe"));
        let is_said = said.lines().any(|line| line.expect("text").ends_with("holds: true"));
        assert!(is_said, "it holds nothing");
        assert!(number(&server, "lent_bytes") >= PIECE as u64);
        holder.kill().expect("killed");
        holder.wait().expect("ends");
        wait_for("all is let go", || number(&server, "lent_bytes") == 0);
    }
}
