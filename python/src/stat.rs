//! Attributes, under the names of `os.stat_result`.

use dafs_protocol::{Attr, FileKind, Timestamp};
use pyo3::prelude::*;

/// What a name or an open file is like. Has what `os.stat_result` has, by the same names.
#[pyclass(frozen, module = "dafs._dafs")]
pub struct Stat(pub Attr);

fn seconds(time: Timestamp) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "as os.stat_result")]
    let whole = time.seconds as f64;
    whole + f64::from(time.nanoseconds) / 1e9
}

fn nanoseconds(time: Timestamp) -> i128 {
    i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds)
}

/// The bits of `st_mode` that say what it is.
pub fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::File => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
    }
}

#[pymethods]
impl Stat {
    #[getter]
    fn st_mode(&self) -> u32 {
        type_bits(self.0.kind) | (self.0.mode & 0o7777)
    }
    #[getter]
    fn st_ino(&self) -> u64 {
        self.0.inode
    }
    #[getter]
    fn st_dev(&self) -> u64 {
        self.0.device
    }
    #[getter]
    fn st_nlink(&self) -> u32 {
        self.0.links
    }
    #[getter]
    fn st_uid(&self) -> u32 {
        self.0.uid
    }
    #[getter]
    fn st_gid(&self) -> u32 {
        self.0.gid
    }
    #[getter]
    fn st_size(&self) -> u64 {
        self.0.size
    }
    #[getter]
    fn st_blocks(&self) -> u64 {
        self.0.allocated.div_ceil(512)
    }
    #[getter]
    fn st_blksize(&self) -> u32 {
        self.0.block_size
    }
    #[getter]
    fn st_rdev(&self) -> u64 {
        self.0.rdev
    }
    #[getter]
    fn st_atime(&self) -> f64 {
        seconds(self.0.accessed)
    }
    #[getter]
    fn st_mtime(&self) -> f64 {
        seconds(self.0.modified)
    }
    #[getter]
    fn st_ctime(&self) -> f64 {
        seconds(self.0.changed)
    }
    #[getter]
    fn st_atime_ns(&self) -> i128 {
        nanoseconds(self.0.accessed)
    }
    #[getter]
    fn st_mtime_ns(&self) -> i128 {
        nanoseconds(self.0.modified)
    }
    #[getter]
    fn st_ctime_ns(&self) -> i128 {
        nanoseconds(self.0.changed)
    }
    /// `None` where the server's file system does not know it.
    #[getter]
    fn st_birthtime(&self) -> Option<f64> {
        self.0.created.map(seconds)
    }
    /// Grows with each change of the file.
    #[getter]
    fn change(&self) -> u64 {
        self.0.change
    }

    fn __repr__(&self) -> String {
        format!(
            "dafs.Stat(st_mode=0o{:o}, st_size={}, st_ino={}, st_mtime_ns={})",
            self.st_mode(),
            self.0.size,
            self.0.inode,
            self.st_mtime_ns()
        )
    }
}
