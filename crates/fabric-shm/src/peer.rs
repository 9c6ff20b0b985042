//! What a device knows of a peer: its socket, and of which memory it was told.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use dafs_fabric::local::PeerProcess;
use dafs_fabric::{Readers, SharedFile};

use crate::admitted::Admission;
use crate::peer_socket::PeerSocket;
use crate::sys;
use crate::wire::{Limits, Message};

/// Files that a peer may share over one connection.
pub const SEGMENTS_MAX: u32 = 64;
/// Bytes of them.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// A file in which this device has, or had, regions.
#[derive(Debug)]
pub struct Segment {
    pub number: u64,
    pub file: Weak<SharedFile>,
    pub bytes: u64,
    pub regions: usize,
    /// These peers are to read it, and no more; how much they map is no limit for others.
    pub readers: Option<Readers>,
}

/// Which files peers map to see what is registered.
#[derive(Debug, Clone, Copy)]
pub struct Tables<'a> {
    /// Those who may have all of it.
    pub all: BorrowedFd<'a>,
    /// The others, where there is something for them.
    pub public: Option<BorrowedFd<'a>>,
}

/// A peer, as the device knows it: the socket, and of what it was told.
#[derive(Debug)]
pub struct Peer {
    socket: PeerSocket,
    process: PeerProcess,
    /// It is told of all: it can then touch all of those files.
    shares: bool,
    /// It is told of what is for its user, and for all.
    admission: OnceLock<Admission>,
    limits: Limits,
    told: Mutex<Told>,
    /// It is to be told more when its socket has room.
    lags: AtomicBool,
    /// It maps some of our memory.
    reaches_us: AtomicBool,
    /// It was told of all memory that it may read.
    reads_all: AtomicBool,
    reading: Mutex<Reading>,
    /// Whose socket it is; a child has it, too.
    owner: u32,
}

/// What this process reads in place of what the peer has lent it.
#[derive(Debug, Default)]
struct Reading {
    views: usize,
    /// The connection has ended: the socket says how long the views live.
    over: bool,
}

/// Something of what a peer has lent is read. Its memory is not let go before the peer hears of the end, by the
/// message that returns it, or by the socket.
pub struct Hold(Arc<Peer>);

impl Drop for Hold {
    fn drop(&mut self) {
        let mut reading = self.0.reading();
        reading.views -= 1;
        if !reading.over || reading.views > 0 {
            return;
        }
        if self.0.owner == std::process::id() {
            sys::shut_down(self.0.fd());
        } else {
            // A child of the one who reads, which may go on: the socket stays as it is, also where it would be closed.
            std::mem::forget(self.0.clone());
        }
    }
}

#[derive(Debug, Default)]
struct Told {
    table: bool,
    /// Of memory that it may read.
    readable: bool,
    /// Numbers and bytes.
    segments: Vec<(u64, u64)>,
}

impl Peer {
    /// At the other end of `socket`.
    pub fn new(socket: PeerSocket, shares: bool, limits: Limits) -> Arc<Peer> {
        Arc::new(Peer {
            process: PeerProcess::of(socket.as_fd()),
            socket,
            shares,
            admission: OnceLock::new(),
            limits,
            told: Mutex::default(),
            lags: AtomicBool::new(false),
            reaches_us: AtomicBool::new(false),
            reads_all: AtomicBool::new(false),
            reading: Mutex::default(),
            owner: std::process::id(),
        })
    }

    fn reading(&self) -> MutexGuard<'_, Reading> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it has lent is read from now on.
    pub fn hold(self: &Arc<Peer>) -> Arc<Hold> {
        self.reading().views += 1;
        Arc::new(Hold(self.clone()))
    }

    /// Tells it that the connection has ended, and that its memory was left; where something that it has lent is
    /// still read, the socket stays until that ends.
    pub fn leave(&self) {
        let mut reading = self.reading();
        reading.over = true;
        if reading.views == 0 {
            sys::shut_down(self.fd());
        } else if let Err(error) = sys::send(self.fd(), &Message::Leave.encode()) {
            // It then waits for the socket, as for a peer that stands still.
            tracing::debug!(%error, "a peer was not told of the end of a connection");
        }
    }

