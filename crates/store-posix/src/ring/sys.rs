//! An io_uring that owns what it transfers, made safe. All `unsafe` of the ring is here.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use dafs_fabric::Span;
use io_uring::{IoUring, opcode, squeue, types};

use crate::sys::Pieces;
use crate::transfer::{Transfer, Way};

/// Calls under way, at most; the completion queue has twice the room.
pub(super) const IN_FLIGHT_MAX: u32 = 256;

const ENTER_GETEVENTS: u32 = 1;

/// What the kernel is to do beside taking what was pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Enter {
    /// Nothing.
    Submit,
    /// Post what has completed.
    Take,
    /// That, and wait until something has.
    Wait,
}

/// A transfer that the kernel has or will get; its descriptor, memory and pieces stay where they
/// are until its completion.
struct Slot<T> {
    transfer: Transfer<T>,
    /// `None`: its memory is one.
    pieces: Option<Box<Pieces>>,
}

/// One thread's ring. What is pushed belongs to it until it comes back from [`Queue::take`].
pub(super) struct Queue<T> {
    ring: IoUring,
    /// Signalled by completions while somebody wants to sleep. The ring's own descriptor does not
    /// wake for those that wait to be asked for.
    event: OwnedFd,
    /// Never grows: the kernel reads the pieces where they are.
    slots: Box<[Option<Slot<T>>]>,
    free: Vec<u32>,
    /// Under whose rights transfers run: this thread's when the ring was made.
    personality: u16,
}

impl<T> Queue<T> {
    pub(super) fn new() -> io::Result<Queue<T>> {
        // Completions are posted when this thread asks for them and not by interrupting it
        // (Linux 6.1).
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(IN_FLIGHT_MAX)
            .or_else(|_| IoUring::new(IN_FLIGHT_MAX))?;
        let event = eventfd()?;
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        let personality = ring.submitter().register_personality()?;
        let slots = (0..IN_FLIGHT_MAX).map(|_| None).collect();
        let mut queue =
            Queue { ring, event, slots, free: (0..IN_FLIGHT_MAX).rev().collect(), personality };
        queue.signals(false);
        Ok(queue)
    }

    /// Becomes readable when something completes after [`signals`](Queue::signals) was set. It is
    /// never read: who waits for it waits for the change.
    pub(super) fn event(&self) -> io::Result<OwnedFd> {
        self.event.try_clone()
    }

    /// Whether completions are signalled.
    pub(super) fn signals(&mut self, on: bool) {
        let queue = self.ring.completion();
        if on { queue.enable_eventfd() } else { queue.disable_eventfd() }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// False: too many are under way.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes a transfer, for which there is room, to be handed over by the next
    /// [`enter`](Queue::enter). How many are.
    #[inline(always)]
    pub(super) fn push(&mut self, transfer: Transfer<T>) -> usize {
        let index = self.free.pop().expect("who pushes has looked for room");
        let pieces = match only(&transfer) {
            Some(_) => None,
            None => {
                let address = |span: &Span| address(transfer.way, span);
                Some(Box::new(Pieces::new(&transfer.memory, 0, address)))
            }
        };
        let slot = self.slots[index as usize].insert(Slot { transfer, pieces });
        let entry = entry(slot).personality(self.personality).user_data(index.into());
        let mut queue = self.ring.submission();
        // SAFETY: the entry's descriptor, pieces and memory are in the slot, which is emptied by
        // its completion only. Spans keep their memory mapped; those that are read into are
        // writable (`as_mut_ptr` says so).
        let pushed = unsafe { queue.push(&entry) };
        pushed.expect("the ring has an entry per slot");
        queue.len()
    }

    /// Hands over what was pushed, and what else is said. No system call when there is nothing to
    /// do.
    pub(super) fn enter(&mut self, what: Enter) -> io::Result<()> {
        let queue = self.ring.submission();
        let (queued, due) = (queue.len(), queue.taskrun() || queue.cq_overflow());
        drop(queue);
        if queued == 0 && !due && what != Enter::Wait {
            return Ok(());
        }
        let queued = u32::try_from(queued).unwrap_or(u32::MAX);
        let wanted = u32::from(what == Enter::Wait);
        let flags = if what == Enter::Submit { 0 } else { ENTER_GETEVENTS };
        let submitter = self.ring.submitter();
        let argument: Option<&libc::sigset_t> = None;
        // SAFETY: no argument; the entries are those of `push`.
        unsafe { submitter.enter(queued, wanted, flags, argument) }.map(drop)
    }

    /// Something waits to be handed over or to be taken.
    pub(super) fn has_work(&mut self) -> bool {
        let queue = self.ring.submission();
        let work = !queue.is_empty() || queue.taskrun() || queue.cq_overflow();
        drop(queue);
        work || !self.ring.completion().is_empty()
    }

    /// A transfer that has ended, and what the kernel says of it: bytes, or a negative errno.
    #[inline(always)]
    pub(super) fn take(&mut self) -> Option<(Transfer<T>, i32)> {
        let entry = self.ring.completion().next()?;
        let index = u32::try_from(entry.user_data()).ok()?;
        let slot = self.slots.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some((slot.transfer, entry.result()))
    }
}

impl<T> Drop for Queue<T> {
    fn drop(&mut self) {
        // The kernel must be through with the memory before it is let go.
        while self.in_flight() > 0 {
            let _ = self.enter(Enter::Wait);
            while self.take().is_some() {}
        }
    }
}

fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: numbers.
    let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor, nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Where a transfer this way begins in this memory.
fn address(way: Way, span: &Span) -> *mut u8 {
    match way {
        Way::Read => span.as_mut_ptr(),
        Way::Write => span.as_ptr().cast_mut(),
    }
}

/// Its memory, if that is one piece, and not too long for a call.
fn only<T>(transfer: &Transfer<T>) -> Option<(*mut u8, u32)> {
    let [span] = transfer.memory.as_slice() else { return None };
    Some((address(transfer.way, span), u32::try_from(span.len()).ok()?))
}

fn entry<T>(slot: &Slot<T>) -> squeue::Entry {
    let Slot { transfer, pieces } = slot;
    let (fd, offset) = (types::Fd(transfer.fd.as_raw_fd()), transfer.offset);
    match (transfer.way, only(transfer)) {
        (Way::Read, Some((to, len))) => opcode::Read::new(fd, to, len).offset(offset).build(),
        (Way::Write, Some((from, len))) => opcode::Write::new(fd, from, len).offset(offset).build(),
        (way, None) => {
            let (list, count) = pieces.as_ref().map_or((std::ptr::null(), 0), |pieces| {
                (pieces.as_ptr(), u32::try_from(pieces.count()).unwrap_or(0))
            });
            match way {
                Way::Read => opcode::Readv::new(fd, list, count).offset(offset).build(),
                Way::Write => opcode::Writev::new(fd, list, count).offset(offset).build(),
            }
        }
    }
}
