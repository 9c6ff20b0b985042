//! Asynchronous calls with owned buffers: what can be asked, and what comes back.

use std::sync::Arc;

use dafs_fabric::{Buffer, Span};
use dafs_protocol::{
    AccessMask, Attr, CommitLevel, Extent, ExtentList, FileKind, SetAttr, Stability, Status,
    Timestamp,
};

use crate::advice::Advice;
use crate::core::{CoreDone, Memory, OpenOptions, Place, Put, Work};
use crate::dir::BATCH_BYTES;
use crate::error::{Error, Result};
use crate::file::File;
use crate::handle::Handle;

/// One thing to do. Paths are bytes relative to the export's root; empty: the root itself.
///
/// A buffer given with a call belongs to the call until its [`Done`], which gives it back.
#[derive(Debug)]
#[non_exhaustive]
pub enum Call {
    /// Nothing: tells the round-trip time. Answers [`Output::Unit`].
    Ping,
    /// Reads `len` bytes at `offset` into the beginning of `buffer`. [`Output::Read`].
    Read {
        /// From where.
        file: File,
        /// First byte.
        offset: u64,
        /// At least `len` bytes.
        buffer: Buffer,
        /// At most [`SessionInfo::attr`](crate::SessionInfo::attr)`.data_bytes_max`.
        len: u32,
    },
    /// As `Read`; where the server's cache is memory that this process may read, the server lends what it has
    /// there, and nothing is copied into `buffer`. [`Output::Lent`].
    Lend {
        /// From where.
        file: File,
        /// First byte.
        offset: u64,
        /// At least `len` bytes, for what is not lent.
        buffer: Buffer,
        /// At most [`SessionInfo::attr`](crate::SessionInfo::attr)`.data_bytes_max`.
        len: u32,
    },
    /// Reads extents, one after the other, into `buffer`. [`Output::Read`].
    ReadList {
        /// From where.
        file: File,
        /// 1 to 16.
        extents: Vec<Extent>,
        /// At least as long as the extents.
        buffer: Buffer,
    },
    /// Reads at `offset` into memory that its owner leaves alone until the [`Done`]. [`Output::Read`].
    ReadInto {
        /// From where.
        file: File,
        /// First byte.
        offset: u64,
        /// Of an arena; at most [`SessionInfo::attr`](crate::SessionInfo::attr)`.data_bytes_max`.
        span: Span,
    },
    /// Writes at `offset` from memory that its owner does not change until the [`Done`].
    /// [`Output::Written`].
    WriteFrom {
        /// To where.
        file: File,
        /// First byte.
        offset: u64,
        /// Of an arena; at most [`SessionInfo::attr`](crate::SessionInfo::attr)`.data_bytes_max`.
        span: Span,
        /// How durable before it is answered.
        stability: Stability,
    },
    /// Writes the first `len` bytes of `buffer` at `offset`. [`Output::Written`].
    Write {
        /// To where.
        file: File,
        /// First byte.
        offset: u64,
        /// At least `len` bytes.
        buffer: Buffer,
        /// At most [`SessionInfo::attr`](crate::SessionInfo::attr)`.data_bytes_max`.
        len: u32,
        /// How durable before it is answered.
        stability: Stability,
    },
    /// Writes extents from `buffer`. [`Output::Written`].
    WriteList {
        /// To where.
        file: File,
        /// 1 to 16.
        extents: Vec<Extent>,
        /// At least as long as the extents.
        buffer: Buffer,
        /// How durable before it is answered.
        stability: Stability,
    },
    /// Writes the first `len` bytes of `buffer` at the end. [`Output::Written`].
    Append {
        /// To where.
        file: File,
        /// At least `len` bytes.
        buffer: Buffer,
        /// At most [`SessionInfo::attr`](crate::SessionInfo::attr)`.data_bytes_max`.
        len: u32,
        /// How durable before it is answered.
        stability: Stability,
    },
    /// Makes what was written durable. [`Output::Unit`].
    Commit {
        /// Which file.
        file: File,
        /// Leave times behind, as fdatasync does.
        data_only: bool,
    },
    /// Attributes of an open file. [`Output::Attr`].
    FileAttr {
        /// Which file.
        file: File,
    },
    /// Advice about a range of a file; best effort. [`Output::Advised`].
    Advise {
        /// Which file.
        file: File,
        /// First byte.
        offset: u64,
        /// Bytes; 0: to the end.
        len: u64,
        /// What.
        advice: Advice,
    },
    /// What the server's cache holds of a range of a file. [`Output::Cached`].
    CacheQuery {
        /// Which file.
        file: File,
        /// First byte.
        offset: u64,
        /// Bytes; 0: to the end.
        len: u64,
    },
    /// Closes a file; later calls on it fail. [`Output::Attr`].
    Close {
        /// Which file.
        file: File,
    },
    /// Opens. [`Output::File`].
    Open {
        /// What.
        path: Vec<u8>,
        /// How.
        options: OpenOptions,
    },
    /// Attributes of a name. [`Output::Attr`].
    Stat {
        /// Which.
        path: Vec<u8>,
        /// Of a symlink itself.
        no_follow: bool,
    },
    /// Opens, reads from the beginning and closes in one round trip. [`Output::Got`]. Where the
    /// file is longer than the buffer, `bytes < attr.size` tells.
    GetFile {
        /// Which file.
        path: Vec<u8>,
        /// Filled from its beginning; at most `data_bytes_max` bytes of it are used.
        buffer: Buffer,
    },
    /// Makes a whole small file in one round trip: open, write, attributes, commit, close,
    /// rename. [`Output::Attr`]. What was made before a failure stays.
    PutFile {
        /// Which file.
        path: Vec<u8>,
        /// At least `len` bytes; `None` for an empty file.
        buffer: Option<Buffer>,
        /// At most [`SessionInfo::attr`](crate::SessionInfo::attr)`.data_bytes_max`.
        len: u32,
        /// Permission bits.
        mode: u32,
        /// Fail where it exists; otherwise it is emptied first.
        exclusive: bool,
        /// Access and modification time.
        times: Option<(Timestamp, Timestamp)>,
        /// User and group.
        owner: Option<(u32, u32)>,
        /// The name that it gets when it is complete.
        rename_to: Option<Vec<u8>>,
        /// On disk before it is answered.
        commit: bool,
    },
    /// Makes a directory. [`Output::Object`].
    Mkdir {
        /// Its name.
        path: Vec<u8>,
        /// Permission bits.
        mode: u32,
    },
    /// Makes a fifo, socket or device. [`Output::Object`].
    Mknod {
        /// Its name.
        path: Vec<u8>,
        /// What it is.
        kind: FileKind,
        /// Permission bits.
        mode: u32,
        /// Of a device.
        rdev: u64,
    },
    /// Makes a symbolic link. [`Output::Object`].
    Symlink {
        /// What it says.
        target: Vec<u8>,
        /// Its name.
        path: Vec<u8>,
    },
    /// A symlink's target. [`Output::Target`].
    ReadLink {
        /// The symlink.
        path: Vec<u8>,
    },
    /// A hard link: `to` is a new name of `from`. [`Output::Object`].
    Link {
        /// What there is (a symlink is not followed).
        from: Vec<u8>,
        /// The new name.
        to: Vec<u8>,
    },
    /// Renames. [`Output::Unit`].
    Rename {
        /// Old name.
        from: Vec<u8>,
        /// New name.
        to: Vec<u8>,
        /// Fail where `to` exists.
        no_replace: bool,
    },
    /// Removes a name. [`Output::Unit`].
    Remove {
        /// Which.
        path: Vec<u8>,
        /// True for a directory, false for all else.
        directory: bool,
    },
    /// Changes attributes. [`Output::Attr`].
    SetAttr {
        /// Of what.
        path: Vec<u8>,
        /// What to change.
        set: SetAttr,
        /// Of a symlink itself.
        no_follow: bool,
    },
    /// Changes attributes of an open file. [`Output::Attr`].
    FileSetAttr {
        /// Which file.
        file: File,
        /// What to change.
        set: SetAttr,
    },
    /// Which of `mask` the caller may do. [`Output::Access`].
    Access {
        /// With what.
        path: Vec<u8>,
        /// Read 4, write 2, execute or search 1.
        mask: AccessMask,
    },
    /// Space and limits of the file system. [`Output::FileSystem`].
    StatFs {
        /// Where.
        path: Vec<u8>,
    },
    /// A batch of directory entries with attributes, after `cookie` (0: from the start).
    /// [`Output::Entries`].
    ReadDir {
        /// The directory.
        path: Vec<u8>,
        /// Of the last entry of the batch before.
        cookie: u64,
    },
    /// Everything that anybody wrote to this export, on disk. [`Output::Unit`].
    Sync,
    /// The server's counters. [`Output::Stats`].
    Stats,
}

