//! Where files live, behind a completion-based trait.
//!
//! Every call answers with a [`Pending`]: it may be done already (what the kernel has cached is
//! answered in the calling thread) or complete later from another thread. Nothing here knows of
//! networks or sessions.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod blocking;
mod disk;
pub mod memory;
pub mod names;
mod pending;
mod read_end;
mod thread_io;

pub use blocking::{Blocking, Elsewhere, allow_blocking, allowed_blocking};
pub use disk::Disk;
pub use pending::{Completer, Pending, pending};
pub use read_end::{ReadEnd, ReadWaiter};
pub use thread_io::{ThreadIo, set_thread_wait};

use std::any::Any;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use dafs_fabric::SgList;
use dafs_protocol::{
    AccessMask, Attr, DirEntry, FileExtent, FileHandle, FileKind, FsAttr, Identity, OpenFlags,
    SetAttr, Status,
};

/// What a store call gives.
pub type Answer<T> = Pending<Result<T, Status>>;

/// The caller on whose behalf something is done.
pub type Caller = Arc<Identity>;

/// Opens the store that a directory of this host is (read-only: it refuses changes), or says what
/// is wrong, for people. Who puts a server together gives it one.
pub type OpenStore = dyn Fn(&Path, bool, Disk) -> Result<Arc<dyn Store>, String>;

/// A found object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its handle.
    pub handle: FileHandle,
    /// Its attributes at that time.
    pub attr: Attr,
}

/// An opened regular file.
pub struct Opened {
    /// Its handle.
    pub handle: FileHandle,
    /// Its attributes after the open (and truncation).
    pub attr: Attr,
    /// For I/O with the server's own rights; the same object for all opens of a file at a time.
    pub file: Arc<dyn File>,
    /// It was made by this call.
    pub created: bool,
}

/// One page of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listing {
    /// In the directory's order, without `.` and `..`.
    pub entries: Vec<DirEntry>,
    /// Nothing follows.
    pub end: bool,
}

/// Allocated ranges of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Extents {
    /// In order; the first may begin before the range asked for, the last may end after it.
    pub list: Vec<FileExtent>,
    /// None follows in the range asked for.
    pub end: bool,
}

/// Which data or hole to look for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekKind {
    /// The next data.
    Data,
    /// The next hole (the end of the file counts as one).
    Hole,
}

