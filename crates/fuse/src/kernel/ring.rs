//! FUSE over io_uring: requests come to entries of rings, and their replies go back with the
//! command that asks for the next ones: one system call each, where the device needs two.
//!
//! The kernel has a queue for each CPU, and gives a request to an entry of the queue where its
//! caller runs. An [`Entry`] is memory for one request and its reply. Whoever submits it, by a
//! [`Ring`] of its own, gets it back with a request; that thread alone answers it.

mod entry;
mod sys;

use std::fs;
use std::io;

pub use entry::Entry;
pub use sys::Ring;

/// What turns it on, for mounts from then on.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
const POSSIBLE_CPUS: &str = "/sys/devices/system/cpu/possible";

/// Whether requests come by rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Uring {
    /// They do not.
    #[default]
    Off,
    /// They do where the kernel has it, and it is on.
    Auto,
    /// A mount without is none.
    On,
}

impl Uring {
    /// # Errors
    /// Rings are a must, and the kernel has none; the text says what to do.
    pub fn check(self) -> io::Result<()> {
        if self == Uring::On { is_on() } else { Ok(()) }
    }
}

/// Looks whether the kernel offers rings to mounts.
///
/// # Errors
/// It does not; the text says what to do.
pub fn is_on() -> io::Result<()> {
    match fs::read_to_string(PARAMETER) {
        Ok(value) if value.trim() == "Y" => Ok(()),
        Ok(_) => Err(io::Error::other(format!("it is switched off (root: echo Y > {PARAMETER})"))),
        Err(_) => {
            let text = "this kernel has no FUSE over io_uring (CONFIG_FUSE_IO_URING, Linux 6.14)";
            Err(io::Error::other(text))
        }
    }
}

/// How many queues the kernel has.
///
/// # Errors
/// It does not say so.
pub fn queues() -> io::Result<u16> {
    let text = fs::read_to_string(POSSIBLE_CPUS)?;
    let wrong = || io::Error::other(format!("{POSSIBLE_CPUS}: {}", text.trim()));
    cpus_without_gaps(text.trim()).ok_or_else(wrong)
}

/// Of a list of CPUs, `0-3`. With gaps in it the kernel has fewer queues than numbers of CPUs, and
/// all callers beyond share the first one.
fn cpus_without_gaps(list: &str) -> Option<u16> {
    let last = list.strip_prefix("0-").or_else(|| Some(list).filter(|list| *list == "0"))?;
    last.parse::<u16>().ok()?.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_counted_where_cpus_are_numbered_without_gaps() {
        assert_eq!(cpus_without_gaps("0"), Some(1));
        assert_eq!(cpus_without_gaps("0-127"), Some(128));
        for list in ["", "1", "1-3", "0-3,8-11", "0-x", "0-65535"] {
            assert_eq!(cpus_without_gaps(list), None, "{list}");
        }
    }
}
