//! What the kernel knows: objects by number, their handles and names.
//!
//! The kernel counts its references; an object is forgotten when none is left. Names are kept so
//! that an object can be found again where the server does not know its handle after a restart.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use dafs_client::{Changed, Object as Found};
use dafs_protocol::{Attr, FileHandle, FileKind, NUMBER_TOP, ObjectId, OwnerKey, Timestamp};
use rustc_hash::FxHashMap;

use super::error::Errno;
use super::files::OpenFile;
use super::gone::nameless;

/// Levels of directories that are walked to find an object again.
pub(super) const DEPTH_MAX: usize = 4096;

/// Setuid and setgid.
const PRIVILEGES: u32 = 0o6000;

/// The number of the mount's root.
pub(super) const ROOT: u64 = 1;

/// A file's data as it was when the kernel began to cache it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    size: u64,
    modified: Timestamp,
    change: u64,
}

impl Version {
    fn of(attr: &Attr) -> Version {
        Version { size: attr.size, modified: attr.modified, change: attr.change }
    }
}

/// What tells an object from those before and after it. Inode numbers are used again; then at
/// least the birth differs, where the server's file system knows it.
#[derive(Debug, Clone, Copy)]
struct Identity {
    id: ObjectId,
    created: Option<Timestamp>,
}

impl Identity {
    fn of(attr: &Attr) -> Identity {
        Identity { id: attr.id(), created: attr.created }
    }

    fn is(&self, other: &Identity) -> bool {
        let born = self.created.zip(other.created).is_none_or(|(ours, theirs)| ours == theirs);
        (self.id.device, self.id.inode) == (other.id.device, other.id.inode) && born
    }
}

pub(super) struct Node {
    pub(super) number: u64,
    pub(super) kind: FileKind,
    /// The largest size that the kernel was told, or is about to be.
    told_size: AtomicU64,
    /// The kernel was told that it has setuid or setgid.
    told_privileged: AtomicBool,
    /// It was changed past the kernel's cache since it was opened last.
    written_past: AtomicBool,
    /// Opens of it that the kernel caches.
    cached_opens: AtomicU32,
    state: Mutex<State>,
}

struct State {
    identity: Identity,
    handle: FileHandle,
    /// The kernel was told of it under other names, too.
    has_names: bool,
    /// When it was told last.
    told: Instant,
    parent: u64,
    /// Shared with the table of names.
    name: Arc<[u8]>,
    /// References of the kernel.
    references: u64,
    cached: Option<Box<Version>>,
    open: Vec<Arc<OpenFile>>,
    /// Until then it is taken to have no capabilities.
    incapable_until: Option<Instant>,
    /// When it was last given some here.
    capable_since: Option<Instant>,
    /// Of a directory: how it was after the last change here, asked for then, and not told yet.
    learned: Option<Box<(Attr, Instant)>>,
    /// Changes of it under way here, and begun so far.
    changing: u32,
    changes: u64,
    /// When one began or ended here last, or a file was closed.
    changed: Option<Instant>,
    /// How it is after this mount removed its last name.
    gone: Option<Box<Attr>>,
}

impl State {
    fn may_be_replaced(&self) -> bool {
        !self.has_names && self.open.is_empty()
    }
}

impl Node {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn handle(&self) -> FileHandle {
        self.state().handle
    }

    /// Which object of the server it is.
    pub(super) fn id(&self) -> ObjectId {
        self.state().identity.id
    }

    /// Directory and name under which it was seen last.
    pub(super) fn place(&self) -> (u64, Vec<u8>) {
        let state = self.state();
        (state.parent, state.name.to_vec())
    }

    /// The kernel knows it under another name than this, and has it not open.
    fn is_elsewhere(&self, parent: u64, name: &[u8]) -> bool {
        if self.kind == FileKind::Directory {
            return false;
        }
        let state = self.state();
        (state.parent != parent || *state.name != *name) && state.open.is_empty()
    }

    /// Whether an object found under its name is this one.
    pub(super) fn is(&self, attr: &Attr) -> bool {
        self.kind == attr.kind && self.state().identity.is(&Identity::of(attr))
    }

