//! The receives of a node: one arena, posted to the engine's shared receive queue.
//!
//! Connections *promise* receives to their peers (as credits) before they tell them; as many are
//! posted, and a few more. A message is copied out and its receive posted again at once, so a
//! promise holds at any time. Memory is committed by the system when a receive is first filled,
//! and given back when the pool shrinks. A device that must know it is told of it piece by piece, as
//! more receives are promised: where it pins them, it has no more than were needed at a time.

use std::sync::Arc;

use dafs_fabric::mem::PAGE_BYTES;
use dafs_fabric::{
    Access, Arena, Engine, MemoryRegion, ProtectionDomain, RegisterError, SgList, Span, WrId,
    poison,
};

use crate::config::{NodeError, SubmitError};
use crate::header::{HEADER_BYTES, REMOTE_SPAN_BYTES};
use crate::segments;
use crate::work::{Target, work_id};

/// Receives beyond those promised: for messages that need no credit.
const RESERVE: usize = 8;
/// Receives that a device is told of at a time.
const PIECE: usize = 256;

/// Where received bytes are kept until they are looked at.
pub struct ReceivePool {
    arena: Arc<Arena>,
    domain: Arc<ProtectionDomain>,
    /// Keep the first receives known to devices that need it.
    regions: Vec<MemoryRegion>,
    /// How many.
    known: usize,
    header_bytes: usize,
    area_bytes: usize,
    area_base: usize,
    depth: usize,
    /// Not posted, last used first.
    free: Vec<u32>,
    /// The first one that was never used.
    fresh: u32,
    posted: usize,
    promised: usize,
    /// Posted receives whose header touches a page, per page.
    page_users: Vec<u16>,
}

