//! Which file, which caller, which request.

use dafs_protocol::{SessionId, SlotId};

/// A file that the core has open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileKey {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Who gets the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner(pub usize);

/// Device and inode number.
pub(super) type FileId = (u64, u64);

/// A request of a session that was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PastRequest {
    pub(super) session: SessionId,
    pub(super) slot: SlotId,
    pub(super) sequence: u32,
}
