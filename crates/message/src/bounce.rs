//! Memory that stands in for what the device cannot know: lent slices, and what it refused to
//! register. Costs a copy, and keeps the bulk way.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dafs_fabric::{
    Arena, MemoryRegion, PoolPiece, ProtectionDomain, SgList, SharedPool, Span, sg_bytes,
};

use crate::config::NodeError;
use crate::receive_pool::register_local;
use crate::segments;

/// The smallest piece, and bytes of all pieces of a node but those of its reserve.
const PIECE_BYTES_MIN: usize = 64 << 10;
const BYTES_MAX: usize = 64 << 20;
/// A free piece so many times as large as needed is left for who needs more.
const WASTE_MAX: usize = 4;

/// One request, with its reply, needs no more pieces.
pub const ENOUGH: usize = 2;

/// The pieces of a node.
pub struct BouncePool {
    pieces: Arc<Mutex<Pieces>>,
    /// Where they come from, if the device reaches shared memory only.
    shared: Option<SharedPool>,
}

#[derive(Default)]
struct Pieces {
    free: Vec<Piece>,
    /// Pieces that are there from the start, so that requests move where the device registers nothing
    /// more.
    reserve: Vec<Piece>,
    /// Of all others, also of those in use.
    bytes: usize,
    /// Who has each piece in use.
    owners: Vec<Owner>,
    /// A piece came back since this was last asked.
    came_back: bool,
}

/// Who takes pieces: a connection; `None`: all are one.
pub type Owner = Option<u32>;

enum Piece {
    /// One arena, so that a peer that may reach it reaches no other.
    Own {
        arena: Arc<Arena>,
        /// Keeps it known to devices that need that.
        _region: Option<MemoryRegion>,
        is_reserve: bool,
    },
    /// Peers reach all of the pool.
    Shared(PoolPiece),
}

/// A piece in use. Goes back to its pool when it is dropped: not before the device has left it.
pub struct Bounce {
    piece: Option<Piece>,
    memory: SgList,
    owner: Owner,
    pool: Arc<Mutex<Pieces>>,
}

fn locked(pieces: &Mutex<Pieces>) -> MutexGuard<'_, Pieces> {
    // Nothing panics while it is held.
    pieces.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Piece {
    fn new(domain: &ProtectionDomain, bytes: usize, is_reserve: bool) -> Result<Piece, NodeError> {
        let arena = Arena::new(bytes)?;
        let region = register_local(domain, &arena)?;
        Ok(Piece::Own { arena, _region: region, is_reserve })
    }

    /// Its first bytes.
    fn span(&self, len: usize) -> Span {
        match self {
            Piece::Own { arena, .. } => arena.span(0, len),
            Piece::Shared(piece) => piece.span().part(0, len),
        }
    }

    /// Bytes that it can have.
    fn room(&self) -> usize {
        match self {
            Piece::Own { arena, .. } => arena.len(),
            Piece::Shared(piece) => piece.span().len(),
        }
    }
}

impl BouncePool {
    /// With a reserve of so many pieces, each of so many bytes, where the device must know what it is
    /// given.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn new(
        domain: &ProtectionDomain,
        reserve: usize,
        reserve_bytes: usize,
    ) -> Result<BouncePool, NodeError> {
        let mut pieces = Pieces::default();
        if domain.attr().local_registration {
            for _ in 0..reserve {
                pieces.reserve.push(Piece::new(domain, reserve_bytes, true)?);
            }
        }
        // Where it must be registered, too, it goes in pieces.
        let attr = domain.attr();
        let is_shared = attr.shared_memory && !attr.local_registration;
        let shared = is_shared.then(|| SharedPool::new(BYTES_MAX));
        Ok(BouncePool { pieces: Arc::new(Mutex::new(pieces)), shared })
    }

    /// What stands in for `memory`, whose bytes are not there yet; `None`: there is nothing left.
    pub fn take(
        &self,
        domain: &ProtectionDomain,
        owner: Owner,
        memory: &SgList,
    ) -> Option<Box<Bounce>> {
        let len = sg_bytes(memory);
        let mut pieces = locked(&self.pieces);
        let piece = match &self.shared {
            Some(pool) => Piece::Shared(pool.take_large(len)?),
            None => pieces
                .free(len)
                .or_else(|| pieces.grow(domain, len))
                .or_else(|| pieces.reserve(owner, len))?,
        };
        pieces.owners.push(owner);
        Some(Box::new(Bounce {
            piece: Some(piece),
            memory: memory.clone(),
            owner,
            pool: self.pieces.clone(),
        }))
    }

    /// Nobody has a piece that would come back.
    pub fn is_idle(&self) -> bool {
        locked(&self.pieces).owners.is_empty()
    }

    /// Whether a piece came back since the last call.
    pub fn came_back(&self) -> bool {
        std::mem::take(&mut locked(&self.pieces).came_back)
    }
}

impl Pieces {
    fn free(&mut self, len: usize) -> Option<Piece> {
        let fit = len..=len.max(PIECE_BYTES_MIN).saturating_mul(WASTE_MAX);
        let free = self.free.iter().enumerate().map(|(at, piece)| (at, piece.room()));
        let (at, _) = free.filter(|(_, bytes)| fit.contains(bytes)).min_by_key(|(_, b)| *b)?;
        Some(self.free.swap_remove(at))
    }

    /// The last of them are for those who have less.
    fn reserve(&mut self, owner: Owner, len: usize) -> Option<Piece> {
        let has = self.owners.iter().filter(|of| owner.is_some() && **of == owner).count();
        let is_there = has < ENOUGH || self.reserve.len() > ENOUGH;
        is_there.then(|| self.reserve.pop_if(|piece| piece.room() >= len)).flatten()
    }

    #[cold]
    fn grow(&mut self, domain: &ProtectionDomain, len: usize) -> Option<Piece> {
        let bytes = len.checked_next_power_of_two()?.max(PIECE_BYTES_MIN);
        if self.bytes + bytes > BYTES_MAX {
            // None that is free fits.
            self.bytes -= self.free.drain(..).map(|piece| piece.room()).sum::<usize>();
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

    /// The memory for which it stands.
    pub fn memory(&self) -> &SgList {
        &self.memory
    }

    fn span(&self, len: usize) -> Option<Span> {
        self.piece.as_ref().map(|piece| piece.span(len))
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
        if let Some(at) = pieces.owners.iter().position(|owner| *owner == self.owner) {
            pieces.owners.swap_remove(at);
        }
        pieces.came_back = true;
        match self.piece.take() {
            Some(piece @ Piece::Own { is_reserve: true, .. }) => pieces.reserve.push(piece),
            Some(piece @ Piece::Own { .. }) => pieces.free.push(piece),
            // Back to its pool.
            Some(Piece::Shared(_)) | None => {}
        }
    }
}
