//! Memory that stands in for what the device cannot know: lent slices, and what it refused to
//! register. Costs a copy, and keeps the bulk way.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dafs_fabric::{Arena, Domain, MemoryRegion, SgList, Span, sg_bytes};

use crate::config::NodeError;
use crate::receive_pool::register_local;
use crate::segments;

/// Bytes of each of two pieces that are there from the start, so that one request, with its reply,
/// always finds some where the device registers nothing more.
const RESERVE_BYTES: usize = 1 << 20;
/// The smallest piece, and bytes of all pieces of a node.
const PIECE_BYTES_MIN: usize = 64 << 10;
const BYTES_MAX: usize = 64 << 20;

/// The pieces of a node.
pub struct BouncePool(Arc<Mutex<Pieces>>);

#[derive(Default)]
struct Pieces {
    free: Vec<Piece>,
    /// Of all pieces, also of those in use.
    bytes: usize,
    used: usize,
}

/// One arena, so that a peer that may reach it reaches no other.
struct Piece {
    arena: Arc<Arena>,
    /// Keeps it known to devices that need that.
    _region: Option<MemoryRegion>,
    is_reserve: bool,
}

/// A piece in use. Goes back to its pool when it is dropped: not before the device has left it.
pub struct Bounce {
    piece: Option<Piece>,
    memory: SgList,
    pool: Arc<Mutex<Pieces>>,
}

fn locked(pieces: &Mutex<Pieces>) -> MutexGuard<'_, Pieces> {
    // Nothing panics while it is held.
    pieces.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Piece {
    fn new(domain: &Domain, bytes: usize, is_reserve: bool) -> Result<Piece, NodeError> {
        let arena = Arena::new(bytes)?;
        let region = register_local(domain, &arena)?;
        Ok(Piece { arena, _region: region, is_reserve })
    }
}

impl BouncePool {
    /// With a reserve where the device must know what it is given.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn new(domain: &Domain) -> Result<BouncePool, NodeError> {
        let mut pieces = Pieces::default();
        if domain.attr().local_registration {
            for _ in 0..2 {
                pieces.free.push(Piece::new(domain, RESERVE_BYTES, true)?);
                pieces.bytes += RESERVE_BYTES;
            }
        }
        Ok(BouncePool(Arc::new(Mutex::new(pieces))))
    }

    /// What stands in for `memory`, whose bytes are not there yet; `None`: there is nothing left.
    pub fn take(&self, domain: &Domain, memory: SgList) -> Option<Box<Bounce>> {
        let len = sg_bytes(&memory);
        let mut pieces = locked(&self.0);
        let fits = |(_, piece): &(usize, &Piece)| piece.arena.len() >= len;
        let best = pieces.free.iter().enumerate().filter(fits).min_by_key(|(_, p)| p.arena.len());
        let piece = match best.map(|(at, _)| at) {
            Some(at) => pieces.free.swap_remove(at),
            None => pieces.grow(domain, len)?,
        };
        pieces.used += 1;
        Some(Box::new(Bounce { piece: Some(piece), memory, pool: self.0.clone() }))
    }

    /// Nobody has a piece that would come back.
    pub fn is_idle(&self) -> bool {
        locked(&self.0).used == 0
    }
}

impl Pieces {
    #[cold]
    fn grow(&mut self, domain: &Domain, len: usize) -> Option<Piece> {
        let bytes = len.checked_next_power_of_two()?.max(PIECE_BYTES_MIN);
        if self.bytes + bytes > BYTES_MAX {
            // All that are free are too small.
            let dropped = self.free.extract_if(.., |piece| !piece.is_reserve);
            self.bytes -= dropped.map(|piece| piece.arena.len()).sum::<usize>();
        }
        if self.bytes + bytes > BYTES_MAX {
            return None;
        }
        let piece = Piece::new(domain, bytes, false).ok()?;
        self.bytes += bytes;
        Some(piece)
    }
}

impl Bounce {
    /// The memory that stands in: as many bytes.
    pub fn list(&self) -> SgList {
        self.span(sg_bytes(&self.memory)).into_iter().collect()
    }

    fn span(&self, len: usize) -> Option<Span> {
        self.piece.as_ref().map(|piece| piece.arena.span(0, len))
    }

    /// Copies what is to leave.
    pub fn copy_in(&self) {
        let (list, mut at) = (self.list(), 0);
        for span in &self.memory {
            segments::copy_span_in(&list, at, span);
            at += span.len();
        }
    }

    /// Copies what came: so many bytes.
    pub fn copy_out(&self, len: usize) {
        if let Some(span) = self.span(len) {
            segments::copy_span_in(&self.memory, 0, &span);
        }
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        let mut pieces = locked(&self.pool);
        pieces.used -= 1;
        pieces.free.extend(self.piece.take());
    }
}
