//! The ring of a thread: transfers that it begins are completed when it looks, without any other
//! thread and without a wake-up.
//!
//! A server's worker has one ([`ThreadRing`]). It looks between network and requests, and sleeps
//! on the ring's descriptor together with its sockets. Other threads have none: their transfers
//! run in the pool.

#[allow(unsafe_code)]
mod sys;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use dafs_store::{ThreadIo, set_thread_wait};

use super::identity;
use super::transfer::{self, Transfer, Waiting};
use sys::{Enter, Queue};

/// Transfers that are handed over together: so many, or fewer when the thread looks. The disk is
/// not to wait until a long row of requests has been read.
const BEGIN_AT: usize = 4;

/// How often a ring that is closed looks.
const LOOK: Duration = Duration::from_millis(1);

thread_local! {
    static RING: RefCell<Option<Ring>> = const { RefCell::new(None) };
}

/// The system has io_uring and allows it.
pub(super) fn probe() -> io::Result<()> {
    Queue::<()>::new().map(drop)
}

struct Ring {
    queue: Queue<Waiting>,
    /// What found the ring full, in order. Bounded by the cache: each has pages of its own.
    behind: VecDeque<Transfer<Waiting>>,
}

impl Ring {
    /// Transfers that have not completed.
    fn left(&self) -> usize {
        self.queue.in_flight() + self.behind.len()
    }

    #[inline(always)]
    fn start(&mut self, transfer: Transfer<Waiting>) {
        if !self.queue.has_room() {
            return self.behind.push_back(transfer);
        }
        if self.queue.push(transfer) >= BEGIN_AT {
            enter(self, Enter::Submit);
        }
    }

    #[inline(always)]
    fn take(&mut self) -> Option<(Transfer<Waiting>, i32)> {
        let taken = self.queue.take();
        if taken.is_some()
            && let Some(next) = self.behind.pop_front()
        {
            self.start(next);
        }
        taken
    }
}

/// This thread's ring; it ends, with all its transfers completed, when this is dropped.
#[derive(Debug)]
pub struct ThreadRing {
    event: OwnedFd,
    /// Belongs to its thread.
    _here: PhantomData<*const ()>,
}

impl ThreadRing {
    /// Gives this thread a ring. Transfers run under the rights that it has now.
    ///
    /// # Errors
    /// The system has no io_uring, or does not allow it; this thread has one.
    pub fn open() -> io::Result<ThreadRing> {
        // Quotas hold for transfers, too.
        identity::prepare();
        let queue = Queue::new()?;
        let event = queue.event()?;
        RING.with_borrow_mut(|ring| match ring {
            Some(_) => Err(io::Error::from(io::ErrorKind::AlreadyExists)),
            none => {
                *none = Some(Ring { queue, behind: VecDeque::new() });
                // Who blocks on an answer looks meanwhile: nobody else does.
                set_thread_wait(Some(wait_for_one));
                Ok(ThreadRing { event, _here: PhantomData })
            }
        })
    }

    /// One for the stores of a thread that has none yet.
    ///
    /// # Errors
    /// As [`open`](ThreadRing::open).
    pub(super) fn attach() -> io::Result<Option<ThreadRing>> {
        match is_here() {
            true => Ok(None),
            false => ThreadRing::open().map(Some),
        }
    }

    /// Becomes readable when something completes while this thread sleeps. It is never read: the
    /// sleeper must look for the change (edge-triggered).
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// This thread is about to sleep; false: there is work, do not.
    pub fn prepare_sleep(&self) -> bool {
        RING.with_borrow_mut(|ring| {
            let Some(ring) = ring else { return true };
            ring.queue.signals(true);
            // Either the kernel sees that, or this sees what the kernel has marked before.
            fence(Ordering::SeqCst);
            !ring.queue.has_work()
        })
    }

    /// The sleep is over.
    pub fn awake(&self) {
        RING.with_borrow_mut(|ring| {
            if let Some(ring) = ring {
                ring.queue.signals(false);
            }
        });
    }

    /// Hands over what was begun and completes what has ended; true if there was any. Never
    /// blocks.
    pub fn poll(&self) -> bool {
        let had_work = RING.with_borrow_mut(|ring| {
            let Some(ring) = ring else { return false };
            let work = ring.queue.has_work();
            enter(ring, Enter::Take);
            work
        });
        complete_ended() || had_work
    }
}

impl ThreadRing {
    /// Waits until all transfers have completed; not longer than this after the last one did. What
    /// a disk never answers stays with the kernel, memory and all, until the process ends.
    ///
    /// # Errors
    /// How many transfers those are.
    pub fn close(self, patience: Duration) -> Result<(), usize> {
        let mut last = Instant::now();
        loop {
            if self.poll() {
                last = Instant::now();
                continue;
            }
            let left = RING.with_borrow(|ring| ring.as_ref().map_or(0, Ring::left));
            if left == 0 {
                return Ok(());
            }
            if last.elapsed() >= patience {
                // Its slots are the kernel's to write to.
                std::mem::forget(RING.take());
                return Err(left);
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl ThreadIo for ThreadRing {
    fn event(&self) -> BorrowedFd<'_> {
        ThreadRing::event(self)
    }

    fn prepare_sleep(&self) -> bool {
        ThreadRing::prepare_sleep(self)
    }

    fn awake(&self) {
        ThreadRing::awake(self);
    }

    fn poll(&self) -> bool {
        ThreadRing::poll(self)
    }

    fn close(self: Box<Self>, patience: Duration) -> Result<(), usize> {
        ThreadRing::close(*self, patience)
    }
}

impl Drop for ThreadRing {
    fn drop(&mut self) {
        while wait_for_one() {}
        set_thread_wait(None);
        RING.take();
    }
}

/// This thread has a ring.
pub(super) fn is_here() -> bool {
    RING.with_borrow(Option::is_some)
}

/// Begins a transfer in this thread's ring.
///
/// # Errors
/// It has none: the transfer again.
#[inline(always)]
#[allow(clippy::result_large_err, reason = "it is what was given")]
pub(super) fn start(transfer: Transfer<Waiting>) -> Result<(), Transfer<Waiting>> {
    RING.with_borrow_mut(|ring| match ring {
        Some(ring) => {
            ring.start(transfer);
            Ok(())
        }
        None => Err(transfer),
    })
}

/// Blocks until a transfer of this thread has completed; false: none is under way.
pub(super) fn wait_for_one() -> bool {
    let waited = RING.with_borrow_mut(|ring| {
        let Some(ring) = ring.as_mut().filter(|ring| ring.queue.in_flight() > 0) else {
            return false;
        };
        enter(ring, Enter::Wait);
        true
    });
    complete_ended();
    waited
}

/// An error here (EINTR, EAGAIN for want of memory, EBUSY for completions that nobody took)
/// leaves everything queued for the next call.
fn enter(ring: &mut Ring, what: Enter) {
    if let Err(error) = ring.queue.enter(what) {
        tracing::debug!(%error, "io_uring_enter");
    }
}

fn complete_ended() -> bool {
    let mut any = false;
    // Not borrowed while somebody is told: who is told may begin the next transfer.
    while let Some((transfer, result)) = RING.with_borrow_mut(|ring| ring.as_mut()?.take()) {
        any = true;
        transfer::ended(transfer, result);
    }
    any
}
