//! One call of the store that fills pages, as a future that is no box.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use dafs_store::{Answer, File};

use super::CachedFile;
use super::core::{Pinned, count};
use crate::job::Outcome;
use crate::pool::SLOT;

/// Reads pages in from the store.
pub(crate) struct Fill {
    file: Arc<CachedFile>,
    handle: Arc<dyn File>,
    pages: Arc<Pinned>,
    id: u64,
    first: u64,
    /// Once it is asked.
    answer: Option<Answer<usize>>,
}

impl Fill {
    /// Nothing is asked before it is polled.
    pub(crate) fn new(
        file: Arc<CachedFile>,
        handle: Arc<dyn File>,
        pages: Arc<Pinned>,
        id: u64,
        first: u64,
    ) -> Fill {
        Fill { file, handle, pages, id, first, answer: None }
    }
}

impl Future for Fill {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let Fill { file, handle, pages, id, first, answer } = self.get_mut();
        let answer = answer.get_or_insert_with(|| {
            count(&file.core.counters.fills, 1);
            handle.read_at(*first * SLOT, file.core.spans(&pages.pages))
        });
        Pin::new(answer).poll(context).map(|answer| file.filled(*id, pages, answer))
    }
}
