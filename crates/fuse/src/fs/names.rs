//! Changes of names and attributes, and what is asked of objects by name.

use std::sync::Arc;
use std::time::Instant;

use dafs_client::{Changed, Error, Object as Found, OpenOptions, Session};
use dafs_protocol::{Attr, FileHandle, FileKind, SetAttr, SetTime};

use super::DafsFs;
use super::error::{Errno, is_stale};
use super::flushes::Turn;
use super::nodes::{Change, Node, OpenFile, ROOT};
use crate::kernel::{self, Answer, Caller, StatFs};

/// What the kernel asks for before a file is written, given away or run.
pub(super) const CAPABILITY: &[u8] = b"security.capability";

impl DafsFs {
    /// As `on`, with two objects.
    pub(super) fn on_two<T>(
        &self,
        (first, second): (&Arc<Node>, &Arc<Node>),
        call: impl Fn(FileHandle, FileHandle) -> dafs_client::Result<T>,
    ) -> Result<dafs_client::Result<T>, Errno> {
        match call(first.handle(), second.handle()) {
            Err(error) if is_stale(&error) => {
                let found = (self.find_again(first, 0)?, self.find_again(second, 0)?);
                Ok(call(found.0, found.1))
            }
            other => Ok(other),
        }
    }

    pub(super) fn set_attr(
        &self,
        caller: &Caller,
        node: u64,
        wanted: &kernel::SetAttr,
    ) -> Result<Answer, Errno> {
        self.writable()?;
        let (node, session) = (self.nodes.get(node)?, self.as_caller(caller));
        let time = |to| match to {
            kernel::SetTime::Now => SetTime::Now,
            kernel::SetTime::At(at) => SetTime::To(at),
        };
        let set = SetAttr {
            size: wanted.size,
            mode: wanted.mode.map(|mode| mode & 0o7777),
            uid: wanted.uid,
            gid: wanted.gid,
            accessed: wanted.atime.map(time),
            modified: wanted.mtime.map(time),
        };
        if set == SetAttr::default() {
            return self.end_privileges(caller, &node);
        }
        if let Some(set) = node.set_gone(&set) {
            return Ok(self.attr_answer(&node, &set?));
        }
        if let Some(answer) = self.set_later(caller, &node, &set) {
            return Ok(answer);
        }
        if let Some(attr) = self.set_with_later(caller, &node, &set)? {
            return Ok(self.attr_answer(&node, &attr));
        }
        self.settle(&node)?;
        let (_change, asked) = (node.change(), Instant::now());
        let attr = self.set_now(&session, &node, wanted.fh, set)?;
        node.is_set(&attr, asked);
        Ok(self.attr_answer(&node, &attr))
    }

    pub(super) fn set_now(
        &self,
        session: &Session,
        node: &Arc<Node>,
        fh: Option<u64>,
        set: SetAttr,
    ) -> Result<Attr, Errno> {
        // An open file may be cut whatever its mode says by now.
        let open = match (fh, set.size) {
            (Some(fh), Some(_)) => Some(self.files.get(fh)?),
            _ => None,
        };
        if let Some(attr) = self.set_by_open(session, node, open.as_ref(), set)? {
            return Ok(attr);
        }
        // What is kept, written again later, would undo it: times change with each write, and so
        // may setuid and setgid.
        self.flush_node(node)?;
        // For the caller, not for who opened it: a cut by anybody but root ends setuid.
        let by_open = |open: &Arc<OpenFile>| {
            let set = || session.set_attr_open(&open.file, None, set, false);
            self.repeated(|| Ok(set().map(|(attr, _)| attr)))
        };
        match &open {
            Some(open) => by_open(open),
            None => {
                let by_handle = || self.on_handle(node, |handle| session.set_attr_of(handle, set));
                match self.repeated(by_handle) {
                    // It has no name any more.
                    Err(Errno::STALE) => by_open(&node.any_open().ok_or(Errno::STALE)?),
                    other => other,
                }
            }
        }
    }

