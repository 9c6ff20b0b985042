//! What the kernel knows: objects by number, their handles and names.
//!
//! The kernel counts its references; an object is forgotten when none is left. Names are kept so
//! that an object can be found again where the server does not know its handle after a restart.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use dafs_client::Object as Found;
use dafs_protocol::{FileHandle, NUMBER_TOP, ObjectId};
use rustc_hash::FxHashMap;

mod node;

use node::Identity;
pub(super) use node::{Change, Due, Node, OpenFile, now};

use super::error::Errno;

/// Levels of directories that are walked to find an object again.
pub(super) const DEPTH_MAX: usize = 4096;

/// The number of the mount's root.
pub(super) const ROOT: u64 = 1;

/// Numbers by directory and name.
#[derive(Default)]
struct Names {
    dirs: FxHashMap<u64, HashMap<Arc<[u8]>, u64>>,
}

impl Names {
    fn get(&self, dir: u64, name: &[u8]) -> Option<u64> {
        self.dirs.get(&dir)?.get(name).copied()
    }

    fn set(&mut self, dir: u64, name: &Arc<[u8]>, number: u64) {
        let names = self.dirs.entry(dir).or_default();
        match names.get_mut(&**name) {
            Some(known) => *known = number,
            None => drop(names.insert(name.clone(), number)),
        }
    }

    fn remove(&mut self, dir: u64, name: &[u8]) {
        let Some(names) = self.dirs.get_mut(&dir) else { return };
        names.remove(name);
        if names.is_empty() {
            self.dirs.remove(&dir);
        }
    }
}

#[derive(Default)]
struct Table {
    by_number: FxHashMap<u64, Arc<Node>>,
    by_handle: FxHashMap<FileHandle, u64>,
    by_name: Names,
    last: u64,
}

pub(super) struct Nodes {
    table: RwLock<Table>,
    /// Of the mount's root below the export's.
    root_path: Vec<u8>,
    /// The file system of the mount's root.
    root_device: AtomicU64,
}

impl Nodes {
    pub(super) fn new(root: &Found, path: &[u8]) -> Nodes {
        let mut table = Table { last: ROOT - 1, ..Table::default() };
        // The kernel never gives its reference to the root back before it unmounts.
        table.add(root, 0, b"");
        let root_device = AtomicU64::new(root.attr.device);
        Nodes { table: RwLock::new(table), root_path: path.to_vec(), root_device }
    }

    /// The number of an object that programs see, which no other of the mount has: the inode's own
    /// in the root's file system.
    pub(super) fn inode(&self, id: &ObjectId) -> u64 {
        let is_own = id.device == self.root_device.load(Ordering::Relaxed);
        if is_own && id.inode >> 56 != NUMBER_TOP { id.inode } else { id.number }
    }

    pub(super) fn root_path(&self) -> &[u8] {
        &self.root_path
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, number: u64) -> Result<Arc<Node>, Errno> {
        self.read().by_number.get(&number).cloned().ok_or(Errno::STALE)
    }

    /// The kernel is told of an object: it gets a reference.
    pub(super) fn refer(&self, found: &Found, parent: u64, name: &[u8]) -> Arc<Node> {
        let mut table = self.write();
        let known = table.known(found).cloned();
        table.refer(known, found, parent, name)
    }

    /// As `refer`, of what was listed when it was asked for at that time; `None`, and no
    /// reference, for what is known [`elsewhere`](Self::elsewhere) or may have changed here since:
    /// the kernel would take old attributes for new ones. Nor for what is not known, where names
    /// have changed since: it may be gone.
    pub(super) fn refer_listed(
        &self,
        found: &Found,
        dir: &Node,
        name: &[u8],
        asked: Instant,
    ) -> Option<u64> {
        let parent = dir.number;
        let mut table = self.write();
        let known = table.known(found).cloned();
        let is_unsure = match &known {
            Some(node) => node.is_elsewhere(parent, name) || node.may_have_changed(asked),
            // A list has attributes and handle by two looks: the name may have changed hands.
            None => dir.may_have_changed(asked) || table.by_handle.contains_key(&found.handle),
        };
        if is_unsure {
            return None;
        }
        Some(table.refer(known, found, parent, name).number)
    }

