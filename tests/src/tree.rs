//! Trees: made, and compared in everything that a copy must keep.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::unistd::{Whence, lseek};

/// What is compared beside names, types and contents.
#[derive(Debug, Clone, Copy)]
pub struct Keep {
    /// Owners and groups.
    pub owners: bool,
    /// Where holes are (only whether a sparse file stays sparse).
    pub holes: bool,
}

/// All differences of two trees, as text; at most a hundred.
///
/// # Errors
/// Reading either tree.
pub fn differences(a: &Path, b: &Path, keep: Keep) -> io::Result<(usize, Vec<String>)> {
    let mut walk = Walk { keep, links: HashMap::new(), found: Vec::new(), entries: 0 };
    walk.compare(a, b)?;
    Ok((walk.entries, walk.found))
}

struct Walk {
    keep: Keep,
    /// First path of each inode with several links, in both trees.
    links: HashMap<(u64, u64), (u64, u64)>,
    found: Vec<String>,
    entries: usize,
}

impl Walk {
    fn differ(&mut self, path: &Path, what: String) {
        if self.found.len() < 100 {
            self.found.push(format!("{}: {what}", path.display()));
        }
    }

    fn compare(&mut self, a: &Path, b: &Path) -> io::Result<()> {
        self.entries += 1;
        let ma = fs::symlink_metadata(a)?;
        let mb = match fs::symlink_metadata(b) {
            Ok(meta) => meta,
            Err(error) => {
                self.differ(b, error.to_string());
                return Ok(());
            }
        };
        if ma.file_type() != mb.file_type() {
            self.differ(b, format!("type {:?}, not {:?}", mb.file_type(), ma.file_type()));
            return Ok(());
        }
        self.compare_attributes(b, &ma, &mb);
        let kind = ma.file_type();
        if kind.is_symlink() {
            if fs::read_link(a)? != fs::read_link(b)? {
                self.differ(b, "symlink target".into());
            }
        } else if kind.is_dir() {
            self.compare_dirs(a, b)?;
        } else if kind.is_file() {
            self.compare_files(a, b, &ma, &mb)?;
        } else if (kind.is_block_device() || kind.is_char_device()) && ma.rdev() != mb.rdev() {
            self.differ(b, "device number".into());
        }
        Ok(())
    }

    fn compare_attributes(&mut self, path: &Path, a: &Metadata, b: &Metadata) {
        let symlink = a.file_type().is_symlink();
        if !symlink && a.mode() & 0o7777 != b.mode() & 0o7777 {
            self.differ(path, format!("mode {:o}, not {:o}", b.mode() & 0o7777, a.mode() & 0o7777));
        }
        let times = |m: &Metadata| (m.mtime(), m.mtime_nsec());
        if times(a) != times(b) {
            self.differ(path, format!("mtime {:?}, not {:?}", times(b), times(a)));
        }
        if self.keep.owners && (a.uid(), a.gid()) != (b.uid(), b.gid()) {
            self.differ(path, "owner".into());
        }
        if !a.is_dir() && a.nlink() > 1 {
            let ka = (a.dev(), a.ino());
            let kb = (b.dev(), b.ino());
            if *self.links.entry(ka).or_insert(kb) != kb {
                self.differ(path, "hard link".into());
            }
        }
    }

    fn compare_dirs(&mut self, a: &Path, b: &Path) -> io::Result<()> {
        let (na, nb) = (names(a)?, names(b)?);
        for extra in nb.iter().filter(|name| na.binary_search(name).is_err()) {
            self.differ(&b.join(extra), "is too much".into());
        }
        for name in na {
            self.compare(&a.join(&name), &b.join(&name))?;
        }
        Ok(())
    }

    fn compare_files(
        &mut self,
        a: &Path,
        b: &Path,
        ma: &Metadata,
        mb: &Metadata,
    ) -> io::Result<()> {
        if ma.len() != mb.len() {
            self.differ(b, format!("size {}, not {}", mb.len(), ma.len()));
            return Ok(());
        }
        let (fa, fb) = (File::open(a)?, File::open(b)?);
        if !same_content(&fa, &fb)? {
            self.differ(b, "content".into());
        }
        if self.keep.holes && data_bytes(&fa, ma.len())? < data_bytes(&fb, mb.len())? {
            self.differ(b, "holes were filled".into());
        }
        Ok(())
    }
}

