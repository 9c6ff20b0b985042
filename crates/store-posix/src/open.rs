//! OPEN: finding or making a regular file, and what the caller may do with it.

use std::os::fd::OwnedFd;

use dafs_protocol::{CreateMode, FileHandle, FileKind, OpenFlags, Status};

use super::attr::Stat;
use super::file::Descriptor;
use super::objects::Object;
use super::sys::{self, Errno};
use super::umask::Masking;
use super::walk::Cached;
use super::{Inner, Shared};
use dafs_store::names::check_path;
use dafs_store::{Caller, Opened};

/// How often a file may come and go while it is opened.
const TRIES: usize = 16;
/// No terminal, no waiting, also for a lease (see `leases.rs`); the file is known to be a regular
/// one besides.
const FLAGS: i32 = libc::O_NONBLOCK | libc::O_NOCTTY;

/// Arguments of OPEN.
pub(super) struct Request {
    pub(super) caller: Caller,
    pub(super) dir: FileHandle,
    pub(super) path: Vec<u8>,
    pub(super) flags: OpenFlags,
    pub(super) mode: u32,
}

impl Request {
    fn check(&self, read_only: bool) -> Result<(), Status> {
        check_path(&self.path)?;
        let OpenFlags { write, truncate, create, unlinked, again, .. } = self.flags;
        if again && (truncate || unlinked || create != CreateMode::No) {
            return Err(Status::Inval);
        }
        if read_only && (write || truncate) { Err(Status::RoFs) } else { Ok(()) }
    }

    /// The file's owner opens it again: the mode is not asked.
    fn is_owners(&self, stat: &Stat) -> bool {
        self.flags.again && stat.uid() == self.caller.uid
    }
}

/// Answers an open of what is there, if the kernel knows it without reading.
pub(super) fn open_cached(inner: &Shared, request: &Request) -> Option<Result<Opened, Status>> {
    let OpenFlags { truncate, unlinked, create, .. } = request.flags;
    if truncate || unlinked || create == CreateMode::Exclusive {
        return None;
    }
    if let Err(status) = request.check(inner.options.read_only) {
        return Some(Err(status));
    }
    let dir = inner.objects.cached(&request.dir)?;
    let _acting = match inner.identities.act_as(&request.caller) {
        Ok(acting) => acting,
        Err(status) => return Some(Err(status)),
    };
    // Not where a lease has to be waited for.
    let at_once = |fd| Some(open_object(inner, request, fd, true)).filter(|r| !is_leased(r));
    if request.path.is_empty() {
        return at_once(&dir.fd);
    }
    let follow = !request.flags.no_follow;
    match inner.walking.cached(&inner.tree(), &dir, &request.path, follow) {
        Cached::Found(fd) => at_once(&fd),
        Cached::Failed(Status::NoEnt) if request.flags.create != CreateMode::No => None,
        Cached::Failed(status) => Some(Err(status)),
        Cached::Unknown => None,
    }
}

fn is_leased(result: &Result<Opened, Status>) -> bool {
    matches!(result, Err(Status::Again))
}

/// Opens or makes; AGAIN where a local program has a lease on the file, which it is asked to give
/// up.
pub(super) fn open(inner: &Shared, request: &Request) -> Result<Opened, Status> {
    request.check(inner.options.read_only)?;
    let dir = inner.objects.resolve(&inner.identities, &request.dir)?;
    let _acting = inner.identities.act_as(&request.caller)?;
    if request.flags.unlinked {
        return open_unlinked(inner, request, &dir);
    }
    if request.path.is_empty() {
        if request.flags.create == CreateMode::Exclusive {
            return Err(Status::Exist);
        }
        return open_object(inner, request, &dir.fd, false);
    }
    // Whether it was made must be true, so making and finding are two calls. Most that may make
    // a file do, but the attempt to find costs less when it fails.
    for _ in 0..TRIES {
        if request.flags.create != CreateMode::Exclusive {
            let follow = !request.flags.no_follow;
            match inner.walking.open(&inner.tree(), &dir, &request.path, follow) {
                Err(Status::NoEnt) if request.flags.create == CreateMode::Unchecked => {}
                found => return open_object(inner, request, &found?, false),
            }
        }
        match create(inner, request, &dir) {
            Err(Status::Exist) if request.flags.create == CreateMode::Unchecked => {}
            result => return result,
        }
    }
    Err(Status::Again)
}

fn create(inner: &Shared, request: &Request, dir: &Object) -> Result<Opened, Status> {
    if inner.options.read_only {
        return Err(Status::RoFs);
    }
    let exclusive = request.flags.create == CreateMode::Exclusive;
    let follow = !exclusive && !request.flags.no_follow;
    let (_masking, mode) = Masking::new(request.mode);
    let fd = inner.walking.create(&inner.tree(), dir, &request.path, mode, follow)?;
    made(inner, request, fd)
}