/// A tree of files. Paths are relative to `dir`, components joined by `/`; they never lead out
/// of the tree: not above `dir` by themselves (XDEV), and by symlinks as if the tree's root were
/// `/`. All calls are checked by the store under the rights of `caller`.
///
/// The handle of a file that lost its last name stays good while the file is open.
///
/// The last byte of every handle is 0 and stands for nothing: who serves several stores marks
/// there whose it is.
#[allow(clippy::too_many_arguments)] // the operations of the protocol have them
pub trait Store: Send + Sync {
    /// The root directory.
    fn root(&self, caller: &Caller) -> Answer<Found>;
    /// Walks `path`. An empty path is `dir` itself.
    fn lookup(
        &self,
        caller: &Caller,
        dir: &FileHandle,
        path: &[u8],
        no_follow: bool,
    ) -> Answer<Found>;
    /// What a name of a directory is of; symlinks are not followed.
    fn object(&self, caller: &Caller, dir: &FileHandle, name: &[u8]) -> Answer<Attr>;
    /// The parent; the root is its own.
    fn lookup_parent(&self, caller: &Caller, handle: &FileHandle) -> Answer<Found>;
    /// Opens or makes a regular file under the rights of `caller`, also when it is open already. With
    /// `unlinked` a new one without a name, on the file system of the directory at `path`.
    fn open(
        &self,
        caller: &Caller,
        dir: &FileHandle,
        path: &[u8],
        flags: OpenFlags,
        mode: u32,
    ) -> Answer<Opened>;
    /// Makes anything but a regular file. `target` is a symlink's.
    fn create(
        &self,
        caller: &Caller,
        dir: &FileHandle,
        name: &[u8],
        kind: FileKind,
        mode: u32,
        rdev: u64,
        target: &[u8],
    ) -> Answer<Found>;
    /// A hard link.
    fn link(
        &self,
        caller: &Caller,
        from: &FileHandle,
        dir: &FileHandle,
        name: &[u8],
    ) -> Answer<Found>;
    /// Removes a name.
    fn remove(&self, caller: &Caller, dir: &FileHandle, name: &[u8], directory: bool)
    -> Answer<()>;
    /// Renames. The last: replaces nothing; swaps the two; leaves a whiteout (a device 0:0) under
    /// the old name.
    fn rename(
        &self,
        caller: &Caller,
        from_dir: &FileHandle,
        from: &[u8],
        to_dir: &FileHandle,
        to: &[u8],
        how: (bool, bool, bool),
    ) -> Answer<()>;
    /// Entries after `cookie` whose encoding takes at most `bytes_max`, at least one if any fits.
    fn read_dir(
        &self,
        caller: &Caller,
        dir: &FileHandle,
        cookie: u64,
        bytes_max: usize,
        attributes: bool,
        handles: bool,
    ) -> Answer<Listing>;
    /// A symlink's target.
    fn read_link(&self, caller: &Caller, handle: &FileHandle) -> Answer<Vec<u8>>;
    /// Attributes.
    fn attr(&self, caller: &Caller, handle: &FileHandle) -> Answer<Attr>;
    /// Changes attributes (size too: callers that cache data must know) and answers the new ones.
    fn set_attr(&self, caller: &Caller, handle: &FileHandle, set: &SetAttr) -> Answer<Attr>;
    /// Which of `mask` is permitted.
    fn access(&self, caller: &Caller, handle: &FileHandle, mask: AccessMask) -> Answer<AccessMask>;
    /// Space and limits.
    fn fs_attr(&self, caller: &Caller, handle: &FileHandle) -> Answer<FsAttr>;
    /// An extended attribute's value.
    fn xattr(&self, caller: &Caller, handle: &FileHandle, name: &[u8]) -> Answer<Vec<u8>>;
    /// Sets one. `flags`: 1 create only, 2 replace only.
    fn set_xattr(
        &self,
        caller: &Caller,
        handle: &FileHandle,
        name: &[u8],
        value: &[u8],
        flags: u8,
    ) -> Answer<()>;
    /// All names, each ended by NUL.
    fn list_xattr(&self, caller: &Caller, handle: &FileHandle) -> Answer<Vec<u8>>;
    /// Removes one.
    fn remove_xattr(&self, caller: &Caller, handle: &FileHandle, name: &[u8]) -> Answer<()>;
    /// The names in a directory, on disk. With the server's own rights: who may do it was checked
    /// when it was opened.
    fn sync_dir(&self, dir: &FileHandle) -> Answer<()>;
    /// Everything written to this tree, on disk.
    fn sync_fs(&self) -> Answer<()>;
    /// Its files may be on this device ([`FileId::device`]).
    fn has_device(&self, device: u64) -> bool;
    /// The file system that was met last on this device ([`FileId::device`]); `None`: none was.
    fn file_system(&self, device: u64) -> Option<FileSystem> {
        let _ = device;
        None
    }
    /// False when the file system that was met on this device is mounted no more; `None`: none was
    /// met.
    fn is_mounted(&self, device: u64) -> Option<bool> {
        let _ = device;
        None
    }
    /// From now on counts there, before it answers anything of it, each file system that is met on
    /// a device for the first time or in another one's place. The number of a device that is
    /// unmounted is given to the next.
    fn count_file_systems(&self, met: &Arc<AtomicU64>) {
        let _ = met;
    }
    /// The calling thread is a worker: it opens no files of its own, and lives as long as what is
    /// answered. That completes what its calls begin; `None`: this store, or one attached before,
    /// needs no other.
    ///
    /// # Errors
    /// The system's; the store's own threads then do what this one would.
    fn attach_thread(&self) -> std::io::Result<Option<Box<dyn ThreadIo>>> {
        Ok(None)
    }
    /// How file data is kept, for people: `direct` or `buffered` (disk), or `memory`.
    fn disk(&self) -> &'static str;
}

/// A file system of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystem {
    /// Tells it from all others, the same after a reboot. Two have the same where one is a copy of
    /// the other.
    pub identity: u64,
    /// The count when it was met ([`Store::count_file_systems`]): of two that were met on one
    /// device, the later one is there.
    pub met: u64,
}

