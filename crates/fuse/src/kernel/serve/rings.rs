//! Serving by rings, beside the device, by which FORGET and INTERRUPT come, and everything else
//! where the kernel does not take the rings after all.
//!
//! Each queue has so many entries that calls which wait for each other always find one; what is not
//! used of their memory is none. The thread that keeps them answers nothing: to each entry that it
//! gets back with a request it starts a thread, which has that entry from then on, in a ring of its
//! own. The kernel gives a request to the entry of the queue that came back last, so only as many
//! entries are ever used as there were calls at a time, and a thread that is busy has no other
//! request waiting for it.
//!
//! A thread with an entry stays until nothing is mounted any more: the kernel would lose a request
//! that it has just given to the entry.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use dafs_fabric::mem::Buffer;

use super::{NO_MEMORY_PAUSE, Server};
use crate::kernel::abi::InHeader;
use crate::kernel::channel::Channel;
use crate::kernel::decode::{self, Request};
use crate::kernel::encode::{self, Reply, Wanted};
use crate::kernel::init::MAX_WRITE;
use crate::kernel::interrupt::{Running, Slot};
use crate::kernel::lock;
use crate::kernel::operation::{Answer, FileSystem};
use crate::kernel::ring::{self, Entry, Ring};

/// Calls of one queue that wait for locks; more get ENOLCK.
const LOCK_WAITS_MAX: usize = 256;
/// Entries of a queue: for those, for as many calls as may wait until the kernel has forgotten
/// pages (128), and for those by which all of them go on.
const ENTRIES: usize = LOCK_WAITS_MAX + 128 + 64;
/// Entries of all queues, about, with memory that the file system uses best.
const BEST_ENTRIES: usize = 16;

/// Rings that are ready to be offered to the kernel.
#[derive(Debug)]
pub struct Rings {
    ring: Ring,
    entries: Vec<Entry>,
    queues: u16,
}

impl Rings {
    /// To be called by the thread that [keeps](Server::keep) them.
    ///
    /// # Errors
    /// The kernel does not offer them, or the system has no rings, or no memory.
    pub fn new(channel: &Channel, fs: &impl FileSystem) -> io::Result<Rings> {
        ring::is_on()?;
        let queues = ring::queues()?;
        // What threads do later is done once, where it may still fail.
        Ring::for_other(channel)?.enable()?;
        let ring = Ring::new(channel, ENTRIES * usize::from(queues))?;
        let best = (BEST_ENTRIES / usize::from(queues)).max(1);
        let mut entries = Vec::with_capacity(ENTRIES * usize::from(queues));
        for queue in 0..queues {
            let fronts = Buffer::many(ENTRIES, Entry::FRONT_BYTES).map_err(io::Error::other)?;
            let others =
                Buffer::many(ENTRIES - best, MAX_WRITE as usize).map_err(io::Error::other)?;
            let best = (0..best).map(|_| fs.buffer(MAX_WRITE as usize));
            // The last ones are used first.
            for (front, data) in fronts.into_iter().zip(others.into_iter().map(Ok).chain(best)) {
                entries.push(Entry::new(queue, front, data?));
            }
        }
        Ok(Rings { ring, entries, queues })
    }

    /// Of each queue, how many calls wait for locks: none.
    pub fn lock_waits(&self) -> Box<[AtomicUsize]> {
        (0..self.queues).map(|_| AtomicUsize::new(0)).collect()
    }
}

/// A thread that is to have an entry.
struct Worker {
    slot: Arc<Slot>,
    ring: Ring,
    /// The room of requests that come with data, which ask for none.
    no_room: Buffer,
}

impl<F: FileSystem> Server<F> {
    /// Offers the entries to the kernel, and starts a thread for each that gets a request. Returns
    /// when nothing is mounted any more, and all those threads have ended.
    pub(super) fn keep(self: &Arc<Self>, rings: Rings) {
        let Rings { mut ring, entries, .. } = rings;
        let mut threads = Vec::new();
        or_abort(|| {
            entries.into_iter().for_each(|entry| ring.register(entry));
            while ring.held() > 0 {
                wait(&mut ring);
                while let Some((entry, result)) = ring.take() {
                    match result {
                        0 => self.hand_over(&mut ring, entry, &mut threads),
                        // Nothing is mounted any more; or the kernel goes on with the device.
                        error => tracing::debug!(error, "an entry is not used"),
                    }
                }
            }
        });
        for thread in threads {
            let _ = thread.join();
        }
    }