    /// Nothing to set is how the kernel tells of a chown(2) that gives neither owner nor group, and
    /// of a write to come: setuid and setgid end. Whoever may not end them by this may be about to
    /// write, which ends them at the server.
    fn end_privileges(&self, caller: &Caller, node: &Arc<Node>) -> Result<Answer, Errno> {
        // What is answered is believed for a while.
        self.settle(node)?;
        let attr = self.attr_of(&self.session, node)?;
        let set_gid = if attr.mode & libc::S_IXGRP != 0 { libc::S_ISGID } else { 0 };
        let mode = attr.mode & !(libc::S_ISUID | set_gid);
        if attr.kind == FileKind::Directory || mode == attr.mode {
            return Ok(self.attr_answer(node, &attr));
        }
        let set = kernel::SetAttr { mode: Some(mode), ..kernel::SetAttr::default() };
        match self.set_attr(caller, node.number, &set) {
            Err(Errno(libc::EPERM)) => Ok(self.attr_answer(node, &attr)),
            other => other,
        }
    }

    /// Sets attributes through an open file, and flushes it in the same round trip where it was
    /// written. `None`: it is to be done otherwise; whatever failed is met again there.
    fn set_by_open(
        &self,
        session: &Session,
        node: &Arc<Node>,
        wanted: Option<&Arc<OpenFile>>,
        set: SetAttr,
    ) -> Result<Option<Attr>, Errno> {
        let mut written = node.opens().into_iter().filter(|open| open.is_dirty());
        let (first, second) = (written.next(), written.next());
        let Some(open) = first.as_ref().or(wanted).cloned().or_else(|| node.any_open()) else {
            return Ok(None);
        };
        let other = wanted.is_some_and(|wanted| !Arc::ptr_eq(wanted, &open));
        if second.is_some() || other {
            return Ok(None);
        }
        let (mut turn, before) = open.flushes.turn()?;
        if let Err(errno) = before {
            open.set_failed(errno);
        }
        // The mode of a file has a say in who may cut it by its name.
        let handle = (set.size.is_some() && wanted.is_none()).then(|| node.handle());
        match self.set_and_flush(session, &open, &mut turn, (handle, set)) {
            Ok(attr) => Ok(Some(attr)),
            Err(Error::Interrupted) => Err(Errno::INTR),
            Err(_) => Ok(None),
        }
    }

    /// In one round trip; errors of writes are told to that open later.
    pub(super) fn set_and_flush(
        &self,
        session: &Session,
        open: &OpenFile,
        turn: &mut Turn<'_>,
        (handle, set): (Option<FileHandle>, SetAttr),
    ) -> dafs_client::Result<Attr> {
        let dirty = open.take_dirty();
        match session.set_attr_open(&open.file, handle, set, dirty) {
            Ok((attr, flushed)) => {
                if let Err(errno) = self.end_flush(open, turn, flushed) {
                    open.set_failed(errno);
                }
                Ok(attr)
            }
            Err(error) => {
                if dirty {
                    open.written();
                }
                Err(error)
            }
        }
    }

    pub(super) fn read_link(&self, caller: &Caller, node: u64) -> Result<Answer, Errno> {
        let (node, session) = (self.nodes.get(node)?, self.as_caller(caller));
        Ok(Answer::Data(self.on(&node, |handle| session.read_link_of(handle))?))
    }

    pub(super) fn access(&self, caller: &Caller, node: u64, mask: u32) -> Result<Answer, Errno> {
        let (node, session) = (self.nodes.get(node)?, self.as_caller(caller));
        let mask = (mask & 7) as u8;
        if mask & 2 != 0 && self.options.read_only {
            return Err(Errno::ROFS);
        }
        let granted = self.on(&node, |handle| session.access_of(handle, mask))?;
        if granted & mask == mask { Ok(Answer::Done) } else { Err(Errno(libc::EACCES)) }
    }

