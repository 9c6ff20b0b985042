//! Memory that requests are read to. The data of a large WRITE may stay in it longer than its
//! call: then the thread that read it goes on with other memory.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use dafs_fabric::mem::{Buffer, PAGE_BYTES};

use super::init::MAX_WRITE;
use super::lock;

/// Pieces of memory that wait to be used again.
const SPARES_MAX: usize = 16;

/// Where memory of requests comes from, and goes back to: fresh memory costs more than a copy.
#[derive(Default)]
pub(super) struct Requests {
    spares: Mutex<Vec<Buffer>>,
}

impl Requests {
    /// Memory for one request; `make`: where there is no spare one.
    ///
    /// # Errors
    /// The system has none.
    pub(super) fn take(
        self: &Arc<Self>,
        make: impl FnOnce(usize) -> io::Result<Buffer>,
    ) -> io::Result<Arc<RequestMemory>> {
        let spare = lock(&self.spares).pop();
        let bytes = PAGE_BYTES * 2 + MAX_WRITE as usize;
        let buffer = spare.map_or_else(|| make(bytes), Ok)?;
        Ok(Arc::new(RequestMemory { buffer: Some(buffer), home: self.clone() }))
    }
}

/// What a request was read to. Whoever holds it keeps the request's bytes as they are.
pub struct RequestMemory {
    /// Always there, but for its drop.
    buffer: Option<Buffer>,
    home: Arc<Requests>,
}

impl RequestMemory {
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.buffer.as_deref_mut().unwrap_or_default()
    }

    /// Large requests come, and stay in such memory.
    pub(super) fn will_be_filled(&self) {
        self.buffer.as_ref().inspect(|buffer| buffer.will_be_filled());
    }
}

impl Deref for RequestMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.as_deref().unwrap_or_default()
    }
}

impl PartialEq for RequestMemory {
    fn eq(&self, other: &RequestMemory) -> bool {
        **self == **other
    }
}

impl AsRef<[u8]> for RequestMemory {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for RequestMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestMemory").field("bytes", &self.len()).finish_non_exhaustive()
    }
}

impl Drop for RequestMemory {
    fn drop(&mut self) {
        let mut spares = lock(&self.home.spares);
        if spares.len() < SPARES_MAX {
            spares.extend(self.buffer.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn private(bytes: usize) -> io::Result<Buffer> {
        Buffer::new(bytes).map_err(io::Error::other)
    }

    #[test]
    fn memory_is_used_again_when_nobody_holds_it() {
        let requests = Arc::new(Requests::default());
        let mut first = requests.take(private).expect("memory");
        let at = first.as_ptr();
        let holder = first.clone();
        assert!(Arc::get_mut(&mut first).is_none(), "its bytes stay");
        drop(first);
        assert_ne!(requests.take(private).expect("memory").as_ptr(), at);
        drop(holder);
        assert_eq!(requests.take(private).expect("memory").as_ptr(), at);
        drop(
            (0..2 * SPARES_MAX)
                .map(|_| requests.take(private).expect("memory"))
                .collect::<Vec<_>>(),
        );
        assert_eq!(lock(&requests.spares).len(), SPARES_MAX);
    }
}
