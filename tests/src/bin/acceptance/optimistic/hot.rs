//! What is read without the server stays in its cache, beside a scan.

use dafs_client::{File, OpenOptions, Session};
use dafs_tests::client::{session, session_by_shm};
use dafs_tests::random::Random;
use dafs_tests::{Served, tree};

use crate::{Line, Mode};

const BLOCK: usize = 4096;
/// Of the arena, half is hot.
const ARENA: &str = "64m";
const HOT: usize = (32 << 20) / BLOCK;
/// Of the scan, and of these the file has so many.
const PIECE: usize = 1 << 20;
const SCANNED: usize = 256;
/// Between two of them.
const READS: usize = 1024;

fn open(session: &Session, name: &[u8]) -> File {
    session.open(name, OpenOptions::read()).expect("open")
}

/// How many of the blocks are read without the server.
fn known(session: &Session, file: &File) -> usize {
    let before = session.info().optimistic.hits;
    let mut into = [0; BLOCK];
    for block in 0..HOT {
        let bytes = file.read_at(&mut into, (block * BLOCK) as u64).expect("read");
        assert_eq!(bytes, BLOCK);
    }
    (session.info().optimistic.hits - before) as usize
}

fn stays(mode: Mode, policy: &str) -> Line {
    let what = format!("half of the arena read so, beside a scan, {policy}");
    let line = Line::new("optimistic", &what, "≥ 95 % stays");
    let dir = tempfile::tempdir().expect("tempdir");
    let pieces = mode.pick(SCANNED, 16 * SCANNED);
    std::fs::write(dir.path().join("hot"), tree::pattern(1, HOT * BLOCK)).expect("write");
    std::fs::write(dir.path().join("scanned"), tree::pattern(2, SCANNED * PIECE)).expect("write");
    dafs_tests::served::as_in_use(true);
    let server = Served::start(dir.path(), &["--arena", ARENA, "--policy", policy]);
    let (near, far) =
        (session_by_shm(&server.at(""), |_| {}), session(&server.at("?transport=tcp")));
    let near = match near {
        Ok(session) => session,
        Err(error) => return line.skipped(error.to_string()),
    };
    let (hot, scanned) = (open(&near, b"hot"), open(&far, b"scanned"));
    if !(0..50).any(|_| known(&near, &hot) == HOT) {
        return line.measured("never read without the server", false);
    }
    // By turns, as a reader who gets no processor uses nothing.
    let (mut random, mut piece) = (Random::new(3), vec![0; PIECE]);
    for number in 0..pieces {
        scanned.read_at(&mut piece, (number % SCANNED * PIECE) as u64).expect("read");
        for _ in 0..READS {
            let block = random.index(HOT);
            hot.read_at(&mut piece[..BLOCK], (block * BLOCK) as u64).expect("read");
        }
    }
    let stays = known(&near, &hot);
    let part = 100.0 * stays as f64 / HOT as f64;
    let measured = format!("{part:.1} %, beside {pieces} MiB");
    line.measured(measured, stays * 100 >= HOT * 95)
}

pub(crate) fn hot(mode: Mode) -> Vec<Line> {
    ["lru", "mq"].map(|policy| stays(mode, policy)).into()
}