    pub(super) fn stat_fs(&self, node: u64) -> Result<Answer, Errno> {
        let mut node = self.nodes.get(node)?;
        if node.gone().is_some() {
            node = self.nodes.get(ROOT)?;
        }
        let attr = self.on(&node, |handle| self.session.statfs_of(handle))?;
        let size = u64::from(attr.block_size.max(512));
        Ok(Answer::StatFs(StatFs {
            blocks: attr.bytes_total / size,
            blocks_free: attr.bytes_free / size,
            blocks_available: attr.bytes_available / size,
            files: attr.files_total,
            files_free: attr.files_free,
            bsize: attr.block_size.max(512),
            frsize: attr.block_size.max(512),
            name_bytes_max: attr.name_bytes_max,
        }))
    }

    pub(super) fn sync_fs(&self) -> Result<Answer, Errno> {
        self.session.sync()?;
        Ok(Answer::Done)
    }

    pub(super) fn sync_dir(&self, node: u64) -> Result<Answer, Errno> {
        let node = self.nodes.get(node)?;
        if node.gone().is_some() {
            return Ok(Answer::Done);
        }
        self.on(&node, |handle| self.session.sync_dir_of(handle))?;
        Ok(Answer::Done)
    }

    /// Makes anything but a regular file.
    fn make(
        &self,
        caller: &Caller,
        dir: u64,
        name: &[u8],
        (kind, mode, rdev): (FileKind, u32, u64),
        target: &[u8],
    ) -> Result<Answer, Errno> {
        self.writable()?;
        let (dir, session) = (self.nodes.get(dir)?, self.as_caller(caller));
        let change = dir.change();
        let make_at = |handle| session.make_at(handle, name, kind, mode, rdev, target);
        let make = || self.on_handle(&dir, |handle| change.saw(make_at(handle)));
        let made = self.made(caller, &dir, name, kind, target, make)?;
        Ok(Answer::Entry(self.entry(&made, dir.number, name)))
    }

    pub(super) fn mkdir(
        &self,
        caller: &Caller,
        dir: u64,
        name: &[u8],
        mode: u32,
    ) -> Result<Answer, Errno> {
        self.make(caller, dir, name, (FileKind::Directory, mode, 0), b"")
    }

    pub(super) fn symlink(
        &self,
        caller: &Caller,
        dir: u64,
        name: &[u8],
        target: &[u8],
    ) -> Result<Answer, Errno> {
        if target.is_empty() {
            return Err(Errno::NOENT);
        }
        self.make(caller, dir, name, (FileKind::Symlink, 0o777, 0), target)
    }

    pub(super) fn mknod(
        &self,
        caller: &Caller,
        dir: u64,
        name: &[u8],
        (kind, mode): (u32, u32),
        rdev: u32,
    ) -> Result<Answer, Errno> {
        let kind = match kind {
            libc::S_IFIFO => FileKind::Fifo,
            libc::S_IFSOCK => FileKind::Socket,
            libc::S_IFCHR => FileKind::CharDevice,
            libc::S_IFBLK => FileKind::BlockDevice,
            libc::S_IFREG | 0 => return self.make_file(caller, dir, name, mode),
            _ => return Err(Errno::INVAL),
        };
        self.make(caller, dir, name, (kind, mode, u64::from(rdev)), b"")
    }

    fn make_file(
        &self,
        caller: &Caller,
        dir: u64,
        name: &[u8],
        mode: u32,
    ) -> Result<Answer, Errno> {
        self.writable()?;
        let (dir, session) = (self.nodes.get(dir)?, self.as_caller(caller));
        let options = OpenOptions {
            write: true,
            create: true,
            exclusive: true,
            mode,
            no_follow: true,
            ..OpenOptions::default()
        };
        let (file, _) = self.open_new(caller, &session, &dir, name, options)?;
        let found = Found { handle: file.handle(), attr: file.opened_attr() };
        Ok(Answer::Entry(self.entry(&found, dir.number, name)))
    }

