//! Random work between three nodes under all faults, against a model.
//!
//! Checked for each seed: every work request completes once ([`Node`] keeps the books); data is
//! what was sent, messages in order; a success gives memory back at once, a break at the latest
//! with `Quiescent`, a crash at once; memory exposed to a peer does not change after
//! `Quiescent`; without further faults all work on living connections is done.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{FaultConfig, FaultCounts, Rng, SimConfig, SimNet};
use crate::conformance::pair::{Node, READ_WRITE, bytes, pattern};
use crate::engine::{Listener, Provider};
use crate::error::PostError;
use crate::mem::{MemoryRegion, PostedBuffer};
use crate::types::{QueuePair, QueuePairEvent, Status, Tag, WorkCompletion, WrId};

const STATIONS: usize = 3;
const LINKS: usize = 6;
const ROUNDS: usize = 600;
const DRAIN_STEPS: usize = 2_000_000;

/// A place: the number of a station and a queue pair there.
type End = (usize, QueuePair);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Send,
    Recv,
    Write(u64),
    Read(u64),
    TaggedSend,
    TaggedRecv(u64),
}

/// A posted work request that will complete.
struct Operation {
    kind: Kind,
    end: End,
    buffer: PostedBuffer,
    flushed: bool,
}

/// Memory that a peer writes to or reads from.
struct Exposed {
    end: End,
    buffer: PostedBuffer,
    region: Option<MemoryRegion>,
    /// How the write ended, and whether the message behind it found the data.
    status: Option<Status>,
    found: Option<bool>,
    /// The bytes when the transport had left it.
    frozen: Option<Vec<u8>>,
}

struct Station {
    id: u32,
    node: Node,
    listener: Box<dyn Listener>,
}

struct Stress {
    net: Arc<SimNet>,
    rng: Rng,
    stations: Vec<Station>,
    operations: BTreeMap<(usize, WrId), Operation>,
    exposed: BTreeMap<u64, Exposed>,
    /// Both ends of each connection, once known, by the number in its private data.
    links: BTreeMap<u64, [Option<End>; 2]>,
    /// The next message of each end: sent, received.
    sequence: BTreeMap<End, [u64; 2]>,
    tag_lens: BTreeMap<u64, usize>,
    next: u64,
    trace: u64,
}

fn station(net: &Arc<SimNet>, id: u32) -> Station {
    let provider = net.provider(id);
    let device = provider.open().expect("a device");
    let listener = device.listen(&provider.address()).expect("a listener");
    Station { id, node: Node::new(device), listener }
}

