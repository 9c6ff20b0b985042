//! round-trips: locks counted in round trips.

use std::time::Duration;

use dafs_client::{File, OpenOptions, Session};
use dafs_protocol::{LockKind, LockRange, LockRequest, OwnerKey};
use dafs_tests::Served;
use dafs_tests::client::session;

use crate::{Line, Mode};

fn exclusive(number: u64) -> LockRequest {
    let owner = OwnerKey { kind: LockKind::Ofd, number };
    LockRequest { owner, range: LockRange::ALL, exclusive: true, pid: 1 }
}

fn open(session: &Session) -> File {
    let options = OpenOptions { create: true, read: true, ..OpenOptions::write() };
    session.open(b"file", options).expect("open")
}

pub(crate) fn counts(mode: Mode) -> Vec<Line> {
    let dir = tempfile::tempdir().expect("tempdir");
    let state = dir.path().join("state").display().to_string();
    let served = dir.path().join("served");
    std::fs::create_dir(&served).expect("mkdir");
    let server = Served::start(&served, &["--state", &state]);
    let (one, two) = (session(&server.at("")), session(&server.at("")));
    let (file_one, file_two) = (open(&one), open(&two));
    let rounds = mode.pick(200, 10_000);
    // The first lock of a client is written down by the server before it is granted.
    file_one.lock(&exclusive(1), true).expect("lock");
    file_one.unlock(exclusive(1).owner, LockRange::ALL).expect("unlock");
    vec![
        uncontended(&one, &file_one, rounds),
        handed_over(&one, &file_one, &two, &file_two, rounds),
    ]
}

fn uncontended(session: &Session, file: &File, rounds: u64) -> Line {
    let before = session.info().round_trips;
    for _ in 0..rounds {
        file.lock(&exclusive(1), true).expect("lock");
        file.unlock(exclusive(1).owner, LockRange::ALL).expect("unlock");
    }
    let each = (session.info().round_trips - before) as f64 / rounds as f64;
    // A session that renews its lease meanwhile may add a request.
    let what = format!("{rounds} uncontended locks and unlocks");
    Line::new("round-trips", &what, "2 round trips a pair")
        .measured(format!("{each:.2} round trips a pair"), each < 2.05)
}

/// The one holds, the other waits; the one unlocks. The wait itself costs nothing: it is one
/// request, and a callback ends it.
fn handed_over(
    one: &Session,
    file_one: &File,
    two: &Session,
    file_two: &File,
    rounds: u64,
) -> Line {
    let what = format!("{rounds} locks handed over to who waits");
    let line = Line::new("round-trips", &what, "≤ 4 round trips of both each");
    let before = one.info().round_trips + two.info().round_trips;
    let mut asked = two.info().round_trips;
    for _ in 0..rounds {
        file_one.lock(&exclusive(1), true).expect("lock");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| file_two.lock(&exclusive(2), true));
            // Until it has asked.
            while two.info().round_trips == asked {
                std::thread::sleep(Duration::from_micros(50));
            }
            file_one.unlock(exclusive(1).owner, LockRange::ALL).expect("unlock");
            waiter.join().expect("no panic").expect("handed over");
        });
        file_two.unlock(exclusive(2).owner, LockRange::ALL).expect("unlock");
        asked = two.info().round_trips;
    }
    let all = one.info().round_trips + two.info().round_trips - before;
    let each = all as f64 / rounds as f64;
    // Two locks and two unlocks.
    line.measured(format!("{each:.2} round trips of both each"), each < 4.05)
}
