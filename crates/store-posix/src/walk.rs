//! From paths to descriptors, never out of the tree.
//!
//! The kernel does it (openat2) where it can: below the root as in a chroot, below another
//! directory as long as the way stays beneath that. Symlinks that lead up from there, and
//! kernels without openat2, are walked here, a name at a time, with the way back kept as
//! descriptors: a directory that is moved meanwhile leads nobody out.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use dafs_protocol::{FileKind, Status};

use super::attr::Stat;
use super::objects::Object;
use super::sys::{self, Errno};

const LINKS_FOLLOWED_MAX: usize = 40;
const DEPTH_MAX: usize = 4096;
/// Tries of a walk that somebody's renames disturb.
const TRIES: usize = 8;

/// What this kernel can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Walking {
    /// Has openat2.
    by_kernel: bool,
    /// Has RESOLVE_CACHED.
    cached: bool,
}

/// Where a walk ended.
pub(super) struct Place {
    pub(super) dir: Arc<OwnedFd>,
    /// The last name; empty where the walk ended at `.`, `..` or its start.
    pub(super) name: Vec<u8>,
    /// What is there, as O_PATH.
    pub(super) fd: Option<Arc<OwnedFd>>,
}

/// An end of a walk that answers without blocking, or not at all.
pub(super) enum Cached {
    Found(OwnedFd),
    Failed(Status),
    /// The kernel would have to read, or this walk is not one for it.
    Unknown,
}

impl Walking {
    /// Without the kernel's help.
    pub(super) const BY_HAND: Walking = Walking { by_kernel: false, cached: false };

    pub(super) fn probe(root: &OwnedFd) -> Walking {
        let open = |resolve| sys::openat2(root, b".", libc::O_PATH, 0, resolve);
        let by_kernel = open(libc::RESOLVE_BENEATH).is_ok();
        let cached = open(libc::RESOLVE_BENEATH | libc::RESOLVE_CACHED);
        Walking { by_kernel, cached: matches!(cached, Ok(_) | Err(Errno(libc::EAGAIN))) }
    }

    pub(super) fn cached(
        &self,
        tree: &Tree<'_>,
        dir: &Object,
        path: &[u8],
        follow: bool,
    ) -> Cached {
        if !self.cached {
            return Cached::Unknown;
        }
        let resolve = tree.resolve(dir) | libc::RESOLVE_CACHED;
        match sys::openat2(&dir.fd, path, path_flags(follow), 0, resolve) {
            Ok(fd) => Cached::Found(fd),
            Err(Errno(libc::EAGAIN | libc::EXDEV)) => Cached::Unknown,
            Err(errno) => Cached::Failed(errno.into()),
        }
    }

    /// What is at `path`, as O_PATH. An empty path is not for this.
    pub(super) fn open(
        &self,
        tree: &Tree<'_>,
        dir: &Object,
        path: &[u8],
        follow: bool,
    ) -> Result<OwnedFd, Status> {
        if let Some(result) = self.by_kernel(tree, dir, path, path_flags(follow), 0) {
            return result;
        }
        let place = tree.walk(dir, path, follow)?;
        let fd = place.fd.ok_or(Status::NoEnt)?;
        match Arc::try_unwrap(fd) {
            Ok(fd) => Ok(fd),
            Err(shared) => Ok(sys::duplicate(&shared)?),
        }
    }

    /// Makes a regular file at `path` and opens it for reading and writing; EXIST where there is
    /// something, also a symlink to nothing if not `follow`.
    pub(super) fn create(
        &self,
        tree: &Tree<'_>,
        dir: &Object,
        path: &[u8],
        mode: u32,
        follow: bool,
    ) -> Result<OwnedFd, Status> {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        match self.by_kernel(tree, dir, path, flags, mode) {
            Some(Err(Status::Exist)) if follow => {} // perhaps a symlink to nothing
            Some(result) => return result,
            None => {}
        }
        let place = tree.walk(dir, path, follow)?;
        if place.fd.is_some() {
            return Err(Status::Exist);
        }
        if path.ends_with(b"/") {
            return Err(Status::IsDir);
        }
        Ok(sys::openat(&place.dir, &place.name, flags, mode)?)
    }

    /// `None`: not a walk for the kernel.
    fn by_kernel(
        &self,
        tree: &Tree<'_>,
        dir: &Object,
        path: &[u8],
        flags: i32,
        mode: u32,
    ) -> Option<Result<OwnedFd, Status>> {
        if !self.by_kernel {
            return None;
        }
        for _ in 0..TRIES {
            match sys::openat2(&dir.fd, path, flags, mode, tree.resolve(dir)) {
                Ok(fd) => return Some(Ok(fd)),
                // A rename anywhere while `..` was walked: the kernel cannot tell.
                Err(Errno(libc::EAGAIN)) => {}
                Err(Errno(libc::EXDEV)) => return None,
                Err(errno) => return Some(Err(errno.into())),
            }
        }
        None
    }
}

fn path_flags(follow: bool) -> i32 {
    if follow { libc::O_PATH } else { libc::O_PATH | libc::O_NOFOLLOW }
}

/// The tree to stay in.
pub(super) struct Tree<'a> {
    pub(super) root: &'a Arc<Object>,
    pub(super) stat: &'a Stat,
}

