//! lists: pieces at equal distances, as one request a list and as single requests, of a file that is
//! not in memory.

use std::fs;
use std::io::Write as _;
use std::time::Instant;

use dafs_client::{Advice, Call, OpenOptions, Session};
use dafs_fabric::Buffer;
use dafs_protocol::Extent;
use dafs_tests::client::session_with;
use dafs_tests::{Served, tree};

use crate::{Line, Mode};

const PIECE: u32 = 4096;
const STRIDE: u64 = 64 << 10;
/// Pieces of one list: 1 MiB.
const PIECES: u32 = 256;

/// How it went: pieces a second, round trips a list (or a piece), wrong bytes.
struct Outcome {
    rate: f64,
    trips: f64,
    wrong: usize,
}

fn right(at: u64, block: u64, found: &[u8]) -> bool {
    let mark = at.to_le_bytes();
    found.len() as u64 == block && found.starts_with(&mark)
}

fn lists(session: &Session, size: u64) -> Outcome {
    let file = session.open(b"data", OpenOptions::read()).expect("open");
    let step = STRIDE * u64::from(PIECES);
    let mut buffer = Buffer::new((PIECE * PIECES) as usize).expect("memory");
    let (mut wrong, mut count) = (0, 0u32);
    let trips = session.info().round_trips;
    let start = Instant::now();
    for offset in (0..size).step_by(step as usize) {
        let extents = vec![Extent { offset, len: PIECE, stride: STRIDE, count: PIECES }];
        let call = Call::ReadList { file: file.clone(), extents, buffer };
        let done = session.call(call).wait();
        done.result.expect("read a list");
        buffer = done.buffer.expect("it is given back");
        for (index, piece) in buffer.chunks(PIECE as usize).enumerate() {
            let at = offset + STRIDE * index as u64;
            wrong += usize::from(!right(at, u64::from(PIECE), piece));
        }
        count += 1;
    }
    let rate = f64::from(count * PIECES) / start.elapsed().as_secs_f64();
    let trips = (session.info().round_trips - trips) as f64 / f64::from(count);
    Outcome { rate, trips, wrong }
}

fn singles(session: &Session, size: u64) -> Outcome {
    let file = session.open(b"data", OpenOptions::read()).expect("open");
    let mut piece = [0; PIECE as usize];
    let (mut wrong, mut count) = (0, 0u32);
    let trips = session.info().round_trips;
    let start = Instant::now();
    for at in (0..size).step_by(STRIDE as usize) {
        let read = file.read_at(&mut piece, at).expect("read");
        wrong += usize::from(!right(at, u64::from(PIECE), &piece[..read]));
        count += 1;
    }
    let rate = f64::from(count) / start.elapsed().as_secs_f64();
    let trips = (session.info().round_trips - trips) as f64 / f64::from(count);
    Outcome { rate, trips, wrong }
}

pub(crate) fn strided(mode: Mode) -> Vec<Line> {
    let size: u64 = mode.pick(128 << 20, 1 << 30);
    let work = tempfile::tempdir().expect("tempdir");
    let mut data = fs::File::create(work.path().join("data")).expect("make a file");
    let mut block = tree::pattern(3, STRIDE as usize);
    for at in (0..size).step_by(STRIDE as usize) {
        block[..8].copy_from_slice(&at.to_le_bytes());
        data.write_all(&block).expect("write");
    }
    data.sync_all().expect("sync");
    dafs_tests::served::as_in_use(true);
    let server = Served::start(work.path(), &["--arena", "64m", "--disk", "auto"]);
    let forget = |session: &Session| {
        let file = session.open(b"data", OpenOptions::read()).expect("open");
        file.advise(0, 0, Advice::DontNeed).expect("drop what is cached");
    };
    let with = |read_ahead| session_with(&server.url, |options| options.read_ahead = read_ahead);
    let (ahead, plain) = (with(true), with(false));
    forget(&plain);
    let single = singles(&plain, size);
    forget(&plain);
    let single_ahead = singles(&ahead, size);
    forget(&plain);
    let list = lists(&plain, size);
    let wrong = list.wrong + single.wrong + single_ahead.wrong;
    let line = |what: &str, required: &str| Line::new("lists", what, required);
    let trips = format!("{:.3} round trips a list, {wrong} pieces wrong", list.trips);
    let (times, ahead) = (list.rate / single.rate, list.rate / single_ahead.rate);
    let text = format!(
        "{times:.1} × ({:.0} and {:.0} pieces a second; {ahead:.1} × where those are read ahead)",
        list.rate, single.rate
    );
    vec![
        line("a strided list of 256 pieces", "one round trip, right data")
            .measured(trips, (list.trips - 1.0).abs() < 0.01 && wrong == 0),
        line("4 KiB of every 64 KiB, lists against single requests", "≥ 4 ×")
            .timing()
            .measured(text, times >= 4.0),
    ]
}
