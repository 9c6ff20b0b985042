//! An object that the kernel knows, and what happens to it.

mod new;
mod open_file;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use dafs_client::{Changed, Object as Found};
use dafs_protocol::{Attr, FileHandle, FileKind, ObjectId, OwnerKey, Timestamp};

pub(in crate::fs) use new::Due;
use new::New;
pub(in crate::fs) use open_file::OpenFile;

/// The time of this machine.
pub(in crate::fs) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    Timestamp { seconds, nanoseconds: since.subsec_nanos() }
}

/// As it is without a name.
fn nameless(attr: &Attr) -> Attr {
    Attr { links: 0, changed: now(), ..*attr }
}

/// Setuid and setgid.
const PRIVILEGES: u32 = 0o6000;

/// A file's data as it was when the kernel began to cache it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version {
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
pub(super) struct Identity {
    id: ObjectId,
    created: Option<Timestamp>,
}

impl Identity {
    pub(super) fn of(attr: &Attr) -> Identity {
        Identity { id: attr.id(), created: attr.created }
    }

    pub(super) fn is(&self, other: &Identity) -> bool {
        let born = self.created.zip(other.created).is_none_or(|(ours, theirs)| ours == theirs);
        (self.id.device, self.id.inode) == (other.id.device, other.id.inode) && born
    }
}

pub(in crate::fs) struct Node {
    pub(in crate::fs) number: u64,
    pub(in crate::fs) kind: FileKind,
    /// The largest size that the kernel was told, or is about to be.
    told_size: AtomicU64,
    /// The kernel was told that it has setuid or setgid.
    told_privileged: AtomicBool,
    /// It was changed past the kernel's cache since it was opened last.
    written_past: AtomicBool,
    /// Opens of it that the kernel caches.
    cached_opens: AtomicU32,
    /// See [`new`].
    new: Mutex<Option<Box<New>>>,
    may_be_new: AtomicBool,
    has_later: AtomicBool,
    state: Mutex<State>,
}

pub(super) struct State {
    pub(super) identity: Identity,
    pub(super) handle: FileHandle,
    /// The kernel was told of it under other names, too.
    pub(super) has_names: bool,
    /// When it was told last.
    pub(super) told: Instant,
    pub(super) parent: u64,
    /// Shared with the table of names.
    pub(super) name: Arc<[u8]>,
    /// References of the kernel.
    pub(super) references: u64,
    pub(super) cached: Option<Box<Version>>,
    pub(super) open: Vec<Arc<OpenFile>>,
    /// Until then it is taken to have no capabilities.
    pub(super) incapable_until: Option<Instant>,
    /// When it was last given some here.
    pub(super) capable_since: Option<Instant>,
    /// Of a directory: how it was after the last change here, asked for then, and not told yet.
    pub(super) learned: Option<Box<(Attr, Instant)>>,
    /// Changes of it under way here, and begun so far.
    pub(super) changing: u32,
    pub(super) changes: u64,
    /// When one began or ended here last, or a file was closed.
    pub(super) changed: Option<Instant>,
    /// How it is after this mount removed its last name.
    pub(super) gone: Option<Box<Attr>>,
}

impl State {
    pub(super) fn may_be_replaced(&self) -> bool {
        !self.has_names && self.open.is_empty()
    }
}