/// What a successful call answers.
pub type Output<F = File> = crate::core::Output<F>;

/// A call in the core's form, with the file that must not be dropped under the lock.
type Taken = (Work, Memory, Option<File>);

impl Call {
    /// Takes the call apart; where an argument is wrong the buffer comes back.
    pub(crate) fn into_work(self) -> Result<Taken, (Error, Option<Buffer>)> {
        let plain = |work: Result<Work>| match work {
            Ok(work) => Ok((work, Memory::None, None)),
            Err(error) => Err((error, None)),
        };
        match self {
            Call::Ping => plain(Ok(Work::Null)),
            Call::Sync => plain(Ok(Work::Sync)),
            Call::Stats => plain(Ok(Work::Stats)),
            Call::Commit { file, data_only } => {
                let level = if data_only { CommitLevel::Data } else { CommitLevel::File };
                let work = Work::Commit { file: file.key(), offset: 0, len: 0, level };
                Ok((work, Memory::None, Some(file)))
            }
            Call::FileAttr { file } => {
                Ok((Work::FileAttr { file: file.key() }, Memory::None, Some(file)))
            }
            Call::FileSetAttr { file, set } => {
                Ok((Work::FileSetAttr { file: file.key(), set }, Memory::None, Some(file)))
            }
            Call::Advise { file, offset, len, advice } => {
                let (advice, cache) = advice.parts();
                let work = Work::Advise { file: file.key(), offset, len, advice, cache };
                Ok((work, Memory::None, Some(file)))
            }
            Call::CacheQuery { file, offset, len } => {
                let work = Work::CacheQuery { file: file.key(), offset, len };
                Ok((work, Memory::None, Some(file)))
            }
            Call::Close { file } => {
                file.inner.references.end();
                Ok((Work::Close { file: file.key() }, Memory::None, Some(file)))
            }
            Call::ReadInto { file, offset, span } => {
                let work = Work::Read { file: file.key(), offset, len: len_of(&span)? };
                Ok((work, Memory::Span(span), Some(file)))
            }
            Call::WriteFrom { file, offset, span, stability } => {
                let (key, len) = (file.key(), len_of(&span)?);
                let work = Work::Write { file: key, offset, len, stability, within: false };
                Ok((work, Memory::Span(span), Some(file)))
            }
            call @ (Call::Read { .. } | Call::Lend { .. } | Call::ReadList { .. }) => {
                call.read_work()
            }
            call @ (Call::Write { .. } | Call::WriteList { .. } | Call::Append { .. }) => {
                call.write_work()
            }
            call @ (Call::GetFile { .. } | Call::PutFile { .. }) => call.whole_file_work(),
            other => plain(other.name_work()),
        }
    }

