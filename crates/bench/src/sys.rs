//! The system calls that the standard library lacks: CPU time, pinning, waiting on a socket.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// CPU time of this process so far, user and system, all threads.
pub fn process_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a clock number and a place for its answer.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    if rc != 0 {
        return 0;
    }
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Keeps the calling thread, and threads it starts later, on one CPU.
///
/// # Errors
/// The system's: no such CPU, or not allowed.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: a CPU set is plain bits; all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `cpu` is below CPU_SETSIZE, as checked.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: this thread, and a set with its size.
    let rc = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The CPUs that this thread may run on, in their order.
///
/// # Errors
/// The system's.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    // SAFETY: a CPU set is plain bits; all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: this thread, and room for a set with its size.
    let rc = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: numbers below CPU_SETSIZE.
    let is_in = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &set) };
    Ok((0..libc::CPU_SETSIZE as usize).filter(is_in).collect())
}

/// Sleeps until `fd` is readable (or writable), at most for `time` if there is one.
///
/// # Errors
/// The system's.
pub fn sleep_until_ready(
    fd: BorrowedFd<'_>,
    writable: bool,
    time: Option<Duration>,
) -> io::Result<()> {
    let events = if writable { libc::POLLOUT } else { libc::POLLIN };
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    let ms = time.map_or(-1, |time| i32::try_from(time.as_millis()).unwrap_or(i32::MAX));
    // SAFETY: one entry, for an open descriptor.
    let rc = unsafe { libc::poll(&mut entry, 1, ms) };
    if rc >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Receives, waiting until all of `into` is filled (or the stream ended).
///
/// # Errors
/// The system's.
pub fn receive_all(fd: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
    let (start, len) = (into.as_mut_ptr().cast(), into.len());
    // SAFETY: a writable slice and its length.
    let got = unsafe { libc::recv(fd.as_raw_fd(), start, len, libc::MSG_WAITALL) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}
