//! An io_uring by which entries go to the kernel and come back. All `unsafe` of rings is here.

#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use io_uring::{IoUring, opcode, squeue, types};
use zerocopy::IntoBytes;

use super::entry::{Entry, Places};
use crate::kernel::abi;
use crate::kernel::channel::Channel;

/// Commands that are handed over at once.
const BATCH: u32 = 64;

/// Entries beyond that complete all the same, only slower.
const COMPLETIONS_MAX: usize = 1 << 16;

/// The ring of one thread: the one that makes it, or, of those made by
/// [`for_other`](Ring::for_other), that calls [`enable`](Ring::enable).
pub struct Ring {
    ring: IoUring<squeue::Entry128>,
    /// Open as long as commands may be under way.
    device: Channel,
    /// What the kernel has; an entry comes back by its completion only.
    entries: Vec<Option<Entry>>,
    /// Where each of those is, for the kernel to read.
    places: Box<[Places]>,
    free: Vec<u32>,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("entries", &self.held()).finish_non_exhaustive()
    }
}

impl Ring {
    /// For as many entries at once.
    ///
    /// # Errors
    /// The system's.
    pub fn new(device: &Channel, entries_max: usize) -> io::Result<Ring> {
        Ring::make(device, entries_max, false)
    }

    /// For one entry, of another thread.
    ///
    /// # Errors
    /// The system's.
    pub fn for_other(device: &Channel) -> io::Result<Ring> {
        Ring::make(device, 1, true)
    }

    fn make(device: &Channel, entries_max: usize, disabled: bool) -> io::Result<Ring> {
        let slots = u32::try_from(entries_max).map_err(|_| io::ErrorKind::InvalidInput)?;
        let completions = entries_max.next_power_of_two().min(COMPLETIONS_MAX) as u32;
        let mut builder = IoUring::<squeue::Entry128>::builder();
        // What comes is copied by this thread, when it asks.
        builder.setup_single_issuer().setup_defer_taskrun().setup_cqsize(completions.max(2));
        if disabled {
            builder.setup_r_disabled();
        }
        let ring = builder.build(slots.clamp(1, BATCH))?;
        Ok(Ring {
            ring,
            device: device.clone(),
            entries: (0..slots).map(|_| None).collect(),
            places: vec![Places::default(); entries_max].into(),
            free: (0..slots).rev().collect(),
        })
    }

    /// This thread is the one, from now on.
    ///
    /// # Errors
    /// The system's.
    pub fn enable(&self) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()
    }

    /// Entries that the kernel has.
    pub fn held(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Makes a new entry known, for requests of its queue. What is pushed goes to the kernel with
    /// the next [`wait`](Ring::wait) or [`submit`](Ring::submit) at the latest.
    ///
    /// # Panics
    /// Where the kernel has as many as the ring is for.
    pub fn register(&mut self, entry: Entry) {
        self.push(entry, abi::ring::REGISTER);
    }

    /// Hands over the reply in an entry, which then takes another request.
    ///
    /// # Panics
    /// As of [`register`](Ring::register).
    pub fn commit(&mut self, entry: Entry) {
        self.push(entry, abi::ring::COMMIT_AND_FETCH);
    }

    fn push(&mut self, entry: Entry, command: u32) {
        let index = self.free.pop().expect("who pushes has looked for room");
        let entry = self.entries[index as usize].insert(entry);
        let mut about = [0; 80];
        entry.command().write_to_prefix(&mut about).expect("24 bytes");
        let places = &mut self.places[index as usize];
        *places = entry.places();
        let device = types::Fd(self.device.as_fd().as_raw_fd());
        let mut command = opcode::UringCmd80::new(device, command)
            .cmd(about)
            .addr(Some(places.as_ptr() as u64))
            .build()
            .user_data(index.into());
        set_len(&mut command, places.len() as u32);
        while self.ring.submission().is_full() {
            // What is refused for now is asked again.
            if self.submit().is_err() {
                std::thread::yield_now();
            }
        }
        let mut queue = self.ring.submission();
        // SAFETY: the memory that the command names is the entry's, which nobody can use while it
        // is in `entries`: it is taken from there by its completion only, and leaked by a drop. Its
        // places lie in `places` until then, which the kernel reads when it is handed over.
        let pushed = unsafe { queue.push(&command) };
        pushed.expect("there is room");
    }

    /// Hands over what was pushed.
    ///
    /// # Errors
    /// The system's, also such as pass.
    pub fn submit(&mut self) -> io::Result<()> {
        self.ring.submit().map(drop)
    }

    /// Hands over what was pushed, and waits until [`take`](Ring::take) has something.
    ///
    /// # Errors
    /// The system's, also such as pass.
    pub fn wait(&mut self) -> io::Result<()> {
        self.ring.submit_and_wait(1).map(drop)
    }

    /// An entry that is back: with a request, or with the negative errno for which it has none.
    pub fn take(&mut self) -> Option<(Entry, i32)> {
        let completion = self.ring.completion().next()?;
        let index = u32::try_from(completion.user_data()).ok()?;
        let entry = self.entries.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some((entry, completion.result()))
    }
}

/// The number of places, which the library has no name for.
fn set_len(command: &mut squeue::Entry128, len: u32) {
    const LEN_AT: usize = 24;
    let start = (&raw mut *command).cast::<u8>();
    // SAFETY: within the 128 bytes of the kernel's structure, which this one is as C has it.
    let at = unsafe { start.add(LEN_AT) };
    // SAFETY: as above; four bytes at a multiple of four, and each value is one.
    unsafe { at.cast::<u32>().write(len) };
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Memory that the kernel may still use stays as it is.
        self.entries.drain(..).flatten().for_each(std::mem::forget);
    }
}