impl Node {
    /// The kernel refers to it once.
    pub(super) fn new(number: u64, found: &Found, parent: u64, name: Arc<[u8]>) -> Node {
        Node {
            number,
            kind: found.attr.kind,
            told_size: AtomicU64::new(found.attr.size),
            told_privileged: AtomicBool::new(found.attr.mode & PRIVILEGES != 0),
            written_past: AtomicBool::new(false),
            cached_opens: AtomicU32::new(0),
            new: Mutex::default(),
            may_be_new: AtomicBool::new(false),
            has_later: AtomicBool::new(false),
            state: Mutex::new(State {
                identity: Identity::of(&found.attr),
                handle: found.handle,
                has_names: false,
                told: Instant::now(),
                parent,
                name,
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
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::fs) fn handle(&self) -> FileHandle {
        self.state().handle
    }

    /// Which object of the server it is.
    pub(in crate::fs) fn id(&self) -> ObjectId {
        self.state().identity.id
    }

    /// Directory and name under which it was seen last.
    pub(in crate::fs) fn place(&self) -> (u64, Vec<u8>) {
        let state = self.state();
        (state.parent, state.name.to_vec())
    }

    /// The kernel knows it under another name than this, and has it not open.
    pub(super) fn is_elsewhere(&self, parent: u64, name: &[u8]) -> bool {
        if self.kind == FileKind::Directory {
            return false;
        }
        let state = self.state();
        (state.parent != parent || *state.name != *name) && state.open.is_empty()
    }

    /// Whether an object found under its name is this one.
    pub(in crate::fs) fn is(&self, attr: &Attr) -> bool {
        self.kind == attr.kind && self.state().identity.is(&Identity::of(attr))
    }

    /// True when the file is as the kernel has cached it; from now on it caches `attr`.
    pub(in crate::fs) fn cache_is_good(&self, attr: &Attr) -> bool {
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
    pub(in crate::fs) fn note_incapable(&self, asked: Instant, ttl: Duration) {
        let mut state = self.state();
        if state.capable_since.is_none_or(|since| since < asked) {
            state.incapable_until = asked.checked_add(ttl);
        }
    }

    /// It may have capabilities now.
    pub(in crate::fs) fn may_be_capable(&self) {
        let mut state = self.state();
        state.incapable_until = None;
        state.capable_since = Some(Instant::now());
    }

    /// True when it was seen a moment ago to have no capabilities.
    pub(in crate::fs) fn is_incapable(&self) -> bool {
        self.state().incapable_until.is_some_and(|until| Instant::now() < until)
    }

    /// A change of it begins, by a call of this mount.
    pub(in crate::fs) fn change(self: &Arc<Node>) -> Change {
        let mut state = self.state();
        state.learned = None;
        state.changing += 1;
        state.changes += 1;
        state.changed = Some(Instant::now());
        let alone = (state.changing == 1).then_some(state.changes);
        Change { node: self.clone(), begun: Instant::now(), alone, seen: Cell::new(None) }
    }

    /// As `change`, one by which it is not anymore what its maker knows it to be.
    pub(in crate::fs) fn change_for_good(self: &Arc<Node>) -> Change {
        self.is_new_no_more();
        self.change()
    }

    /// What the last change learned, once: after a change of a directory the kernel asks for its
    /// attributes. Believed for what is left of `ttl`.
    pub(in crate::fs) fn take_learned(&self, ttl: Duration) -> Option<(Attr, Duration)> {
        let (attr, asked) = *self.state().learned.take()?;
        let left = ttl.checked_sub(asked.elapsed()).filter(|left| !left.is_zero())?;
        Some((attr, left))
    }

    /// Something else than a change may have made it another.
    pub(in crate::fs) fn unlearn(&self) {
        self.state().learned = None;
    }

    pub(in crate::fs) fn opened(&self, file: &Arc<OpenFile>) {
        self.add_open(&mut self.state(), file);
    }

    pub(super) fn add_open(&self, state: &mut State, file: &Arc<OpenFile>) {
        state.open.push(file.clone());
        self.cached_opens.fetch_add(u32::from(!file.direct), Ordering::AcqRel);
    }

    pub(in crate::fs) fn closed(&self, file: &Arc<OpenFile>) {
        let mut state = self.state();
        state.open.retain(|other| !Arc::ptr_eq(other, file));
        self.cached_opens.fetch_sub(u32::from(!file.direct), Ordering::AcqRel);
        state.changed = Some(Instant::now());
    }

    /// It may not be any more what it was when somebody asked the server then.
    pub(super) fn may_have_changed(&self, asked: Instant) -> bool {
        let state = self.state();
        let changed = state.changed.is_some_and(|changed| changed >= asked);
        changed || state.changing > 0 || !state.open.is_empty()
    }

    /// The opens through which that owner may hold locks; they do not know it any more.
    pub(in crate::fs) fn forget_locker(&self, owner: OwnerKey) -> Vec<Arc<OpenFile>> {
        let mut opens = self.opens();
        opens.retain(|file| file.forget_locker(owner));
        opens
    }

    /// Its attributes, where this mount removed its last name and it is not open.
    pub(in crate::fs) fn gone(&self) -> Option<Attr> {
        let state = self.state();
        state.gone.as_deref().filter(|_| state.open.is_empty()).copied()
    }

    /// The attributes that it has without a name.
    pub(in crate::fs) fn set_last(&self, attr: Attr) {
        self.state().gone = Some(Box::new(attr));
    }

    /// All opens of it.
    pub(in crate::fs) fn opens(&self) -> Vec<Arc<OpenFile>> {
        self.state().open.clone()
    }

    /// The kernel is about to be told that it has at least this size.
    pub(in crate::fs) fn tell_size(&self, size: u64) {
        self.told_size.fetch_max(size, Ordering::AcqRel);
    }

    /// The kernel is about to be told these attributes.
    pub(in crate::fs) fn tell(&self, attr: &Attr) {
        self.tell_size(attr.size);
        if attr.mode & PRIVILEGES != 0 {
            self.told_privileged.store(true, Ordering::Release);
        }
    }

    /// True once where the kernel believes that it has setuid or setgid.
    pub(in crate::fs) fn may_lose_privileges(&self) -> bool {
        self.told_privileged.load(Ordering::Acquire)
            && self.told_privileged.swap(false, Ordering::AcqRel)
    }

    /// A read found the end of the file there: the size that the kernel was told, if that is beyond
    /// it. The read is older than that, or the file was cut.
    pub(in crate::fs) fn told_beyond(&self, end: u64) -> Option<u64> {
        Some(self.told_size.load(Ordering::Acquire)).filter(|told| *told > end)
    }

    /// It was cut, after that size was told.
    pub(in crate::fs) fn is_shorter(&self, told: u64, end: u64) {
        let _ = self.told_size.compare_exchange(told, end, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// It was changed past the kernel's cache: an open that comes does not keep that. True where
    /// one that is there may have something in it.
    pub(in crate::fs) fn is_cached_after_change(&self) -> bool {
        self.written_past.store(true, Ordering::Release);
        self.cached_opens.load(Ordering::Acquire) > 0
    }

    /// An open of it, for what has no name any more.
    pub(in crate::fs) fn any_open(&self) -> Option<Arc<OpenFile>> {
        self.state().open.first().cloned()
    }
}

/// A change of an object, until it is dropped. What it learns holds if it met no other: of two,
/// each may have been done after the other one looked.
pub(in crate::fs) struct Change {
    node: Arc<Node>,
    begun: Instant,
    /// Its number, where no other was under way when it began.
    alone: Option<u64>,
    seen: Cell<Option<Attr>>,
}

impl Change {
    /// What was answered; keeps the attributes of the directory.
    pub(in crate::fs) fn saw<T>(
        &self,
        answer: dafs_client::Result<Changed<T>>,
    ) -> dafs_client::Result<T> {
        answer.map(|changed| {
            self.see(changed.dirs[0]);
            changed.done
        })
    }

    /// It may be that what was removed: then these are its last attributes.
    pub(in crate::fs) fn removed(&self, last: Option<Attr>) {
        if let Some(attr) = last.filter(|attr| self.node.is(attr)) {
            self.node.set_last(nameless(&attr));
        }
    }

    pub(in crate::fs) fn see(&self, attr: Option<Attr>) {
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