    /// True when the file is as the kernel has cached it; from now on it caches `attr`.
    pub(super) fn cache_is_good(&self, attr: &Attr) -> bool {
        let version = Version::of(attr);
        let mut state = self.state();
        let past = self.written_past.swap(false, Ordering::AcqRel);
        match &mut state.cached {
            Some(cached) => std::mem::replace(&mut **cached, version) == version && !past,
            none => {
                *none = Some(Box::new(version));
                false
            }
        }
    }

    /// It was seen after `asked` to have no capabilities, which holds for as long as attributes do.
    pub(super) fn note_incapable(&self, asked: Instant, ttl: Duration) {
        let mut state = self.state();
        if state.capable_since.is_none_or(|since| since < asked) {
            state.incapable_until = asked.checked_add(ttl);
        }
    }

    /// It may have capabilities now.
    pub(super) fn may_be_capable(&self) {
        let mut state = self.state();
        state.incapable_until = None;
        state.capable_since = Some(Instant::now());
    }

    /// True when it was seen a moment ago to have no capabilities.
    pub(super) fn is_incapable(&self) -> bool {
        self.state().incapable_until.is_some_and(|until| Instant::now() < until)
    }

    /// A change of it begins, by a call of this mount.
    pub(super) fn change(self: &Arc<Node>) -> Change {
        let mut state = self.state();
        state.learned = None;
        state.changing += 1;
        state.changes += 1;
        state.changed = Some(Instant::now());
        let alone = (state.changing == 1).then_some(state.changes);
        Change { node: self.clone(), begun: Instant::now(), alone, seen: Cell::new(None) }
    }

    /// What the last change learned, once: after a change of a directory the kernel asks for its
    /// attributes. Believed for what is left of `ttl`.
    pub(super) fn take_learned(&self, ttl: Duration) -> Option<(Attr, Duration)> {
        let (attr, asked) = *self.state().learned.take()?;
        let left = ttl.checked_sub(asked.elapsed()).filter(|left| !left.is_zero())?;
        Some((attr, left))
    }

    /// Something else than a change may have made it another.
    pub(super) fn unlearn(&self) {
        self.state().learned = None;
    }

    pub(super) fn opened(&self, file: &Arc<OpenFile>) {
        self.add_open(&mut self.state(), file);
    }

    fn add_open(&self, state: &mut State, file: &Arc<OpenFile>) {
        state.open.push(file.clone());
        self.cached_opens.fetch_add(u32::from(!file.direct), Ordering::AcqRel);
    }

    pub(super) fn closed(&self, file: &Arc<OpenFile>) {
        let mut state = self.state();
        state.open.retain(|other| !Arc::ptr_eq(other, file));
        self.cached_opens.fetch_sub(u32::from(!file.direct), Ordering::AcqRel);
        state.changed = Some(Instant::now());
    }

    /// It may not be any more what it was when somebody asked the server then.
    fn may_have_changed(&self, asked: Instant) -> bool {
        let state = self.state();
        let changed = state.changed.is_some_and(|changed| changed >= asked);
        changed || state.changing > 0 || !state.open.is_empty()
    }

    /// The opens through which that owner may hold locks; they do not know it any more.
    pub(super) fn forget_locker(&self, owner: OwnerKey) -> Vec<Arc<OpenFile>> {
        let mut opens = self.opens();
        opens.retain(|file| file.forget_locker(owner));
        opens
    }

    /// Its attributes, where this mount removed its last name and it is not open.
    pub(super) fn gone(&self) -> Option<Attr> {
        let state = self.state();
        state.gone.as_deref().filter(|_| state.open.is_empty()).copied()
    }

    /// The attributes that it has without a name.
    pub(super) fn set_last(&self, attr: Attr) {
        self.state().gone = Some(Box::new(attr));
    }

    /// All opens of it.
    pub(super) fn opens(&self) -> Vec<Arc<OpenFile>> {
        self.state().open.clone()
    }

    /// The kernel is about to be told that it has at least this size.
    pub(super) fn tell_size(&self, size: u64) {
        self.told_size.fetch_max(size, Ordering::AcqRel);
    }

