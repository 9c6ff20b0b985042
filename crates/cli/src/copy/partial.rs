//! Copies of large files that were broken off, and go on.
//!
//! A large file is written under a name that the next copy to the same place finds again. It says, in
//! an extended attribute, which original it is a part of and how many bytes are surely there: those
//! that were flushed, on a machine that has not restarted since. Whoever writes it holds a lock on it.
//! Where there are no such attributes a copy begins anew.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dafs_client::{Error, File, Interrupt, OpenOptions, Session};
use dafs_protocol::{
    Attr, FileKind, LockKind, LockRange, LockRequest, OwnerKey, Status, Timestamp,
};
use rustix::fs::FlockOperation;

use super::ends::Sink;
use super::like::attr_of;
use super::side::Side;
use crate::failure::Cause;
use crate::{interrupt, place, progress};

/// Files from this size on can be gone on with.
pub const BYTES_MIN: u64 = 32 << 20;
/// How often it is noted how far a copy is.
pub const NOTED_BYTES: u64 = 16 << 20;

const PREFIX: &str = ".dafs-part-";
const RECORD: &[u8] = b"user.dafs.partial";
/// Beside a lease: how late a server may notice that its client is dead.
const LATE: Duration = Duration::from_secs(5);
/// How often the name may lead to another file when it is locked.
const TRIES_MAX: u32 = 10;

/// An incomplete copy, locked.
pub struct Partial {
    /// Its name.
    pub path: Vec<u8>,
    /// Open for writing.
    pub sink: Sink,
    /// Bytes that are there already.
    pub start: u64,
    origin: u64,
    machine: u64,
    /// Device and inode.
    is: (u64, u64),
}

/// The name, in the directory of `target`, of its incomplete copy.
pub fn name(target: &[u8]) -> Vec<u8> {
    let (dir, name) = place::split(target);
    place::join(dir, format!("{PREFIX}{:016x}", hash(name)).as_bytes())
}

/// True for a name that an incomplete copy can have. Such files of an origin are not copied: they
/// would take the name of one that is being written.
pub fn is_name(name: &[u8]) -> bool {
    let digits = name.strip_prefix(PREFIX.as_bytes()).unwrap_or_default();
    digits.len() == 16 && digits.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The same in all builds (FNV-1a): it becomes a part of names.
fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// What tells an original from others, and from what it was before: the time of change cannot be set
/// back by who changes it.
fn origin(attr: &Attr) -> u64 {
    let time = |time: Timestamp| format!("{} {}", time.seconds, time.nanoseconds);
    let Attr { size, inode, modified, changed, .. } = attr;
    hash(format!("{size} {inode} {} {}", time(*modified), time(*changed)).as_bytes())
}

impl Partial {
    /// Finds or makes the incomplete copy, to `target`, of what is now as `attr` says, and locks it.
    /// Where another copy has it for longer than the dead may, or it is not ours to write: `None`.
    pub fn open(side: &Side, target: &[u8], attr: &Attr) -> Result<Option<Partial>, Cause> {
        let path = name(target);
        let origin = origin(attr);
        for _ in 0..TRIES_MAX {
            let Some((sink, there)) = open(side, &path)? else { return Ok(None) };
            let private = there.kind == FileKind::File
                && there.links <= 1
                && there.uid == side.uid()
                && there.mode & 0o077 == 0;
            if !private || !lock(&sink, &path)? {
                return Ok(None);
            }
            // It may have been completed, and renamed, while the lock was waited for.
            match side.lstat(&path) {
                Ok(now) if (now.device, now.inode) == (there.device, there.inode) => {
                    let machine = machine(side);
                    let is = (now.device, now.inode);
                    let mut partial = Partial { path, sink, start: 0, origin, machine, is };
                    partial.start = partial.known(side, now.size)?;
                    return Ok(Some(partial));
                }
                Err(cause) if cause.errno() != libc::ENOENT => return Err(cause),
                _ => {}
            }
        }
        Ok(None)
    }

    /// How many of its bytes are the origin's. Of another one it keeps nothing.
    fn known(&self, side: &Side, size: u64) -> Result<u64, Cause> {
        if size == 0 {
            return Ok(0);
        }
        let record = side.get_xattr(&self.path, RECORD).unwrap_or_default();
        let offset = self.offset_in(&record).filter(|offset| *offset <= size).unwrap_or(0);
        self.sink.set_len(offset)?;
        Ok(offset)
    }

    fn offset_in(&self, record: &[u8]) -> Option<u64> {
        let mut parts = std::str::from_utf8(record).ok()?.split(' ');
        let mut next = |radix| u64::from_str_radix(parts.next()?, radix).ok();
        let (origin, machine, offset) = (next(16)?, next(16)?, next(10)?);
        (origin == self.origin && machine == self.machine).then_some(offset)
    }

    /// All before `offset` is written: notes it, where that can be.
    pub fn note(&self, side: &Side, offset: u64) -> Result<(), Cause> {
        self.sink.flush()?;
        let record = format!("{:x} {:x} {offset}", self.origin, self.machine);
        match side.set_xattr(&self.path, RECORD, record.as_bytes()) {
            Err(cause) if cause.is_final() || cause.is_lost_by_restart() => Err(cause),
            _ => Ok(()),
        }
    }

    /// It is complete: under a name that no other copy looks for, and without the record.
    pub fn complete(self, side: &Side) -> Result<(Vec<u8>, Sink), Cause> {
        match side.remove_xattr(&self.path, RECORD) {
            Err(cause) if cause.is_final() => return Err(cause),
            _ => {}
        }
        let temporary =
            place::temporary(&self.path).map_err(|failure| Cause::Text(failure.text))?;
        let now = side.lstat(&self.path)?;
        if (now.device, now.inode) != self.is {
            return Err("what was written of it was replaced meanwhile".into());
        }
        // While it is locked: whoever waits for it looks whether the name still leads to it.
        match side.rename(&self.path, &temporary) {
            Ok(()) => Ok((temporary, self.sink)),
            Err(cause) => {
                // A server that restarted may have done it, and not know.
                if !side.is_gone(&cause) {
                    let _ = side.remove(&temporary);
                }
                Err(cause)
            }
        }
    }
}

/// A run of the machine that has the file: what was flushed outlives processes, not machines.
fn machine(side: &Side) -> u64 {
    match side {
        Side::Local(_) => {
            hash(&std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default())
        }
        Side::Remote(remote) => {
            let verifier = remote.session.info().verifier.0;
            hash(verifier.first_chunk::<8>().map_or(&[], |run| run.as_slice()))
        }
    }
}

/// `None` where somebody put something else there.
fn open(side: &Side, path: &[u8]) -> Result<Option<(Sink, Attr)>, Cause> {
    let opened = match side {
        Side::Local(tree) => tree.create_or_open(path).map_err(Cause::from).and_then(|file| {
            let attr = attr_of(&file.metadata()?);
            Ok((Sink::Local(file), attr))
        }),
        Side::Remote(remote) => {
            let options = OpenOptions {
                write: true,
                create: true,
                no_follow: true,
                mode: 0o600,
                ..OpenOptions::default()
            };
            remote.session.open(path, options).map_err(Cause::from).map(|file| {
                let attr = file.opened_attr();
                (Sink::Remote(file, remote.session.clone()), attr)
            })
        }
    };
    match opened {
        Err(cause)
            if matches!(
                cause.errno(),
                libc::ELOOP | libc::EISDIR | libc::EACCES | libc::ENXIO | libc::EPERM
            ) =>
        {
            Ok(None)
        }
        other => Ok(Some(other?)),
    }
}

/// False: another copy has it.
fn lock(sink: &Sink, path: &[u8]) -> Result<bool, Cause> {
    match sink {
        Sink::Local(file) => {
            // The system ends a dead process's lock at once.
            match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
                Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
                Err(rustix::io::Errno::NOTSUP | rustix::io::Errno::NOSYS) => Ok(true),
                other => other.map(|()| true).map_err(|errno| Cause::Local(errno.into())),
            }
        }
        Sink::Remote(file, session) => lock_remote(file, session, path),
    }
}