    fn read_work(self) -> Result<Taken, (Error, Option<Buffer>)> {
        match self {
            Call::Read { file, offset, buffer, len } => {
                let work = Work::Read { file: file.key(), offset, len };
                Ok((work, Memory::Buffer(buffer.post()), Some(file)))
            }
            Call::Lend { file, offset, buffer, len } => {
                let work = Work::Lend { file: file.key(), offset, len };
                Ok((work, Memory::Buffer(buffer.post()), Some(file)))
            }
            Call::ReadList { file, extents, buffer } => match extent_list(&extents) {
                Ok((extents, len)) => {
                    let work = Work::ReadList { file: file.key(), extents, len };
                    Ok((work, Memory::Buffer(buffer.post()), Some(file)))
                }
                Err(error) => Err((error, Some(buffer))),
            },
            _ => Err((Status::Inval.into(), None)),
        }
    }

    fn write_work(self) -> Result<Taken, (Error, Option<Buffer>)> {
        match self {
            Call::Write { file, offset, buffer, len, stability } => {
                let work = Work::Write { file: file.key(), offset, len, stability, within: false };
                Ok((work, Memory::Buffer(buffer.post()), Some(file)))
            }
            Call::Append { file, buffer, len, stability } => {
                let work = Work::Append { file: file.key(), len, stability };
                Ok((work, Memory::Buffer(buffer.post()), Some(file)))
            }
            Call::WriteList { file, extents, buffer, stability } => match extent_list(&extents) {
                Ok((extents, len)) => {
                    let work = Work::WriteList { file: file.key(), extents, len, stability };
                    Ok((work, Memory::Buffer(buffer.post()), Some(file)))
                }
                Err(error) => Err((error, Some(buffer))),
            },
            _ => Err((Status::Inval.into(), None)),
        }
    }

