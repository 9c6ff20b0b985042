//! What threads and the process may do.

use super::{Errno, Outcome, done, nothing};

pub(crate) fn effective_ids() -> (u32, u32) {
    // SAFETY: always succeeds.
    let uid = unsafe { libc::geteuid() };
    // SAFETY: always succeeds.
    let gid = unsafe { libc::getegid() };
    (uid, gid)
}

/// The supplementary groups of this thread.
pub(crate) fn groups() -> Outcome<Vec<u32>> {
    // SAFETY: asks for the count only.
    let count = done(unsafe { libc::getgroups(0, std::ptr::null_mut()) }.into())?;
    let mut list = vec![0; count];
    let room = libc::c_int::try_from(count).map_err(|_| Errno(libc::EINVAL))?;
    // SAFETY: `list` has room for `count` groups.
    let count = done(unsafe { libc::getgroups(room, list.as_mut_ptr()) }.into())?;
    list.truncate(count);
    Ok(list)
}

/// Of this thread alone (libc's function would change all threads).
pub(crate) fn set_groups(groups: &[u32]) -> Outcome<()> {
    // SAFETY: `groups` has that many entries; the kernel only reads them.
    let result = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    done(result).map(drop)
}

/// Sets this thread's user for file access; false where the kernel did not.
pub(crate) fn set_fs_uid(uid: u32) -> bool {
    // The call answers the old value, failed or not: asking with -1 changes nothing and tells.
    // SAFETY: numbers.
    unsafe { libc::syscall(libc::SYS_setfsuid, uid) };
    // SAFETY: as before.
    let now = unsafe { libc::syscall(libc::SYS_setfsuid, u32::MAX) };
    now as u32 == uid
}

/// Sets this thread's group for file access; false where the kernel did not.
pub(crate) fn set_fs_gid(gid: u32) -> bool {
    // SAFETY: numbers.
    unsafe { libc::syscall(libc::SYS_setfsgid, gid) };
    // SAFETY: as before.
    let now = unsafe { libc::syscall(libc::SYS_setfsgid, u32::MAX) };
    now as u32 == gid
}

/// Takes CAP_SYS_RESOURCE out of this thread's effective capabilities.
pub(crate) fn drop_resource_capability() -> Outcome<()> {
    const VERSION_3: u32 = 0x2008_0522;
    const SYS_RESOURCE: u32 = 1 << 24;
    let header: [u32; 2] = [VERSION_3, 0];
    // Two of {effective, permitted, inheritable}.
    let mut data = [0u32; 6];
    // SAFETY: the header and the data have the layout and size of version 3.
    done(unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr()) })?;
    data[0] &= !SYS_RESOURCE;
    // SAFETY: as before; the kernel only reads.
    done(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) }).map(drop)
}

/// What threads that share it leave out of the modes of new files.
pub(crate) fn set_umask(mask: u32) {
    // SAFETY: always succeeds.
    unsafe { libc::umask(mask) };
}

/// Gives this thread a umask (and working directory) of its own.
pub(crate) fn unshare_umask() -> Outcome<()> {
    // SAFETY: a number.
    nothing(unsafe { libc::unshare(libc::CLONE_FS) })
}

/// How many descriptors this process may have.
pub(crate) fn descriptors_max() -> usize {
    // SAFETY: a structure of numbers, for which zero is a value.
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives over the call.
    let result = nothing(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) });
    result.map_or(1024, |()| usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX))
}

/// How long a file may become by writes of this process.
pub(crate) fn file_bytes_max() -> u64 {
    // SAFETY: a structure of numbers, for which zero is a value.
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives over the call.
    let result = nothing(unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) });
    result.map_or(u64::MAX, |()| limit.rlim_cur)
}