    pub(super) fn remove(
        &self,
        caller: &Caller,
        dir: u64,
        name: &[u8],
        directory: bool,
    ) -> Result<Answer, Errno> {
        self.writable()?;
        let (dir, session) = (self.nodes.get(dir)?, self.as_caller(caller));
        let change = dir.change();
        let itself = self.nodes.named(dir.number, name).map(|node| node.change_for_good());
        let remove_at =
            |handle| noting_gone(itself.as_ref(), session.remove_at(handle, name, directory));
        let remove = || self.on_handle(&dir, |handle| change.saw(remove_at(handle)));
        self.gone(libc::ENOENT, remove)?;
        self.nodes.removed(dir.number, name);
        Ok(Answer::Done)
    }

    pub(super) fn rename(
        &self,
        caller: &Caller,
        (dir, name): (u64, &[u8]),
        (to_dir, to): (u64, &[u8]),
        flags: u32,
    ) -> Result<Answer, Errno> {
        self.writable()?;
        let known = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT;
        if flags & !known != 0 {
            return Err(Errno::INVAL);
        }
        let no_replace = flags & libc::RENAME_NOREPLACE != 0;
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        let whiteout = flags & libc::RENAME_WHITEOUT != 0;
        let (from, into) = (self.nodes.get(dir)?, self.nodes.get(to_dir)?);
        let session = self.as_caller(caller);
        let (change, other) = (from.change(), (dir != to_dir).then(|| into.change()));
        let named = [(dir, name), (to_dir, to)].map(|(dir, name)| self.nodes.named(dir, name));
        let themselves = named.map(|node| node.map(|node| node.change_for_good()));
        let rename = || {
            self.on_two((&from, &into), |a, b| {
                let renamed = session.rename_at(a, name, b, to, (no_replace, exchange, whiteout));
                if let (Some(other), Ok(renamed)) = (&other, &renamed) {
                    other.see(renamed.dirs[1]);
                }
                change.saw(noting_gone(themselves[1].as_ref(), renamed))
            })
        };
        self.moved((&from, name), (&into, to), exchange || whiteout, rename)?;
        self.nodes.renamed((dir, name), (to_dir, to), exchange);
        Ok(Answer::Done)
    }

    pub(super) fn link(
        &self,
        caller: &Caller,
        from: u64,
        dir: u64,
        name: &[u8],
    ) -> Result<Answer, Errno> {
        self.writable()?;
        let (from, dir) = (self.nodes.get(from)?, self.nodes.get(dir)?);
        let (session, change) = (self.as_caller(caller), dir.change());
        from.is_new_no_more();
        let link = || {
            let linked = self.on_two((&from, &dir), |a, b| change.saw(session.link_at(a, b, name)));
            match linked {
                // A file without a name, made by O_TMPFILE.
                Err(Errno::STALE) => self.link_open(&from, &dir, name, &change),
                Ok(Err(error)) if is_stale(&error) || error.errno() == libc::ENOENT => {
                    self.link_open(&from, &dir, name, &change).or(Ok(Err(error)))
                }
                other => other,
            }
        };
        let linked = match self.linked(&from, &dir, name, link) {
            // Its name may be another file's by now: the kernel looks again.
            Err(Errno(libc::ENOENT)) if !from.place().1.is_empty() => return Err(Errno::STALE),
            other => other?,
        };
        Ok(Answer::Entry(self.entry(&linked, dir.number, name)))
    }

    fn link_open(
        &self,
        from: &Arc<Node>,
        dir: &Arc<Node>,
        name: &[u8],
        change: &Change,
    ) -> Result<Result<Found, Error>, Errno> {
        let open = from.any_open().ok_or(Errno::NOENT)?;
        self.on_handle(dir, |handle| change.saw(open.file.link_to(handle, name)))
    }

