//! The trait, call by call.

use dafs_protocol::{
    AccessMask, Attr, DirEntry, FileHandle, FileKind, FsAttr, Identity, NAME_BYTES_MAX, OpenFlags,
    SetAttr, Status, dir_entry_bytes,
};

use super::change::Rename;
use super::data::BLOCK;
use super::node::{Content, Directory};
use super::rights::{self, EXECUTE, READ, WRITE};
use super::tree::ROOT;
use super::{FaultKind, MemoryStore, State};
use crate::names::{check_path, check_xattr_name};
use crate::{Answer, Caller, Found, Listing, Opened, Store};

impl MemoryStore {
    /// Work on the object that `handle` names.
    fn with<T: Send + 'static>(
        &self,
        caller: &Caller,
        handle: &FileHandle,
        work: impl FnOnce(&mut State, &Identity, u64) -> Result<T, Status> + Send + 'static,
    ) -> Answer<T> {
        let (caller, handle) = (caller.clone(), *handle);
        self.shared.call(move |state| {
            let inode = state.tree.resolve(&handle)?;
            work(state, &caller, inode)
        })
    }
}

impl Store for MemoryStore {
    fn root(&self, _who: &Caller) -> Answer<Found> {
        self.shared.call(|state| state.found(ROOT))
    }

    fn lookup(
        &self,
        caller: &Caller,
        dir: &FileHandle,
        path: &[u8],
        no_follow: bool,
    ) -> Answer<Found> {
        let path = path.to_vec();
        self.with(caller, dir, move |state, caller, dir| {
            check_path(&path)?;
            let place = state.tree.walk(caller, dir, &path, !no_follow)?;
            state.found(place.inode.ok_or(Status::NoEnt)?)
        })
    }

    fn object(&self, caller: &Caller, dir: &FileHandle, name: &[u8]) -> Answer<Attr> {
        let name = name.to_vec();
        self.with(caller, dir, move |state, caller, dir| {
            check_path(&name)?;
            let place = state.tree.walk(caller, dir, &name, false)?;
            Ok(state.found(place.inode.ok_or(Status::NoEnt)?)?.attr)
        })
    }

    fn lookup_parent(&self, caller: &Caller, handle: &FileHandle) -> Answer<Found> {
        self.with(caller, handle, |state, caller, inode| {
            let node = state.tree.node(inode)?;
            let parent = node.directory()?.parent;
            rights::need(node, caller, EXECUTE)?;
            state.found(parent)
        })
    }

    fn open(
        &self,
        caller: &Caller,
        dir: &FileHandle,
        path: &[u8],
        flags: OpenFlags,
        mode: u32,
    ) -> Answer<Opened> {
        let (caller, dir, path) = (caller.clone(), *dir, path.to_vec());
        let shared = self.shared.clone();
        self.shared.call(move |state| {
            let (found, file, created) = state.open(&shared, &caller, &dir, &path, flags, mode)?;
            Ok(Opened { handle: found.handle, attr: found.attr, file: file as _, created })
        })
    }

    fn create(
        &self,
        caller: &Caller,
        dir: &FileHandle,
        name: &[u8],
        kind: FileKind,
        mode: u32,
        rdev: u64,
        target: &[u8],
    ) -> Answer<Found> {
        let (caller, dir, name, target) = (caller.clone(), *dir, name.to_vec(), target.to_vec());
        self.shared.call(move |state| {
            let (content, mode) = match kind {
                FileKind::File => return Err(Status::BadType),
                FileKind::Directory => (Content::Directory(Directory::new(ROOT)), mode),
                FileKind::Symlink => (Content::Symlink(target), 0o777),
                kind => (Content::Special(kind), mode),
            };
            state.create(&caller, &dir, &name, content, mode, rdev)
        })
    }

    fn link(
        &self,
        caller: &Caller,
        from: &FileHandle,
        dir: &FileHandle,
        name: &[u8],
    ) -> Answer<Found> {
        let (caller, from, dir, name) = (caller.clone(), *from, *dir, name.to_vec());
        self.shared.call(move |state| state.link(&caller, &from, &dir, &name))
    }

    fn remove(
        &self,
        caller: &Caller,
        dir: &FileHandle,
        name: &[u8],
        directory: bool,
    ) -> Answer<()> {
        let (caller, dir, name) = (caller.clone(), *dir, name.to_vec());
        self.shared.call(move |state| state.remove(&caller, &dir, &name, directory))
    }

    fn rename(
        &self,
        caller: &Caller,
        from_dir: &FileHandle,
        from: &[u8],
        to_dir: &FileHandle,
        to: &[u8],
        (no_replace, exchange, whiteout): (bool, bool, bool),
    ) -> Answer<()> {
        let (caller, from_dir, to_dir) = (caller.clone(), *from_dir, *to_dir);
        let (from, to) = (from.to_vec(), to.to_vec());
        let what = Rename { from_dir, from, to_dir, to, no_replace, exchange, whiteout };
        self.shared.call(move |state| state.rename(&caller, &what))
    }

    fn read_dir(
        &self,
        caller: &Caller,
        dir: &FileHandle,
        cookie: u64,
        bytes_max: usize,
        attributes: bool,
        handles: bool,
    ) -> Answer<Listing> {
        self.with(caller, dir, move |state, caller, dir| {
            list(state, caller, dir, cookie, bytes_max, attributes, handles)
        })
    }

