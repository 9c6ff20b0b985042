//! Where files are copied from and to: this machine, or a server.

use std::fs::{self, File, Metadata};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};

use dafs_protocol::{Attr, FileKind, SetAttr, SetTime, Timestamp};

use crate::connect::Remote;
use crate::failure::{Cause, Failure};
use crate::place::{self, local};
use crate::{sys, text};

/// One of the two.
#[derive(Clone)]
pub enum Side {
    /// This machine; paths are its own.
    Local,
    /// A server; paths are below its root.
    Remote(Remote),
}

/// Entries of a directory: names, with attributes where they came along.
pub type Entries = Box<dyn Iterator<Item = Result<(Vec<u8>, Option<Attr>), Cause>>>;

impl Side {
    /// What to call `path` in messages.
    pub fn name(&self, path: &[u8]) -> String {
        match self {
            Side::Local => text::escape(path),
            Side::Remote(remote) => remote.name(path),
        }
    }

    /// A failure about `path`.
    pub fn failure(&self, path: &[u8], cause: impl Into<Cause>) -> Failure {
        Failure::about(self.name(path), cause)
    }

    /// The user that files here are made by.
    pub fn uid(&self) -> u32 {
        match self {
            Side::Local => sys::effective_uid(),
            Side::Remote(remote) => remote.session.info().uid,
        }
    }

    /// True when both are reached the same way.
    pub fn is_same(&self, other: &Side) -> bool {
        match (self, other) {
            (Side::Local, Side::Local) => true,
            (Side::Remote(a), Side::Remote(b)) => a.same_server(b),
            _ => false,
        }
    }

    /// True when `cause` is that this side's server was looked for in vain: whoever asks it for
    /// more waits as long again.
    pub fn is_gone(&self, cause: &Cause) -> bool {
        match self {
            Side::Local => false,
            Side::Remote(remote) => cause.is_lost() && !remote.session.is_connected(),
        }
    }

    /// Attributes of what a name leads to.
    pub fn stat(&self, path: &[u8]) -> Result<Attr, Cause> {
        match self {
            Side::Local => Ok(attr_of(&fs::metadata(local(path))?)),
            Side::Remote(remote) => Ok(remote.session.stat(path)?),
        }
    }

    /// Attributes of the name itself.
    pub fn lstat(&self, path: &[u8]) -> Result<Attr, Cause> {
        match self {
            Side::Local => Ok(attr_of(&fs::symlink_metadata(local(path))?)),
            Side::Remote(remote) => Ok(remote.session.lstat(path)?),
        }
    }

    /// What is in a directory.
    pub fn list(&self, path: &[u8]) -> Result<Entries, Cause> {
        match self {
            Side::Local => {
                use std::os::unix::ffi::OsStrExt;
                Ok(Box::new(fs::read_dir(local(path))?.map(|entry| {
                    let entry = entry?;
                    let attr = entry.metadata().ok().map(|meta| attr_of(&meta));
                    Ok((entry.file_name().as_bytes().to_vec(), attr))
                })))
            }
            Side::Remote(remote) => {
                let entries = remote.session.read_dir(path)?;
                Ok(Box::new(
                    entries.map(|entry| entry.map(|e| (e.name, e.attr)).map_err(Cause::from)),
                ))
            }
        }
    }

    /// What a symlink says.
    pub fn read_link(&self, path: &[u8]) -> Result<Vec<u8>, Cause> {
        match self {
            Side::Local => Ok(place::bytes(&fs::read_link(local(path))?)),
            Side::Remote(remote) => Ok(remote.session.read_link(path)?),
        }
    }

    /// Makes a directory.
    pub fn mkdir(&self, path: &[u8], mode: u32) -> Result<(), Cause> {
        match self {
            Side::Local => Ok(fs::DirBuilder::new().mode(mode).create(local(path))?),
            Side::Remote(remote) => Ok(remote.session.mkdir(path, mode).map(drop)?),
        }
    }

    /// Makes a symlink that says `target`.
    pub fn symlink(&self, target: &[u8], path: &[u8]) -> Result<(), Cause> {
        match self {
            Side::Local => Ok(std::os::unix::fs::symlink(local(target), local(path))?),
            Side::Remote(remote) => Ok(remote.session.symlink(target, path).map(drop)?),
        }
    }

    /// Makes a fifo, socket or device like `attr`.
    pub fn make_node(&self, attr: &Attr, path: &[u8]) -> Result<(), Cause> {
        match self {
            Side::Local => {
                let kind = match attr.kind {
                    FileKind::Fifo => libc::S_IFIFO,
                    FileKind::Socket => libc::S_IFSOCK,
                    FileKind::CharDevice => libc::S_IFCHR,
                    FileKind::BlockDevice => libc::S_IFBLK,
                    _ => return Err(Cause::from("not a special file")),
                };
                Ok(sys::make_node(local(path), kind | 0o600, attr.rdev)?)
            }
            Side::Remote(remote) => {
                Ok(remote.session.mknod(path, attr.kind, 0o600, attr.rdev).map(drop)?)
            }
        }
    }

