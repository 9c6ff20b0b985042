//! One user, or one session, takes all that it can get of what all share.

use std::time::{Duration, Instant};

use dafs_protocol::{FileHandle, LockKind, LockRange, LockRequest, Operation, OwnerKey, Status};

use crate::attack::Attack;
use crate::frames::{Frames, ROOT, expect, open, status};

/// Limits of the server, for its configuration. One user may have a quarter of those of the whole.
pub(crate) const LEASE: u64 = 4;
const SESSIONS: usize = 1600;
const OPENS_OF_A_SESSION: usize = 500;
const OPENS: usize = 8000;
const LOCKED_FILES: usize = 800;
const PART: usize = 4;

pub(crate) fn configuration() -> String {
    let (sessions_per_user, locks) = (SESSIONS / PART, crate::locks::configuration());
    format!(
        "[limits]\nsessions = {SESSIONS}\nsessions_per_user = {sessions_per_user}\n\
         opens_per_session = {OPENS_OF_A_SESSION}\nopens = {OPENS}\nlock_files = {LOCKED_FILES}\n\
         lease_seconds = {LEASE}\n{}{locks}",
        crate::crowd::configuration()
    )
}

/// Opens files of a session until it may have no more; how many.
fn open_all(frames: &mut Frames) -> Result<usize, String> {
    let root = frames.root()?;
    for count in 0..=OPENS {
        match status(frames.chain(&[open(root, b"data", false)])) {
            None => {}
            Some(Status::Resource) => return Ok(count),
            other => return Err(format!("open {count}: {other:?}")),
        }
    }
    Err("opens without limit".into())
}

pub(crate) fn opens_of_a_session(attack: &Attack) -> Result<(), String> {
    let count = open_all(&mut Frames::session(&attack.url)?)?;
    expect(&format!("{count} opens of a session"), count == OPENS_OF_A_SESSION)
}

/// Another user still gets what it needs.
fn others_get_some(attack: &Attack, what: &str, count: usize, of: usize) -> Result<(), String> {
    let fits = count > 0 && count <= of / PART;
    expect(&format!("one user has {count} of {of} {what}"), fits)?;
    attack.ask("beside")
}

pub(crate) fn all_opens(attack: &Attack) -> Result<(), String> {
    let (mut kept, mut count) = (Vec::new(), 0);
    for _ in 0..OPENS / OPENS_OF_A_SESSION + 1 {
        let mut frames = Frames::session(&attack.url)?;
        count += open_all(&mut frames)?;
        kept.push(frames);
    }
    others_get_some(attack, "opens", count, OPENS)
}

/// Locks a file, which is opened.
fn lock_one(frames: &mut Frames, name: &str) -> Option<Status> {
    let owner = OwnerKey { kind: LockKind::Posix, number: 1 };
    let lock = LockRequest { owner, range: LockRange::ALL, exclusive: true, pid: 1 };
    let state = dafs_protocol::StateId::PREVIOUS;
    let lock = Operation::Lock { state, lock, wait: false, reclaim: false };
    status(frames.chain(&[ROOT, open(FileHandle::PREVIOUS, name.as_bytes(), true), lock]))
}

pub(crate) fn all_locked_files(attack: &Attack) -> Result<(), String> {
    let (mut kept, mut count) = (Vec::new(), 0);
    // A session may have fewer locks.
    for session in 0..8 {
        let mut frames = Frames::session(&attack.url)?;
        for file in 0..LOCKED_FILES {
            match lock_one(&mut frames, &format!("locked {session} {file}")) {
                None => count += 1,
                Some(Status::Resource) => break,
                other => return Err(format!("lock {count}: {other:?}")),
            }
        }
        kept.push(frames);
    }
    others_get_some(attack, "locked files", count, LOCKED_FILES)
}

pub(crate) fn all_sessions(attack: &Attack) -> Result<(), String> {
    let mut kept = Vec::new();
    while kept.len() <= SESSIONS {
        match Frames::try_session(&attack.url)? {
            Ok(frames) => kept.push(frames),
            Err(Status::Resource) => break,
            Err(other) => return Err(format!("session {}: {other:?}", kept.len())),
        }
    }
    others_get_some(attack, "sessions", kept.len(), SESSIONS)
}

/// By another user: a session, an open file, a lock.
pub(crate) fn something_is_left(attack: &Attack) -> Result<(), String> {
    let mut frames = Frames::session(&attack.url)?;
    // The one before has its lock for a lease still.
    let got = lock_one(&mut frames, &format!("of another {}", std::process::id()));
    expect(&format!("for another user: {got:?}"), got.is_none())
}

/// Sessions of clients that have died make room when their leases end. After all sessions.
pub(crate) fn freed(attack: &Attack) -> Result<(), String> {
    let start = Instant::now();
    let limit = dafs_tests::patient(Duration::from_secs(LEASE + 2));
    let mut kept = Vec::new();
    while kept.len() < SESSIONS / PART / 2 {
        match Frames::try_session(&attack.url)? {
            Ok(frames) => kept.push(frames),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
        expect("sessions of dead clients stay", start.elapsed() < limit)?;
    }
    Ok(())
}
