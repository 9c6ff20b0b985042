//! A client: its core, its open files, its calls under way and its buffers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dafs_client::core::{Core, CoreConfig, FileKey, Memory, Owner, Work};
use dafs_client::optimistic::{Optimistic, References};
use dafs_client::{Error, Output, SessionOptions};
use dafs_fabric::{Buffer, Domain};

use crate::calls::Call;
use crate::held::Held;
use crate::lockers::{Door, Locker, lockers};
use crate::networks::Networks;
use crate::plan::{LOCK_FILES, Plan};
use crate::server;

/// What free buffers hold, so that a late write shows.
const POISON: u8 = 0xd5;

/// A call that ended, with its answer and its buffer.
pub type Ended = (Call, Result<Output<FileKey>, Error>, Option<Buffer>);

/// An open file.
#[derive(Debug, Clone)]
pub struct Open {
    /// As the core names it.
    pub key: FileKey,
    /// As the model names it.
    pub number: u64,
    /// Under which name it was opened.
    pub slot: usize,
    /// Which file.
    pub file: usize,
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// WRITE is refused, APPEND is not.
    pub append: bool,
    /// A close is under way.
    pub closing: bool,
    /// Where its next read goes on, and the distance to the one after.
    pub stream: Option<Stream>,
    /// By what it is read without the server.
    pub references: Arc<References>,
    /// Which life of the server has told of them, and the word of which session.
    pub told_by: Option<(u32, u64)>,
    /// Blocks that were cached then.
    pub cached: Vec<usize>,
}

/// Reads at equal distances.
#[derive(Debug, Clone, Copy)]
pub struct Stream {
    /// The next one.
    pub offset: u64,
    /// Bytes of each.
    pub len: u64,
    /// From one to the next.
    pub stride: u64,
}

/// A client.
pub struct SimClient {
    /// Its node in the network.
    pub node: u32,
    /// A number that no other client ever has.
    pub who: usize,
    /// The client itself.
    pub core: Core,
    /// The caches that it reads without the server.
    pub optimistic: Arc<Optimistic>,
    /// Its open files.
    pub opens: Vec<Open>,
    /// Its calls, by tag.
    pub calls: BTreeMap<u64, Call>,
    /// Its buffers.
    pub buffers: Buffers,
    /// What it was lent.
    pub loans: Vec<Held>,
    /// Until then it is busy with other things.
    pub awake_at: Duration,
    /// When it asks for something next.
    pub next_at: Duration,
    /// It had a session once.
    pub established: bool,
    /// It was told that its session goes on in another one.
    pub sessions: u64,
    /// In which life of the server.
    pub boot: u64,
    /// Owners of locks.
    pub lockers: Vec<Locker>,
    /// Its open files of locks.
    pub doors: [Door; LOCK_FILES],
    /// Its writes are kept.
    pub keeps: bool,
    /// When its session was made.
    pub session_at: Duration,
    /// A session was made, but calls did not flow in it yet.
    pub recovers: bool,
    /// It could not reach the server for so long that its session may have ended.
    pub cut_off: bool,
    /// The grace period of a server ended while it tried to connect.
    pub late: bool,
    /// When it was connected last.
    pub in_touch_at: Duration,
    /// Calls that were asked for before this session may have been under way when it was so.
    pub cut_off_before: u64,
}

