//! Memory of writes that are kept.

use std::ops::{Deref, Range};
use std::sync::Arc;

/// Bytes of memory that kept writes take, with what they take beside their data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeptMemory {
    /// Through one open.
    pub of_open: usize,
    /// Of the whole session.
    pub of_all: usize,
}

/// Bytes in memory that nobody changes while they are held.
#[derive(Clone)]
pub struct SharedBytes {
    memory: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl SharedBytes {
    /// `part` of that memory; `None` where it lies elsewhere.
    pub fn part_of(
        memory: &Arc<dyn AsRef<[u8]> + Send + Sync>,
        part: &[u8],
    ) -> Option<SharedBytes> {
        let whole = (**memory).as_ref();
        let begin = part.as_ptr().addr().checked_sub(whole.as_ptr().addr())?;
        let range = begin..begin.checked_add(part.len())?;
        whole.get(range.clone())?;
        Some(SharedBytes { memory: memory.clone(), range })
    }

    /// Bytes of the memory that they hold.
    pub(crate) fn memory(&self) -> usize {
        (*self.memory).as_ref().len()
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        (*self.memory).as_ref().get(self.range.clone()).unwrap_or_default()
    }
}

impl std::fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedBytes").field("range", &self.range).finish_non_exhaustive()
    }
}