impl ReceivePool {
    /// Memory for `depth` receives; none is posted.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        header_bytes: usize,
        area_bytes: usize,
        depth: usize,
    ) -> Result<ReceivePool, NodeError> {
        // One more, for what was received elsewhere.
        let area_base = ((depth + 1) * header_bytes).next_multiple_of(PAGE_BYTES);
        let arena = Arena::new(area_base + depth * area_bytes)?;
        let page_users = vec![0; area_base / PAGE_BYTES];
        let must_know = domain.attr().local_registration;
        let mut pool = ReceivePool {
            arena,
            domain: domain.clone(),
            regions: Vec::new(),
            known: if must_know { 0 } else { depth },
            header_bytes,
            area_bytes,
            area_base,
            depth,
            free: Vec::new(),
            fresh: 0,
            posted: 0,
            promised: 0,
            page_users,
        };
        if must_know {
            pool.make_known()?;
        }
        Ok(pool)
    }

    /// The device is told of a piece more.
    #[cold]
    fn make_known(&mut self) -> Result<(), RegisterError> {
        let none = Access { remote_read: false, remote_write: false };
        let (first, end) = (self.known, (self.known + PIECE).min(self.depth));
        let headers = (first * self.header_bytes, (end - first) * self.header_bytes);
        let areas = (self.area_base + first * self.area_bytes, (end - first) * self.area_bytes);
        let mut regions = Vec::new();
        for (start, bytes) in [headers, areas].into_iter().filter(|(_, bytes)| *bytes > 0) {
            regions.push(self.domain.device().register(self.arena.span(start, bytes), none)?);
        }
        self.regions.extend(regions);
        self.known = end;
        Ok(())
    }

    /// Sees to it that so many more can be promised, as far as the device takes them.
    pub fn reserve(&mut self, count: usize) {
        let wanted = (RESERVE + self.promised + count).min(self.depth);
        while self.known < wanted && self.make_known().is_ok() {}
    }

    /// Bytes of a message that a receive holds.
    pub fn message_bytes(&self) -> usize {
        self.header_bytes + self.area_bytes
    }

    /// Receives posted.
    pub fn posted(&self) -> usize {
        self.posted
    }

    /// Receives that connections rely on.
    pub fn promised(&self) -> usize {
        self.promised
    }

    /// Receives that can still be promised, after [`reserve`](Self::reserve).
    pub fn available(&self) -> usize {
        self.known.saturating_sub(RESERVE + self.promised)
    }

    /// Promises `count` of the available.
    pub fn promise(&mut self, count: usize, engine: &mut dyn Engine) {
        debug_assert!(count <= self.available(), "promised more than there is");
        self.promised += count;
        self.refill(engine);
    }

    /// Takes a promise back.
    pub fn release(&mut self, count: usize) {
        self.promised -= count;
    }

    /// Some were never used. Those that are set aside may need more than were reserved.
    fn has_fresh(&mut self) -> bool {
        let is_known = |pool: &Self| (pool.fresh as usize) < pool.known;
        is_known(self) || (self.known < self.depth && self.make_known().is_ok())
    }

    fn wanted(&self) -> usize {
        (self.promised + RESERVE).min(self.depth)
    }

    /// Posts what is missing.
    #[inline]
    pub fn refill(&mut self, engine: &mut dyn Engine) {
        if self.posted < self.wanted() {
            self.post_missing(engine);
        }
    }

    #[inline(never)]
    fn post_missing(&mut self, engine: &mut dyn Engine) {
        while self.posted < self.wanted() {
            let index = match self.free.pop() {
                Some(index) => index,
                None if self.has_fresh() => {
                    self.fresh += 1;
                    self.fresh - 1
                }
                // Some are set aside; they come back.
                None => break,
            };
            if !self.post(index, engine) {
                break;
            }
        }
    }

    fn post(&mut self, index: u32, engine: &mut dyn Engine) -> bool {
        if !self.hand_over(index, engine) {
            // Full; tried again by the next refill.
            self.free.push(index);
            return false;
        }
        self.posted += 1;
        for page in self.pages(index) {
            self.page_users[page] += 1;
        }
        true
    }

    /// As it was before, if the engine still has it so.
    #[inline(always)]
    fn hand_over_again(&self, index: u32, engine: &mut dyn Engine) -> bool {
        if poison::is_on() {
            poison::fill(&self.header(index));
        }
        engine.post_recv_again(WrId(work_id(Target::Receive, 0, index)))
    }

    #[inline(never)]
    fn hand_over(&self, index: u32, engine: &mut dyn Engine) -> bool {
        let id = WrId(work_id(Target::Receive, 0, index));
        engine.post_recv(id, self.buffers(index)).is_ok()
    }

    fn buffers(&self, index: u32) -> SgList {
        let mut buffers = SgList::new();
        let header = self.header(index);
        poison::fill(&header);
        buffers.push(header);
        if self.area_bytes > 0 {
            buffers.push(self.area(index));
        }
        buffers
    }

    /// The message in `index` was looked at: posts it again, or gives its memory back when fewer
    /// are wanted than before.
    pub fn done(&mut self, index: u32, engine: &mut dyn Engine) {
        let is_wanted = self.posted <= self.wanted();
        if is_wanted && (self.hand_over_again(index, engine) || self.hand_over(index, engine)) {
            return;
        }
        self.posted -= 1;
        for page in self.pages(index) {
            self.page_users[page] -= 1;
        }
        self.free.push(index);
        if is_wanted {
            // Full; tried again by the next refill.
            return;
        }
        // What a device has pinned, or the system does not take, the next message finds there.
        if self.area_bytes > 0 {
            let area = self.area_base + index as usize * self.area_bytes;
            let _ = self.arena.discard(area, self.area_bytes);
        }
        for page in self.pages(index) {
            if self.page_users[page] == 0 {
                let _ = self.arena.discard(page * PAGE_BYTES, PAGE_BYTES);
            }
        }
    }

    /// A receive that its connection broke off with: not to be used until that is quiescent.
    pub fn set_aside(&mut self, index: u32, engine: &mut dyn Engine) {
        self.posted -= 1;
        for page in self.pages(index) {
            self.page_users[page] -= 1;
        }
        self.refill(engine);
    }

    /// What was set aside can be used again.
    pub fn put_back(&mut self, index: u32) {
        self.free.push(index);
    }

    fn pages(&self, index: u32) -> std::ops::RangeInclusive<usize> {
        let start = index as usize * self.header_bytes;
        start / PAGE_BYTES..=(start + self.header_bytes - 1) / PAGE_BYTES
    }

    fn header(&self, index: u32) -> Span {
        self.arena.span(index as usize * self.header_bytes, self.header_bytes)
    }

    fn area(&self, index: u32) -> Span {
        self.arena.span(self.area_base + index as usize * self.area_bytes, self.area_bytes)
    }

    /// The memory of the bytes `offset .. offset + len` of a message.
    fn parts(&self, index: u32, offset: usize, len: usize) -> SgList {
        let start = index as usize * self.header_bytes;
        if offset + len <= self.header_bytes {
            return SgList::from_iter([self.arena.span(start + offset, len)]);
        }
        segments::cut(&[self.header(index), self.area(index)], offset, len)
    }

    /// The bytes where the header of a message is; those behind its end have no meaning.
    pub fn first_bytes(&self, index: u32) -> [u8; HEADER_BYTES] {
        self.arena.message_bytes(index as usize * self.header_bytes)
    }

    /// Keeps a short message that was received elsewhere, until the next one; its number.
    pub fn keep_short(&self, message: &[u8]) -> u32 {
        let index = self.depth as u32;
        self.header(index).write_message(0, message); // not payload: a short message
        index
    }

    /// A descriptor behind a message's header is not in the data area.
    #[inline]
    pub fn has_first_descriptor(&self) -> bool {
        HEADER_BYTES + REMOTE_SPAN_BYTES <= self.header_bytes
    }

    /// The bytes where the first descriptor of a message is. The caller checked that it has one.
    #[inline]
    pub fn first_descriptor(&self, index: u32) -> [u8; REMOTE_SPAN_BYTES] {
        self.arena.message_bytes(index as usize * self.header_bytes + HEADER_BYTES)
    }

    /// Copies message bytes (no payload) to `into`, in place of what it held. The caller checked
    /// that the message has them.
    #[inline(always)]
    pub fn read_message(&self, index: u32, offset: usize, len: usize, into: &mut Vec<u8>) {
        if offset + len <= self.header_bytes {
            let start = index as usize * self.header_bytes;
            return self.arena.read_message(start + offset, len, into);
        }
        self.read_long_message(index, offset, len, into);
    }

    /// As [`read_message`](Self::read_message), of bytes that are in the data area, too.
    #[cold]
    fn read_long_message(&self, index: u32, offset: usize, len: usize, into: &mut Vec<u8>) {
        let first = len.min(self.header_bytes.saturating_sub(offset));
        self.arena.read_message(index as usize * self.header_bytes + offset, first, into);
        let mut rest = Vec::new();
        let area = self.area_base + index as usize * self.area_bytes;
        let behind = offset + first - self.header_bytes;
        self.arena.read_message(area + behind, len - first, &mut rest);
        into.extend_from_slice(&rest);
    }

    /// Copies payload out of a message.
    pub fn read_payload(&self, index: u32, offset: usize, len: usize, into: &mut Vec<u8>) {
        into.clear();
        into.resize(len, 0);
        let mut at = 0;
        for part in self.parts(index, offset, len) {
            part.copy_to(0, &mut into[at..at + part.len()]);
            at += part.len();
        }
    }

    /// Copies payload out of a message to where it belongs: `list` from `at` on.
    pub fn place_payload(&self, index: u32, offset: usize, len: usize, list: &[Span], at: usize) {
        let mut at = at;
        for part in self.parts(index, offset, len) {
            segments::copy_span_in(list, at, &part);
            at += part.len();
        }
    }
}