    fn hand_over(
        self: &Arc<Self>,
        ring: &mut Ring,
        entry: Entry,
        threads: &mut Vec<JoinHandle<()>>,
    ) {
        let entry = Arc::new(Mutex::new(Some(entry)));
        match self.start_worker(&entry) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                tracing::warn!(%error, "no thread for a request");
                let Some(mut entry) = lock(&entry).take() else { return };
                if entry.request().is_ok() {
                    let _ = entry.reply_error(libc::ENOMEM);
                }
                ring.commit(entry);
            }
        }
    }

    /// An entry that is left there has no thread.
    fn start_worker(
        self: &Arc<Self>,
        entry: &Arc<Mutex<Option<Entry>>>,
    ) -> io::Result<JoinHandle<()>> {
        let mut worker = Worker {
            slot: Slot::by_ring(),
            ring: Ring::for_other(&self.channel)?,
            no_room: Buffer::new(0).map_err(io::Error::other)?,
        };
        let (server, entry) = (self.clone(), entry.clone());
        std::thread::Builder::new().name("fuse-ring".into()).spawn(move || {
            or_abort(|| {
                let entry = lock(&entry).take().expect("who starts it leaves it there");
                worker.ring.enable().expect("it is of no thread yet");
                server.calls.add(&worker.slot);
                let _watch = worker.slot.watch();
                server.answer_all(&mut worker, entry);
                server.calls.remove(&worker.slot);
            });
        })
    }

    /// Answers requests until nothing is mounted any more.
    fn answer_all(&self, worker: &mut Worker, mut entry: Entry) {
        let Worker { slot, ring, no_room } = worker;
        loop {
            self.answer_entry(slot, &mut entry, no_room);
            ring.commit(entry);
            entry = loop {
                wait(ring);
                match ring.take() {
                    None => {}
                    Some((entry, 0)) => break entry,
                    Some((entry, error)) if passes(-error) => {
                        std::thread::sleep(NO_MEMORY_PAUSE);
                        ring.commit(entry);
                    }
                    Some((_, error)) => {
                        assert!(is_end(-error), "an answer is refused: {error}");
                        return;
                    }
                }
            };
        }
    }

    fn answer_entry(&self, slot: &Slot, entry: &mut Entry, no_room: &mut Buffer) {
        let queue = entry.queue();
        let outcome = match entry.request() {
            Ok(request) if request.data_len == 0 => {
                let parts = (request.head.bytes(), &[][..]);
                self.answer_parts(slot, queue, &request.header, parts, entry.data())
            }
            Ok(request) => {
                let data = entry.data().get(..request.data_len).unwrap_or_default();
                let parts = (request.head.bytes(), data);
                self.answer_parts(slot, queue, &request.header, parts, no_room)
            }
            Err(decode::Malformed) => Err(libc::EIO),
        };
        let told = match outcome {
            Ok((wanted, answer)) => encode::answer(entry, wanted, &answer),
            Err(errno) => entry.reply_error(errno),
        };
        told.expect("each reply fits, or is an error");
    }

    /// Does what a request of two parts asks for; an errno, where that is not for the file system.
    fn answer_parts(
        &self,
        slot: &Slot,
        queue: u16,
        header: &InHeader,
        (head, data): (&[u8], &[u8]),
        room: &mut Buffer,
    ) -> Result<(Wanted, Answer), i32> {
        let op = match decode::decode_parts(header, head, data) {
            Ok(Request::Call(op)) => op,
            Ok(Request::Destroy) => return Ok((Wanted::nothing(), Answer::Done)),
            Ok(Request::Unknown) => return Err(libc::ENOSYS),
            Ok(_) | Err(decode::Malformed) => {
                tracing::error!(opcode = header.opcode, "malformed request");
                return Err(libc::EIO);
            }
        };
        let waits = op.waits_for_lock();
        let waiting = self.ring_lock_waits.get(usize::from(queue)).filter(|_| waits);
        if let Some(waiting) = waiting {
            let most = LOCK_WAITS_MAX.min(self.lock_waits_max);
            if waiting.fetch_add(1, Ordering::Relaxed) >= most {
                waiting.fetch_sub(1, Ordering::Relaxed);
                return Err(libc::ENOLCK);
            }
        }
        let wanted = Wanted::by(&op);
        slot.begin(Running::new(header, &op));
        let answer = self.outcome(header, op, room);
        slot.end();
        if let Some(waiting) = waiting {
            waiting.fetch_sub(1, Ordering::Relaxed);
        }
        Ok((wanted, answer))
    }
}

/// Who waits for a request of a thread that failed would do so for ever: the mount ends instead.
fn or_abort(work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        tracing::error!("a thread that serves the mount by rings failed");
        std::process::abort();
    }
}

/// Waits until something came back. What the system refuses for now is asked again.
///
/// # Panics
/// Where it refuses for ever: the mount must end then.
fn wait(ring: &mut Ring) {
    while let Err(error) = ring.wait() {
        match error.raw_os_error() {
            Some(libc::EINTR | libc::EBUSY) => return,
            Some(errno) if passes(errno) => std::thread::sleep(NO_MEMORY_PAUSE),
            _ => panic!("io_uring: {error}"),
        }
    }
}

/// Nothing is mounted any more, or the connection was ended by force.
fn is_end(errno: i32) -> bool {
    let ends = [libc::ENOTCONN, libc::ECONNABORTED, libc::ENODEV, libc::ECANCELED, libc::ENOENT];
    ends.contains(&errno)
}

/// The system has too little for now.
fn passes(errno: i32) -> bool {
    matches!(errno, libc::EINTR | libc::EAGAIN | libc::ENOMEM)
}
