//! System calls of epoll and what is watched with it.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use super::events::EpollEvents;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn own(fd: libc::c_int) -> io::Result<OwnedFd> {
    let fd = check(fd)?;
    // SAFETY: the system just gave us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A new epoll object.
pub fn epoll() -> io::Result<OwnedFd> {
    // SAFETY: numbers only.
    own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
}

/// How a descriptor is to be watched.
#[derive(Clone, Copy)]
pub enum Watch {
    /// From now on, for these events.
    Add(libc::c_int),
    /// For other events.
    Change(libc::c_int),
    /// Not any more.
    Remove,
}

/// Watches `fd`, whose events will carry `token`.
pub fn epoll_watch(epoll: RawFd, fd: RawFd, token: u64, watch: Watch) -> io::Result<()> {
    let (operation, events) = match watch {
        Watch::Add(events) => (libc::EPOLL_CTL_ADD, events),
        Watch::Change(events) => (libc::EPOLL_CTL_MOD, events),
        Watch::Remove => (libc::EPOLL_CTL_DEL, 0),
    };
    let mut event = libc::epoll_event { events: events as u32, u64: token };
    // SAFETY: the event outlives the call.
    check(unsafe { libc::epoll_ctl(epoll, operation, fd, &mut event) })?;
    Ok(())
}

/// Waits for up to `max` events (at most [`READY_MAX`](super::events::READY_MAX)), `None` without end.
pub fn epoll_wait(epoll: RawFd, into: &mut EpollEvents, max: usize, timeout: Option<Duration>) {
    let millis = match timeout {
        None => -1,
        Some(time) => {
            let millis = time.as_nanos().div_ceil(1_000_000);
            libc::c_int::try_from(millis).unwrap_or(libc::c_int::MAX)
        }
    };
    let max = libc::c_int::try_from(max.clamp(1, into.events.len())).unwrap_or(1);
    // SAFETY: the array holds `max` events.
    let count = unsafe { libc::epoll_wait(epoll, into.events.as_mut_ptr(), max, millis) };
    // An interrupted wait is a wait that ended early.
    into.len = usize::try_from(count).unwrap_or(0);
}

/// A new eventfd.
pub fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: numbers only.
    own(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// Makes an eventfd readable.
pub fn eventfd_set(fd: RawFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: eight bytes. It fails only when the counter is at its end, which is readable.
    unsafe { libc::write(fd, one.as_ptr().cast(), one.len()) };
}

/// Empties an eventfd or timerfd.
pub fn counter_clear(fd: RawFd) {
    let mut count = [0u8; 8];
    // SAFETY: eight bytes. It fails only when there is nothing to clear.
    unsafe { libc::read(fd, count.as_mut_ptr().cast(), count.len()) };
}

/// A new timerfd, not armed.
pub fn timerfd() -> io::Result<OwnedFd> {
    let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
    // SAFETY: numbers only.
    own(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })
}

/// Makes a timerfd readable every `interval`, or never.
pub fn timerfd_set(fd: RawFd, interval: Option<Duration>) -> io::Result<()> {
    let interval = interval.unwrap_or_default();
    let time = libc::timespec {
        tv_sec: interval.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(interval.subsec_nanos()),
    };
    let value = libc::itimerspec { it_interval: time, it_value: time };
    // SAFETY: the value outlives the call, no old value is asked for.
    check(unsafe { libc::timerfd_settime(fd, 0, &value, std::ptr::null_mut()) })?;
    Ok(())
}

/// Makes a timerfd readable once, after `time`.
pub fn timerfd_once(fd: RawFd, time: Duration) -> io::Result<()> {
    // No time at all would disarm it.
    let time = time.max(Duration::from_nanos(1));
    let value = libc::itimerspec {
        it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
        it_value: libc::timespec {
            tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: libc::c_long::from(time.subsec_nanos()),
        },
    };
    // SAFETY: the value outlives the call, no old value is asked for.
    check(unsafe { libc::timerfd_settime(fd, 0, &value, std::ptr::null_mut()) })?;
    Ok(())
}