    fn read_link(&self, caller: &Caller, handle: &FileHandle) -> Answer<Vec<u8>> {
        self.with(caller, handle, |state, _, inode| match &state.tree.node(inode)?.content {
            Content::Symlink(target) => Ok(target.clone()),
            _ => Err(Status::Inval),
        })
    }

    fn attr(&self, caller: &Caller, handle: &FileHandle) -> Answer<Attr> {
        self.with(caller, handle, |state, _, inode| state.tree.attr(inode))
    }

    fn set_attr(&self, caller: &Caller, handle: &FileHandle, set: &SetAttr) -> Answer<Attr> {
        let set = *set;
        self.with(caller, handle, move |state, caller, inode| {
            state.may_change()?;
            state.set_attr(caller, inode, &set)
        })
    }

    fn access(&self, caller: &Caller, handle: &FileHandle, mask: AccessMask) -> Answer<AccessMask> {
        self.with(caller, handle, move |state, caller, inode| {
            let writes = if state.tree.options.read_only { WRITE } else { 0 };
            Ok(rights::granted(state.tree.node(inode)?, caller) & mask & !writes)
        })
    }

    fn fs_attr(&self, caller: &Caller, handle: &FileHandle) -> Answer<FsAttr> {
        self.with(caller, handle, |state, _, _| Ok(fs_attr(state)))
    }

    fn xattr(&self, caller: &Caller, handle: &FileHandle, name: &[u8]) -> Answer<Vec<u8>> {
        let name = name.to_vec();
        self.with(caller, handle, move |state, caller, inode| {
            check_xattr_name(&name)?;
            state.xattr(caller, inode, &name)
        })
    }

    fn set_xattr(
        &self,
        caller: &Caller,
        handle: &FileHandle,
        name: &[u8],
        value: &[u8],
        flags: u8,
    ) -> Answer<()> {
        let (name, value) = (name.to_vec(), value.to_vec());
        self.with(caller, handle, move |state, caller, inode| {
            check_xattr_name(&name)?;
            state.may_change()?;
            state.set_xattr(caller, inode, &name, value, flags)
        })
    }

    fn list_xattr(&self, caller: &Caller, handle: &FileHandle) -> Answer<Vec<u8>> {
        self.with(caller, handle, |state, caller, inode| state.list_xattr(caller, inode))
    }

    fn remove_xattr(&self, caller: &Caller, handle: &FileHandle, name: &[u8]) -> Answer<()> {
        let name = name.to_vec();
        self.with(caller, handle, move |state, caller, inode| {
            check_xattr_name(&name)?;
            state.may_change()?;
            state.remove_xattr(caller, inode, &name)
        })
    }

    fn sync_dir(&self, dir: &FileHandle) -> Answer<()> {
        let dir = *dir;
        self.shared.call(move |state| {
            let inode = state.tree.resolve(&dir)?;
            state.fault(FaultKind::Sync)?;
            match state.tree.node(inode)?.content {
                // Names are never lost here.
                Content::Directory(_) => Ok(()),
                _ => Err(Status::NotDir),
            }
        })
    }

    fn has_device(&self, _: u64) -> bool {
        true
    }

    fn sync_fs(&self) -> Answer<()> {
        self.shared.call(|state| {
            state.fault(FaultKind::Sync)?;
            state.tree.nodes_mut().for_each(super::node::Node::make_durable);
            Ok(())
        })
    }

    fn disk(&self) -> &'static str {
        "memory"
    }
}

fn list(
    state: &State,
    caller: &Identity,
    dir: u64,
    cookie: u64,
    bytes_max: usize,
    attributes: bool,
    handles: bool,
) -> Result<Listing, Status> {
    let node = state.tree.node(dir)?;
    let directory = node.directory()?;
    rights::need(node, caller, READ)?;
    let search = rights::granted(node, caller) & EXECUTE != 0;
    let mut listing = Listing::default();
    let mut bytes = 0;
    for (cookie, name, inode) in directory.after(cookie) {
        let entry = DirEntry {
            cookie,
            name: name.clone(),
            kind: Some(state.tree.node(inode)?.kind()),
            attr: if attributes && search { Some(state.tree.attr(inode)?) } else { None },
            handle: (handles && search).then(|| state.tree.handle(inode)),
            id: (!attributes).then(|| state.tree.id(inode)),
        };
        bytes += dir_entry_bytes(&entry);
        if bytes > bytes_max {
            return if listing.entries.is_empty() { Err(Status::Range) } else { Ok(listing) };
        }
        listing.entries.push(entry);
    }
    listing.end = true;
    Ok(listing)
}

fn fs_attr(state: &State) -> FsAttr {
    let options = &state.tree.options;
    let total = options.capacity_bytes / BLOCK * BLOCK;
    let free = total.saturating_sub(state.tree.used_blocks * BLOCK);
    FsAttr {
        bytes_total: total,
        bytes_free: free,
        bytes_available: free,
        files_total: options.files_max,
        files_free: options.files_max.saturating_sub(state.tree.node_count()),
        name_bytes_max: NAME_BYTES_MAX as u32,
        block_size: BLOCK as u32,
        read_only: options.read_only,
        lease_seconds: 0,
    }
}
