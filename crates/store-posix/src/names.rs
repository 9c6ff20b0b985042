//! Names: look-up, creation, links, removal, renaming.

use std::os::fd::OwnedFd;

use dafs_protocol::{Attr, FileHandle, FileKind, SYMLINK_BYTES_MAX, Status};

use super::attr::Stat;
use super::objects::Leaving;
use super::umask::Masking;
use super::walk::Cached;
use super::{Inner, sys};
use dafs_store::names::{check_name, check_path};
use dafs_store::{Caller, Found};

/// What [`Inner::create`] makes.
pub(super) struct Creation {
    pub(super) kind: FileKind,
    pub(super) mode: u32,
    pub(super) rdev: u64,
    pub(super) target: Vec<u8>,
}

/// What [`Inner::rename`] does.
pub(super) struct Rename {
    pub(super) from_dir: FileHandle,
    pub(super) from: Vec<u8>,
    pub(super) to_dir: FileHandle,
    pub(super) to: Vec<u8>,
    pub(super) no_replace: bool,
    pub(super) exchange: bool,
    pub(super) whiteout: bool,
}

impl Inner {
    /// Handle and attributes of what a fresh O_PATH descriptor names.
    pub(super) fn found(&self, caller: &Caller, fd: OwnedFd, lazy: bool) -> Result<Found, Status> {
        let found = match self.objects.found(fd, lazy, false)? {
            Ok(found) => found,
            Err(fd) => {
                // Where this fails, numbers of the table do.
                let _ = self.identities.as_server_for(caller, || self.objects.add_mount(&fd))?;
                let found = self.objects.found(fd, lazy, true)?;
                found.map_err(|_| Status::ServerFault)?
            }
        };
        if !self.objects.knows(found.attr.device)
            && let Some(object) = self.objects.cached(&found.handle)
        {
            self.meet(caller, &object.fd)?;
        }
        Ok(found)
    }

    /// Something is in a file system that was not met before.
    pub(super) fn meet(&self, caller: &Caller, fd: &OwnedFd) -> Result<(), Status> {
        let met = self.identities.as_server_for(caller, || self.objects.meet(fd))?;
        if let Err(status) = met {
            tracing::debug!(?status, "a file system that does not say which it is");
        }
        Ok(())
    }

    /// As [`found`](Self::found), for a file open for I/O.
    pub(super) fn handle_of_open(
        &self,
        caller: &Caller,
        fd: &OwnedFd,
        stat: &Stat,
    ) -> Result<FileHandle, Status> {
        let handle = match self.objects.handle_of_open(fd, stat, false)? {
            Some(handle) => handle,
            None => {
                let _ = self.identities.as_server_for(caller, || self.objects.add_mount(fd))?;
                self.objects.handle_of_open(fd, stat, true)?.ok_or(Status::ServerFault)?
            }
        };
        if !self.objects.knows(stat.id().device) {
            self.meet(caller, fd)?;
        }
        Ok(handle)
    }

    /// Answers a look-up if the kernel can without reading.
    pub(super) fn lookup_cached(
        &self,
        caller: &Caller,
        dir: &FileHandle,
        path: &[u8],
        follow: bool,
    ) -> Option<Result<Found, Status>> {
        if let Err(status) = check_path(path) {
            return Some(Err(status));
        }
        let object = self.objects.cached(dir)?;
        if path.is_empty() {
            return Some(self.itself(caller, dir, &object.fd, true));
        }
        let _acting = match self.identities.act_as(caller) {
            Ok(acting) => acting,
            Err(status) => return Some(Err(status)),
        };
        match self.walking.cached(&self.tree(), &object, path, follow) {
            Cached::Found(fd) => Some(self.found(caller, fd, true)),
            Cached::Failed(status) => Some(Err(status)),
            Cached::Unknown => None,
        }
    }

    pub(super) fn lookup(
        &self,
        caller: &Caller,
        dir: &FileHandle,
        path: &[u8],
        follow: bool,
    ) -> Result<Found, Status> {
        check_path(path)?;
        let object = self.objects.resolve(&self.identities, dir)?;
        if path.is_empty() {
            return self.itself(caller, dir, &object.fd, false);
        }
        let _acting = self.identities.act_as(caller)?;
        let fd = self.walking.open(&self.tree(), &object, path, follow)?;
        self.found(caller, fd, false)
    }

    /// What a handle names, as it is.
    pub(super) fn itself(
        &self,
        caller: &Caller,
        handle: &FileHandle,
        fd: &OwnedFd,
        lazy: bool,
    ) -> Result<Found, Status> {
        self.identities.may_act_as(caller)?;
        let stat = Stat::of(fd, lazy)?;
        self.still_there(&stat)?;
        Ok(Found { handle: *handle, attr: stat.attr() })
    }

    /// A file without a name is there while it is open.
    pub(super) fn still_there(&self, stat: &Stat) -> Result<(), Status> {
        let there = stat.links() != 0 || self.files.is_open(stat.id());
        if there { Ok(()) } else { Err(Status::Stale) }
    }

    pub(super) fn lookup_parent(
        &self,
        caller: &Caller,
        handle: &FileHandle,
    ) -> Result<Found, Status> {
        let object = self.objects.resolve(&self.identities, handle)?;
        if object.kind != FileKind::Directory {
            return Err(Status::NotDir);
        }
        let tree = self.tree();
        if tree.is_root(&object.fd)? {
            return self.itself(caller, handle, &object.fd, false);
        }
        let _acting = self.identities.act_as(caller)?;
        let parent = tree.parent(&object.fd)?;
        self.found(caller, parent, false)
    }