/// Makes an arena known to a device that wants that.
///
/// # Errors
/// [`NodeError::Register`].
pub fn register_local(
    domain: &ProtectionDomain,
    arena: &Arc<Arena>,
) -> Result<Option<MemoryRegion>, NodeError> {
    if !domain.attr().local_registration {
        return Ok(None);
    }
    let access = Access { remote_read: false, remote_write: false };
    Ok(Some(domain.device().register(arena.span(0, arena.len()), access)?))
}

/// Where headers of tagged replies land: a piece of memory per request under way, made when it
/// is first needed.
#[derive(Default)]
pub struct ReplyMemory {
    chunks: Vec<(Arc<Arena>, Option<MemoryRegion>)>,
    free: Vec<u32>,
    bytes: usize,
}

const CHUNK: usize = 64;

impl ReplyMemory {
    /// Pieces of `bytes` each.
    pub fn new(bytes: usize) -> ReplyMemory {
        ReplyMemory { bytes: bytes.next_multiple_of(64), ..ReplyMemory::default() }
    }

    /// A piece.
    ///
    /// # Errors
    /// [`SubmitError::QueueFull`] where replies give some back, else [`SubmitError::NoMemory`].
    #[inline(always)]
    pub fn take(&mut self, domain: &ProtectionDomain) -> Result<u32, SubmitError> {
        if let Some(piece) = self.free.pop() {
            return Ok(piece);
        }
        let is_in_use = !self.chunks.is_empty();
        let none = if is_in_use { SubmitError::QueueFull } else { SubmitError::NoMemory };
        self.grow(domain).map_err(|_| none)?;
        self.free.pop().ok_or(none)
    }

    /// Makes some more pieces.
    ///
    /// # Errors
    /// [`NodeError`].
    #[cold]
    pub fn grow(&mut self, domain: &ProtectionDomain) -> Result<(), NodeError> {
        let arena = Arena::new(CHUNK * self.bytes)?;
        let region = register_local(domain, &arena)?;
        let first = (self.chunks.len() * CHUNK) as u32;
        self.chunks.push((arena, region));
        self.free.extend((first..first + CHUNK as u32).rev());
        Ok(())
    }

    /// Gives it back.
    pub fn put(&mut self, index: u32) {
        self.free.push(index);
    }

    /// Its memory.
    #[inline]
    pub fn span(&self, index: u32) -> Span {
        let (arena, at) = self.place(index);
        arena.span(at, self.bytes)
    }

    /// The bytes where the header of a reply is; those behind its end have no meaning.
    pub fn first_bytes(&self, index: u32) -> [u8; HEADER_BYTES] {
        let (arena, at) = self.place(index);
        arena.message_bytes(at)
    }

    /// Copies the `len` bytes behind the header of a reply to `into`, in place of what it held.
    #[inline(always)]
    pub fn read_message(&self, index: u32, len: usize, into: &mut Vec<u8>) {
        assert!(len <= self.bytes - HEADER_BYTES, "message outside of its memory");
        let (arena, at) = self.place(index);
        arena.read_message(at + HEADER_BYTES, len, into);
    }

    fn place(&self, index: u32) -> (&Arc<Arena>, usize) {
        let (arena, _) = &self.chunks[index as usize / CHUNK];
        (arena, index as usize % CHUNK * self.bytes)
    }
}