    /// What the kernel knows under another name than the one under which it was found, and has
    /// not open.
    pub(super) fn elsewhere(&self, found: &Found, parent: u64, name: &[u8]) -> Option<Arc<Node>> {
        let table = self.read();
        table.known(found).filter(|node| node.is_elsewhere(parent, name)).cloned()
    }

    /// Others gave an object another name: under that one it gets a number of its own. The kernel
    /// takes two names of one number for links, of which a rename to the other does nothing and
    /// succeeds: two machines could both believe that they took a file away.
    pub(super) fn part(&self, node: &Node) {
        let mut table = self.write();
        let handle = node.handle();
        if table.by_handle.get(&handle) == Some(&node.number) {
            table.by_handle.remove(&handle);
        }
    }

    /// The kernel gives references back.
    pub(super) fn forget(&self, number: u64, count: u64) {
        if number == ROOT {
            return;
        }
        let mut table = self.write();
        let Some(node) = table.by_number.get(&number).cloned() else { return };
        let (handle, dir, name) = {
            let mut state = node.state();
            state.references = state.references.saturating_sub(count);
            if state.references > 0 {
                return;
            }
            (state.handle, state.parent, std::mem::take(&mut state.name))
        };
        table.by_number.remove(&number);
        if table.by_handle.get(&handle) == Some(&number) {
            table.by_handle.remove(&handle);
        }
        if table.by_name.get(dir, &name) == Some(number) {
            table.by_name.remove(dir, &name);
        }
    }

    /// What others put in a node's place, under its name, may be opened under its number: it has
    /// that name and no other here, the kernel was told so within `ttl`, and nobody has it open.
    pub(super) fn may_be_replaced(&self, node: &Node, ttl: Duration) -> bool {
        let table = self.read();
        let state = node.state();
        let is_named = table.by_name.get(state.parent, &state.name) == Some(node.number);
        is_named && state.told.elapsed() <= ttl && state.may_be_replaced()
    }

    /// The object under `gone` is gone, and who opened it got what others put in its place, by its
    /// name: from now on the number is that one's, which so is asked for attributes, even if the
    /// server still answers for the old one. False, with nothing done, where the kernel may have
    /// meant another name, or somebody was faster.
    pub(super) fn replaced(
        &self,
        node: &Arc<Node>,
        (gone, place): (FileHandle, (u64, &[u8])),
        found: &Found,
        open: &Arc<OpenFile>,
    ) -> bool {
        let mut table = self.write();
        let mut state = node.state();
        let is_named = table.by_name.get(place.0, place.1) == Some(node.number);
        if state.handle != gone || !is_named || !state.may_be_replaced() {
            return false;
        }
        state.identity = Identity::of(&found.attr);
        state.handle = found.handle;
        state.cached = None;
        let now = Instant::now();
        (state.incapable_until, state.capable_since) = (None, Some(now));
        state.learned = None;
        state.changed = Some(now);
        node.add_open(&mut state, open);
        drop(state);
        if table.by_handle.get(&gone) == Some(&node.number) {
            table.by_handle.remove(&gone);
        }
        // What is known under a number of its own keeps that.
        table.by_handle.entry(found.handle).or_insert(node.number);
        true
    }

    /// The mount shows whatever is in the place of its root, also where that is another directory.
    pub(super) fn take_root(&self, root: &Node, found: &Found) {
        root.state().identity = Identity::of(&found.attr);
        self.root_device.store(found.attr.device, Ordering::Relaxed);
    }