    /// The kernel is about to be told these attributes.
    pub(super) fn tell(&self, attr: &Attr) {
        self.tell_size(attr.size);
        if attr.mode & PRIVILEGES != 0 {
            self.told_privileged.store(true, Ordering::Release);
        }
    }

    /// True once where the kernel believes that it has setuid or setgid.
    pub(super) fn may_lose_privileges(&self) -> bool {
        self.told_privileged.load(Ordering::Acquire)
            && self.told_privileged.swap(false, Ordering::AcqRel)
    }

    /// A read found the end of the file there: the size that the kernel was told, if that is beyond
    /// it. The read is older than that, or the file was cut.
    pub(super) fn told_beyond(&self, end: u64) -> Option<u64> {
        Some(self.told_size.load(Ordering::Acquire)).filter(|told| *told > end)
    }

    /// It was cut, after that size was told.
    pub(super) fn is_shorter(&self, told: u64, end: u64) {
        let _ = self.told_size.compare_exchange(told, end, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// It was changed past the kernel's cache: an open that comes does not keep that. True where
    /// one that is there may have something in it.
    pub(super) fn is_cached_after_change(&self) -> bool {
        self.written_past.store(true, Ordering::Release);
        self.cached_opens.load(Ordering::Acquire) > 0
    }

    /// An open of it, for what has no name any more.
    pub(super) fn any_open(&self) -> Option<Arc<OpenFile>> {
        self.state().open.first().cloned()
    }
}

/// A change of an object, until it is dropped. What it learns holds if it met no other: of two,
/// each may have been done after the other one looked.
pub(super) struct Change {
    node: Arc<Node>,
    begun: Instant,
    /// Its number, where no other was under way when it began.
    alone: Option<u64>,
    seen: Cell<Option<Attr>>,
}

impl Change {
    /// What was answered; keeps the attributes of the directory.
    pub(super) fn saw<T>(&self, answer: dafs_client::Result<Changed<T>>) -> dafs_client::Result<T> {
        answer.map(|changed| {
            self.see(changed.dirs[0]);
            changed.done
        })
    }

    /// It may be that what was removed: then these are its last attributes.
    pub(super) fn removed(&self, last: Option<Attr>) {
        if let Some(attr) = last.filter(|attr| self.node.is(attr)) {
            self.node.set_last(nameless(&attr));
        }
    }

    pub(super) fn see(&self, attr: Option<Attr>) {
        self.seen.set(attr.filter(|attr| self.node.is(attr)));
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        let mut state = self.node.state();
        state.changing -= 1;
        state.changed = Some(Instant::now());
        let alone = self.alone == Some(state.changes);
        state.learned = self.seen.take().filter(|_| alone).map(|attr| Box::new((attr, self.begun)));
    }
}

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
        let node = Arc::new(Node {
            number,
            kind: found.attr.kind,
            told_size: AtomicU64::new(found.attr.size),
            told_privileged: AtomicBool::new(found.attr.mode & PRIVILEGES != 0),
            written_past: AtomicBool::new(false),
            cached_opens: AtomicU32::new(0),
            state: Mutex::new(State {
                identity: Identity::of(&found.attr),
                handle: found.handle,
                has_names: false,
                told: Instant::now(),
                parent,
                name: name.clone(),
                references: 1,
                cached: None,
                open: Vec::new(),
                incapable_until: None,
                capable_since: None,
                learned: None,
                changing: 0,
                changes: 0,
                changed: None,
                gone: None,
            }),
        });
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
mod tests {
    use super::*;

    fn found(inode: u64) -> Found {
        let mut handle = FileHandle::default();
        handle.0[0] = u8::try_from(inode).expect("small");
        let time = Timestamp::default();
        let attr = Attr {
            kind: FileKind::File,
            mode: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            size: 0,
            allocated: 0,
            inode,
            device: 1,
            number: 0,
            rdev: 0,
            block_size: 4096,
            change: 0,
            accessed: time,
            modified: time,
            changed: time,
            created: None,
        };
        Found { handle, attr }
    }

    #[test]
    fn one_object_has_one_number_until_it_is_forgotten() {
        let nodes = Nodes::new(&found(1), b"");
        let first = nodes.refer(&found(2), ROOT, b"a");
        let again = nodes.refer(&found(2), ROOT, b"link");
        assert_eq!(first.number, again.number);
        nodes.forget(first.number, 1);
        assert!(nodes.get(first.number).is_ok());
        nodes.forget(first.number, 1);
        assert!(nodes.get(first.number).is_err());
        assert!(nodes.named(ROOT, b"link").is_none());
        assert_ne!(nodes.refer(&found(2), ROOT, b"a").number, first.number);
        nodes.forget(ROOT, 100);
        assert!(nodes.get(ROOT).is_ok());
    }

    #[test]
    fn a_file_renamed_by_others_gets_a_number_of_its_own() {
        let nodes = Nodes::new(&found(1), b"");
        let old = nodes.refer(&found(2), ROOT, b"a");
        assert!(nodes.elsewhere(&found(2), ROOT, b"a").is_none());
        let known = nodes.elsewhere(&found(2), ROOT, b"b").expect("known as a");
        nodes.part(&known);
        let new = nodes.refer(&found(2), ROOT, b"b");
        assert_ne!(new.number, old.number);
        assert_eq!(nodes.named(ROOT, b"a").map(|node| node.number), Some(old.number));
        nodes.forget(old.number, 1);
        assert_eq!(nodes.refer(&found(2), ROOT, b"b").number, new.number);
        // Renames through this mount keep the number.
        nodes.renamed((ROOT, b"b"), (ROOT, b"c"), false);
        assert!(nodes.elsewhere(&found(2), ROOT, b"c").is_none());
    }

    #[test]
    fn names_follow_renames() {
        let nodes = Nodes::new(&found(1), b"");
        let (a, b) = (nodes.refer(&found(2), ROOT, b"a"), nodes.refer(&found(3), ROOT, b"b"));
        nodes.renamed((ROOT, b"a"), (ROOT, b"b"), true);
        assert_eq!(nodes.named(ROOT, b"b").map(|node| node.number), Some(a.number));
        assert_eq!(nodes.named(ROOT, b"a").map(|node| node.number), Some(b.number));
        nodes.renamed((ROOT, b"b"), (ROOT, b"c"), false);
        assert_eq!(a.place(), (ROOT, b"c".to_vec()));
        assert!(nodes.named(ROOT, b"b").is_none());
    }

    #[test]
    fn a_path_is_that_of_the_names_seen_last() {
        let nodes = Nodes::new(&found(1), b"shown/here");
        let (dir, other) = (nodes.refer(&found(2), ROOT, b"d"), nodes.refer(&found(3), ROOT, b"e"));
        let file = nodes.refer(&found(4), dir.number, b"f");
        let path =
            |node: &Arc<Node>| nodes.path(node).map(|path| String::from_utf8(path).expect("text"));
        assert_eq!(path(&file).as_deref(), Some("shown/here/d/f"));
        nodes.renamed((ROOT, b"d"), (other.number, b"g"), false);
        nodes.renamed((dir.number, b"f"), (dir.number, b"h"), false);
        assert_eq!(path(&file).as_deref(), Some("shown/here/e/g/h"));
        assert_eq!(path(&nodes.refer(&found(5), ROOT, b"")), None, "made without a name");
        nodes.forget(other.number, 1);
        assert_eq!(path(&file), None);
    }

    #[test]
    fn numbers_are_the_inodes_own_in_the_file_system_of_the_root() {
        let nodes = Nodes::new(&found(1), b"");
        let id = |device, inode| ObjectId { inode, device, number: 7 << 60 | inode };
        assert_eq!(nodes.inode(&id(1, 12)), 12);
        assert_eq!(nodes.inode(&id(2, 12)), 7 << 60 | 12);
        let like_a_number = NUMBER_TOP << 56 | 12;
        assert_eq!(nodes.inode(&id(1, like_a_number)), 7 << 60 | like_a_number);
    }

    /// What docs/sizing.md says of a million objects.
    #[test]
    fn an_object_takes_little_memory() {
        let size = std::mem::size_of::<Node>();
        assert!(size <= 352, "{size} bytes");
        let nodes = Nodes::new(&found(1), b"");
        let node = nodes.refer(&found(2), ROOT, b"a");
        nodes.refer(&found(2), ROOT, b"b");
        assert_eq!(Arc::strong_count(&node.state().name), 2, "once for it and the table");
    }

    #[test]
    fn a_reused_inode_is_another_object() {
        let nodes = Nodes::new(&found(1), b"");
        let old = nodes.refer(&found(2), ROOT, b"a");
        let mut new = found(2);
        new.handle.0[5] = 9;
        assert_ne!(nodes.refer(&new, ROOT, b"a").number, old.number);
        let born = |seconds| Some(Timestamp { seconds, ..Timestamp::default() });
        let mut first = found(3);
        first.attr.created = born(7);
        let node = nodes.refer(&first, ROOT, b"b");
        assert!(node.is(&found(3).attr) && node.is(&first.attr));
        first.attr.created = born(8);
        assert!(!node.is(&first.attr), "found under the same name");
    }

    #[test]
    fn what_a_change_learned_is_told_once_and_not_when_another_came() {
        const TTL: Duration = Duration::from_secs(3600);
        let nodes = Nodes::new(&found(1), b"");
        let node = nodes.get(ROOT).expect("root");
        let attr = |size| Attr { size, ..found(1).attr };
        let change = |size| {
            let change = node.change();
            change.see(Some(attr(size)));
            change
        };
        drop(change(7));
        let (learned, left) = node.take_learned(TTL).expect("learned");
        assert!(learned == attr(7) && left <= TTL);
        assert!(node.take_learned(TTL).is_none(), "once");
        drop(change(8));
        assert!(node.take_learned(Duration::ZERO).is_none(), "believed no longer");
        drop(change(9));
        drop(node.change());
        assert!(node.take_learned(TTL).is_none(), "a change that learned nothing");
        let (first, second) = (change(1), change(2));
        drop(second);
        assert!(node.take_learned(TTL).is_none(), "the first may come after it");
        drop(first);
        assert!(node.take_learned(TTL).is_none(), "the second may have come after it");
        let (first, second) = (change(1), change(2));
        drop((first, second));
        assert!(node.take_learned(TTL).is_none());
        let another = node.change();
        another.see(Some(found(2).attr));
        drop(another);
        assert!(node.take_learned(TTL).is_none(), "of another object");
    }

    #[test]
    fn what_changed_since_it_was_listed_is_not_told() {
        let nodes = Nodes::new(&found(1), b"");
        let node = nodes.refer(&found(2), ROOT, b"a");
        let root = nodes.get(ROOT).expect("root");
        let listed = |asked| nodes.refer_listed(&found(2), &root, b"a", asked);
        let before = Instant::now();
        assert_eq!(listed(before), Some(node.number));
        let change = node.change();
        assert_eq!((listed(before), listed(Instant::now())), (None, None), "under way");
        let within = Instant::now();
        drop(change);
        assert_eq!((listed(before), listed(within)), (None, None), "asked for before its end");
        let mut after = Instant::now();
        while Some(after) == node.state().changed {
            after = Instant::now();
        }
        assert_eq!(listed(after), Some(node.number));
        let mut mixed = found(4);
        mixed.handle = found(2).handle;
        assert_eq!(nodes.refer_listed(&mixed, &root, b"c", after), None, "another's handle");
        let unknown = || nodes.refer_listed(&found(3), &root, b"b", after);
        drop(root.change());
        assert_eq!(unknown(), None, "it may be what was removed");
        assert_eq!(listed(after), Some(node.number), "it was not");
    }

    #[test]
    fn a_cache_is_good_while_nothing_changed() {
        let nodes = Nodes::new(&found(1), b"");
        let node = nodes.refer(&found(2), ROOT, b"a");
        let mut attr = found(2).attr;
        assert!(!node.cache_is_good(&attr));
        assert!(node.cache_is_good(&attr));
        attr.change += 1;
        assert!(!node.cache_is_good(&attr));
        assert!(!node.is_cached_after_change(), "nobody has it open");
        assert!(!node.cache_is_good(&attr), "it was changed past the cache");
        assert!(node.cache_is_good(&attr));
    }
}
