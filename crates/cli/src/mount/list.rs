//! `dafs mount` alone: the mounts of this machine.

use serde::Serialize;

use crate::failure::Failure;
use crate::output::Output;
use crate::text;

/// What the system says of all mounts that this process sees.
const TABLE: &str = "/proc/self/mountinfo";

/// A mount.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Mounted {
    url: String,
    directory: String,
    options: String,
}

/// Prints them, one on a line.
///
/// # Errors
/// The table cannot be read, or standard output not be written.
pub fn print(json: bool) -> Result<(), Failure> {
    let table = std::fs::read(TABLE).map_err(|error| Failure::about(TABLE, error))?;
    let mut out = Output::new();
    for mounted in table.split(|byte| *byte == b'\n').filter_map(mounted) {
        if json {
            out.json(&mounted)?;
        } else {
            let Mounted { url, directory, options } = mounted;
            out.line(&format!("{url} on {directory} ({options})"))?;
        }
    }
    Ok(out.flush()?)
}

/// A line of the table, where it is a mount of ours.
fn mounted(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|byte| *byte == b' ');
    let directory = fields.nth(4)?;
    let options = fields.next()?;
    // Optional fields end with a dash.
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    if fields.next()? != b"fuse.dafs" {
        return None;
    }
    let plain = |field: &[u8]| text::escape(&plain(field));
    Some(Mounted {
        url: plain(fields.next()?),
        directory: plain(directory),
        options: plain(options),
    })
}

/// A field without its escapes of three octal digits.
fn plain(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                out.push(byte);
                rest = &tail[3..];
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_ours_are_found() {
        let line =
            b"30 22 0:51 / /mnt/a\\040b rw,nosuid shared:1 master:2 - fuse.dafs dafs://h/x\\040 rw";
        let found = Mounted {
            url: "dafs://h/x ".into(),
            directory: "/mnt/a b".into(),
            options: "rw,nosuid".into(),
        };
        assert_eq!(mounted(line), Some(found));
        assert_eq!(mounted(b"31 22 8:1 / /x rw - ext4 /dev/sda1 rw"), None);
        assert_eq!(mounted(b""), None);
        assert_eq!(plain(b"a\\1"), b"a\\1");
    }
}
