//! What an open file in memory knows of itself.

use std::sync::Arc;

use super::Shared;

/// One object for all opens of a file at a time; keeps the inode while it lives.
pub(super) struct MemoryFile {
    pub(super) shared: Arc<Shared>,
    pub(super) inode: u64,
    pub(super) generation: u64,
    pub(super) device: u64,
    pub(super) boot: u64,
    pub(super) direct: bool,
}