    /// Makes a hard link.
    pub fn link(&self, from: &[u8], to: &[u8]) -> Result<(), Cause> {
        match self {
            Side::Local => Ok(fs::hard_link(local(from), local(to))?),
            Side::Remote(remote) => Ok(remote.session.link(from, to).map(drop)?),
        }
    }

    /// Renames, replacing what is there.
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), Cause> {
        match self {
            Side::Local => Ok(fs::rename(local(from), local(to))?),
            Side::Remote(remote) => Ok(remote.session.rename(from, to)?),
        }
    }

    /// Removes a name that is no directory.
    pub fn remove(&self, path: &[u8]) -> Result<(), Cause> {
        match self {
            Side::Local => Ok(fs::remove_file(local(path))?),
            Side::Remote(remote) => Ok(remote.session.remove(path)?),
        }
    }

    /// Gives a name the owner (if asked for), mode and times of `like`.
    pub fn dress(&self, path: &[u8], like: &Like) -> Result<(), Cause> {
        let is_symlink = like.attr.kind == FileKind::Symlink;
        match self {
            Side::Local => {
                let path = local(path);
                if let Some((uid, gid)) = like.owner {
                    std::os::unix::fs::lchown(path, Some(uid), Some(gid))?;
                }
                if !is_symlink {
                    fs::set_permissions(path, fs::Permissions::from_mode(like.mode))?;
                }
                Ok(sys::set_times(path, like.attr.accessed, like.attr.modified)?)
            }
            Side::Remote(remote) => {
                let set = SetAttr {
                    size: None,
                    mode: (!is_symlink).then_some(like.mode),
                    uid: like.owner.map(|(uid, _)| uid),
                    gid: like.owner.map(|(_, gid)| gid),
                    accessed: Some(SetTime::To(like.attr.accessed)),
                    modified: Some(SetTime::To(like.attr.modified)),
                };
                Ok(remote.session.set_attr(path, set, true).map(drop)?)
            }
        }
    }

    /// Writes everything that was written here to disk.
    pub fn sync(&self, path: &[u8]) -> Result<(), Cause> {
        match self {
            Side::Local => Ok(sys::sync_file_system(&File::open(local(path))?)?),
            Side::Remote(remote) => Ok(remote.session.sync()?),
        }
    }
}

/// What a copy is to look like.
#[derive(Debug, Clone, Copy)]
pub struct Like {
    /// Of the original.
    pub attr: Attr,
    /// User and group, where they can be kept.
    pub owner: Option<(u32, u32)>,
    /// Permission bits, without those that would let others act as another owner.
    pub mode: u32,
}

impl Like {
    /// `attr` as far as files made by `uid` can be like it.
    pub fn new(attr: &Attr, uid: u32) -> Like {
        let owner = (uid == 0).then_some((attr.uid, attr.gid));
        let trusted = owner.is_some() || attr.uid == uid;
        let mode = if trusted { attr.mode & 0o7777 } else { attr.mode & 0o1777 };
        Like { attr: *attr, owner, mode }
    }
}

/// A new file that nobody else can have opened before.
pub fn create_local(path: &[u8]) -> Result<File, Cause> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    Ok(options.open(local(path))?)
}

/// Attributes as servers tell them.
pub fn attr_of(meta: &Metadata) -> Attr {
    let kind = match meta.file_type() {
        t if t.is_dir() => FileKind::Directory,
        t if t.is_symlink() => FileKind::Symlink,
        t if t.is_fifo() => FileKind::Fifo,
        t if t.is_socket() => FileKind::Socket,
        t if t.is_char_device() => FileKind::CharDevice,
        t if t.is_block_device() => FileKind::BlockDevice,
        _ => FileKind::File,
    };
    let time = |seconds, nanoseconds: i64| Timestamp {
        seconds,
        nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
    };
    Attr {
        kind,
        mode: meta.mode() & 0o7777,
        links: u32::try_from(meta.nlink()).unwrap_or(u32::MAX),
        uid: meta.uid(),
        gid: meta.gid(),
        size: meta.size(),
        allocated: meta.blocks().saturating_mul(512),
        inode: meta.ino(),
        device: meta.dev(),
        number: 0,
        rdev: meta.rdev(),
        block_size: u32::try_from(meta.blksize()).unwrap_or(4096),
        change: 0,
        accessed: time(meta.atime(), meta.atime_nsec()),
        modified: time(meta.mtime(), meta.mtime_nsec()),
        changed: time(meta.ctime(), meta.ctime_nsec()),
        created: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_user_bits_are_kept_only_with_their_owner() {
        let mut attr = attr_of(&fs::symlink_metadata("/").expect("a root"));
        attr.mode = 0o6755;
        attr.uid = 0;
        assert_eq!(Like::new(&attr, 0).mode, 0o6755);
        assert_eq!(Like::new(&attr, 0).owner, Some((0, attr.gid)));
        assert_eq!(Like::new(&attr, 1000).mode, 0o755);
        assert_eq!(Like::new(&attr, 1000).owner, None);
        attr.uid = 1000;
        assert_eq!(Like::new(&attr, 1000).mode, 0o6755);
    }
}
