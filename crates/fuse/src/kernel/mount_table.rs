//! `/proc/self/mountinfo`: what is mounted where, without asking what is mounted.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// What the system says of all mounts that this process sees.
const TABLE: &str = "/proc/self/mountinfo";

/// A mount of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// The minor number of its device, by which the kernel names the connection.
    pub minor: u32,
    /// What is mounted, as it was named to the kernel.
    pub source: Vec<u8>,
    /// Options of the mount, with commas between them.
    pub options: Vec<u8>,
}

/// All mounts of ours that this process sees, with their places, in the order in which they were
/// made. Nothing mounted is asked.
///
/// # Errors
/// The table cannot be read.
pub fn mounted() -> io::Result<Vec<(PathBuf, Mounted)>> {
    let table = fs::read(TABLE)?;
    Ok(mounts(&table).filter_map(|(place, ours)| Some((place, ours?))).collect())
}

/// `dir` as the table writes it: absolute and without symbolic links on the way to it. What is
/// there itself is not looked at, since that may not answer.
pub fn place(dir: &Path) -> io::Result<PathBuf> {
    let dir = std::path::absolute(dir)?;
    match (dir.parent(), dir.file_name()) {
        (Some(parent), Some(name)) => Ok(fs::canonicalize(parent)?.join(name)),
        // The root, or a path that ends in `..`.
        _ => fs::canonicalize(dir),
    }
}

/// What of ours is mounted at a place, on top.
pub fn find(place: &Path) -> io::Result<Option<Mounted>> {
    Ok(find_in(&fs::read(TABLE)?, place))
}

/// True where `path` lies on a mount of ours. Nothing on the way is asked.
///
/// # Errors
/// The table cannot be read; the path is relative and the working directory gone.
pub fn is_on_mount(path: &Path) -> io::Result<bool> {
    Ok(lies_on(&fs::read(TABLE)?, &std::path::absolute(path)?))
}

/// The innermost mount above `path`, and the last of those at one place, counts.
fn lies_on(table: &[u8], path: &Path) -> bool {
    let above = mounts(table).filter(|(place, _)| path.starts_with(place));
    above.max_by_key(|(place, _)| place.as_os_str().len()).is_some_and(|(_, ours)| ours.is_some())
}

fn find_in(table: &[u8], place: &Path) -> Option<Mounted> {
    mounts(table).filter(|(at, _)| at == place).last()?.1
}

fn mounts(table: &[u8]) -> impl Iterator<Item = (PathBuf, Option<Mounted>)> {
    table.split(|byte| *byte == b'\n').filter_map(parse)
}

/// The place of a line, and the mount, if it is one of ours.
fn parse(line: &[u8]) -> Option<(PathBuf, Option<Mounted>)> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let minor = device.split_once(':')?.1.parse().ok()?;
    let place = PathBuf::from(OsString::from_vec(unescape(fields.nth(1)?)));
    let options = unescape(fields.next()?);
    // Optional fields end with a dash.
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = fields.next()?;
    let source = unescape(fields.next()?);
    Some((place, (kind == b"fuse.dafs").then_some(Mounted { minor, source, options })))
}

/// Blanks and such are written as `\` and three octal digits.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &after[3..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_on_top_counts() {
        let table = b"22 1 8:1 / / rw - ext4 /dev/sda rw\n\
            30 22 0:51 / /mnt/a\\040b rw,relatime shared:1 master:2 - fuse.dafs dafs://h/x\\040 rw\n\
            31 22 0:52 / /mnt/c rw - fuse.dafs dafs://h/ rw\n\
            32 31 0:53 / /mnt/c rw - tmpfs none rw\n\
            broken\n";
        let find = |place| find_in(table, Path::new(place));
        let ours = Mounted {
            minor: 51,
            source: b"dafs://h/x ".to_vec(),
            options: b"rw,relatime".to_vec(),
        };
        assert_eq!(find("/mnt/a b"), Some(ours));
        assert_eq!(find("/mnt/c"), None, "something else lies over it");
        assert_eq!(find("/mnt"), None);
    }

    #[test]
    fn what_is_no_escape_stays() {
        assert_eq!(unescape(b"a\\1\\134\\999\\"), b"a\\1\\\\999\\");
    }

    #[test]
    fn what_is_at_a_place_is_not_looked_at() {
        let place = place(Path::new("/proc/self/../nothing-here")).expect("the way there exists");
        assert_eq!(place, Path::new("/proc/nothing-here"));
    }

    #[test]
    fn the_innermost_mount_of_a_path_counts() {
        let table = b"22 1 8:1 / / rw - ext4 /dev/sda rw\n\
            30 22 0:51 / /mnt/a\\040b rw shared:1 - fuse.dafs dafs://h/ rw\n\
            31 30 0:52 / /mnt/a\\040b/c rw - tmpfs none rw\n\
            32 22 0:53 / /mnt/d rw - fuse.dafs dafs://h/ rw\n\
            33 32 0:54 / /mnt/d rw - tmpfs none rw\n";
        let ours = |path: &str| lies_on(table, Path::new(path));
        assert!(ours("/mnt/a b") && ours("/mnt/a b/x/y"));
        assert!(!ours("/mnt/a") && !ours("/mnt/a bc") && !ours("/mnt/a b/c/x") && !ours("/mnt/d"));
    }
}
