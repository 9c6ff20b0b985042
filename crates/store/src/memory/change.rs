//! Changes of names: open with creation, create, link, remove, rename.

use std::sync::{Arc, Weak};

use dafs_protocol::{
    CreateMode, FileHandle, FileKind, Identity, OpenFlags, SYMLINK_BYTES_MAX, Status,
};

use super::data::Data;
use super::file::{self, set_size};
use super::node::{Content, Directory};
use super::open_file::MemoryFile;
use super::rights::{self, EXECUTE, READ, WRITE};
use super::tree::Place;
use super::{Shared, State};
use crate::Found;
use crate::names::{check_name, check_path};

/// What a rename takes.
pub(super) struct Rename {
    pub(super) from_dir: FileHandle,
    pub(super) from: Vec<u8>,
    pub(super) to_dir: FileHandle,
    pub(super) to: Vec<u8>,
    pub(super) no_replace: bool,
    pub(super) exchange: bool,
    pub(super) whiteout: bool,
}

impl State {
    pub(super) fn found(&self, inode: u64) -> Result<Found, Status> {
        Ok(Found { handle: self.tree.handle(inode), attr: self.tree.attr(inode)? })
    }

    /// The file, and whether it was made.
    pub(super) fn open(
        &mut self,
        shared: &Arc<Shared>,
        caller: &Identity,
        dir: &FileHandle,
        path: &[u8],
        flags: OpenFlags,
        mode: u32,
    ) -> Result<(Found, Arc<MemoryFile>, bool), Status> {
        check_path(path)?;
        if self.tree.options.read_only && (flags.write || flags.truncate) {
            return Err(Status::RoFs);
        }
        if flags.again && (flags.truncate || flags.unlinked || flags.create != CreateMode::No) {
            return Err(Status::Inval);
        }
        let start = self.tree.resolve(dir)?;
        if flags.unlinked {
            let inode = self.add_unlinked(caller, start, path, flags, mode)?;
            let found = self.found(inode)?;
            return Ok((found, file::open(shared, self, inode)?, true));
        }
        let exclusive = flags.create == CreateMode::Exclusive;
        let place = self.tree.walk(caller, start, path, !flags.no_follow && !exclusive)?;
        let (inode, created) = match place.inode {
            Some(_) if exclusive => return Err(Status::Exist),
            Some(inode) => (inode, false),
            None if flags.create == CreateMode::No => return Err(Status::NoEnt),
            None if path.ends_with(b"/") => return Err(Status::IsDir),
            None => (self.add_file(caller, &place, mode)?, true),
        };
        if !created {
            self.open_there(caller, inode, flags)?;
        }
        let found = self.found(inode)?;
        Ok((found, file::open(shared, self, inode)?, created))
    }

    /// Rights are those of the caller now, whoever has it open already.
    fn open_there(
        &mut self,
        caller: &Identity,
        inode: u64,
        flags: OpenFlags,
    ) -> Result<(), Status> {
        let node = self.tree.node(inode)?;
        if node.kind() == FileKind::Symlink {
            return Err(Status::Loop);
        }
        node.data()?;
        let read = if flags.read { READ } else { 0 };
        let write = if flags.write || flags.truncate { WRITE } else { 0 };
        if !(flags.again && node.uid == caller.uid) {
            rights::need(node, caller, read | write)?;
        }
        if flags.truncate {
            self.may_change()?;
            set_size(self, inode, 0)?;
            if caller.uid != 0 {
                self.tree.node_mut(inode)?.clear_privileges();
            }
        }
        Ok(())
    }

    /// A regular file without a name, which its open keeps.
    fn add_unlinked(
        &mut self,
        caller: &Identity,
        start: u64,
        path: &[u8],
        flags: OpenFlags,
        mode: u32,
    ) -> Result<u64, Status> {
        if !flags.write {
            return Err(Status::Inval);
        }
        let place = self.tree.walk(caller, start, path, !flags.no_follow)?;
        let dir = place.inode.ok_or(Status::NoEnt)?;
        self.tree.node(dir)?.directory()?;
        self.may_change()?;
        let inode = self.add_inode(caller, dir, new_file(), mode, 0)?;
        let node = self.tree.node_mut(inode)?;
        node.links = 0;
        node.linkable = flags.create != CreateMode::Exclusive;
        Ok(inode)
    }

