//! A file system of its own for a measurement: what a disk's old one does (few free inodes in a
//! row, a full journal) is not what is measured.

use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::statfs::{TMPFS_MAGIC, statfs};

/// Bytes of an image, which is sparse.
const BYTES: u64 = 8 << 30;

fn is_memory(dir: &Path) -> bool {
    statfs(dir).is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC)
}

/// A directory: of a new ext4 in an image where that can be mounted, else of the disk.
pub struct FreshDir {
    dir: tempfile::TempDir,
    mounted: Option<PathBuf>,
}

impl FreshDir {
    /// Mounts one. Needs root, loop devices and e2fsprogs; without, it is a plain directory.
    ///
    /// # Panics
    /// When there is no temporary directory.
    pub fn new() -> FreshDir {
        let dir = tempfile::tempdir().expect("tempdir");
        // Memory does not grow old, and whoever has `TMPDIR` there wants to try it.
        if is_memory(dir.path()) { FreshDir { dir, mounted: None } } else { FreshDir::sized(BYTES) }
    }

    /// One with so many bytes, which can be full.
    ///
    /// # Panics
    /// As `new`.
    pub fn sized(bytes: u64) -> FreshDir {
        let dir = tempfile::tempdir().expect("tempdir");
        let (image, mount) = (dir.path().join("image"), dir.path().join("mount"));
        let done = |program: &str, args: &[&str], paths: &[&Path]| {
            let output = Command::new(program).args(args).args(paths).output();
            output.is_ok_and(|output| output.status.success())
        };
        std::fs::create_dir(&mount).expect("mkdir");
        let file = std::fs::File::create(&image).expect("image");
        file.set_len(bytes).expect("a sparse file");
        let made = done("mkfs.ext4", &["-q", "-F", "-E", "lazy_itable_init=0"], &[&image])
            && done("mount", &["-o", "loop"], &[&image, &mount]);
        if !made {
            let _ = std::fs::remove_file(&image);
            let _ = std::fs::remove_dir(&mount);
        }
        FreshDir { dir, mounted: made.then_some(mount) }
    }

    /// Where.
    pub fn path(&self) -> &Path {
        self.mounted.as_deref().unwrap_or(self.dir.path())
    }

    /// Whether it is a file system of its own.
    pub fn is_mounted(&self) -> bool {
        self.mounted.is_some()
    }

    /// The directory that holds it, for its permissions.
    pub(crate) fn outer(&self) -> &Path {
        self.dir.path()
    }

    /// For people.
    pub fn name(&self) -> &'static str {
        if self.mounted.is_some() { "new ext4" } else { "this disk" }
    }
}

impl Default for FreshDir {
    fn default() -> FreshDir {
        FreshDir::new()
    }
}

impl Drop for FreshDir {
    fn drop(&mut self) {
        let Some(mount) = &self.mounted else { return };
        // Its servers have ended before it. Whoever holds it all the same, holds it unnamed.
        let unmounted = Command::new("umount").arg(mount).output();
        if !unmounted.is_ok_and(|output| output.status.success()) {
            let _ = Command::new("umount").arg("-l").arg(mount).status();
        }
    }
}
