//! What peers have lent: memory of theirs that is read in place until its loan is dropped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dafs_fabric::Views;

use crate::event::ConnId;

/// Data of a reply where the peer has it. It may be read for as long as this lives, also after the connection and
/// the node: the peer does not use its memory again before it is dropped, in any thread.
#[derive(Debug)]
pub struct Loan {
    /// Dropped after the return was noted: until then the socket of an ended connection stays.
    views: Views,
    conn: ConnId,
    number: u32,
    returned: Arc<Returned>,
}

impl Loan {
    pub(crate) fn new(
        views: Views,
        (conn, number): (ConnId, u32),
        returned: &Arc<Returned>,
    ) -> Loan {
        Loan { views, conn, number, returned: returned.clone() }
    }

    /// The bytes, in order.
    pub fn pieces(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.views.iter()
    }

    /// How many bytes.
    pub fn bytes(&self) -> usize {
        self.views.bytes()
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.returned.add(self.conn, self.number);
    }
}

/// Loans that were dropped, of all connections of a port.
#[derive(Debug, Default)]
pub struct Returned {
    some: AtomicBool,
    numbers: Mutex<Vec<(ConnId, u32)>>,
}

impl Returned {
    fn add(&self, conn: ConnId, number: u32) {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner).push((conn, number));
        self.some.store(true, Ordering::Release);
    }

    /// Whether there are some.
    #[inline]
    pub fn any(&self) -> bool {
        self.some.load(Ordering::Relaxed)
    }

    /// Them all.
    pub fn take(&self) -> Vec<(ConnId, u32)> {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        self.some.store(false, Ordering::Relaxed);
        std::mem::take(&mut numbers)
    }
}
