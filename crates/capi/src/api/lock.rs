//! Locks.

use dafs_protocol::{LockKind, LockRange, LockRequest, OwnerKey};

use super::record::check_flags;
use crate::border::{In, Records, status};
use crate::failure::{Failure, Outcome};
use crate::operation::file as named;
use crate::types::{
    DAP_LOCK_EXCLUSIVE, DAP_LOCK_OFD, DAP_LOCK_POSIX, DAP_LOCK_WAIT, DAP_LOCK_WHOLE, dap_file_t,
    dap_lock_t,
};

fn request_of(lock: &dap_lock_t) -> Outcome<LockRequest> {
    check_flags(lock.flags, DAP_LOCK_EXCLUSIVE | DAP_LOCK_WAIT)?;
    let kind = match lock.kind {
        DAP_LOCK_POSIX => LockKind::Posix,
        DAP_LOCK_OFD => LockKind::Ofd,
        DAP_LOCK_WHOLE => LockKind::Whole,
        _ => return Err(Failure::invalid("dap_lock_t: 'kind' is one of DAP_LOCK_...")),
    };
    let last = match lock.length {
        0 => Some(u64::MAX),
        length => lock.offset.checked_add(length - 1),
    };
    let beyond = || Failure::new(libc::EFBIG, "dap_lock_t: the range goes beyond the largest file");
    let range = last.and_then(|last| LockRange::new(lock.offset, last)).ok_or_else(beyond)?;
    if kind == LockKind::Whole && range != LockRange::ALL {
        return Err(Failure::invalid("DAP_LOCK_WHOLE has offset 0 and length 0"));
    }
    Ok(LockRequest {
        owner: OwnerKey { kind, number: lock.owner },
        range,
        exclusive: lock.flags & DAP_LOCK_EXCLUSIVE != 0,
        pid: lock.pid,
    })
}

/// Locks a range of a file
///
/// For the owner in lock. DAP_LOCK_EXCLUSIVE needs a file that is open for writing, a shared lock one that is open for reading,
/// DAP_LOCK_WHOLE any. With DAP_LOCK_WAIT it waits for the lock; without, it waits at most while the server hears which locks
/// clients held before it was restarted. Locks survive lost connections and restarts of the server; where they do not,
/// every later call on the file but dap_close is -EIO with DAP_REASON_LOCKS_LOST.
///
/// Blocks.
///
/// Returns 0, or: -EAGAIN where somebody else holds it; -EDEADLK for DAP_LOCK_POSIX; -EBADF; -EINVAL; -EFBIG; -ECANCELED where the
/// session is closed meanwhile; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_lock(file: dap_file_t, lock: In<dap_lock_t>) -> i32 {
    status(|| {
        let lock = lock.get("lock")?;
        let request = request_of(&lock)?;
        Ok(named(file)?.file.lock(&request, lock.flags & DAP_LOCK_WAIT != 0)?)
    })
}

/// Gives a range back
///
/// Of what the owner in lock holds; also a part of what was locked, also what was not. Blocks.
///
/// Returns 0, or: -EBADF; -EINVAL; -EFBIG; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_unlock(file: dap_file_t, lock: In<dap_lock_t>) -> i32 {
    status(|| {
        let request = request_of(&lock.get("lock")?)?;
        Ok(named(file)?.file.unlock(request.owner, request.range)?)
    })
}

/// Which lock stands against one
///
/// Puts the lock that stands against the one in lock there in its place; where there is none, its kind becomes 0. Blocks.
///
/// Returns 0, or: -EBADF; -EINVAL; -EFBIG; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_test_lock(file: dap_file_t, lock: Records<dap_lock_t>) -> i32 {
    status(|| {
        let stride = lock.stride("lock")?;
        let wanted = lock.get(0, stride)?;
        let found = named(file)?.file.test_lock(&request_of(&wanted)?)?;
        let answer = match found {
            None => dap_lock_t { kind: 0, ..wanted },
            Some((held, _)) => {
                let length = match held.range.last() {
                    u64::MAX => 0,
                    last => last - held.range.first() + 1,
                };
                dap_lock_t {
                    size: 0,
                    kind: held.owner.kind as u32,
                    flags: if held.exclusive { DAP_LOCK_EXCLUSIVE } else { 0 },
                    pid: held.pid,
                    owner: held.owner.number,
                    offset: held.range.first(),
                    length,
                }
            }
        };
        lock.put(0, stride, &answer);
        Ok(())
    })
}
