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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::{Pending, pending};

    /// What was told.
    #[derive(Default)]
    struct Told(Mutex<Vec<Option<Result<usize, Status>>>>);

    impl ReadWaiter for Told {
        fn ended(self: Arc<Self>, answer: Option<Result<usize, Status>>) {
            self.0.lock().expect("nobody panics").push(answer);
        }
    }

    fn told(begin: impl FnOnce(ReadEnd)) -> Vec<Option<Result<usize, Status>>> {
        let told = Arc::new(Told::default());
        begin(ReadEnd::new(told.clone()));
        std::mem::take(&mut *told.0.lock().expect("nobody panics"))
    }

    #[test]
    fn each_end_is_told_once() {
        for answer in [Ok(7), Err(Status::Io)] {
            assert_eq!(told(|end| end.tell(answer)), [Some(answer)]);
            assert_eq!(told(|end| Pending::ready(answer).then(end)), [Some(answer)]);
            let here = |end| {
                let (completer, pending) = pending();
                completer.complete(answer);
                pending.then(end);
            };
            let later = |end| {
                let (completer, pending) = pending();
                pending.then(end);
                completer.complete(answer);
            };
            assert_eq!((told(here), told(later)), (vec![Some(answer)], vec![Some(answer)]));
        }
    }

    #[test]
    fn a_dropped_call_is_told() {
        let before = |end| {
            let (completer, pending) = pending();
            drop(completer);
            pending.then(end);
        };
        let later = |end| {
            let (completer, pending) = pending();
            pending.then(end);
            drop(completer);
        };
        assert_eq!((told(drop), told(before), told(later)), (vec![None], vec![None], vec![None]));
    }
}
