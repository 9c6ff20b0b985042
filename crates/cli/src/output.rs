//! Data on standard output: lines for people, or one JSON object per line.

use std::io::{self, BufWriter, Stdout, Write};

use dafs_protocol::{Attr, Timestamp};
use serde::Serialize;

use crate::connect::Remote;
use crate::failure::Failure;
use crate::{progress, text};

/// Standard output, buffered.
pub struct Output {
    out: BufWriter<Stdout>,
}

impl Output {
    /// Standard output of this process.
    pub fn new() -> Output {
        Output { out: BufWriter::with_capacity(64 << 10, io::stdout()) }
    }

    /// One line of text; what would turn a terminal around is written as in [`text::escape`].
    ///
    /// # Errors
    /// Standard output's.
    pub fn line(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text::tame(text).as_bytes())?;
        self.out.write_all(b"\n")
    }

    /// Bytes as they are.
    ///
    /// # Errors
    /// Standard output's.
    pub fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)
    }

    /// One object on a line of its own.
    ///
    /// # Errors
    /// Standard output's.
    pub fn json(&mut self, object: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, object).map_err(io::Error::from)?;
        self.out.write_all(b"\n")
    }

    /// Hands everything over now.
    ///
    /// # Errors
    /// Standard output's.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Says what was done, with `-v`.
///
/// # Errors
/// Standard output's.
pub fn done(text: impl FnOnce() -> String) -> Result<(), Failure> {
    if progress::is_verbose() {
        let mut out = Output::new();
        out.line(&text())?;
        out.flush()?;
    }
    Ok(())
}

/// A file as a JSON object.
#[derive(Debug, Serialize)]
pub struct FileObject {
    /// Any name can be written as URL.
    pub url: String,
    /// Null where the name is not UTF-8.
    pub name: Option<String>,
    #[serde(rename = "type")]
    kind: &'static str,
    /// Octal.
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    /// Bytes.
    size: u64,
    /// Bytes.
    allocated: u64,
    inode: u64,
    device: u64,
    rdev: u64,
    accessed: String,
    modified: String,
    changed: String,
    created: Option<String>,
    /// Of a symlink, where it was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

impl FileObject {
    /// The file at `path`.
    pub fn new(remote: &Remote, path: &[u8], attr: &Attr) -> FileObject {
        FileObject {
            url: remote.name(path),
            name: String::from_utf8(crate::place::name(path).to_vec()).ok(),
            kind: text::kind(attr.kind),
            mode: format!("{:04o}", attr.mode),
            links: attr.links,
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            allocated: attr.allocated,
            inode: attr.inode,
            device: attr.device,
            rdev: attr.rdev,
            accessed: rfc3339(attr.accessed),
            modified: rfc3339(attr.modified),
            changed: rfc3339(attr.changed),
            created: attr.created.map(rfc3339),
            target: None,
        }
    }
}

/// `2026-11-20T11:30:05.123456789Z`.
pub fn rfc3339(time: Timestamp) -> String {
    let (days, second) = (time.seconds.div_euclid(86_400), time.seconds.rem_euclid(86_400));
    // Howard Hinnant's civil_from_days, with years that begin in March.
    let shifted = i128::from(days) + 719_468;
    let era = shifted.div_euclid(146_097);
    let day = shifted.rem_euclid(146_097);
    let year_of_era = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i128::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let ns = time.nanoseconds;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ns:09}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc() {
        let at = |seconds, nanoseconds| rfc3339(Timestamp { seconds, nanoseconds });
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(at(951_827_696, 5), "2000-02-29T12:34:56.000000005Z");
        assert_eq!(at(-1, 999_999_999), "1969-12-31T23:59:59.999999999Z");
        assert_eq!(at(4_102_444_800, 0), "2100-01-01T00:00:00.000000000Z");
    }
}
