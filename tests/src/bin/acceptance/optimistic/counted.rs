//! Hits, one after the other, for a profiler: `counted` runs this program under it.

use std::hint::black_box;
use std::process::ExitCode;

use dafs_client::{File, Interrupt, OpenOptions, Result};
use dafs_tests::Served;
use dafs_tests::client::session_by_shm;

/// What `counted` calls it, before how many are to be counted.
pub(crate) const MODE: &str = "--hits";

const BLOCK: usize = 4096;
const BLOCKS: u64 = 1024;

/// What the profiler looks for: what was before does not count.
#[inline(never)]
fn counting_begins() {
    black_box(&BLOCK);
}

/// What the profiler looks for: the call and nothing else.
#[inline(never)]
fn counted_client(file: &File, into: &mut [u8], offset: u64) -> Result<usize> {
    file.read_at(into, offset)
}

/// So many reads that a client answers by itself, out of the cache of a server process.
pub(crate) fn run(reads: &str) -> ExitCode {
    let Ok(reads) = reads.parse() else { return ExitCode::from(2) };
    let dir = tempfile::tempdir().expect("tempdir");
    std::fs::write(dir.path().join("file"), vec![7; BLOCKS as usize * BLOCK]).expect("write");
    dafs_tests::served::as_in_use(true);
    let server = Served::start(dir.path(), &["--datapath", "unifier"]);
    let session = session_by_shm(&server.at(""), |_| {}).expect("a session by shared memory");
    let file = session.open(b"file", OpenOptions::read()).expect("open");
    let mut into = vec![0; BLOCK];
    // Calls of this thread may have been interrupted, and reads are of any length: else the compiler might know more
    // than it does of other programs.
    drop(Interrupt::new().watch());
    let mut read = |block: u64| {
        let bytes = counted_client(&file, black_box(&mut into), block * BLOCK as u64);
        matches!(bytes, Ok(BLOCK))
    };
    let mut blocks = (0..).map(|number| (number + 1) * 409 % BLOCKS);
    // The server is asked where blocks are when some were missed.
    assert!(blocks.by_ref().take(2 * BLOCKS as usize).all(&mut read), "a whole block");
    let before = session.info().optimistic.hits;
    counting_begins();
    for block in blocks.take(reads) {
        assert!(read(block), "a whole block");
    }
    assert_eq!(session.info().optimistic.hits - before, reads as u64, "no hits");
    ExitCode::SUCCESS
}
