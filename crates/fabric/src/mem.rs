//! Memory that a network may touch.
//!
//! An [`Arena`] is one mapping. A [`Span`] names bytes of an arena or of borrowed memory
//! and keeps them alive; it is what scatter/gather lists are made of. A span is not a Rust
//! reference: its bytes may change under the reader, so they are copied out, then checked, then
//! used. A [`Buffer`] is memory with one owner, which reads and writes it as a slice while it is
//! not posted.
//!
//! Payload moves by [`Span::copy_from`], [`Span::copy_to`], [`Span::copy_span`],
//! [`Span::copy_piece`] and [`Span::stream_piece`] only, which count: see [`copied_bytes`].

mod between;
mod buffer;
mod copied;
mod foreign;
mod fork;
mod lend;
mod life;
mod piece;
mod pins;
mod pool;
mod readers;
mod region;
mod shared;
mod stream;
#[cfg(test)]
mod tests;
mod views;
mod words;

use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use buffer::BufferMemory;
pub use buffer::{Anchor, Buffer, PostedBuffer};
pub use copied::copied_bytes;
pub use lend::{lend, lend_mut};
pub use life::{Life, LifeWord, Mark};
pub use piece::Piece;
pub use pins::Pin;
use pins::Pins;
pub use pool::{PoolPiece, SharedPool};
pub use readers::Readers;
pub use region::{Deregister, MemoryRegion, registrations};
pub use shared::{MappedOfPeer, SharedFile, SharedPart, is_memory_file, mapped_of_peers};
pub use views::Views;
pub use words::{Row, Word, Words};

use crate::error::ArenaError;
use crate::planted::{Defect, planted};
use crate::sys::FileMap;

/// Pages of the arena, and alignment of direct transfers.
pub const PAGE_BYTES: usize = 4096;

/// Alignment of arenas of huge pages.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The one place where payload is copied.
///
/// # Safety
/// Both ranges are mapped for `len` bytes and `to` is writable. They may overlap, and other
/// parties may change them meanwhile: the bytes are then any mixture, which is all that a copy
/// out of shared memory can promise.
#[inline(always)]
unsafe fn copy_payload(from: *const u8, to: *mut u8, len: usize) {
    copied::add(len);
    // SAFETY: passed on to the caller.
    unsafe { std::ptr::copy(from, to, len) }
}

/// Copies message bytes (no payload) to `into`, in place of what it held.
///
/// # Safety
/// `len` bytes are mapped from `from` on, and `into` has none of them. Other parties may change
/// them meanwhile.
#[inline(always)]
unsafe fn copy_message(from: NonNull<u8>, len: usize, into: &mut Vec<u8>) {
    into.clear();
    into.reserve(len);
    // SAFETY: there is room for `len` bytes, and so many can be read.
    unsafe { std::ptr::copy(from.as_ptr(), into.as_mut_ptr(), len) };
    // SAFETY: they were just written.
    unsafe { into.set_len(len) };
}

/// One mapping of memory: private, or [shared](Arena::shared) with peers of this host. Page aligned.
/// Unmapped when the last span is gone.
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    len: usize,
    segment_bytes: usize,
    pins: Pins,
    /// What others map to have the same memory.
    file: Option<Arc<SharedFile>>,
    /// Somebody else's memory: not unmapped.
    foreign: bool,
}