    /// As [`leave`](Self::leave), where the engine itself ends: sockets that nobody has are closed anyway.
    pub fn leave_if_read(&self) {
        let reading = self.reading();
        let is_due = reading.views > 0 && !reading.over;
        drop(reading);
        if is_due {
            self.leave();
        }
    }

    /// It was told of memory that it may read, and may be lent some.
    pub fn may_read(&self) -> bool {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).readable
    }

    pub fn fd(&self) -> RawFd {
        self.socket.as_fd().as_raw_fd()
    }

    pub fn socket(&self) -> &PeerSocket {
        &self.socket
    }

    /// Whose it is.
    pub fn process(&self) -> &PeerProcess {
        &self.process
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    pub fn shares(&self) -> bool {
        self.shares
    }

    /// What is sent must wait until it was told.
    #[inline]
    pub fn lags(&self) -> bool {
        self.lags.load(Ordering::Acquire)
    }

    /// It may write to our memory until it has hung up.
    pub fn reaches_us(&self) -> bool {
        self.reaches_us.load(Ordering::Acquire)
    }

    /// It can be referred to what it may read, and may read that.
    #[inline]
    pub fn reads(&self, readers: Readers) -> bool {
        self.reads_all.load(Ordering::Relaxed) && self.may_have(Some(readers))
    }

    /// From now on it may be told of what is for its user, and for all.
    pub fn admit(&self, admission: Admission) {
        let _ = self.admission.set(admission);
    }

    /// The one place where it is decided who may map what: memory for these readers, or for none of its own.
    #[inline]
    fn may_have(&self, readers: Option<Readers>) -> bool {
        self.shares
            || self.admission.get().is_some_and(|admission| match readers {
                None | Some(Readers::Own) => false,
                Some(Readers::User(uid)) => admission.uid() == uid,
                Some(Readers::All) => true,
            })
    }

    /// Files of which it was told, by number.
    pub fn was_told(&self) -> Vec<u64> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.segments.iter().map(|(number, _)| *number).collect()
    }

    /// Tells of all that it does not know yet, as far as it takes it.
    pub fn tell(&self, tables: Tables<'_>, segments: &[Segment]) {
        if !self.shares && self.admission.get().is_none() {
            return;
        }
        let table = if self.shares { Some(tables.all) } else { tables.public };
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let full = match self.tell_all(&mut told, table, segments) {
            Err(error) if sys::is_temporary(&error) => true,
            Err(error) => {
                // Its end is noticed elsewhere.
                tracing::debug!(%error, "a peer was not told of memory");
                false
            }
            Ok(()) => false,
        };
        self.lags.store(full, Ordering::Release);
        let knows = |segment: &Segment| told.segments.iter().any(|(n, _)| *n == segment.number);
        let mut readable =
            segments.iter().filter(|s| s.readers.is_some() && self.may_have(s.readers));
        let reads_all = readable.all(knows);
        self.reads_all.store(reads_all && !full, Ordering::Relaxed);
    }

    fn tell_all(
        &self,
        told: &mut Told,
        table: Option<BorrowedFd<'_>>,
        segments: &[Segment],
    ) -> io::Result<()> {
        let is_there = |number| segments.iter().any(|segment| segment.number == number);
        while let Some(at) = told.segments.iter().position(|(number, _)| !is_there(*number)) {
            let (number, _) = told.segments[at];
            sys::send(self.fd(), &Message::Forget(number).encode())?;
            told.segments.swap_remove(at);
        }
        let Some(table) = table else { return Ok(()) };
        for segment in segments.iter().filter(|segment| self.may_have(segment.readers)) {
            if told.segments.iter().any(|(number, _)| *number == segment.number) {
                continue;
            }
            let bytes: u64 = told.segments.iter().map(|(_, bytes)| bytes).sum();
            let fits = (told.segments.len() as u64) < u64::from(self.limits.segments)
                && bytes + segment.bytes <= self.limits.bytes;
            let Some(file) = segment.file.upgrade().filter(|_| fits) else { continue };
            if !told.table {
                sys::send_with(self.fd(), &Message::Table.encode(), &[table])?;
                told.table = true;
            }
            let message = Message::Segment(segment.number).encode();
            sys::send_with(self.fd(), &message, &[file.for_peers()])?;
            told.segments.push((segment.number, segment.bytes));
            told.readable |= segment.readers.is_some();
            self.reaches_us.store(true, Ordering::Release);
        }
        Ok(())
    }
}