/// A new file without a name, in the file system of the directory at the path.
fn open_unlinked(inner: &Shared, request: &Request, dir: &Object) -> Result<Opened, Status> {
    if !request.flags.write {
        return Err(Status::Inval);
    }
    inner.may_change()?;
    let exclusive = request.flags.create == CreateMode::Exclusive;
    let flags = libc::O_TMPFILE | libc::O_RDWR | if exclusive { libc::O_EXCL } else { 0 };
    let (_masking, mode) = Masking::new(request.mode);
    let make = |dir: &OwnedFd| match sys::openat(dir, b".", flags, mode) {
        // A kernel or file system that does not know the flag.
        Err(Errno(libc::EISDIR)) => Err(Status::NotSupp),
        other => Ok(other?),
    };
    let fd = if request.path.is_empty() {
        make(&dir.fd)?
    } else {
        let follow = !request.flags.no_follow;
        make(&inner.walking.open(&inner.tree(), dir, &request.path, follow)?)?
    };
    made(inner, request, fd)
}

fn made(inner: &Shared, request: &Request, fd: OwnedFd) -> Result<Opened, Status> {
    let stat = Stat::of(&fd, true)?;
    let handle = inner.handle_of_open(&request.caller, &fd, &stat)?;
    let opened = Descriptor { fd, reads: true, writes: true };
    let file = inner.files.add(inner, stat.id(), &handle, opened, true);
    Ok(Opened { handle, attr: stat.attr(), file, created: true })
}

/// Opens what an O_PATH descriptor names, under the rights of this thread.
fn open_object(
    inner: &Shared,
    request: &Request,
    path: &OwnedFd,
    lazy: bool,
) -> Result<Opened, Status> {
    let mut stat = Stat::of(path, lazy)?;
    match stat.kind() {
        FileKind::File if request.path.is_empty() => inner.still_there(&stat)?,
        FileKind::File => {}
        FileKind::Directory => return Err(Status::IsDir),
        FileKind::Symlink => return Err(Status::Loop),
        _ => return Err(Status::BadType),
    }
    let handle = if request.path.is_empty() {
        request.dir
    } else {
        inner.handle_of_open(&request.caller, path, &stat)?
    };
    let OpenFlags { write, truncate, .. } = request.flags;
    // An open for nothing does not exist; it would read.
    let read = request.flags.read || !(write || truncate);
    let file = match inner.files.get(stat.id()).filter(|file| file.covers(read, write)) {
        Some(file) => {
            // Its descriptors are others': the caller's own right is asked for.
            let need = if read { libc::R_OK } else { 0 };
            let need = need | if write || truncate { libc::W_OK } else { 0 };
            if !request.is_owners(&stat) {
                sys::access(path, need)?;
            }
            file
        }
        None => {
            let opened = match descriptor(inner, request, path, read, write || truncate) {
                Err(Status::Access) if request.is_owners(&stat) => {
                    owners_descriptor(inner, request, path, write)?
                }
                other => other?,
            };
            inner.files.add(inner, stat.id(), &handle, opened, false)
        }
    };
    if truncate {
        match stat.attr().size {
            // Some file systems (tmpfs, XFS) leave the times alone when nothing is cut, except by an open.
            0 => drop(sys::reopen(path, libc::O_WRONLY | libc::O_TRUNC | FLAGS)?),
            _ => sys::truncate(path, 0)?,
        }
        stat = Stat::of(path, lazy)?;
    }
    Ok(Opened { handle, attr: stat.attr(), file, created: false })
}

/// A descriptor by the server's own rights, for what the caller has had open and owns.
fn owners_descriptor(
    inner: &Inner,
    request: &Request,
    path: &OwnedFd,
    write: bool,
) -> Result<Descriptor, Status> {
    let access = if write { libc::O_RDWR } else { libc::O_RDONLY };
    let reopen = || sys::reopen(path, access | FLAGS);
    let fd = inner.identities.as_server_for(&request.caller, reopen)??;
    Ok(Descriptor { fd, reads: true, writes: write })
}

/// A descriptor for what the caller wants and may. Who writes parts of blocks must read, too:
/// where the caller may not, the server does.
fn descriptor(
    inner: &Inner,
    request: &Request,
    path: &OwnedFd,
    read: bool,
    write: bool,
) -> Result<Descriptor, Status> {
    if !write {
        let fd = sys::reopen(path, libc::O_RDONLY | FLAGS)?;
        return Ok(Descriptor { fd, reads: true, writes: false });
    }
    match sys::reopen(path, libc::O_RDWR | FLAGS) {
        Ok(fd) => return Ok(Descriptor { fd, reads: true, writes: true }),
        Err(Errno(libc::EACCES)) if !read => {}
        Err(errno) => return Err(errno.into()),
    }
    let fd = sys::reopen(path, libc::O_WRONLY | FLAGS)?;
    if !inner.identities.can_switch() {
        return Ok(Descriptor { fd, reads: false, writes: true });
    }
    let reopen = || sys::reopen(path, libc::O_RDWR | FLAGS);
    let both = inner.identities.as_server_for(&request.caller, reopen)?;
    match both {
        Ok(fd) => Ok(Descriptor { fd, reads: true, writes: true }),
        Err(_) => Ok(Descriptor { fd, reads: false, writes: true }),
    }
}