fn names(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entry = |entry: io::Result<fs::DirEntry>| Ok(PathBuf::from(entry?.file_name()));
    let mut names: Vec<PathBuf> = fs::read_dir(dir)?.map(entry).collect::<io::Result<_>>()?;
    names.sort();
    Ok(names)
}

fn same_content(a: &File, b: &File) -> io::Result<bool> {
    let (mut a, mut b) = (a, b);
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        let n = a.read(&mut left)?;
        if n == 0 {
            return Ok(b.read(&mut right[..1])? == 0);
        }
        if b.read_exact(&mut right[..n]).is_err() || left[..n] != right[..n] {
            return Ok(false);
        }
    }
}

/// Bytes that SEEK_DATA reports.
fn data_bytes(file: &File, len: u64) -> io::Result<u64> {
    let fd = file.as_fd();
    let (mut at, mut sum) = (0i64, 0);
    while u64::try_from(at).unwrap_or(u64::MAX) < len {
        let Ok(data) = lseek(fd, at, Whence::SeekData) else { break };
        let hole = lseek(fd, data, Whence::SeekHole)?;
        sum += u64::try_from(hole - data).unwrap_or(0);
        at = hole;
    }
    Ok(sum)
}

/// Pseudo-random bytes of a seed: repeatable and not compressible.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Makes a tree with everything that is hard to copy: odd names, links, holes, empty files,
/// odd modes and times, deep directories.
///
/// # Errors
/// The file system's.
pub fn make_odd(root: &Path, small_files: usize) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    fs::create_dir_all(root)?;
    let name = |bytes: &[u8]| root.join(std::ffi::OsStr::from_bytes(bytes));
    fs::write(name(b"new\nline"), b"x")?;
    fs::write(name(b"not utf-8 \xff\xfe"), b"y")?;
    fs::write(name(b"100% #?&=+ space"), b"z")?;
    fs::write(name(&[b'n'; 255]), b"long")?;
    fs::write(name(b"-rf"), b"dash")?;
    fs::write(root.join("empty"), b"")?;
    fs::hard_link(root.join("empty"), root.join("empty-link"))?;
    fs::write(root.join("big"), pattern(1, (5 << 20) + 123))?;
    fs::hard_link(root.join("big"), root.join("big-link"))?;
    std::os::unix::fs::symlink("big", root.join("symlink"))?;
    std::os::unix::fs::symlink("/nowhere/at all", root.join("dangling"))?;
    let sparse = File::create(root.join("sparse"))?;
    sparse.set_len(64 << 20)?;
    sparse.write_all_at(b"island", 33 << 20)?;
    nix::unistd::mkfifo(&root.join("fifo"), nix::sys::stat::Mode::from_bits_truncate(0o640))?;
    let mut deep = root.to_path_buf();
    for i in 0..40 {
        deep.push(format!("a-rather-long-directory-name-{i}"));
    }
    fs::create_dir_all(&deep)?;
    fs::write(deep.join("bottom"), b"deep")?;
    for i in 0..small_files {
        let dir = root.join(format!("small/{}", i / 500));
        if i % 500 == 0 {
            fs::create_dir_all(&dir)?;
        }
        fs::write(dir.join(format!("file-{i}")), pattern(i as u64, i * 37 % 9000))?;
    }
    set_odd_attributes(root)
}

fn set_odd_attributes(root: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, UNIX_EPOCH};
    for (name, mode) in [("big", 0o4751), ("-rf", 0o400), ("small", 0o1777)] {
        let path = root.join(name);
        if path.exists() {
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        }
    }
    let old = UNIX_EPOCH + Duration::new(123_456_789, 987_654_321);
    for path in [root.join("sparse"), root.join("a-rather-long-directory-name-0"), root.into()] {
        File::open(path)?.set_modified(old)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_by_cp_is_equal_and_a_change_is_found() {
        let dir = tempfile::tempdir().expect("tempdir");
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        make_odd(&a, 20).expect("tree");
        let cp = std::process::Command::new("cp").arg("-a").args([&a, &b]).status();
        assert!(cp.expect("cp").success());
        let keep = Keep { owners: true, holes: true };
        let (entries, found) = differences(&a, &b, keep).expect("compare");
        assert!(entries > 70 && found.is_empty(), "{entries} {found:?}");
        fs::write(b.join("big"), b"other").expect("write");
        fs::remove_file(b.join("symlink")).expect("remove");
        let (_, found) = differences(&a, &b, keep).expect("compare");
        assert!(found.len() >= 2, "{found:?}");
    }
}
