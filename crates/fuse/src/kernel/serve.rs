//! The loop: threads that read requests, call the file system and answer.

mod rings;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dafs_fabric::mem::{Buffer, PAGE_BYTES};
use zerocopy::{FromBytes, IntoBytes};

use super::abi::{self, InHeader};
use super::channel::Channel;
use super::decode::{self, Request};
use super::encode::{self, ReplyTo, Wanted};
use super::init::{Init, InitOptions, MAX_WRITE};
use super::interrupt::{Calls, Running, Slot};
use super::lock;
use super::operation::{Answer, Caller, FileSystem, Op};
use super::pool::{Next, Pool, ServeOptions, Taken};
use super::requests::{RequestMemory, Requests};
use super::ring::Uring;
use rings::Rings;

/// Where requests are read to, so that the data of a WRITE begin at a page.
const REQUEST_AT: usize = PAGE_BYTES - size_of::<InHeader>() - size_of::<abi::WriteIn>();

/// Before memory is asked for again.
const NO_MEMORY_PAUSE: Duration = Duration::from_millis(5);

/// Serves `fs` until nothing is mounted any more and all calls have ended.
///
/// # Errors
/// The device's; a kernel that speaks another version; no memory or threads to begin with; no
/// rings, where they are a must.
pub fn serve<F: FileSystem>(
    channel: &Channel,
    fs: Arc<F>,
    options: &ServeOptions,
) -> io::Result<()> {
    // Before the kernel is told: it waits for all of them.
    let rings = match options.uring {
        Uring::Off => None,
        Uring::On => Some(Rings::new(channel, &*fs)?),
        Uring::Auto => Rings::new(channel, &*fs).inspect_err(no_rings).ok(),
    };
    let Some(offered) = greet(channel, &*fs, (options.uring, rings.is_some()))? else {
        fs.unmounted();
        return Ok(());
    };
    let rings = rings.filter(|_| offered);
    let server = Arc::new(Server {
        channel: channel.clone(),
        fs,
        pool: Pool::new(channel, options),
        requests: Arc::default(),
        calls: Calls::default(),
        lock_waits_max: options.lock_waits_max,
        ring_lock_waits: rings.as_ref().map(Rings::lock_waits).unwrap_or_default(),
        failed: Mutex::new(None),
    });
    let watched = server.clone();
    let watcher = std::thread::Builder::new()
        .name("fuse-signals".into())
        .spawn(move || watched.calls.watch(|| watched.fs.is_stuck(), &watched.pool))?;
    for _ in 0..2 {
        server.pool.starting();
        if let Err(error) = start(&server) {
            server.pool.not_started();
            server.stop(Some(error));
        }
    }
    if let Some(rings) = rings.filter(|_| lock(&server.failed).is_none()) {
        tracing::info!("requests come by io_uring");
        server.keep(rings);
    }
    server.pool.wait();
    server.calls.stop();
    let _ = watcher.join();
    server.fs.unmounted();
    lock(&server.failed).take().map_or(Ok(()), Err)
}

fn no_rings(error: &io::Error) {
    tracing::info!(%error, "no FUSE over io_uring");
}

