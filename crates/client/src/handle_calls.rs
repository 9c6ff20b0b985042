//! Blocking calls on objects by their handles, as a mounted file system makes them.
//!
//! A handle names an object for as long as it exists, also over lost connections and restarts of
//! the server; one that the server does not know (any more) is
//! [`Stale`](dafs_protocol::Status::Stale). Names are single components; symlinks are not
//! followed.

use std::sync::Arc;

use dafs_protocol::{
    AccessMask, Attr, DirEntry, FileHandle, FileKind, FsAttr, OwnerKey, SetAttr, XATTR_BYTES_MAX,
};

use crate::answer::{attr_of, bytes_of, node_of, unexpected};
use crate::core::{FileKey, Memory, Object, OpenOptions, Output, Place, Work};
use crate::dir::BATCH_BYTES;
use crate::error::{Error, Result};
use crate::file::File;
use crate::handle::Handle;
use crate::session::Session;

/// What a change of names answers.
#[derive(Debug)]
pub struct Changed<T> {
    /// What was made.
    pub done: T,
    /// Attributes that the directory has after it; of a rename, then those of the other one, if it
    /// is another. `None`: they could not be asked for.
    pub dirs: [Option<Attr>; 2],
    /// The last attributes of what has no name any more, where they are known.
    pub gone: Option<Attr>,
}

/// A batch of directory entries has room for the longest one.
const BATCH_BYTES_MIN: u32 = 1024;

impl Session {
    /// The export's root.
    ///
    /// # Errors
    /// [`Error`], as all calls.
    pub fn root(&self) -> Result<Object> {
        node_of(self.call_for_user(Work::Find { place: Place::new(b"")? })?)
    }

    /// What a name in a directory is.
    ///
    /// # Errors
    /// [`Error`].
    pub fn lookup_at(&self, dir: FileHandle, name: &[u8]) -> Result<Object> {
        node_of(self.call_for_user(Work::Find { place: Place::child(dir, name)? })?)
    }

    /// The directory above; that of the root is the root.
    ///
    /// # Errors
    /// [`Error`].
    pub fn parent_of(&self, handle: FileHandle) -> Result<Object> {
        node_of(self.call_for_user(Work::Parent { handle })?)
    }

    /// Attributes.
    ///
    /// # Errors
    /// [`Error`].
    pub fn attr_of(&self, handle: FileHandle) -> Result<Attr> {
        attr_of(self.call_for_user(Work::Stat { place: Place::at(handle), no_follow: true })?)
    }

    /// Changes attributes; answers the new ones.
    ///
    /// # Errors
    /// [`Error`].
    pub fn set_attr_of(&self, handle: FileHandle, set: SetAttr) -> Result<Attr> {
        let place = Place::at(handle);
        attr_of(self.call_for_user(Work::SetAttr { place, set, no_follow: true })?)
    }

    /// As [`set_attr_of`](Self::set_attr_of) of an open file. `flush`: also flushes it
    /// ([`File::flush`](crate::File::flush)); answers what became of that, too. With `handle` it is
    /// asked for by that one, where rights to an open file are not enough.
    ///
    /// # Errors
    /// [`Error`], of what was to be set.
    pub fn set_attr_open(
        &self,
        file: &File,
        handle: Option<FileHandle>,
        set: SetAttr,
        flush: bool,
    ) -> Result<(Attr, Result<()>)> {
        let work = Work::SetAttrOpen { file: file.key(), handle, set, flush };
        let (output, beside) = self.inner().call_beside(self.user.clone(), work, Memory::None)?;
        // Without a flush nothing is found beside.
        let flushed = beside.map_or(Ok(()), |beside| beside.flushed.map_err(Error::from));
        Ok((attr_of(output)?, flushed))
    }

