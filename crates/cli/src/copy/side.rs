//! Where files are copied from and to: this machine, or a server.

use std::fs::File;

use dafs_protocol::{Attr, SetAttr, SetTime};
use rustix::fs::XattrFlags;

use super::like::{Like, attr_of};
use super::local::Local;
use crate::connect::Remote;
use crate::failure::{Cause, Failure};
use crate::place::{self, local};
use crate::{sys, text};

/// Bytes of an extended attribute, and of a list of their names, on Linux.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// One of the two.
#[derive(Clone)]
pub enum Side {
    /// This machine; paths are its own.
    Local(Local),
    /// A server; paths are below its root.
    Remote(Remote),
}

/// Entries of a directory: names, with attributes where they came along.
pub type Entries = Box<dyn Iterator<Item = Result<(Vec<u8>, Option<Attr>), Cause>>>;

impl Side {
    /// This machine, paths as they are.
    pub fn here() -> Side {
        Side::Local(Local::default())
    }

    /// The same, with all paths below `prefix` confined to that directory as it is now.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn below(&self, prefix: &[u8]) -> Result<Side, Cause> {
        match self {
            Side::Local(_) => Ok(Side::Local(Local::below(prefix)?)),
            // The server confines them to the export.
            Side::Remote(remote) => Ok(Side::Remote(remote.clone())),
        }
    }

    /// The directory that `path` is in, to be opened.
    pub fn directory_of(&self, path: &[u8]) -> Vec<u8> {
        match (self, place::split(path).0) {
            (Side::Local(_), b"") => b".".to_vec(),
            (_, dir) => dir.to_vec(),
        }
    }

    /// What to call `path` in messages.
    pub fn name(&self, path: &[u8]) -> String {
        match self {
            Side::Local(_) => text::escape(path),
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
            Side::Local(_) => sys::effective_uid(),
            Side::Remote(remote) => remote.session.info().uid,
        }
    }

    /// True when both are reached the same way.
    pub fn is_same(&self, other: &Side) -> bool {
        match (self, other) {
            (Side::Local(_), Side::Local(_)) => true,
            (Side::Remote(a), Side::Remote(b)) => a.same_server(b),
            _ => false,
        }
    }

    /// True when `cause` is that this side's server was looked for in vain: whoever asks it for
    /// more waits as long again.
    pub fn is_gone(&self, cause: &Cause) -> bool {
        match self {
            Side::Local(_) => false,
            Side::Remote(remote) => cause.is_lost() && !remote.session.is_connected(),
        }
    }

    /// True when `cause` can only be this side's, and not the `other`'s.
    pub fn is_at_fault(&self, other: &Side, cause: &Cause) -> bool {
        match (self, other, cause) {
            (Side::Remote(_), Side::Local(_), Cause::Remote(_))
            | (Side::Local(_), Side::Remote(_), Cause::Local(_)) => true,
            (Side::Remote(_), Side::Remote(_), _) => self.is_gone(cause) && !other.is_gone(cause),
            _ => false,
        }
    }

    /// Attributes of what a name leads to.
    pub fn stat(&self, path: &[u8]) -> Result<Attr, Cause> {
        self.attr(path, true)
    }

    /// Attributes of the name itself.
    pub fn lstat(&self, path: &[u8]) -> Result<Attr, Cause> {
        self.attr(path, false)
    }

    /// Attributes, of what a symlink leads to where `follow`.
    pub fn attr(&self, path: &[u8], follow: bool) -> Result<Attr, Cause> {
        match self {
            Side::Local(tree) => Ok(tree.attr(path, follow)?),
            Side::Remote(remote) if follow => Ok(remote.session.stat(path)?),
            Side::Remote(remote) => Ok(remote.session.lstat(path)?),
        }
    }

    /// What is in a directory.
    pub fn list(&self, path: &[u8], follow: bool) -> Result<Entries, Cause> {
        match self {
            Side::Local(tree) => {
                use std::os::unix::ffi::OsStrExt;
                Ok(Box::new(tree.list(path, follow)?.map(|entry| {
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
            Side::Local(tree) => Ok(tree.read_link(path)?),
            Side::Remote(remote) => Ok(remote.session.read_link(path)?),
        }
    }

    /// Makes a directory.
    pub fn mkdir(&self, path: &[u8], mode: u32) -> Result<(), Cause> {
        match self {
            Side::Local(tree) => Ok(tree.mkdir(path, mode)?),
            Side::Remote(remote) => Ok(remote.session.mkdir(path, mode).map(drop)?),
        }
    }

    /// Makes a symlink that says `target`.
    pub fn symlink(&self, target: &[u8], path: &[u8]) -> Result<(), Cause> {
        match self {
            Side::Local(tree) => Ok(tree.symlink(target, path)?),
            Side::Remote(remote) => Ok(remote.session.symlink(target, path).map(drop)?),
        }
    }

    /// Makes a fifo, socket or device like `attr`.
    pub fn make_node(&self, attr: &Attr, path: &[u8]) -> Result<(), Cause> {
        match self {
            Side::Local(tree) => match tree.make_node(attr, path) {
                Some(made) => Ok(made?),
                None => Err(Cause::from("not a special file")),
            },
            Side::Remote(remote) => {
                Ok(remote.session.mknod(path, attr.kind, 0o600, attr.rdev).map(drop)?)
            }
        }
    }

    /// Makes a hard link.
    pub fn link(&self, from: &[u8], to: &[u8]) -> Result<(), Cause> {
        match self {
            Side::Local(tree) => Ok(tree.link(from, to)?),
            Side::Remote(remote) => Ok(remote.session.link(from, to).map(drop)?),
        }
    }

    /// Renames, replacing what is there.
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), Cause> {
        match self {
            Side::Local(tree) => Ok(tree.rename(from, to, true)?),
            Side::Remote(remote) => Ok(remote.session.rename(from, to)?),
        }
    }

    /// Renames what is no directory to a name that is free; EEXIST where it is not.
    pub fn rename_new(&self, from: &[u8], to: &[u8]) -> Result<(), Cause> {
        let renamed = match self {
            Side::Local(tree) => tree.rename(from, to, false).map_err(Cause::from),
            Side::Remote(remote) => {
                remote.session.rename_with(from, to, true, false).map_err(Cause::from)
            }
        };
        match renamed {
            // The file system has no such call: a link does the same.
            Err(cause) if matches!(cause.errno(), libc::EINVAL | libc::EOPNOTSUPP) => {
                self.link(from, to)?;
                self.remove(from)
            }
            other => other,
        }
    }

    /// Removes a name that is no directory.
    pub fn remove(&self, path: &[u8]) -> Result<(), Cause> {
        match self {
            Side::Local(tree) => Ok(tree.remove(path, false)?),
            Side::Remote(remote) => Ok(remote.session.remove(path)?),
        }
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, path: &[u8]) -> Result<(), Cause> {
        match self {
            Side::Local(tree) => Ok(tree.remove(path, true)?),
            Side::Remote(remote) => Ok(remote.session.remove_dir(path)?),
        }
    }

    /// Gives a name the owner (if asked for), mode and times of `like`, but for what `there`, which
    /// it has now, says already.
    pub fn dress(&self, path: &[u8], like: &Like, there: Option<&Attr>) -> Result<(), Cause> {
        match self {
            Side::Local(tree) => Ok(tree.dress(path, like, there)?),
            Side::Remote(remote) => {
                let set = like.beside(there);
                let attributes = SetAttr {
                    size: None,
                    mode: set.mode,
                    uid: set.owner.map(|(uid, _)| uid),
                    gid: set.owner.map(|(_, gid)| gid),
                    accessed: set.times.map(|(accessed, _)| SetTime::To(accessed)),
                    modified: set.times.map(|(_, modified)| SetTime::To(modified)),
                };
                if attributes == SetAttr::default() {
                    return Ok(());
                }
                Ok(remote.session.set_attr(path, attributes, true).map(drop)?)
            }
        }
    }

    /// Writes everything that was written here to disk.
    pub fn sync(&self, path: &[u8]) -> Result<(), Cause> {
        match self {
            Side::Local(_) => Ok(sys::sync_file_system(&File::open(local(path))?)?),
            Side::Remote(remote) => Ok(remote.session.sync()?),
        }
    }

    // Extended attributes; never a symlink's.

    /// Their names; none where the file system has no such thing.
    pub fn list_xattr(&self, path: &[u8]) -> Result<Vec<Vec<u8>>, Cause> {
        let listed = match self {
            Side::Local(tree) => {
                tree.object(path).map_err(Cause::from).and_then(|(_held, path)| {
                    let room = Vec::with_capacity(XATTR_BYTES_MAX);
                    Ok(names_in(&fill(room, |room| rustix::fs::listxattr(&path, room))?))
                })
            }
            Side::Remote(remote) => remote.session.list_xattr(path).map_err(Cause::from),
        };
        match listed {
            Err(cause) if matches!(cause.errno(), libc::EOPNOTSUPP | libc::ENOSYS) => {
                Ok(Vec::new())
            }
            other => other,
        }
    }

    /// The value of one.
    pub fn get_xattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>, Cause> {
        match self {
            Side::Local(tree) => {
                let (_held, path) = tree.object(path)?;
                let room = Vec::with_capacity(XATTR_BYTES_MAX);
                fill(room, |room| rustix::fs::getxattr(&path, name, room))
            }
            Side::Remote(remote) => Ok(remote.session.get_xattr(path, name)?),
        }
    }

    /// Sets one.
    pub fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8]) -> Result<(), Cause> {
        match self {
            Side::Local(tree) => {
                let (_held, path) = tree.object(path)?;
                rustix::fs::setxattr(&path, name, value, XattrFlags::empty())
                    .map_err(|errno| Cause::Local(errno.into()))
            }
            Side::Remote(remote) => Ok(remote.session.set_xattr(path, name, value, 0)?),
        }
    }

    /// Removes one.
    pub fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Result<(), Cause> {
        match self {
            Side::Local(tree) => {
                let (_held, path) = tree.object(path)?;
                rustix::fs::removexattr(&path, name).map_err(|errno| Cause::Local(errno.into()))
            }
            Side::Remote(remote) => Ok(remote.session.remove_xattr(path, name)?),
        }
    }
}

/// What a call writes into `room`.
fn fill(
    mut room: Vec<u8>,
    call: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>,
) -> Result<Vec<u8>, Cause> {
    room.resize(XATTR_BYTES_MAX, 0);
    let bytes = call(&mut room).map_err(|errno| Cause::Local(errno.into()))?;
    room.truncate(bytes);
    Ok(room)
}

fn names_in(list: &[u8]) -> Vec<Vec<u8>> {
    list.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
}

/// The directory that a path is in, as a path that can be opened.
pub fn parent(path: &[u8]) -> Vec<u8> {
    place::split(path).0.to_vec()
}