/// Agrees with the kernel on how to go on: whether it offers rings. Where it does, and they are
/// there, it waits until it knows entries of all queues. `None`: nothing is mounted any more.
fn greet(
    channel: &Channel,
    fs: &impl FileSystem,
    (uring, rings): (Uring, bool),
) -> io::Result<Option<bool>> {
    let mut buffer = Buffer::new(PAGE_BYTES * 4).map_err(io::Error::other)?;
    let wrong = || io::Error::other("the kernel speaks another version of FUSE");
    loop {
        let Some(len) = channel.read(&mut buffer)? else { return Ok(None) };
        let message = buffer.get(..len).ok_or_else(wrong)?;
        let (header, body) = decode::split(message).map_err(|_| wrong())?;
        let Ok(Request::Init(offer)) = decode::decode(&header, body) else {
            channel.reply_error(header.unique, libc::EIO)?;
            return Err(wrong());
        };
        let Init { major, minor, .. } = offer;
        if major > abi::MAJOR {
            // It asks again, in this version.
            let ours = abi::InitOut { major: abi::MAJOR, minor: abi::MINOR, ..Default::default() };
            channel.reply(header.unique, ours.as_bytes(), &[])?;
            continue;
        }
        if major < abi::MAJOR || minor < abi::MINOR_LEAST {
            channel.reply_error(header.unique, libc::EPROTO)?;
            return Err(wrong());
        }
        let mut options = InitOptions::new(&offer, channel.notifier());
        options.set(abi::init::OVER_IO_URING, rings);
        fs.init(&mut options);
        options.set(abi::init::OVER_IO_URING, rings);
        let offered = options.offered & abi::init::OVER_IO_URING != 0;
        if uring == Uring::On && !offered {
            channel.reply_error(header.unique, libc::EPROTO)?;
            return Err(io::Error::other("the kernel offers no FUSE over io_uring"));
        }
        channel.reply(header.unique, options.reply(minor).as_bytes(), &[])?;
        return Ok(Some(offered));
    }
}

struct Server<F> {
    channel: Channel,
    fs: Arc<F>,
    pool: Pool,
    requests: Arc<Requests>,
    calls: Calls,
    lock_waits_max: usize,
    /// Calls that wait for locks, of each queue of rings.
    ring_lock_waits: Box<[AtomicUsize]>,
    /// Why the loop ended, if not by an unmount.
    failed: Mutex<Option<io::Error>>,
}

/// What a thread has.
struct Worker {
    slot: Arc<Slot>,
    request: Arc<RequestMemory>,
    room: Buffer,
}

/// Starts a thread that was counted.
fn start<F: FileSystem>(server: &Arc<Server<F>>) -> io::Result<()> {
    let mut worker = Worker {
        slot: Slot::new(),
        request: server.requests.take(|bytes| server.fs.buffer(bytes))?,
        room: server.fs.buffer(MAX_WRITE as usize)?,
    };
    let server = server.clone();
    let thread = std::thread::Builder::new().name("fuse".into());
    thread.spawn(move || {
        server.calls.add(&worker.slot);
        let _watch = worker.slot.watch();
        server.pool.started();
        server.work(&mut worker);
        server.calls.remove(&worker.slot);
        server.pool.ended();
    })?;
    Ok(())
}

impl<F: FileSystem> Server<F> {
    fn work(self: &Arc<Self>, worker: &mut Worker) {
        let Worker { slot, request, room } = worker;
        loop {
            match self.pool.next(slot) {
                Next::End => return,
                Next::Read => self.read(slot, request, room),
                Next::Do(message) => self.do_queued(slot, &message, room),
            }
        }
    }

    /// Reads requests until one was done by this thread, or nothing is mounted any more.
    fn read(self: &Arc<Self>, slot: &Slot, memory: &mut Arc<RequestMemory>, room: &mut Buffer) {
        loop {
            let message = match self.channel.read(&mut self.own(memory)[REQUEST_AT..]) {
                Ok(Some(len)) => &memory[REQUEST_AT..][..len],
                Ok(None) => return self.stop_reading(None),
                Err(error) => return self.stop_reading(Some(error)),
            };
            let Ok((header, body)) = decode::split(message) else {
                tracing::error!(len = message.len(), "a request without a header");
                continue;
            };
            let Some(mut op) = self.operation(&header, body) else { continue };
            op.lies_in(memory);
            let waits = op.waits_for_lock();
            if waits && self.pool.lock_waits() >= self.lock_waits_max {
                let _ = self.channel.reply_error(header.unique, libc::ENOLCK);
                continue;
            }
            slot.begin(Running::new(&header, &op));
            let mut taken = self.pool.take(message, waits);
            if taken == Taken::DoAndStart && start(self).is_err() {
                taken = self.pool.take_alone(message, waits);
            }
            if taken == Taken::Queued {
                slot.end();
                continue;
            }
            self.call(slot, &header, op, room);
            if waits {
                self.pool.lock_wait_ends();
            }
            return;
        }
    }