    fn add_file(&mut self, caller: &Identity, place: &Place, mode: u32) -> Result<u64, Status> {
        self.add(caller, place.dir, &place.name, new_file(), mode, 0)
    }

    /// A new inode with a name that is free.
    fn add(
        &mut self,
        caller: &Identity,
        dir: u64,
        name: &[u8],
        content: Content,
        mode: u32,
        rdev: u64,
    ) -> Result<u64, Status> {
        self.may_change()?;
        check_name(name)?;
        let is_dir = matches!(content, Content::Directory(_));
        let inode = self.add_inode(caller, dir, content, mode, rdev)?;
        let parent = self.tree.node_mut(dir)?;
        parent.directory_mut()?.set(name, inode);
        parent.links += u32::from(is_dir);
        self.tree.touch(dir, true);
        Ok(inode)
    }

    /// A new inode with what it has from `dir`, without its name.
    fn add_inode(
        &mut self,
        caller: &Identity,
        dir: u64,
        content: Content,
        mode: u32,
        rdev: u64,
    ) -> Result<u64, Status> {
        rights::need(self.tree.node(dir)?, caller, WRITE | EXECUTE)?;
        if self.tree.node_count() >= self.tree.options.files_max {
            return Err(Status::NoSpc);
        }
        let inode = self.tree.add_node(caller, content, mode, rdev);
        self.inherit(dir, inode)?;
        self.check_setgid(caller, inode)?;
        Ok(inode)
    }

    pub(super) fn create(
        &mut self,
        caller: &Identity,
        dir: &FileHandle,
        name: &[u8],
        content: Content,
        mode: u32,
        rdev: u64,
    ) -> Result<Found, Status> {
        check_name(name)?;
        let dir = self.tree.resolve(dir)?;
        if self.tree.child(caller, dir, name)?.is_some() {
            return Err(Status::Exist);
        }
        let device =
            matches!(content, Content::Special(FileKind::CharDevice | FileKind::BlockDevice));
        if device && caller.uid != 0 {
            return Err(Status::Perm);
        }
        if let Content::Symlink(target) = &content {
            match target.len() {
                0 => return Err(Status::NoEnt),
                1..=SYMLINK_BYTES_MAX if !target.contains(&0) => {}
                1..=SYMLINK_BYTES_MAX => return Err(Status::Inval),
                _ => return Err(Status::NameTooLong),
            }
        }
        let content = match content {
            Content::Directory(_) => Content::Directory(Directory::new(dir)),
            other => other,
        };
        let inode = self.add(caller, dir, name, content, mode, rdev)?;
        self.found(inode)
    }

    pub(super) fn link(
        &mut self,
        caller: &Identity,
        from: &FileHandle,
        dir: &FileHandle,
        name: &[u8],
    ) -> Result<Found, Status> {
        let from = self.tree.resolve(from)?;
        self.link_inode(caller, from, dir, name)
    }

    pub(super) fn link_inode(
        &mut self,
        caller: &Identity,
        from: u64,
        dir: &FileHandle,
        name: &[u8],
    ) -> Result<Found, Status> {
        check_name(name)?;
        let dir = self.tree.resolve(dir)?;
        if self.tree.child(caller, dir, name)?.is_some() {
            return Err(Status::Exist);
        }
        self.may_change()?;
        rights::need(self.tree.node(dir)?, caller, WRITE | EXECUTE)?;
        let node = self.tree.node(from)?;
        if node.is_dir() {
            return Err(Status::Perm);
        }
        if node.links == 0 && !node.linkable {
            return Err(Status::NoEnt);
        }
        self.tree.add_link(from)?;
        self.tree.node_mut(dir)?.directory_mut()?.set(name, from);
        self.tree.touch(dir, true);
        self.found(from)
    }

    pub(super) fn remove(
        &mut self,
        caller: &Identity,
        dir: &FileHandle,
        name: &[u8],
        directory: bool,
    ) -> Result<(), Status> {
        check_name(name)?;
        let dir = self.tree.resolve(dir)?;
        let inode = self.tree.child(caller, dir, name)?.ok_or(Status::NoEnt)?;
        self.may_change()?;
        self.may_take(caller, dir, inode)?;
        match (self.tree.node(inode)?.directory(), directory) {
            (Ok(names), true) if !names.is_empty() => return Err(Status::NotEmpty),
            (Ok(_), false) => return Err(Status::IsDir),
            (Err(_), true) => return Err(Status::NotDir),
            _ => {}
        }
        self.take_name(dir, name, inode)
    }