impl Tree<'_> {
    fn resolve(&self, dir: &Object) -> u64 {
        let bound = if std::ptr::eq(&**self.root, dir) {
            libc::RESOLVE_IN_ROOT
        } else {
            libc::RESOLVE_BENEATH
        };
        bound | libc::RESOLVE_NO_MAGICLINKS
    }

    pub(super) fn is_root(&self, fd: &OwnedFd) -> Result<bool, Status> {
        Ok(Stat::of(fd, true)?.is_same_place(self.stat))
    }

    /// The parent of a directory, which must be below the root now.
    pub(super) fn parent(&self, dir: &OwnedFd) -> Result<OwnedFd, Status> {
        let parent = up(dir)?;
        if !self.is_root(&parent)? {
            self.ancestors(&parent)?;
        }
        Ok(parent)
    }

    /// The directories from the root down to the parent of `dir`.
    ///
    /// # Errors
    /// STALE: it is not below the root (any more).
    fn ancestors(&self, dir: &OwnedFd) -> Result<Vec<Arc<OwnedFd>>, Status> {
        let mut list = Vec::new();
        let mut at = Arc::new(up(dir)?);
        for _ in 0..DEPTH_MAX {
            let is_root = self.is_root(&at)?;
            list.push(at.clone());
            if is_root {
                list.reverse();
                return Ok(list);
            }
            let above = up(&at)?;
            if Stat::of(&above, true)?.is_same_place(&Stat::of(&at, true)?) {
                break; // the host's root
            }
            at = Arc::new(above);
        }
        Err(Status::Stale)
    }

    /// Walks by hand. The last name may be missing.
    pub(super) fn walk(&self, dir: &Object, path: &[u8], follow: bool) -> Result<Place, Status> {
        let follow = follow || path.ends_with(b"/");
        let start = Arc::new(sys::duplicate(&dir.fd)?);
        let mut way = Way { tree: self, stack: vec![start.clone()], from_root: false };
        let mut rest: VecDeque<Vec<u8>> = components(path).collect();
        let mut end = Place { dir: start.clone(), name: Vec::new(), fd: Some(start) };
        let mut links = 0;
        while let Some(name) = rest.pop_front() {
            let at = way.here()?;
            if name == b"." || name == b".." {
                let here = if name == b"." { searchable(&at)? } else { way.up()? };
                end = Place { dir: here.clone(), name: Vec::new(), fd: Some(here) };
                continue;
            }
            let fd = match sys::openat(&at, &name, libc::O_PATH, 0) {
                Ok(fd) => Arc::new(fd),
                Err(Errno(libc::ENOENT)) if rest.is_empty() => {
                    return Ok(Place { dir: at, name, fd: None });
                }
                Err(errno) => return Err(errno.into()),
            };
            let kind = Stat::of(&fd, true)?.kind();
            if kind == FileKind::Symlink && (follow || !rest.is_empty()) {
                links += 1;
                if links > LINKS_FOLLOWED_MAX {
                    return Err(Status::Loop);
                }
                let target = sys::readlink(&fd)?;
                if target.starts_with(b"/") {
                    way.restart()?;
                }
                let here = way.here()?;
                end = Place { dir: here.clone(), name: Vec::new(), fd: Some(here) };
                for component in components(&target).collect::<Vec<_>>().into_iter().rev() {
                    rest.push_front(component);
                }
                continue;
            }
            if kind == FileKind::Directory {
                way.push(fd.clone())?;
            } else if !rest.is_empty() || path.ends_with(b"/") {
                return Err(Status::NotDir);
            }
            end = Place { dir: at, name, fd: Some(fd) };
        }
        Ok(end)
    }
}

/// The directories walked through.
struct Way<'a> {
    tree: &'a Tree<'a>,
    stack: Vec<Arc<OwnedFd>>,
    /// The stack begins at the root (otherwise at the walk's start).
    from_root: bool,
}

impl Way<'_> {
    fn here(&self) -> Result<Arc<OwnedFd>, Status> {
        self.stack.last().cloned().ok_or(Status::ServerFault)
    }

    fn push(&mut self, dir: Arc<OwnedFd>) -> Result<(), Status> {
        if self.stack.len() >= DEPTH_MAX {
            return Err(Status::NameTooLong);
        }
        self.stack.push(dir);
        Ok(())
    }

    fn restart(&mut self) -> Result<(), Status> {
        self.stack = vec![Arc::new(sys::duplicate(&self.tree.root.fd)?)];
        self.from_root = true;
        Ok(())
    }

    /// One step up; the root is its own parent.
    fn up(&mut self) -> Result<Arc<OwnedFd>, Status> {
        let at = searchable(&self.here()?)?;
        if self.stack.len() == 1 && !self.from_root {
            if !self.tree.is_root(&at)? {
                let mut stack = self.tree.ancestors(&at)?;
                stack.push(at);
                self.stack = stack;
            }
            self.from_root = true;
        }
        if self.stack.len() > 1 {
            self.stack.pop();
        }
        self.here()
    }
}

fn up(dir: &OwnedFd) -> Result<OwnedFd, Status> {
    Ok(sys::openat(dir, b"..", libc::O_PATH | libc::O_DIRECTORY, 0)?)
}

/// Walking on from a directory needs the right to search it, also to `.` and `..`.
fn searchable(dir: &Arc<OwnedFd>) -> Result<Arc<OwnedFd>, Status> {
    sys::openat(dir, b".", libc::O_PATH | libc::O_DIRECTORY, 0)?;
    Ok(dir.clone())
}

fn components(path: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).map(<[u8]>::to_vec)
}