    pub(super) fn create(
        &self,
        caller: &Caller,
        dir: &FileHandle,
        name: &[u8],
        what: &Creation,
    ) -> Result<Found, Status> {
        self.may_change()?;
        check_name(name)?;
        let dir = self.objects.resolve(&self.identities, dir)?;
        let _acting = self.identities.act_as(caller)?;
        let (masking, mode) = Masking::new(what.mode);
        let node = |kind: u32| sys::mknodat(&dir.fd, name, kind | mode, what.rdev);
        match what.kind {
            FileKind::File => return Err(Status::BadType),
            FileKind::Directory => sys::mkdirat(&dir.fd, name, mode)?,
            FileKind::Symlink => {
                if what.target.len() > SYMLINK_BYTES_MAX {
                    return Err(Status::NameTooLong);
                }
                sys::symlinkat(&what.target, &dir.fd, name)?;
            }
            FileKind::Fifo => node(libc::S_IFIFO)?,
            FileKind::Socket => node(libc::S_IFSOCK)?,
            FileKind::CharDevice => node(libc::S_IFCHR)?,
            FileKind::BlockDevice => node(libc::S_IFBLK)?,
        }
        drop(masking);
        let fd = sys::openat(&dir.fd, name, libc::O_PATH, 0)?;
        // mkdir takes no setuid and setgid bits; a setgid directory above gives its own.
        let special = mode & !0o1777;
        if what.kind == FileKind::Directory && special != 0 {
            let made = Stat::of(&fd, true)?.mode();
            sys::chmod(&fd, made | special)?;
        }
        self.found(caller, fd, true)
    }

    pub(super) fn link(
        &self,
        caller: &Caller,
        from: &FileHandle,
        dir: &FileHandle,
        name: &[u8],
    ) -> Result<Found, Status> {
        self.may_change()?;
        check_name(name)?;
        let object = self.objects.resolve(&self.identities, from)?;
        let dir = self.objects.resolve(&self.identities, dir)?;
        let _acting = self.identities.act_as(caller)?;
        sys::link(&object.fd, &dir.fd, name)?;
        let stat = Stat::of(&object.fd, true)?;
        Ok(Found { handle: *from, attr: stat.attr() })
    }

    /// Gives an open file a name.
    pub(super) fn link_open(
        &self,
        caller: &Caller,
        fd: &OwnedFd,
        dir: &FileHandle,
        name: &[u8],
    ) -> Result<Found, Status> {
        self.may_change()?;
        check_name(name)?;
        let dir = self.objects.resolve(&self.identities, dir)?;
        let _acting = self.identities.act_as(caller)?;
        sys::link(fd, &dir.fd, name)?;
        let stat = Stat::of(fd, true)?;
        let handle = self.handle_of_open(caller, fd, &stat)?;
        Ok(Found { handle, attr: stat.attr() })
    }

    /// What a name of a directory is of.
    pub(super) fn object(
        &self,
        caller: &Caller,
        dir: &FileHandle,
        name: &[u8],
    ) -> Result<Attr, Status> {
        check_name(name)?;
        let dir = self.objects.resolve(&self.identities, dir)?;
        let _acting = self.identities.act_as(caller)?;
        Ok(Stat::at(&dir.fd, name, true)?.attr())
    }

    pub(super) fn remove(
        &self,
        caller: &Caller,
        dir: &FileHandle,
        name: &[u8],
        directory: bool,
    ) -> Result<(), Status> {
        self.may_change()?;
        check_name(name)?;
        let dir = self.objects.resolve(&self.identities, dir)?;
        let _acting = self.identities.act_as(caller)?;
        let leaving = self.objects.before_removal(&dir.fd, name);
        sys::unlinkat(&dir.fd, name, directory)?;
        self.removed(leaving);
        Ok(())
    }

    pub(super) fn rename(&self, caller: &Caller, what: &Rename) -> Result<(), Status> {
        self.may_change()?;
        check_name(&what.from)?;
        check_name(&what.to)?;
        if what.exchange && (what.no_replace || what.whiteout) {
            return Err(Status::Inval);
        }
        let flag = |wanted, flag| if wanted { flag } else { 0 };
        let flags = flag(what.no_replace, libc::RENAME_NOREPLACE)
            | flag(what.exchange, libc::RENAME_EXCHANGE)
            | flag(what.whiteout, libc::RENAME_WHITEOUT);
        let replaces = !what.no_replace && !what.exchange;
        let from_dir = self.objects.resolve(&self.identities, &what.from_dir)?;
        let to_dir = self.objects.resolve(&self.identities, &what.to_dir)?;
        let _acting = self.identities.act_as(caller)?;
        let replaced = replaces.then(|| self.objects.before_removal(&to_dir.fd, &what.to));
        match sys::renameat2(&from_dir.fd, &what.from, &to_dir.fd, &what.to, flags) {
            Err(errno) => Err(errno.into()),
            Ok(()) => {
                if let Some(leaving) = replaced {
                    self.removed(leaving);
                }
                Ok(())
            }
        }
    }

    /// A number of the table is good until the last close.
    fn removed(&self, mut leaving: Leaving) {
        leaving.id = leaving.id.filter(|id| !self.files.is_open(*id));
        self.objects.removed(leaving);
    }
}