    /// May the name of `inode` leave `dir`?
    fn may_take(&self, caller: &Identity, dir: u64, inode: u64) -> Result<(), Status> {
        let dir = self.tree.node(dir)?;
        rights::need(dir, caller, WRITE | EXECUTE)?;
        rights::not_sticky(dir, self.tree.node(inode)?, caller)
    }

    /// Removes a name; what it named loses a link.
    fn take_name(&mut self, dir: u64, name: &[u8], inode: u64) -> Result<(), Status> {
        let is_dir = self.tree.node(inode)?.is_dir();
        let parent = self.tree.node_mut(dir)?;
        parent.directory_mut()?.take(name);
        parent.links -= u32::from(is_dir);
        self.tree.touch(dir, true);
        self.tree.drop_link(inode);
        Ok(())
    }

    pub(super) fn rename(&mut self, caller: &Identity, what: &Rename) -> Result<(), Status> {
        check_name(&what.from)?;
        check_name(&what.to)?;
        // No overlay lies over this.
        if what.no_replace && what.exchange || what.whiteout {
            return Err(Status::Inval);
        }
        let from_dir = self.tree.resolve(&what.from_dir)?;
        let to_dir = self.tree.resolve(&what.to_dir)?;
        let inode = self.tree.child(caller, from_dir, &what.from)?.ok_or(Status::NoEnt)?;
        let there = self.tree.child(caller, to_dir, &what.to)?;
        self.may_change()?;
        if there.is_some() && what.no_replace {
            return Err(Status::Exist);
        }
        self.may_take(caller, from_dir, inode)?;
        match there {
            Some(there) => self.may_take(caller, to_dir, there)?,
            None => rights::need(self.tree.node(to_dir)?, caller, WRITE | EXECUTE)?,
        }
        self.may_move(caller, inode, from_dir, to_dir)?;
        match there {
            None if what.exchange => Err(Status::NoEnt),
            Some(there) if there == inode => Ok(()),
            Some(there) if what.exchange => {
                self.may_move(caller, there, to_dir, from_dir)?;
                self.set_name(from_dir, &what.from, to_dir, there)?;
                self.set_name(to_dir, &what.to, from_dir, inode)
            }
            there => {
                if let Some(there) = there {
                    self.may_replace(inode, there)?;
                    self.take_name(to_dir, &what.to, there)?;
                }
                self.tree.node_mut(from_dir)?.directory_mut()?.take(&what.from);
                self.tree.touch(from_dir, true);
                self.set_name(to_dir, &what.to, from_dir, inode)
            }
        }
    }

    /// A directory goes nowhere below itself, and to another parent only if it may be written
    /// (its `..` changes).
    fn may_move(&self, caller: &Identity, inode: u64, from: u64, to: u64) -> Result<(), Status> {
        let node = self.tree.node(inode)?;
        if node.is_dir() && from != to {
            if self.tree.is_above(inode, to)? {
                return Err(Status::Inval);
            }
            rights::need(node, caller, WRITE)?;
        }
        Ok(())
    }

    fn may_replace(&self, inode: u64, there: u64) -> Result<(), Status> {
        let is_dir = self.tree.node(inode)?.is_dir();
        match self.tree.node(there)?.directory() {
            Ok(names) if is_dir && !names.is_empty() => Err(Status::NotEmpty),
            Ok(_) if !is_dir => Err(Status::IsDir),
            Err(_) if is_dir => Err(Status::NotDir),
            _ => Ok(()),
        }
    }

    /// Gives `inode`, which was in `from`, the name in `dir`.
    fn set_name(&mut self, dir: u64, name: &[u8], from: u64, inode: u64) -> Result<(), Status> {
        self.tree.node_mut(dir)?.directory_mut()?.set(name, inode);
        if let Ok(directory) = self.tree.node_mut(inode)?.directory_mut() {
            directory.parent = dir;
            self.tree.node_mut(dir)?.links += 1;
            self.tree.node_mut(from)?.links -= 1;
        }
        self.tree.touch(dir, true);
        self.tree.touch(inode, false);
        Ok(())
    }
}

fn new_file() -> Content {
    Content::File { data: Data::default(), durable: Data::default(), open: Weak::new() }
}
