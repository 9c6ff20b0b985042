//! The trait, call by call.

use dafs_protocol::{
    AccessMask, Attr, DirEntry, FileHandle, FileKind, FsAttr, Identity, NAME_BYTES_MAX, OpenFlags,
    SetAttr, Status, dir_entry_bytes,
};

use super::change::Rename;
use super::data::BLOCK;
use super::rights::{self, EXECUTE, READ, WRITE};
use super::tree::{Content, Directory, ROOT};
use super::{FaultKind, MemoryStore, State};
use crate::names::{check_path, check_xattr_name};
use crate::{Answer, Found, Listing, Opened, Store, Who};

impl MemoryStore {
    /// Work on the object that `handle` names.
    fn with<T: Send + 'static>(
        &self,
        who: &Who,
        handle: &FileHandle,
        work: impl FnOnce(&mut State, &Identity, u64) -> Result<T, Status> + Send + 'static,
    ) -> Answer<T> {
        let (who, handle) = (who.clone(), *handle);
        self.shared.call(move |state| {
            let inode = state.tree.resolve(&handle)?;
            work(state, &who, inode)
        })
    }
}

impl Store for MemoryStore {
    fn root(&self, _who: &Who) -> Answer<Found> {
        self.shared.call(|state| state.found(ROOT))
    }

    fn lookup(&self, who: &Who, dir: &FileHandle, path: &[u8], no_follow: bool) -> Answer<Found> {
        let path = path.to_vec();
        self.with(who, dir, move |state, who, dir| {
            check_path(&path)?;
            let place = state.tree.walk(who, dir, &path, !no_follow)?;
            state.found(place.inode.ok_or(Status::NoEnt)?)
        })
    }

    fn object(&self, who: &Who, dir: &FileHandle, name: &[u8]) -> Answer<Attr> {
        let name = name.to_vec();
        self.with(who, dir, move |state, who, dir| {
            check_path(&name)?;
            let place = state.tree.walk(who, dir, &name, false)?;
            Ok(state.found(place.inode.ok_or(Status::NoEnt)?)?.attr)
        })
    }

    fn lookup_parent(&self, who: &Who, handle: &FileHandle) -> Answer<Found> {
        self.with(who, handle, |state, who, inode| {
            let node = state.tree.node(inode)?;
            let parent = node.directory()?.parent;
            rights::need(node, who, EXECUTE)?;
            state.found(parent)
        })
    }

    fn open(
        &self,
        who: &Who,
        dir: &FileHandle,
        path: &[u8],
        flags: OpenFlags,
        mode: u32,
    ) -> Answer<Opened> {
        let (who, dir, path) = (who.clone(), *dir, path.to_vec());
        let shared = self.shared.clone();
        self.shared.call(move |state| {
            let (found, file, created) = state.open(&shared, &who, &dir, &path, flags, mode)?;
            Ok(Opened { handle: found.handle, attr: found.attr, file: file as _, created })
        })
    }

    fn create(
        &self,
        who: &Who,
        dir: &FileHandle,
        name: &[u8],
        kind: FileKind,
        mode: u32,
        rdev: u64,
        target: &[u8],
    ) -> Answer<Found> {
        let (who, dir, name, target) = (who.clone(), *dir, name.to_vec(), target.to_vec());
        self.shared.call(move |state| {
            let (content, mode) = match kind {
                FileKind::File => return Err(Status::BadType),
                FileKind::Directory => (Content::Directory(Directory::new(ROOT)), mode),
                FileKind::Symlink => (Content::Symlink(target), 0o777),
                kind => (Content::Special(kind), mode),
            };
            state.create(&who, &dir, &name, content, mode, rdev)
        })
    }

    fn link(&self, who: &Who, from: &FileHandle, dir: &FileHandle, name: &[u8]) -> Answer<Found> {
        let (who, from, dir, name) = (who.clone(), *from, *dir, name.to_vec());
        self.shared.call(move |state| state.link(&who, &from, &dir, &name))
    }

    fn remove(&self, who: &Who, dir: &FileHandle, name: &[u8], directory: bool) -> Answer<()> {
        let (who, dir, name) = (who.clone(), *dir, name.to_vec());
        self.shared.call(move |state| state.remove(&who, &dir, &name, directory))
    }

