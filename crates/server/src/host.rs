//! What the server asks of its host: clocks, memory, randomness.

use std::time::Duration;

use dafs_protocol::Timestamp;
use nix::time::{ClockId, clock_gettime};

use crate::process::Stopwatch;

/// Names the time since this machine started; random where the system does not tell.
pub(crate) fn machine_run() -> [u8; 8] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).map_or_else(
        |_| {
            let mut bytes = [0; 8];
            fill_random(&mut bytes);
            bytes
        },
        u64::to_le_bytes,
    )
}

pub(crate) fn stopwatch() -> Stopwatch {
    let start = std::time::Instant::now();
    Box::new(move || start.elapsed())
}

/// What the calling thread has taken of the processor's time.
pub(crate) fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

pub(crate) fn wall_clock() -> Timestamp {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanoseconds: since.subsec_nanos(),
    }
}

pub(crate) fn fill_random(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the system has randomness");
}

pub(crate) fn memory_bytes() -> usize {
    usize::try_from(dafs_fabric::local::memory_bytes()).unwrap_or(usize::MAX)
}

pub(crate) fn process_stats() -> (u64, u64) {
    use nix::sys::resource::{UsageWho, getrusage};
    let nanoseconds = |t: nix::sys::time::TimeVal| {
        let us = t.tv_sec().saturating_mul(1_000_000).saturating_add(t.tv_usec());
        u64::try_from(us).unwrap_or(0).saturating_mul(1000)
    };
    let cpu = getrusage(UsageWho::RUSAGE_SELF)
        .map_or(0, |usage| nanoseconds(usage.user_time()) + nanoseconds(usage.system_time()));
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split_whitespace().nth(1).and_then(|field| field.parse::<u64>().ok());
    (cpu, pages.unwrap_or(0) * 4096)
}
