//! Trees of this machine, held by an open directory.
//!
//! A path below the directory is opened component by component, by a system call that follows no
//! symlink and does not leave the directory: whoever puts a link in the place of a directory while a
//! copy runs gets an error told, and leads nobody elsewhere.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dafs_protocol::{Attr, FileKind, Timestamp};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Timespec, Timestamps, Uid,
};

use super::like::{Like, attr_of};
use crate::{place, sys};

/// Directories were removed in this process: another one may have such a name by now.
static REMOVED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The directory that this thread used last: a thread has many files of one directory.
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

struct Last {
    base: u64,
    removed: u64,
    path: Vec<u8>,
    dir: Rc<OwnedFd>,
}

/// A directory that is open, and what stands before the paths below it.
#[derive(Debug)]
struct Base {
    number: u64,
    prefix: Vec<u8>,
    dir: OwnedFd,
}

/// The files of this machine, or those below one directory.
#[derive(Debug, Clone, Default)]
pub struct Local {
    base: Option<Arc<Base>>,
}

/// A name, and the directory that it is in.
struct At<'p> {
    dir: Held,
    name: &'p [u8],
}

enum Held {
    Working,
    Base(Arc<Base>),
    Own(Rc<OwnedFd>),
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Held::Working => CWD,
            Held::Base(base) => base.dir.as_fd(),
            Held::Own(fd) => fd.as_fd(),
        }
    }
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Local {
    /// What lies below `prefix`, which is opened now (its own symlinks are followed: the user named
    /// them). Other paths mean what they mean anyway.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn below(prefix: &[u8]) -> io::Result<Local> {
        let path: &[u8] = if prefix.is_empty() { b"." } else { prefix };
        let dir = rustix::fs::openat(CWD, path, DIRECTORY, Mode::empty())?;
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Ok(Local { base: Some(Arc::new(Base { number, prefix: prefix.to_vec(), dir })) })
    }

    fn at<'p>(&self, path: &'p [u8]) -> io::Result<At<'p>> {
        let Some((base, below)) =
            self.base.as_ref().and_then(|base| Some((base, base.below(path)?)))
        else {
            return Ok(At { dir: Held::Working, name: path });
        };
        let (parent, name) = place::split(below);
        if parent.is_empty() {
            let name: &[u8] = if name.is_empty() { b"." } else { name };
            return Ok(At { dir: Held::Base(base.clone()), name });
        }
        Ok(At { dir: Held::Own(base.open(parent)?), name })
    }

    fn open(&self, path: &[u8], flags: OFlags, mode: u32) -> io::Result<File> {
        let at = self.at(path)?;
        let mode = Mode::from_raw_mode(mode);
        Ok(rustix::fs::openat(&at.dir, at.name, flags | OFlags::CLOEXEC, mode)?.into())
    }

    /// For reading. A fifo that took a file's place must not block; a symlink is followed only if
    /// asked for.
    pub fn open_read(&self, path: &[u8], follow: bool) -> io::Result<File> {
        let follow = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        self.open(path, OFlags::RDONLY | OFlags::NONBLOCK | follow, 0)
    }

    /// A new file for writing that nobody else can have opened before.
    pub fn create_new(&self, path: &[u8]) -> io::Result<File> {
        self.open(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, 0o600)
    }

    /// A file for writing that may be there already; no symlink.
    pub fn create_or_open(&self, path: &[u8]) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        self.open(path, flags, 0o600)
    }

    /// The object of a name, not to be read or written, and its path for calls that have no other way.
    pub fn object(&self, path: &[u8]) -> io::Result<(File, PathBuf)> {
        let file = self.open(path, OFlags::PATH | OFlags::NOFOLLOW, 0)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Ok((file, path))
    }

    /// Attributes, of what a symlink leads to where `follow`.
    pub fn attr(&self, path: &[u8], follow: bool) -> io::Result<Attr> {
        let follow = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        Ok(attr_of(&self.open(path, OFlags::PATH | follow, 0)?.metadata()?))
    }

    /// What is in a directory, with attributes.
    pub fn list(&self, path: &[u8], follow: bool) -> io::Result<fs::ReadDir> {
        let follow = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        let dir = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY | follow, 0)?;
        fs::read_dir(format!("/proc/self/fd/{}", dir.as_raw_fd()))
    }

    /// What a symlink says.
    pub fn read_link(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        let at = self.at(path)?;
        Ok(rustix::fs::readlinkat(&at.dir, at.name, Vec::new())?.into_bytes())
    }

    /// Makes a directory.
    pub fn mkdir(&self, path: &[u8], mode: u32) -> io::Result<()> {
        let at = self.at(path)?;
        Ok(rustix::fs::mkdirat(&at.dir, at.name, Mode::from_raw_mode(mode))?)
    }

    /// Makes a symlink that says `target`.
    pub fn symlink(&self, target: &[u8], path: &[u8]) -> io::Result<()> {
        let at = self.at(path)?;
        Ok(rustix::fs::symlinkat(target, &at.dir, at.name)?)
    }

    /// Makes a fifo, socket or device like `attr`; `None`: that is no special file.
    pub fn make_node(&self, attr: &Attr, path: &[u8]) -> Option<io::Result<()>> {
        let kind = match attr.kind {
            FileKind::Fifo => FileType::Fifo,
            FileKind::Socket => FileType::Socket,
            FileKind::CharDevice => FileType::CharacterDevice,
            FileKind::BlockDevice => FileType::BlockDevice,
            _ => return None,
        };
        Some(self.at(path).and_then(|at| {
            let mode = Mode::from_raw_mode(0o600);
            Ok(rustix::fs::mknodat(&at.dir, at.name, kind, mode, attr.rdev)?)
        }))
    }

    /// Makes a hard link.
    pub fn link(&self, from: &[u8], to: &[u8]) -> io::Result<()> {
        let (from, to) = (self.at(from)?, self.at(to)?);
        Ok(rustix::fs::linkat(&from.dir, from.name, &to.dir, to.name, AtFlags::empty())?)
    }

    /// Renames; where `replace` is false only to a name that is free.
    pub fn rename(&self, from: &[u8], to: &[u8], replace: bool) -> io::Result<()> {
        let (from, to) = (self.at(from)?, self.at(to)?);
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        Ok(rustix::fs::renameat_with(&from.dir, from.name, &to.dir, to.name, flags)?)
    }

    /// Removes a name: of an empty directory, or of all else.
    pub fn remove(&self, path: &[u8], directory: bool) -> io::Result<()> {
        let at = self.at(path)?;
        let flags = if directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        rustix::fs::unlinkat(&at.dir, at.name, flags)?;
        if directory {
            REMOVED.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    /// Gives a name what `like` says, but for what `there` has already. What is of another type took
    /// the place of what is meant.
    pub fn dress(&self, path: &[u8], like: &Like, there: Option<&Attr>) -> io::Result<()> {
        let set = like.beside(there);
        if set.owner.is_some() || set.mode.is_some() {
            let (object, by_number) = self.object(path)?;
            if attr_of(&object.metadata()?).kind != like.attr.kind {
                return Err(io::Error::other("something else has taken its place"));
            }
            if let Some((uid, gid)) = set.owner {
                let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
                rustix::fs::chownat(&object, "", uid, gid, AtFlags::EMPTY_PATH)?;
            }
            if let Some(mode) = set.mode {
                // There is no such call that leaves symlinks alone everywhere.
                let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
                fs::set_permissions(by_number, mode)?;
            }
        }
        if let Some((accessed, modified)) = set.times {
            let at = self.at(path)?;
            let times = times(accessed, modified);
            rustix::fs::utimensat(&at.dir, at.name, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }
}

/// Gives an open file owner, mode and times.
pub fn dress_file(file: &File, like: &Like) -> io::Result<()> {
    if let Some((uid, gid)) = like.owner {
        std::os::unix::fs::fchown(file, Some(uid), Some(gid))?;
    }
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(like.mode))?;
    sys::set_file_times(file, like.attr.accessed, like.attr.modified)
}

impl Base {
    /// A directory below, without following any symlink.
    fn open(&self, path: &[u8]) -> io::Result<Rc<OwnedFd>> {
        let removed = REMOVED.load(Ordering::Acquire);
        LAST.with_borrow_mut(|last| {
            if let Some(last) = last
                && (last.base, last.removed) == (self.number, removed)
                && last.path == path
            {
                return Ok(last.dir.clone());
            }
            let resolve =
                ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            let dir = rustix::fs::openat2(&self.dir, path, DIRECTORY, Mode::empty(), resolve)?;
            let dir = Rc::new(dir);
            let (base, path) = (self.number, path.to_vec());
            *last = Some(Last { base, removed, path, dir: dir.clone() });
            Ok(dir)
        })
    }

    /// The rest of a path that begins with the prefix, without slashes around it.
    fn below<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        let rest = path.strip_prefix(self.prefix.as_slice())?;
        let whole = rest.is_empty() || rest.starts_with(b"/") || self.prefix.ends_with(b"/");
        if self.prefix.is_empty() {
            return (!path.starts_with(b"/")).then_some(path);
        }
        let start = rest.iter().position(|byte| *byte != b'/').unwrap_or(rest.len());
        whole.then(|| rest.get(start..).unwrap_or_default())
    }
}

fn times(accessed: Timestamp, modified: Timestamp) -> Timestamps {
    let time =
        |time: Timestamp| Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
    Timestamps { last_access: time(accessed), last_modification: time(modified) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn paths_below_a_directory_are_known_by_their_beginning() {
        let base = |prefix: &str| Base {
            number: 0,
            prefix: prefix.into(),
            dir: File::open("/").expect("a root").into(),
        };
        assert_eq!(base("a/b").below(b"a/b/c/d"), Some(&b"c/d"[..]));
        assert_eq!(base("a/b/").below(b"a/b//c"), Some(&b"c"[..]));
        assert_eq!(base("a/b").below(b"a/b"), Some(&b""[..]));
        assert_eq!(base("a/b").below(b"a/bc"), None);
        assert_eq!(base("/").below(b"/c"), Some(&b"c"[..]));
        assert_eq!(base("").below(b"c/d"), Some(&b"c/d"[..]));
        assert_eq!(base("").below(b"/c"), None);
    }

    #[test]
    fn a_link_in_the_way_leads_nowhere() {
        let dir = tempfile::tempdir().expect("directory");
        let inside = dir.path().join("inside");
        fs::create_dir_all(inside.join("real")).expect("directory");
        fs::write(dir.path().join("secret"), "x").expect("file");
        std::os::unix::fs::symlink("..", inside.join("link")).expect("symlink");
        let prefix = place::bytes(&inside);
        let local = Local::below(&prefix).expect("opened");
        let through = place::join(&prefix, b"link/secret");
        let errno = |result: io::Result<()>| result.expect_err("refused").raw_os_error();
        assert_eq!(errno(local.open_read(&through, false).map(drop)), Some(libc::ELOOP));
        assert_eq!(errno(local.remove(&through, false)), Some(libc::ELOOP));
        let up = place::join(&prefix, b"real/../../secret");
        assert_eq!(errno(local.open_read(&up, false).map(drop)), Some(libc::EXDEV));
        let file = place::join(&prefix, b"real/file");
        assert!(local.create_new(&file).is_ok());
        // A directory that was removed and made again is another one.
        let real = place::join(&prefix, b"real");
        local.remove(&file, false).expect("removed");
        local.remove(&real, true).expect("removed");
        local.mkdir(&real, 0o700).expect("made");
        assert!(local.create_new(&file).is_ok());
    }

    #[test]
    fn what_took_the_place_of_a_directory_is_not_dressed_as_one() {
        let dir = tempfile::tempdir().expect("directory");
        let like = Like::new(&attr_of(&dir.path().metadata().expect("there")), 0);
        let like = Like { mode: 0o2755, owner: None, ..like };
        let file = dir.path().join("file");
        fs::write(&file, "x").expect("file");
        let before = file.metadata().expect("there").mode();
        assert!(Local::default().dress(&place::bytes(&file), &like, None).is_err());
        assert_eq!(file.metadata().expect("there").mode(), before);
    }
}
