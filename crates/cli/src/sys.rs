//! The system calls that the standard library lacks.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use dafs_protocol::Timestamp;

fn check(rc: libc::c_int) -> io::Result<()> {
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn ending_signals() -> libc::sigset_t {
    // SAFETY: a signal set is plain bits, initialised by the next call.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: a set of ours.
    unsafe { libc::sigemptyset(&mut set) };
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // Blocked, it would be kept and taken although it is ignored.
        if signal != libc::SIGHUP || !is_ignored(signal) {
            // SAFETY: a set of ours and a signal's number.
            unsafe { libc::sigaddset(&mut set, signal) };
        }
    }
    set
}

fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: plain bits, overwritten by the next call.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a signal's number, nothing to set, and a place for the answer.
    let rc = unsafe { libc::sigaction(signal, std::ptr::null(), &mut now) };
    rc == 0 && now.sa_sigaction == libc::SIG_IGN
}

/// A write beyond the limit of file sizes fails with EFBIG and ends nothing.
pub fn ignore_file_size_signal() {
    // SAFETY: a signal's number and a disposition; no code of ours is to run.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Blocks SIGINT, SIGTERM and SIGHUP in this thread and those it starts. A signal that was ignored
/// at the start (`nohup`) stays so.
pub fn block_ending_signals() -> io::Result<()> {
    let set = ending_signals();
    // SAFETY: a set of ours; the old one is not asked for.
    let rc = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
    if rc == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(rc)) }
}

/// Waits for one of the signals that [`block_ending_signals`] blocked.
pub fn wait_for_ending_signal() {
    let set = ending_signals();
    let mut signal = 0;
    // SAFETY: a set of ours and a place for the answer.
    while unsafe { libc::sigwait(&set, &mut signal) } != 0 {}
}

/// Ends the process without running anything more.
pub fn exit_now(code: u8) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(code.into()) }
}

/// Leaves the terminal: a session of its own, and nothing at the standard descriptors.
pub fn detach() -> io::Result<()> {
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    // SAFETY: no arguments; it fails where the process leads a group, which is no harm.
    unsafe { libc::setsid() };
    for fd in 0..3 {
        // SAFETY: an open descriptor, and a number that the standard library uses as one.
        if unsafe { libc::dup2(nothing.as_raw_fd(), fd) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// True for root.
pub fn is_root() -> bool {
    effective_uid() == 0
}

/// The user that the system checks rights for.
pub fn effective_uid() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::geteuid() }
}

/// Permission bits that new files do not get.
pub fn umask() -> u32 {
    // SAFETY: a number; called before other threads make files, and put back at once.
    let mask = unsafe { libc::umask(0o022) };
    // SAFETY: as above.
    unsafe { libc::umask(mask) };
    mask
}

/// Sets the access and modification time of an open file.
pub fn set_file_times(file: &File, accessed: Timestamp, modified: Timestamp) -> io::Result<()> {
    let times = [timespec(accessed), timespec(modified)];
    // SAFETY: an open descriptor and two times.
    check(unsafe { libc::futimens(file.as_raw_fd(), times.as_ptr()) })
}

fn timespec(time: Timestamp) -> libc::timespec {
    libc::timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() }
}

/// The next data (or hole) at or after `offset`; `None` where there is no more data.
pub fn seek(file: &File, offset: u64, hole: bool) -> io::Result<Option<u64>> {
    let whence = if hole { libc::SEEK_HOLE } else { libc::SEEK_DATA };
    let offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: an open descriptor and numbers.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
    match u64::try_from(found) {
        Ok(found) => Ok(Some(found)),
        Err(_) => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            error => Err(error),
        },
    }
}

/// Writes all that anybody wrote to this file's file system to disk.
pub fn sync_file_system(file: &File) -> io::Result<()> {
    // SAFETY: an open descriptor.
    check(unsafe { libc::syncfs(file.as_raw_fd()) })
}

/// Waits until `fd` can be read without blocking; false after `time`.
pub fn readable(fd: BorrowedFd<'_>, time: Duration) -> io::Result<bool> {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let ms = i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one entry, for an open descriptor.
    let rc = unsafe { libc::poll(&mut entry, 1, ms) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc > 0) }
}

/// Raises the limit of open descriptors as far as allowed; the limit that holds now.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a place for the answer.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) })?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: two numbers.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) })?;
    Ok(limit.rlim_cur)
}

/// Local time, for people: `2026-11-20 11:30`, or nothing where the system cannot tell.
pub fn local_time(seconds: i64, format: &CStr) -> Option<String> {
    // SAFETY: plain data, filled by the next call.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: a number and a place for the answer.
    if unsafe { libc::localtime_r(&seconds, &mut parts) }.is_null() {
        return None;
    }
    let mut text = [0u8; 64];
    let (start, len) = (text.as_mut_ptr().cast(), text.len());
    // SAFETY: a buffer with its length, a C string, and the parts just filled.
    let used = unsafe { libc::strftime(start, len, format.as_ptr(), &parts) };
    text.get(..used).and_then(|text| String::from_utf8(text.to_vec()).ok())
}