impl Stress {
    fn new(seed: u64) -> Stress {
        let mut config = SimConfig::new(seed);
        config.attr.recoverable_access_fault = seed % 4 != 3;
        config.attr.ordered_reads = seed.is_multiple_of(2);
        config.attr.send_queue_depth = 8 + (seed % 60) as usize;
        config.attr.receive_queue_depth = 10;
        let unlucky = FaultConfig {
            break_per_million: [0, 100, 2_000, 10_000][(seed % 4) as usize],
            queue_full_per_million: 20_000,
            late_write_per_million: 700_000,
            refuse_registration_per_million: 20_000,
            revoke_per_million: 20_000,
            access_fault_per_million: 20_000,
            refuse_connection_per_million: 50_000,
            slow_node: (seed % 5 == 1).then_some(2),
            ..FaultConfig::default()
        };
        config.faults = unlucky;
        if seed % 6 == 5 {
            // All local memory is registered then, and must be.
            (config.attr.local_registration, config.attr.registration_pins) = (true, true);
            config.attr.target_cpu_free = false;
            config.faults.refuse_registration_per_million = 0;
        }
        let net = SimNet::new(config);
        let stations = (1..=STATIONS as u32).map(|id| station(&net, id)).collect();
        Stress {
            rng: net.rng(1),
            net,
            stations,
            operations: BTreeMap::new(),
            exposed: BTreeMap::new(),
            links: BTreeMap::new(),
            sequence: BTreeMap::new(),
            tag_lens: BTreeMap::new(),
            next: 1,
            trace: 0,
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn run(mut self) -> (u64, FaultCounts) {
        for _ in 0..ROUNDS {
            while self.links.len() < LINKS {
                self.connect();
            }
            match self.rng.below(1000) {
                0..3 => self.crash(),
                3..6 => {
                    let node = 1 + self.rng.below(STATIONS as u64) as u32;
                    self.net.break_connections(node);
                }
                6..12 => self.net.partition(1, 1 + self.rng.below(2) as u32),
                12..40 => self.heal(),
                40..60 => self.leave(),
                60..250 => self.post_recv(),
                _ => self.post_something(),
            }
            for _ in 0..self.rng.below(6) {
                self.net.step();
            }
            self.poll();
        }
        self.drain();
        self.check_done();
        self.end();
        assert_eq!(self.net.violations(), [""; 0]);
        (self.trace, self.net.fault_counts())
    }

    fn heal(&mut self) {
        self.net.heal(1, 1);
        self.net.heal(1, 2);
    }

    fn connect(&mut self) {
        let (from, to) = (self.rng.index(STATIONS), self.rng.index(STATIONS));
        let link = self.number();
        let address = self.stations[to].listener.address();
        let qp = self.stations[from].node.connect(&address, &link.to_le_bytes());
        self.links.insert(link, [Some((from, qp)), None]);
    }

    /// One end of a connection leaves.
    fn leave(&mut self) {
        let Some((near, _)) = self.some_link() else { return };
        self.stations[near.0].node.engine.disconnect(near.1);
    }

    /// A connection that both ends know, from either side.
    fn some_link(&mut self) -> Option<(End, End)> {
        let known: Vec<_> =
            self.links.values().filter_map(|ends| Some((ends[0]?, ends[1]?))).collect();
        if known.is_empty() {
            return None;
        }
        let (a, b) = known[self.rng.index(known.len())];
        Some(if self.rng.coin() { (a, b) } else { (b, a) })
    }

    fn post_recv(&mut self) {
        let at = self.rng.index(STATIONS);
        let node = &mut self.stations[at].node;
        let buffer = node.buffer(4096);
        let half = [buffer.span().part(0, 1000), buffer.span().part(1000, 3096)];
        let posted = node.recv(&half);
        drop(half);
        self.record(Kind::Recv, (at, QueuePair(0)), posted, buffer);
    }

    /// Books a work request, if it was taken. If not, its memory must be free.
    fn record(
        &mut self,
        kind: Kind,
        end: End,
        posted: Result<WrId, PostError>,
        buffer: PostedBuffer,
    ) -> bool {
        match posted {
            Ok(wr) => {
                let operation = Operation { kind, end, buffer, flushed: false };
                self.operations.insert((end.0, wr), operation);
                true
            }
            Err(PostError::QueueFull | PostError::NotConnected) => {
                self.stations[end.0].node.take_back(buffer);
                false
            }
            Err(other) => panic!("{other} for {kind:?}"),
        }
    }

    fn post_something(&mut self) {
        let Some((near, far)) = self.some_link() else { return };
        let number = self.number();
        let len = self.rng.index(20_000);
        match self.rng.below(4) {
            0 => self.send(near, number, 0),
            1 => self.tagged(near, far, number, len),
            turn => self.one_sided(near, far, number, len, turn == 2),
        }
    }

    /// A message: its number, its place in the sequence, the write it announces, then data.
    fn send(&mut self, near: End, number: u64, announces: u64) {
        let sequence = self.sequence.entry(near).or_default()[0];
        let header: Vec<u8> =
            [number, sequence, announces].iter().flat_map(|n| n.to_le_bytes()).collect();
        let is_signaled = self.rng.coin();
        let node = &mut self.stations[near.0].node;
        let taken = if is_signaled {
            let buffer = node.filled(number, self.rng.index(2000));
            let posted = node.send(near.1, &header, &[buffer.span().clone()], true);
            self.record(Kind::Send, near, posted, buffer)
        } else {
            node.send(near.1, &header, &[], false).is_ok()
        };
        self.sequence.entry(near).or_default()[0] += u64::from(taken);
    }

    fn tagged(&mut self, near: End, far: End, number: u64, len: usize) {
        self.tag_lens.insert(number, len);
        // One in eight is posted only when its message waits.
        if self.rng.below(8) > 0 {
            self.tagged_recv(far, number);
            if self.rng.below(10) == 0 {
                self.stations[far.0].node.engine.cancel_tagged_recv(far.1, Tag(number));
            }
        }
        let node = &mut self.stations[near.0].node;
        let buffer = node.filled(number, len);
        let data = [buffer.span().clone()];
        let posted = node.tagged_send(near.1, number, &number.to_le_bytes(), &data, true);
        drop(data);
        self.record(Kind::TaggedSend, near, posted, buffer);
    }

    fn tagged_recv(&mut self, end: End, number: u64) {
        let len = self.tag_lens[&number];
        let node = &mut self.stations[end.0].node;
        let buffer = node.buffer(8 + len);
        let header = Some(buffer.span().part(0, 8));
        let data = [buffer.span().part(8, len / 2), buffer.span().part(8 + len / 2, len - len / 2)];
        let posted = node.tagged_recv(end.1, number, header, &data);
        drop(data);
        self.record(Kind::TaggedRecv(number), end, posted, buffer);
    }

    /// A read, or a write with a message behind it.
    fn one_sided(&mut self, near: End, far: End, number: u64, len: usize, is_write: bool) {
        let buffer = if is_write {
            self.stations[far.0].node.buffer(len)
        } else {
            self.stations[far.0].node.filled(number, len)
        };
        let device = &self.stations[far.0].node.device;
        let Ok(region) = device.register(buffer.span().clone(), READ_WRITE) else {
            return self.stations[far.0].node.take_back(buffer);
        };
        let remote = region.remote();
        let exposed = Exposed {
            end: far,
            buffer,
            region: Some(region),
            status: None,
            found: None,
            frozen: None,
        };
        self.exposed.insert(number, exposed);
        let node = &mut self.stations[near.0].node;
        if is_write {
            let buffer = node.filled(number, len);
            let posted = node.write(near.1, &[buffer.span().clone()], remote, true);
            if self.record(Kind::Write(number), near, posted, buffer) {
                let message = self.number();
                self.send(near, message, number);
            }
        } else {
            let buffer = node.buffer(len);
            let posted = node.read(near.1, &[buffer.span().clone()], remote);
            self.record(Kind::Read(number), near, posted, buffer);
        }
    }

    fn poll(&mut self) {
        for at in 0..STATIONS {
            while let Some(incoming) = self.stations[at].listener.poll_accept() {
                self.accept(at, incoming);
            }
            self.stations[at].node.poll();
            while let Some(completion) = self.stations[at].node.completions.pop_front() {
                self.finish(at, completion);
            }
            while let Some(event) = self.stations[at].node.events.pop_front() {
                self.happen(at, event);
            }
        }
    }

    fn accept(&mut self, at: usize, incoming: crate::Incoming) {
        let node = &mut self.stations[at].node;
        match self.rng.below(20) {
            0 => node.engine.reject(incoming, "no"),
            1 => drop(incoming),
            _ => {
                let link = incoming.private_data.first_chunk().map(|b| u64::from_le_bytes(*b));
                let qp = node.engine.accept(incoming, b"").expect("accepted");
                let link = link.and_then(|link| self.links.get_mut(&link));
                link.expect("known")[1] = Some((at, qp));
            }
        }
    }

    fn note(&mut self, what: u64) {
        self.trace = self.trace.wrapping_mul(0x100_0000_01b3).wrapping_add(what);
    }

    fn finish(&mut self, at: usize, completion: WorkCompletion) {
        self.note(completion.wr_id.0 * 8 + completion.status as u64);
        self.note(self.net.now().as_nanos() as u64);
        let key = (at, completion.wr_id);
        let Some(operation) = self.operations.get_mut(&key) else {
            // An unsignaled send.
            return assert_eq!(completion.status, Status::Flushed);
        };
        if completion.status == Status::Flushed {
            (operation.flushed, operation.end) = (true, (at, completion.queue_pair));
            return;
        }
        let operation = self.operations.remove(&key).expect("just seen");
        match (operation.kind, completion.status) {
            (Kind::Write(number), status @ (Status::Success | Status::RemoteAccess)) => {
                // The target is unknown if its node crashed.
                let target = self.exposed.get_mut(&number);
                target.into_iter().for_each(|target| target.status = Some(status));
            }
            (Kind::Read(number), Status::Success) => {
                let data = pattern(number, operation.buffer.span().len());
                assert!(bytes(operation.buffer.span()) == data, "wrong data read");
            }
            (Kind::Read(_), Status::RemoteAccess)
            | (Kind::TaggedRecv(_), Status::Cancelled)
            | (Kind::Send | Kind::TaggedSend, Status::Success) => {}
            (Kind::TaggedRecv(number), Status::Success) => {
                let message = bytes(operation.buffer.span());
                assert!(message[..8] == number.to_le_bytes(), "wrong header");
                assert!(message[8..] == pattern(number, message.len() - 8), "wrong tagged data");
            }
            (Kind::Recv, Status::Success) => {
                let mut message = bytes(operation.buffer.span());
                message.truncate(completion.byte_len as usize);
                self.receive((at, completion.queue_pair), &message);
            }
            (kind, status) => panic!("{kind:?} ended with {status:?}"),
        }
        self.stations[at].node.take_back(operation.buffer);
    }

    fn receive(&mut self, end: End, message: &[u8]) {
        let word = |i: usize| message[i * 8..].first_chunk().map(|b| u64::from_le_bytes(*b));
        let [Some(number), Some(sequence), Some(announces)] = [0, 1, 2].map(word) else {
            panic!("a short message");
        };
        let expected = &mut self.sequence.entry(end).or_default()[1];
        assert_eq!(sequence, *expected, "messages out of order");
        *expected += 1;
        assert!(message[24..] == pattern(number, message.len() - 24), "wrong data");
        if let Some(target) = self.exposed.get_mut(&announces) {
            let span = target.buffer.span();
            target.found = Some(bytes(span) == pattern(announces, span.len()));
        }
    }

    fn happen(&mut self, at: usize, event: QueuePairEvent) {
        match event {
            QueuePairEvent::UnmatchedTag { queue_pair, tag } => {
                self.tagged_recv((at, queue_pair), tag.0);
            }
            QueuePairEvent::Refused { queue_pair, .. }
            | QueuePairEvent::Disconnected { queue_pair, .. } => self.forget((at, queue_pair)),
            QueuePairEvent::Quiescent { queue_pair } => {
                self.note(queue_pair.0);
                self.forget((at, queue_pair));
                self.quiescent((at, queue_pair));
            }
            QueuePairEvent::Connected { .. } | QueuePairEvent::Returned { .. } => {}
        }
    }

    fn forget(&mut self, end: End) {
        self.links.retain(|_, ends| !ends.contains(&Some(end)));
    }

    /// All memory of this end is free, and what was exposed through it changes no more.
    fn quiescent(&mut self, end: End) {
        for operation in take_if(&mut self.operations, |_, o| o.end == end) {
            assert!(operation.flushed, "{:?} did not come back", operation.kind);
            self.stations[end.0].node.take_back(operation.buffer);
        }
        for target in self.exposed.values_mut().filter(|e| e.end == end && e.frozen.is_none()) {
            target.frozen = Some(bytes(target.buffer.span()));
        }
    }

    /// A node dies: its memory is free at once. It starts again.
    fn crash(&mut self) {
        let at = self.rng.index(STATIONS);
        let id = self.stations[at].id;
        self.net.crash(id);
        let fresh = station(&self.net, id);
        let mut old = std::mem::replace(&mut self.stations[at], fresh);
        for operation in take_if(&mut self.operations, |key, _| key.0 == at) {
            old.node.take_back(operation.buffer);
        }
        for mut target in take_if(&mut self.exposed, |_, e| e.end.0 == at) {
            target.region = None;
            old.node.take_back(target.buffer);
        }
        self.links.retain(|_, ends| !ends.iter().flatten().any(|end| end.0 == at));
    }

    /// Nothing goes wrong any more, until nothing happens any more.
    fn drain(&mut self) {
        self.net.set_faults(FaultConfig::default());
        self.heal();
        for _ in 0..DRAIN_STEPS {
            for _ in 0..4 {
                self.post_recv();
            }
            let is_more = self.net.step();
            self.poll();
            if !is_more && self.net.next_event_at().is_none() {
                return;
            }
        }
        panic!("the network does not come to rest");
    }

    fn check_done(&mut self) {
        for operation in self.operations.values().filter(|o| !o.flushed) {
            let waits = matches!(operation.kind, Kind::Recv | Kind::TaggedRecv(_));
            assert!(waits, "{:?} is not done", operation.kind);
        }
        for (number, target) in &self.exposed {
            let data = bytes(target.buffer.span());
            if let Some(frozen) = &target.frozen {
                assert!(data == *frozen, "memory changed after Quiescent");
            }
            if target.status == Some(Status::Success) && target.found.is_some() {
                assert_eq!(target.found, Some(true), "the message came before the write");
                assert!(data == pattern(*number, data.len()), "written data was lost");
            }
        }
    }

    fn end(&mut self) {
        let all: Vec<End> = self.sequence.keys().copied().collect();
        for (at, qp) in all.into_iter().chain(self.links.values().flatten().flatten().copied()) {
            self.stations[at].node.engine.disconnect(qp);
        }
        while self.net.step() || self.stations.iter_mut().any(|s| !s.node.engine.arm()) {
            self.poll();
        }
        let left = self.operations.values().find(|o| o.kind != Kind::Recv);
        assert!(left.is_none(), "{:?} did not come back", left.map(|o| o.kind));
    }
}

/// Removes what `wanted` likes, in the order of the keys.
fn take_if<K: Ord + Copy, V>(map: &mut BTreeMap<K, V>, wanted: impl Fn(&K, &V) -> bool) -> Vec<V> {
    let keys: Vec<K> = map.iter().filter(|(k, v)| wanted(k, v)).map(|(k, _)| *k).collect();
    keys.iter().filter_map(|key| map.remove(key)).collect()
}

#[test]
fn random_work_survives_all_faults() {
    let mut total = BTreeMap::new();
    for seed in 0..200 {
        let (_, counts) = std::panic::catch_unwind(|| Stress::new(seed).run())
            .unwrap_or_else(|_| panic!("seed {seed}"));
        for (name, count) in counts.iter() {
            *total.entry(name).or_insert(0) += count;
        }
    }
    assert!(total.values().all(|count| *count > 0), "a fault never happened: {total:?}");
}

#[test]
fn a_seed_decides_everything() {
    for seed in 0..10 {
        let (first, counts) = Stress::new(seed).run();
        assert_eq!((first, &counts), (Stress::new(seed).run().0, &counts));
    }
    assert_ne!(Stress::new(1).run().0, Stress::new(2).run().0);
}