    /// Opens a name in a directory, or with an empty name the file itself (with
    /// [`unlinked`](OpenOptions::unlinked): a new file in the directory). True: it was made.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open_at(
        &self,
        dir: FileHandle,
        name: &[u8],
        options: OpenOptions,
    ) -> Result<(File, bool)> {
        let place = if name.is_empty() { Place::at(dir) } else { Place::child(dir, name)? };
        let options = OpenOptions { no_follow: true, ..options };
        match self.call_for_user(Work::Open { place, options })? {
            Output::File(key, opened) => {
                Ok((File::new(self.handle.clone(), key, opened.node), opened.created))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// As [`open_at`](Self::open_at) of a name, which may be made.
    ///
    /// # Errors
    /// [`Error`].
    pub fn create_at(
        &self,
        dir: FileHandle,
        name: &[u8],
        options: OpenOptions,
    ) -> Result<Changed<(File, bool)>> {
        let place = Place::child(dir, name)?.with_dir();
        let options = OpenOptions { no_follow: true, ..options };
        self.change(Work::Open { place, options }, |output| match output {
            Output::File(key, opened) => {
                Ok((File::new(self.handle.clone(), key, opened.node), opened.created))
            }
            other => Err(unexpected(&other)),
        })
    }

    /// A change of names, and the directories after it.
    fn change<T>(
        &self,
        work: Work,
        done: impl FnOnce(Output<FileKey>) -> Result<T>,
    ) -> Result<Changed<T>> {
        let (output, beside) = self.inner().call_beside(self.user.clone(), work, Memory::None)?;
        let (dirs, gone) = beside.map_or(([None; 2], None), |beside| (beside.dirs, beside.gone));
        Ok(Changed { done: done(output)?, dirs, gone })
    }

    /// Makes what is no regular file: a directory, a symlink that says `target`, a fifo, socket
    /// or device. (Regular files are made by [`open_at`](Self::open_at).)
    ///
    /// # Errors
    /// [`Error`].
    pub fn make_at(
        &self,
        dir: FileHandle,
        name: &[u8],
        kind: FileKind,
        mode: u32,
        rdev: u64,
        target: &[u8],
    ) -> Result<Changed<Object>> {
        let (place, target) = (Place::child(dir, name)?.with_dir(), target.into());
        self.change(Work::Make { place, kind, mode, rdev, target }, node_of)
    }

    /// A hard link: a new name of an object.
    ///
    /// # Errors
    /// [`Error`].
    pub fn link_at(
        &self,
        from: FileHandle,
        dir: FileHandle,
        name: &[u8],
    ) -> Result<Changed<Object>> {
        let (from, to) = (Place::at(from), Place::child(dir, name)?.with_dir());
        self.change(Work::Link { from, to, from_handle: None }, node_of)
    }

    /// Removes a name: of an empty directory, or (`directory` false) of anything else.
    ///
    /// # Errors
    /// [`Error`].
    pub fn remove_at(&self, dir: FileHandle, name: &[u8], directory: bool) -> Result<Changed<()>> {
        let place = Place::child(dir, name)?.with_dir();
        self.change(Work::Remove { place, directory }, |_| Ok(()))
    }

    /// Renames, or fails where the new name exists (`no_replace`), or swaps the two
    /// (`exchange`), or leaves a whiteout of an overlay under the old name (`whiteout`).
    ///
    /// # Errors
    /// [`Error`].
    pub fn rename_at(
        &self,
        from_dir: FileHandle,
        from: &[u8],
        to_dir: FileHandle,
        to: &[u8],
        (no_replace, exchange, whiteout): (bool, bool, bool),
    ) -> Result<Changed<()>> {
        let from = Place::child(from_dir, from)?.with_dir();
        let to = Place::child(to_dir, to)?.with_dir();
        let work = Work::Rename { from, to, from_dir: None, no_replace, exchange, whiteout };
        self.change(work, |_| Ok(()))
    }

    /// A symlink's target.
    ///
    /// # Errors
    /// [`Error`].
    pub fn read_link_of(&self, handle: FileHandle) -> Result<Vec<u8>> {
        match self.call_for_user(Work::ReadLink { place: Place::at(handle) })? {
            Output::Target(target) => Ok(target),
            other => Err(unexpected(&other)),
        }
    }

    /// A batch of directory entries after `cookie` (0: from the start), without `.` and `..`, of
    /// about `bytes` (at most 64 KiB); `plus`: with attributes and handles. True: nothing
    /// follows.
    ///
    /// # Errors
    /// [`Error`].
    pub fn read_dir_of(
        &self,
        handle: FileHandle,
        cookie: u64,
        bytes: u32,
        plus: bool,
    ) -> Result<(Vec<DirEntry>, bool)> {
        entries_of(self.call_for_user(list_work(handle, cookie, bytes, plus))?)
    }

    /// Asks for entries that will be wanted soon: [`DirAhead::wait`] gives what
    /// [`read_dir_of`](Self::read_dir_of) would. `None` where the session is too busy for that.
    /// Does not block.
    pub fn read_dir_ahead(
        &self,
        handle: FileHandle,
        cookie: u64,
        bytes: u32,
        plus: bool,
    ) -> Option<DirAhead> {
        let work = list_work(handle, cookie, bytes, plus);
        let sink = self.inner().begin(self.user.clone(), work)?;
        Some(DirAhead { session: self.handle.clone(), sink })
    }

    /// An extended attribute's value.
    ///
    /// # Errors
    /// [`Error`]; [`NoData`](dafs_protocol::Status::NoData) where there is none.
    pub fn get_xattr_of(&self, handle: FileHandle, name: &[u8]) -> Result<Vec<u8>> {
        let (place, name) = (Place::at(handle), name.into());
        bytes_of(self.call_for_user(Work::GetXattr { place, name, size_only: false })?)
    }

    /// Sets one. `flags`: 0, 1 create only, 2 replace only.
    ///
    /// # Errors
    /// [`Error`]; [`TooBig`](dafs_protocol::Status::TooBig).
    pub fn set_xattr_of(
        &self,
        handle: FileHandle,
        name: &[u8],
        value: &[u8],
        flags: u8,
    ) -> Result<()> {
        if value.len() > XATTR_BYTES_MAX {
            return Err(dafs_protocol::Status::TooBig.into());
        }
        let (place, name, value) = (Place::at(handle), name.into(), value.into());
        self.call_for_user(Work::SetXattr { place, name, value, flags }).map(drop)
    }

    /// Names of extended attributes, each ended by NUL.
    ///
    /// # Errors
    /// [`Error`].
    pub fn list_xattr_of(&self, handle: FileHandle) -> Result<Vec<u8>> {
        let place = Place::at(handle);
        bytes_of(self.call_for_user(Work::ListXattr { place, size_only: false })?)
    }

    /// Removes one.
    ///
    /// # Errors
    /// [`Error`].
    pub fn remove_xattr_of(&self, handle: FileHandle, name: &[u8]) -> Result<()> {
        let (place, name) = (Place::at(handle), name.into());
        self.call_for_user(Work::RemoveXattr { place, name }).map(drop)
    }

    /// Which of `mask` the user may do.
    ///
    /// # Errors
    /// [`Error`].
    pub fn access_of(&self, handle: FileHandle, mask: AccessMask) -> Result<AccessMask> {
        match self.call_for_user(Work::Access { place: Place::at(handle), mask })? {
            Output::Access(mask) => Ok(mask),
            other => Err(unexpected(&other)),
        }
    }

    /// Gives back all locks of an owner, on all files, and ends its waits.
    ///
    /// # Errors
    /// [`Error`].
    pub fn release_owner(&self, owner: OwnerKey) -> Result<()> {
        self.inner().settle_owner(owner)?;
        self.call_for_user(Work::OwnerRelease { owner }).map(drop)
    }

    /// The names in a directory on the server's disk. What was written to files is left to
    /// [`File::commit`](crate::File::commit).
    ///
    /// # Errors
    /// [`Error`]; `NotDir`.
    pub fn sync_dir_of(&self, handle: FileHandle) -> Result<()> {
        self.call_for_user(Work::SyncDir { place: Place::at(handle) }).map(drop)
    }

    /// Space and limits of the file system.
    ///
    /// # Errors
    /// [`Error`].
    pub fn statfs_of(&self, handle: FileHandle) -> Result<FsAttr> {
        match self.call_for_user(Work::StatFs { place: Place::at(handle) })? {
            Output::FileSystem(attr) => Ok(attr),
            other => Err(unexpected(&other)),
        }
    }
}

impl File {
    /// Gives the file a name in a directory; also one that was opened
    /// [`unlinked`](crate::OpenOptions::unlinked).
    ///
    /// # Errors
    /// [`Error`].
    pub fn link_to(&self, dir: FileHandle, name: &[u8]) -> Result<Changed<Object>> {
        let to = Place::child(dir, name)?.with_dir();
        let work = Work::LinkFile { file: self.inner.key, to };
        let (output, beside) = self.inner.session.inner.call_beside(None, work, Memory::None)?;
        let dirs = beside.map_or([None; 2], |beside| beside.dirs);
        Ok(Changed { done: node_of(output)?, dirs, gone: None })
    }
}

/// Entries of a directory that were asked for ahead of time. Dropped, nobody wants them any more.
pub struct DirAhead {
    session: Arc<Handle>,
    sink: usize,
}

impl DirAhead {
    /// Blocks until they are there.
    ///
    /// # Errors
    /// [`Error`].
    pub fn wait(self) -> Result<(Vec<DirEntry>, bool)> {
        entries_of(self.session.inner.answer_of(self.sink)?)
    }
}

impl Drop for DirAhead {
    fn drop(&mut self) {
        self.session.inner.lock().drop_sink(self.sink);
    }
}

fn list_work(handle: FileHandle, cookie: u64, bytes: u32, plus: bool) -> Work {
    Work::ReadDir {
        place: Place::at(handle),
        cookie,
        bytes: bytes.clamp(BATCH_BYTES_MIN, BATCH_BYTES),
        attributes: plus,
        handles: plus,
    }
}

fn entries_of(output: Output<FileKey>) -> Result<(Vec<DirEntry>, bool)> {
    match output {
        Output::Entries { entries, end, .. } => Ok((entries, end)),
        other => Err(unexpected(&other)),
    }
}