// SAFETY: the mapping is plain memory that any thread may access; the type gives out no
// references to it, only spans.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `bytes`, rounded up to whole pages. The memory is zero and is committed by the
    /// system when it is first touched.
    ///
    /// # Errors
    /// [`ArenaError`].
    pub fn new(bytes: usize) -> Result<Arc<Arena>, ArenaError> {
        Arena::map(bytes, PAGE_BYTES).map(Arc::new)
    }

    /// As [`new`](Arena::new), aligned to [`HUGE_PAGE_BYTES`] for
    /// [`populate_huge`](Arena::populate_huge), in segments of `segment_bytes` (the last one may be
    /// shorter). A segment is what a device knows as a whole and, where it pins what it knows, what can
    /// be given back. No span is joined with one of another segment.
    ///
    /// # Errors
    /// [`ArenaError`].
    ///
    /// # Panics
    /// When `segment_bytes` is not a power of two of at least a page.
    pub fn in_segments(bytes: usize, segment_bytes: usize) -> Result<Arc<Arena>, ArenaError> {
        let whole_pages = segment_bytes.is_power_of_two() && segment_bytes >= PAGE_BYTES;
        assert!(whole_pages, "segments of {segment_bytes} bytes");
        let mut arena = Arena::map(bytes, HUGE_PAGE_BYTES)?;
        arena.segment_bytes = segment_bytes;
        Ok(Arc::new(arena))
    }

    /// A mapping aligned to `align`, a power of two of at least a page.
    fn map(bytes: usize, align: usize) -> Result<Arena, ArenaError> {
        let len = bytes.checked_next_multiple_of(PAGE_BYTES).unwrap_or(0);
        if len == 0 || len > isize::MAX as usize - align {
            return Err(ArenaError::Size(bytes));
        }
        let room = len + align - PAGE_BYTES;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping at an address that the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), room, prot, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(ArenaError::System { bytes: len, source: std::io::Error::last_os_error() });
        }
        let before = (start as usize).next_multiple_of(align) - start as usize;
        // SAFETY: `before` is less than `align`, so `len` bytes from there on are in the mapping.
        let base = unsafe { start.cast::<u8>().add(before) };
        if before > 0 {
            // SAFETY: whole pages at the start of the mapping, which nothing uses.
            unsafe { libc::munmap(start, before) };
        }
        let after = room - before - len;
        if after > 0 {
            // SAFETY: as above: the end of the mapping.
            let end = unsafe { base.add(len) };
            // SAFETY: whole pages at the end of the mapping, which nothing uses.
            unsafe { libc::munmap(end.cast(), after) };
        }
        let base = NonNull::new(base).ok_or(ArenaError::Size(bytes))?;
        // The least power of two: the base is aligned to no more.
        let segment_bytes = len.checked_next_power_of_two().ok_or(ArenaError::Size(bytes))?;
        Ok(Arena { base, len, segment_bytes, pins: Pins::default(), file: None, foreign: false })
    }

    /// Bytes of a segment; at least [`len`](Self::len) where there is only one.
    pub fn segment_bytes(&self) -> usize {
        self.segment_bytes
    }

    /// The segment in which the byte at `offset` is.
    ///
    /// # Panics
    /// When it is not inside the arena.
    pub fn segment(self: &Arc<Self>, offset: usize) -> Span {
        let start = offset / self.segment_bytes * self.segment_bytes;
        self.span(start, self.segment_bytes.min(self.len - start))
    }

    /// Bytes, whole pages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true; here because `len` is.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes from `offset` on.
    ///
    /// # Panics
    /// When they are not inside the arena.
    #[inline(always)]
    pub fn span(self: &Arc<Self>, offset: usize, len: usize) -> Span {
        assert!(offset <= self.len && len <= self.len - offset, "span outside of the arena");
        // SAFETY: inside the mapping, as just checked.
        let start = unsafe { self.base.add(offset) };
        Span { start, len, keep: Keep::Arena(self.clone()) }
    }

    /// As [`Span::read_message`], of these bytes: without a span for them.
    ///
    /// # Panics
    /// When the range is not inside.
    #[inline]
    pub fn read_message(&self, offset: usize, len: usize, into: &mut Vec<u8>) {
        assert!(offset <= self.len && len <= self.len - offset, "message outside of the arena");
        // SAFETY: inside the mapping, as just checked.
        let from = unsafe { self.base.add(offset) };
        // SAFETY: so many bytes are mapped from there.
        unsafe { copy_message(from, len, into) };
    }

    /// The message bytes at `offset`, as many as the array has.
    ///
    /// # Panics
    /// When they are not inside the arena.
    pub fn message_bytes<const N: usize>(&self, offset: usize) -> [u8; N] {
        assert!(offset <= self.len && N <= self.len - offset, "message outside of the arena");
        // SAFETY: inside the mapping, as just checked.
        let from = unsafe { self.base.add(offset) };
        let mut bytes = [0; N];
        // SAFETY: the array has `N` bytes, and so many are mapped from there.
        unsafe { std::ptr::copy(from.as_ptr(), bytes.as_mut_ptr(), N) };
        bytes
    }

    /// Backs this range of whole pages with memory now, all at once, which costs less than a
    /// fault per page. Where the system cannot, nothing happens.
    pub fn populate(&self, offset: usize, len: usize) {
        assert!(offset <= self.len && len <= self.len - offset, "range outside of the arena");
        // SAFETY: inside the mapping, as just checked.
        let start = unsafe { self.base.add(offset) };
        // SAFETY: the range is mapped; its contents stay.
        unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_POPULATE_WRITE) };
    }

    /// As [`populate`](Arena::populate), by huge pages where the range has whole ones and the system
    /// gives them. For ranges of which nothing was used. May take milliseconds for each: not for a
    /// thread that others wait for.
    pub fn populate_huge(&self, offset: usize, len: usize) {
        assert!(offset <= self.len && len <= self.len - offset, "range outside of the arena");
        // SAFETY: inside the mapping, as just checked.
        let start = unsafe { self.base.add(offset) };
        if self.file.is_some() {
            self.collapse(offset, len);
        } else {
            // SAFETY: the range is mapped; its contents stay. A system without huge pages refuses, and
            // nothing happens.
            unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        }
        self.populate(offset, len);
    }

    /// Gives the memory of whole pages in this range back to the system; they read as zero.
    ///
    /// # Errors
    /// [`ResourceBusy`](std::io::ErrorKind::ResourceBusy) while a device holds some of it
    /// ([`Span::pin`]): it would go on with the old pages. Or the system does not take it, for example
    /// since it is locked in memory.
    pub fn discard(&self, offset: usize, len: usize) -> std::io::Result<()> {
        assert!(offset <= self.len && len <= self.len - offset, "range outside of the arena");
        if planted(Defect::PinnedPagesGivenBack) {
            return self.discard_pinned(offset, len);
        }
        // SAFETY: inside the mapping, as just checked.
        let start = unsafe { self.base.add(offset) };
        let addr = start.as_ptr() as u64;
        // SAFETY: the range is mapped; its contents are given up.
        let give_back = || unsafe { libc::madvise(start.as_ptr().cast(), len, self.gives_back()) };
        match self.pins.unless_pinned(addr..addr + len as u64, give_back) {
            Some(0) => Ok(()),
            Some(_) => Err(std::io::Error::last_os_error()),
            None => Err(std::io::ErrorKind::ResourceBusy.into()),
        }
    }

    /// As [`discard`](Self::discard), also of what devices hold: for the proof that this goes wrong.
    pub(crate) fn discard_pinned(&self, offset: usize, len: usize) -> std::io::Result<()> {
        assert!(offset <= self.len && len <= self.len - offset, "range outside of the arena");
        // SAFETY: inside the mapping, as just checked.
        let start = unsafe { self.base.add(offset) };
        let old = self.pins.old_pages(self, offset, len);
        // SAFETY: the range is mapped; its contents are given up.
        match unsafe { libc::madvise(start.as_ptr().cast(), len, self.gives_back()) } {
            0 => old.into_iter().for_each(|(pin, addr, page)| pin.keep(addr, page)),
            _ => return Err(std::io::Error::last_os_error()),
        }
        Ok(())
    }

    /// A shared page is given back by a hole in its file.
    fn gives_back(&self) -> libc::c_int {
        if self.file.is_some() { libc::MADV_REMOVE } else { libc::MADV_DONTNEED }
    }

    /// Of the page at `offset`, for a simulated device.
    fn copy_of_page(&self, offset: usize) -> Option<Span> {
        let page = Arc::new(Arena::map(PAGE_BYTES, PAGE_BYTES).ok()?);
        // SAFETY: inside the mapping: the caller checked its range.
        let from = unsafe { self.base.add(offset) };
        // SAFETY: both are whole pages that are mapped.
        // not payload: what a real device would have kept
        unsafe { std::ptr::copy(from.as_ptr(), page.base.as_ptr(), PAGE_BYTES) };
        Some(page.span(0, PAGE_BYTES))
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.foreign {
            return;
        }
        // SAFETY: the mapping made in `new`; no span is left, they hold the `Arc`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// What keeps a span's memory alive.
#[derive(Debug, Clone)]
enum Keep {
    Arena(Arc<Arena>),
    /// Memory with one owner who waits until no span is left.
    Buffer(Arc<BufferMemory>),
    /// Memory lent by a caller that waits, to be written: the number of spans alive.
    LentMut(NonNull<AtomicUsize>),
    /// The same, to be read. No kind from here on may be written.
    Lent(NonNull<AtomicUsize>),
    /// A file, which only a kernel reads at these addresses.
    File(Arc<FileMap>),
    /// What a peer lets this process read.
    Readable {
        _arena: Arc<Arena>,
    },
}

/// Bytes that a network may touch, kept alive while the span is. Cloning is cheap.
#[derive(Debug)]
pub struct Span {
    start: NonNull<u8>,
    len: usize,
    keep: Keep,
}

// SAFETY: a span is an address and a share in its owner; access goes through copies.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

impl Clone for Span {
    fn clone(&self) -> Span {
        if let Keep::LentMut(count) | Keep::Lent(count) = &self.keep {
            // SAFETY: the counter outlives all spans of a loan (`lend` checks that).
            unsafe { count.as_ref() }.fetch_add(1, Ordering::Relaxed);
        }
        Span { start: self.start, len: self.len, keep: self.keep.clone() }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Keep::LentMut(count) | Keep::Lent(count) = &self.keep {
            // SAFETY: as in `clone`; this is the last use by this span.
            unsafe { count.as_ref() }.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Span {
    /// Bytes of a mapped file, as a source of sends, for devices that take it
    /// ([`DeviceAttr::file_spans`](crate::DeviceAttr::file_spans)).
    ///
    /// # Panics
    /// When they are not inside the map.
    pub fn of_file(map: &Arc<FileMap>, offset: usize, len: usize) -> Span {
        assert!(offset <= map.len() && len <= map.len() - offset, "span outside of the map");
        // SAFETY: inside the mapping, as just checked.
        let start = unsafe { map.base().add(offset) };
        Span { start, len, keep: Keep::File(map.clone()) }
    }

    /// The descriptor by which these bytes are to leave, and where in its file they begin.
    pub fn file_range(&self) -> Option<(RawFd, u64)> {
        let Keep::File(map) = &self.keep else { return None };
        let offset = self.addr() - map.base().as_ptr() as u64;
        map.descriptor().map(|fd| (fd, offset))
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for a span of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte: what a peer is told, and the order of addresses.
    pub fn addr(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// For system calls in providers and stores that read this memory.
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// For system calls in providers and stores that write this memory.
    ///
    /// # Panics
    /// When it was lent for reading.
    #[inline]
    pub fn as_mut_ptr(&self) -> *mut u8 {
        assert!(self.is_writable(), "memory lent for reading is no target");
        self.start.as_ptr()
    }

    /// False for memory lent by [`lend`], for files, and for what a peer lets be read.
    #[inline]
    pub fn is_writable(&self) -> bool {
        matches!(self.keep, Keep::Arena(_) | Keep::Buffer(_) | Keep::LentMut(_))
    }

    /// True for bytes of a mapped file.
    pub fn is_of_file(&self) -> bool {
        matches!(self.keep, Keep::File(_))
    }

    /// A part of it.
    ///
    /// # Panics
    /// When the part is not inside.
    #[inline(always)]
    pub fn part(&self, offset: usize, len: usize) -> Span {
        assert!(offset <= self.len && len <= self.len - offset, "part outside of the span");
        let mut part = self.clone();
        // SAFETY: inside the span, as just checked.
        part.start = unsafe { self.start.add(offset) };
        part.len = len;
        part
    }

    /// All memory that is registered together with this span (a segment of an arena, or a buffer),
    /// once for all spans in it: keeps the mapping alive, and does not keep a buffer from being taken
    /// back. `None` for lent memory, files, and what lies in two segments.
    pub fn owner(&self) -> Option<Span> {
        match &self.keep {
            Keep::Arena(arena) => {
                let offset = self.addr() - arena.base.as_ptr() as u64;
                // An empty span may stand at the end.
                let last = (arena.len - 1).min(usize::try_from(offset).ok()?);
                Some(arena.segment(last)).filter(|segment| segment.contains(self))
            }
            Keep::Buffer(memory) => Some(memory.registered()),
            Keep::LentMut(_) | Keep::Lent(_) | Keep::File(_) | Keep::Readable { .. } => None,
        }
    }

    /// How many hold the memory, arenas and buffers alike; `None` for what is lent and for files.
    pub fn holders(&self) -> Option<usize> {
        match &self.keep {
            Keep::Arena(arena) => Some(Arc::strong_count(arena)),
            Keep::Buffer(memory) => Some(Arc::strong_count(&memory.arena)),
            Keep::LentMut(_) | Keep::Lent(_) | Keep::File(_) | Keep::Readable { .. } => None,
        }
    }

    /// True when the addresses of `part` are among those of this one.
    pub fn contains(&self, part: &Span) -> bool {
        let (start, end) = (self.addr(), self.addr() + self.len as u64);
        start <= part.addr() && part.addr() + part.len as u64 <= end
    }

    /// True when `next` begins where this one ends, in the same owner.
    pub fn is_followed_by(&self, next: &Span) -> bool {
        let same = match (&self.keep, &next.keep) {
            (Keep::Arena(a), Keep::Arena(b)) => Arc::ptr_eq(a, b) && !next.begins_segment(a),
            (Keep::Buffer(a), Keep::Buffer(b)) => Arc::ptr_eq(a, b),
            (Keep::LentMut(a), Keep::LentMut(b)) | (Keep::Lent(a), Keep::Lent(b)) => a == b,
            (Keep::File(a), Keep::File(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        same && self.addr() + self.len as u64 == next.addr()
    }

    fn begins_segment(&self, arena: &Arena) -> bool {
        (self.addr() - arena.base.as_ptr() as u64) & (arena.segment_bytes as u64 - 1) == 0
    }

    /// Grows by `next`, which follows it.
    ///
    /// # Panics
    /// When it does not.
    pub fn append(&mut self, next: &Span) {
        assert!(self.is_followed_by(next), "spans are not adjacent");
        self.len += next.len;
    }

    /// Copies `from` to the span's bytes at `offset`; counted.
    ///
    /// # Panics
    /// When they do not fit.
    pub fn copy_from(&self, offset: usize, from: &[u8]) {
        assert!(offset <= self.len && from.len() <= self.len - offset, "copy outside of the span");
        // SAFETY: inside the span, as just checked.
        let to = unsafe { self.as_mut_ptr().add(offset) };
        // SAFETY: both ranges are mapped: `from` is a slice, `to` was checked.
        unsafe { copy_payload(from.as_ptr(), to, from.len()) };
    }

    /// Copies the span's bytes at `offset` to `to`; counted.
    ///
    /// # Panics
    /// When they are not inside.
    #[inline(always)]
    pub fn copy_to(&self, offset: usize, to: &mut [u8]) {
        if offset > self.len || to.len() > self.len - offset {
            copied::outside();
        }
        // SAFETY: `to` is a slice, and the bytes are inside, as just checked.
        unsafe { self.copy_out(offset, to.as_mut_ptr(), to.len()) };
    }

    /// Copies bytes of this span; those of a file by its descriptor, which cannot fault.
    ///
    /// # Safety
    /// The bytes are inside the span, and `to` is writable for `len`.
    #[inline(always)]
    unsafe fn copy_out(&self, offset: usize, to: *mut u8, len: usize) {
        if let Keep::File(map) = &self.keep {
            let at = self.addr() as usize - map.base().as_ptr() as usize + offset;
            // SAFETY: passed on to the caller.
            return unsafe { map.read(at, to, len) };
        }
        // SAFETY: inside the span: passed on to the caller.
        let from = unsafe { self.start.add(offset) };
        // SAFETY: both ranges are mapped: passed on to the caller.
        unsafe { copy_payload(from.as_ptr(), to, len) }
    }

    /// Copies `len` bytes of `from`, from its byte `start` on, to the span's bytes at `offset`; counted.
    ///
    /// # Panics
    /// When they are not inside, or do not fit.
    #[inline]
    pub fn copy_part(&self, offset: usize, from: &Span, start: usize, len: usize) {
        let is_inside = start <= from.len && len <= from.len - start;
        assert!(is_inside, "copy outside of the span");
        assert!(offset <= self.len && len <= self.len - offset, "copy outside of the span");
        // SAFETY: inside the span, as just checked.
        let to = unsafe { self.as_mut_ptr().add(offset) };
        // SAFETY: the part is inside, and fits, as just checked.
        unsafe { from.copy_out(start, to, len) };
    }

    /// Copies all of `from` to the span's bytes at `offset`; counted.
    ///
    /// # Panics
    /// When they do not fit.
    pub fn copy_span(&self, offset: usize, from: &Span) {
        self.copy_part(offset, from, 0, from.len);
    }

    /// Sets all bytes to zero (not payload: nothing is counted).
    pub fn zero(&self) {
        // SAFETY: the span's bytes are mapped and writable.
        unsafe { std::ptr::write_bytes(self.as_mut_ptr(), 0, self.len) };
    }

    /// A copy of message bytes (headers, names: not payload, not counted), to be parsed.
    pub fn read_message(&self, len: usize, into: &mut Vec<u8>) {
        assert!(len <= self.len, "message outside of the span");
        assert!(!matches!(self.keep, Keep::File(_)), "a file is no message");
        // SAFETY: the span has `len` bytes.
        unsafe { copy_message(self.start, len, into) };
    }

    /// Writes message bytes (headers, names: not payload, not counted) at `offset`.
    ///
    /// # Panics
    /// When they do not fit.
    #[inline]
    pub fn write_message(&self, offset: usize, from: &[u8]) {
        assert!(offset <= self.len && from.len() <= self.len - offset, "outside of the span");
        // SAFETY: inside the span, as just checked.
        let to = unsafe { self.as_mut_ptr().add(offset) };
        // SAFETY: both ranges are mapped.
        unsafe { std::ptr::copy(from.as_ptr(), to, from.len()) };
    }
}
