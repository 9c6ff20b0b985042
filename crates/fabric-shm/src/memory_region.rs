//! What this device lets peers reach: its table of regions, and the files in which they lie.
//!
//! The table is memory that peers map to read: an entry says which part of which file is registered, and by
//! which key. A key is a number that is never used again, of which the last bits say where the entry is. An
//! entry whose first word is not the key is none: one store ends all later access.
//!
//! Peers of other users, where they may read something, map a table that has that and nothing else: what is for some
//! user, or for all. It says where memory lies, and of that they are given what they may read alone.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use dafs_fabric::mem::Deregister;
use dafs_fabric::{
    Access, Arena, MemoryRegion, READABLE_MAX, Readers, RegisterError, Rkey, SharedFile, Span,
    Words,
};
use smallvec::SmallVec;

use crate::peer::{Peer, SEGMENT_BYTES_MAX, SEGMENTS_MAX, Segment, Tables};
use crate::wire::Limits;

/// The most regions of a device.
pub const ENTRIES: usize = 4096;
/// Words of an entry: key, segment, offset in it, address, length, rights; two are free.
pub const ENTRY_WORDS: usize = 8;
/// Bytes of a table.
pub const TABLE_BYTES: usize = ENTRIES * ENTRY_WORDS * size_of::<u64>();
/// Bits of a key that say where its entry is.
const INDEX_BITS: u32 = 16;
/// The index of keys of memory that nobody may reach.
const NOWHERE: u64 = (1 << INDEX_BITS) - 1;
/// Rights.
pub const READ: u64 = 1;
pub const WRITE: u64 = 2;

/// Peers who are told of all of it are told of other memory, too.
const _: () = assert!(READABLE_MAX + 8 <= SEGMENTS_MAX as usize);

/// The entry that a key may have.
pub fn entry_of(rkey: u64) -> Option<usize> {
    let index = usize::try_from(rkey & NOWHERE).ok()?;
    (index < ENTRIES).then_some(index * ENTRY_WORDS)
}

/// The table of a device, shared by its engines.
#[derive(Debug)]
pub struct Table {
    all: Shown,
    /// As peers of other users see it, with what is for one of them, or for all. Made when there is something.
    public: OnceLock<Shown>,
    next_generation: AtomicU64,
    inner: Mutex<Inner>,
    /// Some file has no region any more.
    has_idle: AtomicBool,
}

/// Entries that peers map to read.
#[derive(Debug)]
struct Shown {
    words: Words,
    file: Arc<SharedFile>,
    /// By which they map it. Opened at once: later, the thread that tells a peer may act as another user, who may
    /// not. `None`: there is no /proc, and they have the file's own, by which they write as little: that is sealed.
    read_only: Option<OwnedFd>,
}

impl Shown {
    fn new() -> std::io::Result<Shown> {
        let arena = Arena::shown(TABLE_BYTES).map_err(std::io::Error::other)?;
        let part = arena.span(0, TABLE_BYTES).shared();
        let file = part.ok_or(std::io::ErrorKind::Unsupported)?.file;
        let read_only = file.read_only().ok();
        Ok(Shown { words: Words::new(&arena), file, read_only })
    }

    fn for_peers(&self) -> BorrowedFd<'_> {
        self.read_only.as_ref().map_or(self.file.as_fd(), AsFd::as_fd)
    }

    fn enter(&self, at: usize, rkey: u64, fields: [u64; 5]) {
        // Whoever sees one of these sees that the entry was none.
        fence(Ordering::Release);
        for (field, value) in fields.into_iter().enumerate() {
            self.words.store(at + 1 + field, value, Ordering::Relaxed);
        }
        self.words.store(at, rkey, Ordering::Release);
    }
}

#[derive(Debug)]
struct Inner {
    free: Vec<usize>,
    /// The file of each entry that is in use.
    of_entry: Vec<u64>,
    segments: Vec<Segment>,
    next_segment: u64,
    peers: Vec<Weak<Peer>>,
}