    /// The memory, if nobody holds it any more; else other memory in its place.
    fn own<'a>(&self, memory: &'a mut Arc<RequestMemory>) -> &'a mut [u8] {
        while Arc::get_mut(memory).is_none() {
            match self.requests.take(|bytes| self.fs.buffer(bytes)) {
                Ok(other) => {
                    // The data of a large write is still in this one: more come.
                    other.will_be_filled();
                    *memory = other;
                }
                // What is held is given back with the next flush.
                Err(_) => std::thread::sleep(NO_MEMORY_PAUSE),
            }
        }
        Arc::get_mut(memory).map(RequestMemory::bytes_mut).unwrap_or_default()
    }

    fn do_queued(self: &Arc<Self>, slot: &Slot, message: &[u8], room: &mut Buffer) {
        let Ok((header, body)) = decode::split(message) else { return };
        let Some(op) = self.operation(&header, body) else { return slot.end() };
        let waits = op.waits_for_lock();
        if waits && self.pool.lock_wait_begins() && start(self).is_err() {
            self.pool.not_started();
        }
        self.call(slot, &header, op, room);
        if waits {
            self.pool.lock_wait_ends();
        }
    }

    /// What the file system is to do; everything else is done here.
    fn operation<'a>(&self, header: &InHeader, body: &'a [u8]) -> Option<Op<'a>> {
        let refuse = |errno| {
            let _ = self.channel.reply_error(header.unique, errno);
        };
        match decode::decode(header, body) {
            Ok(Request::Call(op)) => return Some(op),
            Ok(Request::Forget(count)) => self.forget(header.node, count),
            Ok(Request::BatchForget(mut list)) => {
                while let Ok((one, rest)) = abi::ForgetOne::read_from_prefix(list) {
                    self.forget(one.node, one.count);
                    list = rest;
                }
            }
            Ok(Request::Interrupt(unique)) => {
                if !self.calls.interrupt(unique, self.fs.is_stuck(), &self.pool) {
                    // The kernel asks again, unless the call is over.
                    refuse(libc::EAGAIN);
                }
            }
            Ok(Request::Destroy) => {
                let _ = self.channel.reply(header.unique, &[], &[]);
            }
            Ok(Request::Init(_)) => refuse(libc::EIO),
            Ok(Request::Unknown) => refuse(libc::ENOSYS),
            Err(decode::Malformed) => {
                tracing::error!(opcode = header.opcode, "malformed request");
                if !is_forget(header.opcode) {
                    refuse(libc::EIO);
                }
            }
        }
        None
    }

    fn forget(&self, node: u64, count: u64) {
        let _ = catch_unwind(AssertUnwindSafe(|| self.fs.forget(node, count)));
    }

    fn call(&self, slot: &Slot, header: &InHeader, op: Op<'_>, room: &mut Buffer) {
        self.pool.call_begins();
        let answer = self.outcome(header, op, room);
        self.pool.call_ends();
        slot.end();
        let mut to = ReplyTo { channel: &self.channel, unique: header.unique, room };
        if let Err(error) = encode::answer(&mut to, Wanted::by(&op), &answer) {
            // ENOENT: the call was given up by an unmount by force.
            tracing::debug!(%error, opcode = header.opcode, "the kernel takes no answer");
        }
    }

    /// What the file system answers.
    fn outcome(&self, header: &InHeader, op: Op<'_>, room: &mut Buffer) -> Answer {
        let caller = Caller { uid: header.uid, gid: header.gid, pid: header.pid };
        let call = AssertUnwindSafe(|| self.fs.call(&caller, header.node, op, room));
        catch_unwind(call).unwrap_or(Answer::Error(libc::EIO))
    }

    fn stop_reading(&self, error: Option<io::Error>) {
        self.pool.stop_reading();
        self.stop(error);
    }

    fn stop(&self, error: Option<io::Error>) {
        if let Some(error) = error {
            lock(&self.failed).get_or_insert(error);
        }
        self.pool.stop();
        self.calls.unmounted();
    }
}

fn is_forget(code: u32) -> bool {
    matches!(code, abi::opcode::FORGET | abi::opcode::BATCH_FORGET)
}