/// Waits at the server for as long as a dead client may keep its lock there.
fn lock_remote(file: &File, session: &Session, path: &[u8]) -> Result<bool, Cause> {
    static COUNT: AtomicU64 = AtomicU64::new(1);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let request = LockRequest {
        owner: OwnerKey { kind: LockKind::Whole, number },
        range: LockRange::ALL,
        exclusive: true,
        pid: std::process::id(),
    };
    let longest = Duration::from_millis(session.info().attr.lease_ms.into()) + LATE;
    let end = Instant::now() + longest;
    // A request that is given up is taken back from the server.
    let limit = Interrupt::looking(move || interrupt::requested() || Instant::now() >= end);
    let _limited = limit.watch();
    let mut locked = file.lock(&request, false);
    if matches!(&locked, Err(error) if error.status() == Some(Status::Again)) {
        tell_waiting(path, longest);
        locked = file.lock(&request, true);
    }
    match locked {
        Err(Error::Interrupted) if !interrupt::requested() => Ok(false),
        // Too many wait there.
        Err(error) if error.status() == Some(Status::Resource) => Ok(false),
        Err(error) if error.status() == Some(Status::NotSupp) => Ok(true),
        other => Ok(other.map(|()| true)?),
    }
}

fn tell_waiting(path: &[u8], longest: Duration) {
    let name = crate::text::escape(path);
    progress::notice(&format!(
        "dafs: {name} is being written by another copy, or by one that was killed a moment ago; \
         waiting for up to {} s",
        longest.as_secs()
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_again() {
        let one = name(b"a/b");
        assert_eq!(one, name(b"a/b"));
        assert_eq!(place::split(&one).0, b"a");
        assert_ne!(one, name(b"a/c"));
        assert!(place::name(&name(&[b'n'; 255])).len() < 255);
        assert!(is_name(place::name(&one)));
        for other in [&b".dafs-part-"[..], b".dafs-part-0123456789abcdeX", b"x", b""] {
            assert!(!is_name(other));
        }
    }

    #[test]
    fn a_record_of_another_original_counts_for_nothing() {
        let file = tempfile::tempfile().expect("file");
        let partial = Partial {
            path: Vec::new(),
            sink: Sink::Local(file),
            start: 0,
            origin: 0xab,
            machine: 0xcd,
            is: (0, 0),
        };
        assert_eq!(partial.offset_in(b"ab cd 4096"), Some(4096));
        for wrong in [&b"ac cd 4096"[..], b"ab ce 4096", b"ab cd", b"", b"ab cd -1", b"\xff"] {
            assert_eq!(partial.offset_in(wrong), None);
        }
    }
}