/// An open regular file, with the server's own rights: who may do what was checked at OPEN.
pub trait File: Send + Sync {
    /// Same number, same file, while any of its objects lives.
    fn id(&self) -> FileId;
    /// Tells the file from those that had its number before; `None`: the store cannot.
    fn generation(&self) -> Option<u64> {
        None
    }
    /// Fills `into` from `offset`; fewer bytes only at the end of the file.
    fn read_at(&self, offset: u64, into: SgList) -> Answer<usize>;
    /// As [`read_at`](File::read_at), for who is told of the end.
    fn read_then(&self, offset: u64, into: SgList, end: ReadEnd) {
        self.read_at(offset, into).then(end);
    }
    /// As [`read_at`](File::read_at), by a descriptor's page cache and without waiting: `None`
    /// where that cannot be.
    fn read_resident(&self, offset: u64, into: &SgList) -> Option<Result<usize, Status>> {
        let _ = (offset, into);
        None
    }
    /// The descriptor that reads it, for sends that go past this trait.
    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        None
    }
    /// Writes all of `from` at `offset`; clears setuid and setgid as the kernel would for a
    /// writer who is not root, if `clear_privileges`.
    fn write_at(&self, offset: u64, from: SgList, clear_privileges: bool) -> Answer<()>;
    /// Data (and all attributes unless `data_only`) on disk.
    fn sync(&self, data_only: bool) -> Answer<()>;
    /// Sets the size; clears setuid and setgid if `clear_privileges`.
    fn truncate(&self, size: u64, clear_privileges: bool) -> Answer<()>;
    /// As fallocate(2), see [`dafs_protocol::Operation::Fallocate`]; clears setuid and setgid if
    /// `clear_privileges`.
    fn fallocate(&self, mode: u32, offset: u64, len: u64, clear_privileges: bool) -> Answer<()>;
    /// Copies from here to another file (or this one, where the ranges do not overlap) within
    /// the file system. Fewer bytes than `len`: go on from there; 0: this file ends.
    ///
    /// # Errors
    /// XDEV, NOTSUPP or INVAL where the file system cannot: nothing was copied.
    fn copy_range(
        &self,
        offset: u64,
        to: &Arc<dyn File>,
        to_offset: u64,
        len: u64,
        clear_privileges: bool,
    ) -> Answer<u64>;
    /// Shares the blocks of a range (`len` 0: to the end) with another file, all or nothing.
    fn clone_range(
        &self,
        offset: u64,
        to: &Arc<dyn File>,
        to_offset: u64,
        len: u64,
        clear_privileges: bool,
    ) -> Answer<()>;
    /// Allocated ranges that touch `offset..offset+len`, at most `most`.
    fn extents(&self, offset: u64, len: u64, most: usize) -> Answer<Extents>;
    /// Gives it a name, under the rights of `caller`: also a file that was opened `unlinked`, unless
    /// that was exclusive. One whose last name was removed gets no other (NOENT).
    fn link(&self, caller: &Caller, dir: &FileHandle, name: &[u8]) -> Answer<Found>;
    /// The next data or hole; `None`: nothing there.
    fn seek(&self, offset: u64, kind: SeekKind) -> Answer<Option<u64>>;
    /// Attributes.
    fn attr(&self) -> Answer<Attr>;
    /// The file can be so long, as far as the file system and limits of this process say. Does not
    /// wait.
    fn can_end_at(&self, end: u64) -> bool {
        let _ = end;
        true
    }
    /// The system has data of it that is not on its disk yet: there alone a local program can
    /// store through a mapping and leave the times as they are. Does not wait. `None`: the system
    /// cannot tell.
    fn has_unwritten(&self) -> Option<bool> {
        Some(false)
    }
    /// Every user of this host may open it for reading by a path from the store's root, as far as
    /// modes and access control lists say: it and all directories on the way are for everybody. It was
    /// so at some time during the call, if this tells the way; it tells none in every doubt. Who may
    /// get to the root is not asked.
    fn public_ancestors(&self) -> Answer<Option<Ancestors>> {
        Pending::ready(Ok(None))
    }
    /// As [`Store::set_attr`], without a look-up; also when the file has no name any more.
    fn set_attr(&self, caller: &Caller, set: &SetAttr) -> Answer<Attr>;
    /// Its data does not pass the page cache of a kernel.
    fn is_direct(&self) -> bool {
        false
    }
    /// For a store to know its own.
    fn as_any(&self) -> &dyn Any;
}

/// A file within its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// The file system.
    pub device: u64,
    /// The inode.
    pub inode: u64,
}

/// The inode numbers of the directories that lead to a file, from the store's root on. All are of the file's device.
pub type Ancestors = Arc<[u64]>;

impl From<&Attr> for FileId {
    /// As a store tells them.
    fn from(attr: &Attr) -> FileId {
        FileId { device: attr.device, inode: attr.inode }
    }
}