    pub(super) fn set_xattr(
        &self,
        caller: &Caller,
        node: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<Answer, Errno> {
        self.writable()?;
        let flags = u8::try_from(flags).ok().filter(|flags| *flags <= 2).ok_or(Errno::INVAL)?;
        let (object, session) = (self.nodes.get(node)?, self.as_caller(caller));
        let _change = object.change_for_good();
        // Written again later it would end a capability that is newer.
        self.flush_node(&object)?;
        let set =
            || self.on_handle(&object, |handle| session.set_xattr_of(handle, name, value, flags));
        let is_set = || Ok(self.xattr(node, |handle| session.get_xattr_of(handle, name))? == value);
        let outcome = self.set(set, is_set);
        // Whatever came of it.
        object.may_be_capable();
        self.mode_may_differ(node, name);
        outcome?;
        Ok(Answer::Done)
    }

    /// A list of rights was set or removed, which the mode tells a part of.
    fn mode_may_differ(&self, node: u64, name: &[u8]) {
        if name.starts_with(b"system.posix_acl_") {
            self.kernel_forgets_attributes(node);
        }
    }

    /// On what has a handle.
    fn xattr<T>(
        &self,
        node: u64,
        call: impl Fn(FileHandle) -> dafs_client::Result<T>,
    ) -> Result<T, Errno> {
        let node = self.nodes.get(node)?;
        self.on(&node, call)
    }

    pub(super) fn get_xattr(
        &self,
        caller: &Caller,
        node: u64,
        name: &[u8],
        size: u32,
    ) -> Result<Answer, Errno> {
        let (node, session) = (self.nodes.get(node)?, self.as_caller(caller));
        if node.gone().is_some() || name == CAPABILITY && node.is_incapable() {
            return Err(Errno::NODATA);
        }
        let asked = Instant::now();
        let got = self.on(&node, |handle| session.get_xattr_of(handle, name));
        if name == CAPABILITY && matches!(got, Err(Errno::NODATA)) {
            node.note_incapable(asked, self.options.attr_timeout);
        }
        sized(got?, size)
    }

    pub(super) fn list_xattr(
        &self,
        caller: &Caller,
        node: u64,
        size: u32,
    ) -> Result<Answer, Errno> {
        let (node, session) = (self.nodes.get(node)?, self.as_caller(caller));
        if node.gone().is_some() {
            return sized(Vec::new(), size);
        }
        sized(self.on(&node, |handle| session.list_xattr_of(handle))?, size)
    }

    pub(super) fn remove_xattr(
        &self,
        caller: &Caller,
        node: u64,
        name: &[u8],
    ) -> Result<Answer, Errno> {
        self.writable()?;
        let (object, session) = (self.nodes.get(node)?, self.as_caller(caller));
        // Before a write the kernel asks for this in the name of who writes. By themselves it lets
        // nobody do it who may not: here no more is asked.
        let session = if name == CAPABILITY { self.session.clone() } else { session };
        let _change = object.change_for_good();
        let remove = || self.on_handle(&object, |handle| session.remove_xattr_of(handle, name));
        let outcome = self.gone(libc::ENODATA, remove);
        self.mode_may_differ(node, name);
        outcome?;
        Ok(Answer::Done)
    }
}

/// What it was that a change removed.
fn noting_gone<T>(
    itself: Option<&Change>,
    answer: dafs_client::Result<Changed<T>>,
) -> dafs_client::Result<Changed<T>> {
    if let (Some(itself), Ok(changed)) = (itself, &answer) {
        itself.removed(changed.gone);
    }
    answer
}

/// The value, or its size where that was asked for.
fn sized(value: Vec<u8>, size: u32) -> Result<Answer, Errno> {
    let len = u32::try_from(value.len()).map_err(|_| Errno::RANGE)?;
    match size {
        0 => Ok(Answer::Size(len)),
        size if len > size => Err(Errno::RANGE),
        _ => Ok(Answer::Data(value)),
    }
}