impl SimClient {
    /// One that has not connected.
    ///
    /// # Errors
    /// What refused.
    pub fn new(net: &Networks, plan: &Plan, node: u32, who: usize) -> Result<SimClient, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let domain = Domain::open_all(&net.providers(node)).map_err(|e| text(&e))?;
        let message_node = net.gently(|| server::node(plan, domain))?;
        let mut rng = net.rng(5000 + who as u64);
        let nonces = Box::new(move |nonce: &mut dafs_protocol::Nonce| {
            let len = nonce.len();
            nonce.copy_from_slice(&rng.bytes(len));
        });
        let mut addresses = net.addresses(server::NODE);
        // Each prefers one of the networks.
        let count = addresses.len();
        addresses.rotate_left(who % count);
        let also = addresses.split_off(1);
        let options = SessionOptions { also, ..plan.options.clone() };
        let config = CoreConfig::new(&addresses[0], &options);
        let core = Core::new(message_node, config, nonces);
        let optimistic = Arc::new(Optimistic::new(core.own_reads()));
        Ok(SimClient {
            node,
            who,
            core,
            optimistic,
            opens: Vec::new(),
            calls: BTreeMap::new(),
            buffers: Buffers::new(plan.io_max as usize),
            loans: Vec::new(),
            awake_at: Duration::ZERO,
            next_at: net.now(),
            established: false,
            sessions: 0,
            boot: 1,
            lockers: lockers(),
            doors: [Door::Shut; LOCK_FILES],
            keeps: plan.keepers.has(who),
            session_at: Duration::ZERO,
            recovers: false,
            cut_off: false,
            late: false,
            in_touch_at: net.now(),
            cut_off_before: 0,
        })
    }

    /// Hands a call to the core.
    pub fn submit(&mut self, call: Call, work: Work, buffer: Option<Buffer>) {
        let memory = buffer.map_or(Memory::None, |buffer| Memory::Buffer(buffer.post()));
        let tag = call.tag;
        self.calls.insert(tag, call);
        self.core.submit(Owner(tag as usize), tag, work, memory);
    }

    /// Hands a write to the core that keeps its bytes.
    pub fn submit_kept(&mut self, call: Call, work: Work, buffer: Buffer) {
        let bytes = buffer.get(..call.len).unwrap_or(&[]).to_vec();
        let (tag, memory) = (call.tag, Memory::Buffer(buffer.post()));
        self.calls.insert(tag, call);
        self.core.submit_kept(Owner(tag as usize), tag, work, memory, bytes);
    }

    /// A call that ended.
    ///
    /// # Errors
    /// It had ended before.
    pub fn next_done(&mut self) -> Result<Option<Ended>, String> {
        let Some(done) = self.core.next_done() else { return Ok(None) };
        match self.calls.remove(&done.tag) {
            Some(call) => Ok(Some((call, done.result, done.buffer))),
            None => Err(format!("a second answer to call {}: {:?}", done.tag, done.result)),
        }
    }

    /// An open file by the model's number.
    pub fn open(&mut self, number: u64) -> Option<&mut Open> {
        self.opens.iter_mut().find(|open| open.number == number)
    }
}

/// Memory for data, all of one length. Free buffers hold a pattern.
pub struct Buffers {
    free: Vec<Buffer>,
    len: usize,
    /// With calls under way.
    pub out: usize,
}

impl Buffers {
    fn new(len: usize) -> Buffers {
        Buffers { free: Vec::new(), len, out: 0 }
    }

    /// One to be given with a call.
    ///
    /// # Errors
    /// It was written to while it was ours.
    pub fn take(&mut self) -> Result<Buffer, String> {
        self.out += 1;
        match self.free.pop() {
            Some(buffer) => check_poison(&buffer, 0).map(|()| buffer),
            None => {
                let mut buffer = Buffer::new(self.len).map_err(|error| error.to_string())?;
                buffer.fill(POISON);
                Ok(buffer)
            }
        }
    }

    /// One that came back; beyond `used` bytes nobody may have written.
    ///
    /// # Errors
    /// Somebody did.
    pub fn give_back(&mut self, mut buffer: Buffer, used: usize) -> Result<(), String> {
        self.out -= 1;
        check_poison(&buffer, used)?;
        buffer.fill(POISON);
        // The oldest is used next, so that each is watched for long.
        self.free.insert(0, buffer);
        Ok(())
    }

    /// Looks at all that are free.
    ///
    /// # Errors
    /// One was written to.
    pub fn check(&self) -> Result<(), String> {
        self.free.iter().try_for_each(|buffer| check_poison(buffer, 0))
    }
}

fn check_poison(buffer: &Buffer, from: usize) -> Result<(), String> {
    let rest = buffer.get(from..).unwrap_or(&[]);
    match rest.iter().position(|byte| *byte != POISON) {
        None => Ok(()),
        Some(at) => Err(format!(
            "a buffer was written to after it came back, or beyond its end: byte {} of {} in use",
            from + at,
            from
        )),
    }
}
