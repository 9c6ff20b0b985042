//! Bar 15: many idle sessions.

use std::time::Instant;

use dafs_client::{OpenOptions, Session};
use dafs_protocol::WaitMode;
use dafs_tests::Served;
use dafs_tests::client::{session, session_with};

use crate::{Line, Mode};

pub(crate) fn sessions(mode: Mode) -> Vec<Line> {
    let count = mode.pick(300, 1000);
    let dir = tempfile::tempdir().expect("tempdir");
    std::fs::write(dir.path().join("data"), vec![7; 8 << 20]).expect("write");
    dafs_tests::served::as_in_use(true);
    let server = Served::start(dir.path(), &["--arena", "64m"]);
    let busy = session(&server.at(""));
    let alone = rate(mode, &busy);
    let before = server.resident_bytes();
    let idle: Vec<Session> = (0..count)
        .map(|_| session_with(&server.at(""), |options| options.wait = WaitMode::Sleeping))
        .collect();
    for session in &idle {
        session.stat(b"data").expect("stat");
    }
    let each = server.resident_bytes().saturating_sub(before) / count as u64;
    let (mut beside, mut again) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        beside.push(rate(mode, &busy));
    }
    drop(idle);
    for _ in 0..5 {
        again.push(rate(mode, &busy));
    }
    let best = |rates: &[f64]| rates.iter().copied().fold(0.0, f64::max);
    let (with, without) = (best(&beside), best(&again).max(alone));
    let what = format!("server memory per session, {count} idle sessions");
    vec![
        Line::new("idle", &what, "≤ 256 KiB")
            .measured(format!("{} KiB", each / 1024), each <= 256 << 10),
        Line::new("idle", "rate of a busy client beside them", "≥ 0.90 of alone")
            .timing()
            .measured(format!("{:.2}", with / without), with >= 0.90 * without),
    ]
}

/// 4 KiB reads per second.
fn rate(mode: Mode, session: &Session) -> f64 {
    let file = session.open(b"data", OpenOptions::read()).expect("open");
    let mut into = vec![0; 4096];
    let rounds = mode.pick(3000, 20_000);
    let start = Instant::now();
    for i in 0..rounds {
        file.read_at(&mut into, i % 2000 * 4096).expect("read");
    }
    rounds as f64 / start.elapsed().as_secs_f64()
}