    fn rename(
        &self,
        who: &Who,
        from_dir: &FileHandle,
        from: &[u8],
        to_dir: &FileHandle,
        to: &[u8],
        (no_replace, exchange, whiteout): (bool, bool, bool),
    ) -> Answer<()> {
        let (who, from_dir, to_dir) = (who.clone(), *from_dir, *to_dir);
        let (from, to) = (from.to_vec(), to.to_vec());
        let what = Rename { from_dir, from, to_dir, to, no_replace, exchange, whiteout };
        self.shared.call(move |state| state.rename(&who, &what))
    }

    fn read_dir(
        &self,
        who: &Who,
        dir: &FileHandle,
        cookie: u64,
        bytes_max: usize,
        attributes: bool,
        handles: bool,
    ) -> Answer<Listing> {
        self.with(who, dir, move |state, who, dir| {
            list(state, who, dir, cookie, bytes_max, attributes, handles)
        })
    }

    fn read_link(&self, who: &Who, handle: &FileHandle) -> Answer<Vec<u8>> {
        self.with(who, handle, |state, _, inode| match &state.tree.node(inode)?.content {
            Content::Symlink(target) => Ok(target.clone()),
            _ => Err(Status::Inval),
        })
    }

    fn attr(&self, who: &Who, handle: &FileHandle) -> Answer<Attr> {
        self.with(who, handle, |state, _, inode| state.tree.attr(inode))
    }

    fn set_attr(&self, who: &Who, handle: &FileHandle, set: &SetAttr) -> Answer<Attr> {
        let set = *set;
        self.with(who, handle, move |state, who, inode| {
            state.may_change()?;
            state.set_attr(who, inode, &set)
        })
    }

    fn access(&self, who: &Who, handle: &FileHandle, mask: AccessMask) -> Answer<AccessMask> {
        self.with(who, handle, move |state, who, inode| {
            let writes = if state.tree.options.read_only { WRITE } else { 0 };
            Ok(rights::granted(state.tree.node(inode)?, who) & mask & !writes)
        })
    }

    fn fs_attr(&self, who: &Who, handle: &FileHandle) -> Answer<FsAttr> {
        self.with(who, handle, |state, _, _| Ok(fs_attr(state)))
    }

    fn xattr(&self, who: &Who, handle: &FileHandle, name: &[u8]) -> Answer<Vec<u8>> {
        let name = name.to_vec();
        self.with(who, handle, move |state, who, inode| {
            check_xattr_name(&name)?;
            state.xattr(who, inode, &name)
        })
    }

    fn set_xattr(
        &self,
        who: &Who,
        handle: &FileHandle,
        name: &[u8],
        value: &[u8],
        flags: u8,
    ) -> Answer<()> {
        let (name, value) = (name.to_vec(), value.to_vec());
        self.with(who, handle, move |state, who, inode| {
            check_xattr_name(&name)?;
            state.may_change()?;
            state.set_xattr(who, inode, &name, value, flags)
        })
    }

    fn list_xattr(&self, who: &Who, handle: &FileHandle) -> Answer<Vec<u8>> {
        self.with(who, handle, |state, who, inode| state.list_xattr(who, inode))
    }

    fn remove_xattr(&self, who: &Who, handle: &FileHandle, name: &[u8]) -> Answer<()> {
        let name = name.to_vec();
        self.with(who, handle, move |state, who, inode| {
            check_xattr_name(&name)?;
            state.may_change()?;
            state.remove_xattr(who, inode, &name)
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
            state.tree.nodes_mut().for_each(super::tree::Node::make_durable);
            Ok(())
        })
    }

    fn disk(&self) -> &'static str {
        "memory"
    }
}

fn list(
    state: &State,
    who: &Identity,
    dir: u64,
    cookie: u64,
    bytes_max: usize,
    attributes: bool,
    handles: bool,
) -> Result<Listing, Status> {
    let node = state.tree.node(dir)?;
    let directory = node.directory()?;
    rights::need(node, who, READ)?;
    let search = rights::granted(node, who) & EXECUTE != 0;
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