    fn whole_file_work(self) -> Result<Taken, (Error, Option<Buffer>)> {
        match self {
            Call::GetFile { path, buffer } => match place(&path) {
                Ok(place) => {
                    let len = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
                    Ok((Work::Get { place, len }, Memory::Buffer(buffer.post()), None))
                }
                Err(error) => Err((error, Some(buffer))),
            },
            Call::PutFile {
                path,
                buffer,
                len,
                mode,
                exclusive,
                times,
                owner,
                rename_to,
                commit,
            } => {
                let places = place(&path).and_then(|place| {
                    Ok((place, rename_to.as_deref().map(self::place).transpose()?))
                });
                let (place, rename_to) = match places {
                    Ok(places) => places,
                    Err(error) => return Err((error, buffer)),
                };
                let set = Put::attributes(mode, times, owner);
                let put = Put::new(place, len, mode, exclusive, set, commit, rename_to);
                let memory = buffer.map_or(Memory::None, |buffer| Memory::Buffer(buffer.post()));
                Ok((Work::Put(Box::new(put)), memory, None))
            }
            _ => Err((Status::Inval.into(), None)),
        }
    }

    /// Calls on names, without data.
    fn name_work(self) -> Result<Work> {
        let make = |path: &[u8], kind, mode, rdev, target| -> Result<Work> {
            Ok(Work::Make { place: place(path)?, kind, mode, rdev, target })
        };
        Ok(match self {
            Call::Open { path, options } => Work::Open { place: place(&path)?, options },
            Call::Stat { path, no_follow } => Work::Stat { place: place(&path)?, no_follow },
            Call::Mkdir { path, mode } => make(&path, FileKind::Directory, mode, 0, Vec::new())?,
            Call::Mknod { path, kind, mode, rdev } => make(&path, kind, mode, rdev, Vec::new())?,
            Call::Symlink { target, path } => make(&path, FileKind::Symlink, 0o777, 0, target)?,
            Call::ReadLink { path } => Work::ReadLink { place: place(&path)? },
            Call::Link { from, to } => {
                Work::Link { from: place(&from)?, to: place(&to)?, from_handle: None }
            }
            Call::Rename { from, to, no_replace } => {
                let (from, to) = (place(&from)?, place(&to)?);
                Work::Rename {
                    from,
                    to,
                    from_dir: None,
                    no_replace,
                    exchange: false,
                    whiteout: false,
                }
            }
            Call::Remove { path, directory } => Work::Remove { place: place(&path)?, directory },
            Call::SetAttr { path, set, no_follow } => {
                Work::SetAttr { place: place(&path)?, set, no_follow }
            }
            Call::Access { path, mask } => Work::Access { place: place(&path)?, mask },
            Call::StatFs { path } => Work::StatFs { place: place(&path)? },
            Call::ReadDir { path, cookie } => Work::ReadDir {
                place: place(&path)?,
                cookie,
                bytes: BATCH_BYTES,
                attributes: true,
                handles: false,
            },
            _ => return Err(Status::Inval.into()),
        })
    }
}

fn place(path: &[u8]) -> Result<Place> {
    Place::new(path).map_err(|status| Error::from(status).with_path(path))
}

fn len_of(span: &Span) -> Result<u32, (Error, Option<Buffer>)> {
    u32::try_from(span.len()).map_err(|_| (Status::TooBig.into(), None))
}

fn extent_list(extents: &[Extent]) -> Result<(ExtentList, u32)> {
    let wrong = || Error::Config("1 to 16 extents, of at most data_bytes_max together".into());
    let list = ExtentList::new(extents).ok_or_else(wrong)?;
    let len = list.bytes().and_then(|bytes| u32::try_from(bytes).ok()).ok_or_else(wrong)?;
    Ok((list, len))
}

/// A call that ended.
#[derive(Debug)]
pub struct Done {
    /// As given with the call.
    pub tag: u64,
    /// How it ended.
    pub result: Result<Output>,
    /// The buffer that was given with the call.
    pub buffer: Option<Buffer>,
}

impl Done {
    /// From the core's form.
    pub(crate) fn of(session: &Arc<Handle>, done: CoreDone) -> Done {
        let mut result = done
            .result
            .map(|output| output.map_file(|key, node| File::new(session.clone(), key, node)));
        if let Ok(Output::Lent { loan: Some(loan), .. }) = &mut result {
            loan.set_session(session.returns());
        }
        Done { tag: done.tag, result, buffer: done.buffer }
    }

    /// Bytes read or written; 0 for other calls.
    ///
    /// # Errors
    /// The call's.
    pub fn bytes(&self) -> Result<usize> {
        match &self.result {
            Ok(output) => Ok(output.bytes()),
            Err(error) => Err(error.clone()),
        }
    }

    /// The attributes in the answer.
    ///
    /// # Errors
    /// The call's, or [`Error::PeerProtocol`] where the call answers none.
    pub fn attr(self) -> Result<Attr> {
        match self.result? {
            Output::Attr(attr) | Output::Got { attr, .. } => Ok(attr),
            Output::Object(node) => Ok(node.attr),
            other => Err(Error::PeerProtocol(format!("no attributes in {other:?}"))),
        }
    }
}