    /// The server knows the object under another handle now.
    pub(super) fn set_handle(&self, node: &Arc<Node>, handle: FileHandle) {
        let mut table = self.write();
        let old = std::mem::replace(&mut node.state().handle, handle);
        if table.by_handle.get(&old) == Some(&node.number) {
            table.by_handle.remove(&old);
        }
        if table.by_number.contains_key(&node.number) {
            table.by_handle.insert(handle, node.number);
        }
    }

    /// A name moved; what had the new name has none now, or the old one.
    pub(super) fn renamed(&self, from: (u64, &[u8]), to: (u64, &[u8]), exchange: bool) {
        let mut table = self.write();
        let (moved, replaced) = (table.named(from.0, from.1), table.named(to.0, to.1));
        table.by_name.remove(from.0, from.1);
        table.by_name.remove(to.0, to.1);
        if let (Some(node), true) = (replaced, exchange) {
            table.name(&node, from.0, from.1);
        }
        if let Some(node) = moved {
            table.name(&node, to.0, to.1);
        }
    }

    pub(super) fn removed(&self, parent: u64, name: &[u8]) {
        self.write().by_name.remove(parent, name);
    }

    /// From the export's root, by the names under which it was seen last; `None` where one of them
    /// is not known, or it has none.
    pub(super) fn path(&self, node: &Node) -> Option<Vec<u8>> {
        let (mut dir, name) = node.place();
        let mut names = vec![name];
        while dir != ROOT && names.len() < DEPTH_MAX {
            let (above, name) = self.get(dir).ok()?.place();
            names.push(name);
            dir = above;
        }
        if dir != ROOT || names.iter().any(Vec::is_empty) {
            return None;
        }
        names.push(self.root_path.clone());
        names.reverse();
        Some(names.join(&b'/'))
    }

    /// What the kernel was told that this name is.
    pub(super) fn named(&self, parent: u64, name: &[u8]) -> Option<Arc<Node>> {
        self.read().named(parent, name)
    }
}

impl Table {
    fn named(&self, parent: u64, name: &[u8]) -> Option<Arc<Node>> {
        let number = self.by_name.get(parent, name)?;
        self.by_number.get(&number).cloned()
    }

    fn refer(
        &mut self,
        known: Option<Arc<Node>>,
        found: &Found,
        parent: u64,
        name: &[u8],
    ) -> Arc<Node> {
        let Some(node) = known else { return self.add(found, parent, name) };
        {
            let mut state = node.state();
            node.tell(&found.attr);
            state.references += 1;
            state.told = Instant::now();
            state.has_names |= !name.is_empty() && (state.parent, &*state.name) != (parent, name);
        }
        self.name(&node, parent, name);
        node
    }

    fn known(&self, found: &Found) -> Option<&Arc<Node>> {
        let number = self.by_handle.get(&found.handle)?;
        self.by_number.get(number).filter(|node| node.is(&found.attr))
    }

    fn add(&mut self, found: &Found, parent: u64, name: &[u8]) -> Arc<Node> {
        self.last += 1;
        let (number, name) = (self.last, Arc::<[u8]>::from(name));
        let node = Arc::new(Node::new(number, found, parent, name.clone()));
        self.by_number.insert(number, node.clone());
        self.by_handle.insert(found.handle, number);
        self.by_name.set(parent, &name, number);
        node
    }

    /// The object has this name now.
    fn name(&mut self, node: &Arc<Node>, parent: u64, name: &[u8]) {
        if node.number == ROOT || name.is_empty() {
            return;
        }
        let (name, old) = {
            let mut state = node.state();
            if state.parent == parent && *state.name == *name {
                (state.name.clone(), None)
            } else {
                let name = Arc::<[u8]>::from(name);
                let old = std::mem::replace(&mut state.name, name.clone());
                (name, Some((std::mem::replace(&mut state.parent, parent), old)))
            }
        };
        if let Some((dir, old)) = old
            && self.by_name.get(dir, &old) == Some(node.number)
        {
            self.by_name.remove(dir, &old);
        }
        self.by_name.set(parent, &name, node.number);
    }
}

#[cfg(test)]
mod tests;
