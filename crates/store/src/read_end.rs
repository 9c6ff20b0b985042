//! Reads whose end is told, where nobody polls.

use std::sync::Arc;

use dafs_protocol::Status;

/// Who is told how a read ended.
pub trait ReadWaiter: Send + Sync {
    /// Once, in whatever thread it ended, also before the call that began it has returned. The answer
    /// is that of [`read_at`](crate::File::read_at); `None`: the store dropped the call, which it may not.
    fn ended(self: Arc<Self>, answer: Option<Result<usize, Status>>);
}

/// The end of a read, which is told to one who waits, also when this is dropped.
pub struct ReadEnd(Option<Arc<dyn ReadWaiter>>);

impl ReadEnd {
    /// That of a read which this waiter is told of.
    #[inline]
    pub fn new(waiter: Arc<dyn ReadWaiter>) -> ReadEnd {
        ReadEnd(Some(waiter))
    }

    /// The answer is here.
    #[inline]
    pub fn tell(mut self, answer: Result<usize, Status>) {
        if let Some(waiter) = self.0.take() {
            waiter.ended(Some(answer));
        }
    }
}

impl Drop for ReadEnd {
    fn drop(&mut self) {
        if let Some(waiter) = self.0.take() {
            waiter.ended(None);
        }
    }
}
