//! What a peer lets this process reach: its table, and the files that it shares. Nothing that stands in the
//! table is believed: it is copied word by word, then compared with what was mapped.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use dafs_fabric::{RemoteSpan, Rkey, Span, Words};

use crate::memory_region::{ENTRY_WORDS, READ, TABLE_BYTES, WRITE, entry_of};
use crate::ring::Violation;
use crate::shared::{Account, PeerFile};
use crate::wire::{Limits, Message};

/// Why there is no such memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// The peer's table does not allow it.
    Refused,
    /// It, or the table, was not seen: it may be in the socket.
    Segment,
}

/// A file of which the peer has told.
#[derive(Debug)]
struct Known {
    number: u64,
    /// `None`: there was no room for it in the user's share, or among the addresses. To touch it is refused.
    file: Option<(Span, Arc<PeerFile>)>,
}

/// The memory of a peer.
#[derive(Debug)]
pub struct PeerMemory {
    limits: Limits,
    table: Option<Words>,
    segments: Vec<Known>,
    /// What was found last.
    last: Option<Entry>,
    /// Whose it is, where it counts.
    account: Option<Account>,
    bytes: u64,
}

impl PeerMemory {
    /// None yet, and so much at most.
    pub fn new(limits: Limits, account: Option<Account>) -> PeerMemory {
        PeerMemory { limits, table: None, segments: Vec::new(), last: None, account, bytes: 0 }
    }

    /// What a message from the socket says.
    pub fn take(
        &mut self,
        message: &Message<'_>,
        mut descriptors: Vec<OwnedFd>,
    ) -> Result<(), Violation> {
        let descriptor = descriptors.pop();
        if !descriptors.is_empty() {
            return Err("too many descriptors");
        }
        match (message, descriptor) {
            (Message::Bell, None) => Ok(()),
            (Message::Table, Some(file)) if self.table.is_none() => self.take_table(&file),
            (Message::Segment(number), Some(file)) => self.take_segment(*number, file),
            (Message::Forget(number), None) => {
                let at = self.segments.iter().position(|known| known.number == *number);
                let known = self.segments.swap_remove(at.ok_or("no such memory to forget")?);
                self.last = None;
                self.bytes -= known.file.map_or(0, |(span, _)| span.len() as u64);
                Ok(())
            }
            _ => Err("a message that has no place here"),
        }
    }

    fn take_table(&mut self, file: &OwnedFd) -> Result<(), Violation> {
        let words = Words::of_peer(file.as_fd(), TABLE_BYTES);
        let words = words.map_err(|_| "a table that is none")?;
        if words.len() * size_of::<u64>() != TABLE_BYTES {
            return Err("a table of another size");
        }
        self.table = Some(words);
        Ok(())
    }

    fn take_segment(&mut self, number: u64, file: OwnedFd) -> Result<(), Violation> {
        let is_known = self.segments.iter().any(|known| known.number == number);
        if is_known || self.segments.len() as u64 >= u64::from(self.limits.segments) {
            return Err("more shared memory than was agreed");
        }
        let left = self.limits.bytes.saturating_sub(self.bytes);
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let mapped = match &self.account {
            Some(account) => account.map(file, left),
            None => PeerFile::of_server(&file, left),
        };
        let mapped = mapped.map_err(|error| {
            tracing::debug!(%error, "a peer's memory is refused");
            "shared memory that is none, or more than was agreed"
        })?;
        let file = mapped.map(|file| (file.span(), file));
        self.bytes += file.as_ref().map_or(0, |(span, _)| span.len() as u64);
        self.segments.push(Known { number, file });
        Ok(())
    }

    /// The memory in which a piece of registered memory lies, and where in it.
    #[inline(always)]
    pub fn find(&mut self, remote: RemoteSpan, write: bool) -> Result<(&Span, usize), Missing> {
        let key = remote.rkey.0;
        if !self.last.as_ref().is_some_and(|last| last.key == key && self.still_stands(last)) {
            self.look_up(key)?;
        }
        let entry = self.last.as_ref().ok_or(Missing::Segment)?;
        let known = self.segments.get(entry.place).ok_or(Missing::Segment)?;
        let (span, _) = known.file.as_ref().ok_or(Missing::Refused)?;
        let offset = entry.offset_of(remote, write).ok_or(Missing::Refused)?;
        let offset = usize::try_from(offset).map_err(|_| Missing::Refused)?;
        let end = offset.checked_add(remote.len as usize).ok_or(Missing::Refused)?;
        if end > span.len() || write && !span.is_writable() {
            return Err(Missing::Refused);
        }
        Ok((span, offset))
    }

    /// All of a region that may be read; with `write` written, too.
    pub fn region(&mut self, rkey: Rkey, write: bool) -> Result<Span, Missing> {
        self.look_up(rkey.0)?;
        let entry = self.last.as_ref().ok_or(Missing::Segment)?;
        let known = self.segments.get(entry.place).ok_or(Missing::Segment)?;
        let (span, _) = known.file.as_ref().ok_or(Missing::Refused)?;
        let start = RemoteSpan { rkey, addr: entry.addr, len: 0 };
        let may = entry.offset_of(start, false).filter(|_| !write || entry.rights & WRITE != 0);
        let offset = may.ok_or(Missing::Refused)?;
        let [offset, len] = [offset, entry.len].map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= span.len());
        is_inside.then(|| span.part(offset, len)).ok_or(Missing::Refused)
    }

    #[inline(always)]
    fn still_stands(&self, entry: &Entry) -> bool {
        let table = self.table.as_ref();
        table.is_some_and(|table| table.load(entry.at, Ordering::Acquire) == entry.key)
    }

    /// Has what the table says of a key, in a file that is known, as the entry that was found last.
    #[inline(never)]
    fn look_up(&mut self, key: u64) -> Result<(), Missing> {
        let table = self.table.as_ref().ok_or(Missing::Segment)?;
        let at = entry_of(key).ok_or(Missing::Refused)?;
        if table.load(at, Ordering::Acquire) != key {
            return Err(Missing::Refused);
        }
        let [segment, offset, addr, len, rights] = table.load_some(at + 1, Ordering::Relaxed);
        // What was loaded belongs to that key.
        fence(Ordering::Acquire);
        if table.load(at, Ordering::Relaxed) != key {
            return Err(Missing::Refused);
        }
        let place = self.segments.iter().position(|known| known.number == segment);
        let place = place.ok_or(Missing::Segment)?;
        self.last = Some(Entry { key, at, place, offset, addr, len, rights });
        Ok(())
    }
}

/// An entry of a peer's table. It says the same as long as its key stands there, which is never used again.
#[derive(Debug, Clone, Copy)]
struct Entry {
    key: u64,
    /// Where in the table.
    at: usize,
    /// Of its file, among those that are known.
    place: usize,
    offset: u64,
    addr: u64,
    len: u64,
    rights: u64,
}

impl Entry {
    /// Where in its file a piece of it begins, if the peer lets us reach that.
    #[inline(always)]
    fn offset_of(&self, remote: RemoteSpan, write: bool) -> Option<u64> {
        let from = remote.addr.checked_sub(self.addr)?;
        let end = from.checked_add(u64::from(remote.len))?;
        let allowed = self.rights & if write { WRITE } else { READ } != 0;
        (allowed && end <= self.len).then_some(self.offset.checked_add(from)?)
    }
}

const _: () = assert!(ENTRY_WORDS >= 6);
