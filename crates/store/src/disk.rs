//! How file data is kept.

use std::str::FromStr;

/// How file data gets from the disk to the cache and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Disk {
    /// Directly where that is possible, otherwise through the page cache.
    #[default]
    Auto,
    /// Directly: O_DIRECT, by io_uring.
    Direct,
    /// Through the kernel's page cache, by plain system calls.
    Buffered,
}

impl FromStr for Disk {
    type Err = String;

    fn from_str(text: &str) -> Result<Disk, String> {
        match text {
            "auto" => Ok(Disk::Auto),
            "direct" => Ok(Disk::Direct),
            "buffered" => Ok(Disk::Buffered),
            other => Err(format!("'{other}' is not auto, direct or buffered")),
        }
    }
}