impl Inner {
    /// Of what is not for reading only: how much of that peers map is no limit for other files.
    fn bytes(&self) -> u64 {
        let limited = self.segments.iter().filter(|segment| segment.readers.is_none());
        limited.map(|segment| segment.bytes).sum()
    }

    fn live_peers(&mut self) -> SmallVec<[Arc<Peer>; 4]> {
        let mut live = SmallVec::new();
        self.peers.retain(|peer| {
            let peer = peer.upgrade();
            let is_live = peer.is_some();
            live.extend(peer);
            is_live
        });
        live
    }
}

impl Table {
    /// Without regions.
    pub fn new() -> std::io::Result<Arc<Table>> {
        // Keys of another device are no keys here.
        let random = getrandom::u64().map_err(std::io::Error::from)? >> (INDEX_BITS + 1);
        Ok(Arc::new(Table {
            all: Shown::new()?,
            public: OnceLock::new(),
            next_generation: AtomicU64::new(random.max(1)),
            inner: Mutex::new(Inner {
                free: (0..ENTRIES).rev().collect(),
                of_entry: vec![0; ENTRIES],
                segments: Vec::new(),
                next_segment: 1,
                peers: Vec::new(),
            }),
            has_idle: AtomicBool::new(false),
        }))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tables(&self) -> Tables<'_> {
        Tables { all: self.all.for_peers(), public: self.public.get().map(Shown::for_peers) }
    }

    /// Where `file` is shown beside the table of all. With `inner` locked.
    fn public(&self, file: &SharedFile) -> Result<Option<&Shown>, RegisterError> {
        if matches!(file.readers(), None | Some(Readers::Own)) {
            return Ok(None);
        }
        if self.public.get().is_none() {
            let made = Shown::new();
            let made = made.map_err(|_| RegisterError::Refused("no memory for a table"))?;
            let _ = self.public.set(made);
        }
        Ok(self.public.get())
    }

    fn key(&self, index: u64) -> u64 {
        self.next_generation.fetch_add(1, Ordering::Relaxed) << INDEX_BITS | index
    }

    /// Makes `span` reachable, and tells all peers of the file in which it lies.
    pub fn register(
        self: &Arc<Self>,
        span: Span,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        if access.remote_write && !span.is_writable() {
            return Err(RegisterError::Refused("memory lent for reading is no target"));
        }
        let read = if access.remote_read { READ } else { 0 };
        let rights = read | if access.remote_write { WRITE } else { 0 };
        if rights == 0 {
            return Ok(MemoryRegion::new(span, Rkey(self.key(NOWHERE)), self.clone()));
        }
        let part = span.shared().ok_or(RegisterError::Refused("memory that cannot be shared"))?;
        if access.remote_write && part.file.is_for_readers() {
            return Err(RegisterError::Refused("memory that peers may read only is no target"));
        }
        let mut inner = self.inner();
        if inner.free.is_empty() {
            return Err(RegisterError::Refused("too many memory regions"));
        }
        let public = self.public(&part.file)?;
        let segment = self.segment(&mut inner, &part.file)?;
        let Some(index) = inner.free.pop() else {
            return Err(RegisterError::Refused("too many memory regions"));
        };
        inner.of_entry[index] = segment;
        let rkey = self.key(index as u64);
        let at = index * ENTRY_WORDS;
        let fields = [segment, part.offset as u64, span.addr(), span.len() as u64, rights];
        [Some(&self.all), public].into_iter().flatten().for_each(|t| t.enter(at, rkey, fields));
        Ok(MemoryRegion::new(span, Rkey(rkey), self.clone()))
    }

    /// The number of a file, with one region more in it.
    fn segment(&self, inner: &mut Inner, file: &Arc<SharedFile>) -> Result<u64, RegisterError> {
        let is_it = |segment: &&mut Segment| std::ptr::eq(segment.file.as_ptr(), &raw const **file);
        if let Some(known) = inner.segments.iter_mut().find(is_it) {
            known.regions += 1;
            return Ok(known.number);
        }
        self.forget(inner, |segment| segment.file.strong_count() == 0);
        let readers = file.readers();
        if readers.is_none() && !Table::takes(inner, file.len()) {
            self.forget(inner, |_| true);
        }
        if readers.is_none() && !Table::takes(inner, file.len()) {
            return Err(RegisterError::Refused("peers map no more memory"));
        }
        let number = inner.next_segment;
        inner.next_segment += 1;
        let file = Arc::downgrade(file);
        let bytes = file.upgrade().map_or(0, |file| file.len() as u64);
        inner.segments.push(Segment { number, file, bytes, regions: 1, readers });
        for peer in inner.live_peers() {
            peer.tell(self.tables(), &inner.segments);
        }
        Ok(number)
    }

    /// Whether all peers map another file, of so many bytes.
    fn takes(inner: &mut Inner, more: usize) -> bool {
        let all = Limits { segments: SEGMENTS_MAX, bytes: SEGMENT_BYTES_MAX };
        let peers = inner.live_peers();
        let sharing = peers.iter().filter(|peer| peer.shares()).map(|peer| peer.limits());
        let limits = sharing.chain([all]);
        let (files, bytes) = (inner.segments.len() as u64 + 1, inner.bytes() + more as u64);
        limits
            .into_iter()
            .all(|limits| files <= u64::from(limits.segments) && bytes <= limits.bytes)
    }

    /// Bytes of the files of which peers are told.
    pub fn bytes(&self) -> u64 {
        self.inner().bytes()
    }

    /// Whether a new peer that takes so much can be told of all files; those without regions are forgotten
    /// for it.
    pub fn fits(&self, limits: Limits) -> bool {
        let mut inner = self.inner();
        let fits = |inner: &Inner| {
            inner.segments.len() as u64 <= u64::from(limits.segments)
                && inner.bytes() <= limits.bytes
        };
        if !fits(&inner) {
            self.forget(&mut inner, |_| true);
        }
        fits(&inner)
    }

    /// Peers are to unmap files without regions, of these.
    fn forget(&self, inner: &mut Inner, which: impl Fn(&Segment) -> bool) {
        let before = inner.segments.len();
        inner.segments.retain(|segment| segment.regions > 0 || !which(segment));
        if inner.segments.len() < before {
            for peer in inner.live_peers() {
                peer.tell(self.tables(), &inner.segments);
            }
        }
        let is_idle = inner.segments.iter().any(|segment| segment.regions == 0);
        self.has_idle.store(is_idle, Ordering::Relaxed);
    }

    /// Peers are to unmap what is no more. Cheap where nothing is.
    pub fn sweep(&self) {
        if self.has_idle.load(Ordering::Relaxed) {
            self.forget(&mut self.inner(), |segment| segment.file.strong_count() == 0);
        }
    }

    /// From now on `peer` is told.
    pub fn add(&self, peer: &Arc<Peer>) {
        let mut inner = self.inner();
        inner.peers.push(Arc::downgrade(peer));
        peer.tell(self.tables(), &inner.segments);
    }

    /// Somebody may write to these files for ever: no new piece is cut from them.
    pub fn retire(&self, numbers: &[u64]) {
        let inner = self.inner();
        for segment in inner.segments.iter().filter(|s| numbers.contains(&s.number)) {
            if let Some(file) = segment.file.upgrade() {
                file.retire();
            }
        }
    }

    /// Tells a peer whose socket was full.
    pub fn tell_again(&self, peer: &Peer) {
        peer.tell(self.tables(), &self.inner().segments);
    }
}

impl Deregister for Table {
    fn deregister(&self, rkey: Rkey) {
        let Some(at) = entry_of(rkey.0) else { return };
        let mut inner = self.inner();
        if self.all.words.load(at, Ordering::Relaxed) != rkey.0 {
            return;
        }
        for shown in [Some(&self.all), self.public.get()].into_iter().flatten() {
            shown.words.store(at, 0, Ordering::SeqCst);
        }
        let index = at / ENTRY_WORDS;
        inner.free.push(index);
        let number = inner.of_entry[index];
        if let Some(segment) = inner.segments.iter_mut().find(|s| s.number == number) {
            segment.regions -= 1;
            if segment.regions == 0 {
                self.has_idle.store(true, Ordering::Relaxed);
            }
        }
    }
}
