//! A hostile message peer: speaks to a real `Node` over the simulated network.
//!
//! The input: 16 bytes of set-up block, then steps of {u8 what, u16 length, bytes}. What: 0 send,
//! 1 push request data by tag, 2 reply by tag (the first 4 bytes are the tag), 3 nothing; then
//! the network moves. With 4 added a small tag stands for that of one of the node's requests;
//! keys below 4 in descriptors stand for that of the peer's memory.

use std::collections::BTreeSet;
use std::sync::Arc;

use dafs_fabric::sim::{SimConfig, SimNet};
use dafs_fabric::{
    Access, Address, Arena, Domain, Engine, MemoryRegion, Opcode, Provider, QueuePair,
    QueuePairEvent, Span, Status, Tag, WrId,
};
use dafs_message::{ConnId, ConnOptions, Event, Node, NodeConfig, RequestId};

use crate::generate::Random;

const SETUP: usize = 16;
const HEADER: usize = 28;
const DESCRIPTOR: usize = 20;
const RECEIVE_BYTES: usize = 8192;
const DATA: usize = 64 << 10;
const GUARD: u8 = 0xa5;
/// Rounds until a connection that should end has failed to.
const PATIENCE: usize = 20_000;

thread_local! {
    /// Of the honest end, and of the peer: receives and data. New memory for each input would
    /// cost more than all else; what is not to be touched keeps its bytes.
    static MEMORY: [Arc<Arena>; 3] = {
        let arenas = [6 * DATA, 16 * RECEIVE_BYTES, DATA].map(|len| Arena::new(len).expect("arena"));
        arenas[0].span(0, 6 * DATA).copy_from(0, &[GUARD; 6 * DATA]);
        arenas
    };
}

fn memory(which: usize) -> Arc<Arena> {
    MEMORY.with(|arenas| arenas[which].clone())
}

/// Runs one connection on a network of its own.
pub fn run(bytes: &[u8]) {
    let Some((setup, steps)) = bytes.split_first_chunk::<SETUP>() else { return };
    let net = SimNet::new(SimConfig::new(1));
    let (mut side, domain) = Side::new(&net);
    let address = Address { scheme: "sim".into(), target: "1".into() };
    let mut listener = domain.device().listen(&address).expect("listen");
    let mut peer = Peer::new(&net, &address, setup);
    let conn = loop {
        assert!(net.step(), "no connection request");
        let Some(incoming) = listener.poll_accept() else { continue };
        let options = ConnOptions { credits: 8, requests_max: 8, ..ConnOptions::default() };
        match side.node.accept(incoming, b"", options) {
            Ok(conn) => break conn,
            Err(_) => return,
        }
    };
    side.submit(conn);
    for _ in 0..40 {
        net.step();
        side.poll();
        peer.poll();
    }
    peer.play(steps, &net, &mut side);
    peer.engine.disconnect(peer.queue_pair);
    for round in 0.. {
        assert!(round < PATIENCE, "not quiescent");
        net.step();
        peer.poll();
        if side.poll() {
            break;
        }
    }
    side.check();
}

/// The honest end.
struct Side {
    node: Node,
    memory: Arc<Arena>,
    fetching: BTreeSet<RequestId>,
    replying: BTreeSet<u64>,
    tokens: u64,
    ended: bool,
}

impl Side {
    fn new(net: &Arc<SimNet>) -> (Side, Arc<Domain>) {
        let domain = Domain::open(&net.provider(1)).expect("device");
        let config = NodeConfig {
            receives_max: 64,
            connections_max: 4,
            requests_in_service_max: 16,
            ..NodeConfig::default()
        };
        let node = Node::new(domain.clone(), config).expect("node");
        let memory = memory(0);
        let sets = (BTreeSet::new(), BTreeSet::new());
        (Side { node, memory, fetching: sets.0, replying: sets.1, tokens: 0, ended: false }, domain)
    }

    /// Places 1 and 4 are written by the peer's data, 3 is only read.
    fn place(&self, index: usize, len: usize) -> Span {
        self.memory.span(index * DATA, len)
    }

    fn submit(&mut self, conn: ConnId) {
        for (tag, data, room) in [(1, 0, 5000), (2, 3000, 0), (3, 40_000, 40_000)] {
            let list = |span: Span| if span.is_empty() { Vec::new() } else { vec![span] };
            let data = list(self.place(3, data)).into_iter().collect();
            let room = list(self.place(4, room)).into_iter().collect();
            // The set-up block may have left no credit.
            let _ = self.node.submit(conn, tag, b"a question", data, room);
        }
    }

    /// Serves; true when the connection is quiescent.
    fn poll(&mut self) -> bool {
        self.node.poll();
        while let Some(event) = self.node.next_event() {
            // Answers to what was asked of the connection when it was gone already.
            let late = matches!(event, Event::Fetched { .. } | Event::ReplySent { .. });
            assert!(!self.ended || late, "an event after the last one: {event:?}");
            match event {
                Event::Request { id, data_len, reply_max, header, .. } => {
                    self.node.recycle(header);
                    self.request(id, data_len as usize, reply_max as usize);
                }
                Event::Fetched { id, .. } => {
                    assert!(self.fetching.remove(&id), "fetched what was not asked");
                    self.reply(id, 3000);
                }
                Event::ReplySent { token } => {
                    assert!(self.replying.remove(&token), "sent what was no reply");
                }
                Event::Reply { header, data_len, .. } => {
                    assert!(data_len <= 40_000);
                    self.node.recycle(header);
                }
                Event::Quiescent { .. } => self.ended = true,
                _ => {}
            }
        }
        self.node.ring();
        self.ended
    }

    fn request(&mut self, id: RequestId, data_len: usize, reply_max: usize) {
        if (1..=DATA).contains(&data_len) {
            assert!(self.fetching.insert(id), "the same request twice");
            let into = [self.place(1, data_len)].into_iter().collect();
            self.node.fetch(id, into);
        } else {
            self.reply(id, reply_max.min(6000));
        }
    }

    fn reply(&mut self, id: RequestId, len: usize) {
        self.tokens += 1;
        let data = if len == 0 { None } else { Some(self.place(3, len)) };
        if data.is_some() {
            self.replying.insert(self.tokens);
        }
        self.node.reply(id, b"an answer", data.into_iter().collect(), self.tokens);
    }

    fn check(&mut self) {
        assert!(self.fetching.is_empty() && self.replying.is_empty(), "events are missing");
        let stats = self.node.stats();
        assert_eq!((stats.connections, stats.receives_promised), (0, 0));
        assert_eq!((stats.requests_in_service, stats.requests_waiting), (0, 0));
        let mut bytes = vec![0; DATA];
        for untouched in [0, 2, 3, 5] {
            self.place(untouched, DATA).copy_to(0, &mut bytes);
            assert!(bytes == [GUARD; DATA], "memory {untouched} was touched");
        }
    }
}

/// The hostile one: an engine without a node.
struct Peer {
    engine: Box<dyn Engine>,
    queue_pair: QueuePair,
    receives: Arc<Arena>,
    region: MemoryRegion,
    /// Of the node's requests.
    tags: Vec<[u8; 4]>,
}

impl Peer {
    fn new(net: &Arc<SimNet>, address: &Address, setup: &[u8; SETUP]) -> Peer {
        let device = net.provider(2).open().expect("device");
        let mut engine = device.engine().expect("engine");
        let (receives, memory) = (memory(1), memory(2));
        let access = Access { remote_read: true, remote_write: true };
        let region = device.register(memory.span(0, DATA), access).expect("register");
        let mut block = vec![0x44, 0x4d, 2, 20];
        block.extend_from_slice(setup);
        let queue_pair = engine.connect(address, &block).expect("connect");
        let mut peer = Peer { engine, queue_pair, receives, region, tags: vec![] };
        (0..16).for_each(|slot| peer.receive(slot));
        peer
    }

    fn receive(&mut self, slot: u64) {
        let buffer = self.receives.span(slot as usize * RECEIVE_BYTES, RECEIVE_BYTES);
        let _ = self.engine.post_recv(WrId(slot), [buffer].into_iter().collect());
    }

    fn poll(&mut self) {
        let mut completions = vec![];
        self.engine.poll(&mut completions, 64);
        for completion in completions {
            if completion.opcode != Opcode::Recv {
                continue;
            }
            let slot = completion.wr_id.0;
            if completion.status == Status::Success && completion.byte_len as usize >= HEADER {
                let mut head = [0; 8];
                self.receives.span(slot as usize * RECEIVE_BYTES, 8).copy_to(0, &mut head);
                if head[0] == 1 {
                    self.tags.push([head[4], head[5], head[6], head[7]]);
                }
            }
            self.receive(slot);
        }
        while let Some(event) = self.engine.poll_event() {
            if let QueuePairEvent::UnmatchedTag { tag, .. } = event {
                let mut data = [self.region.span().clone()].into_iter().collect();
                let header = Some(self.receives.span(0, RECEIVE_BYTES));
                let posted =
                    self.engine.post_tagged_recv(self.queue_pair, WrId(99), tag, header, &mut data);
                if posted.is_err() {
                    self.engine.disconnect(self.queue_pair);
                }
            }
        }
    }

    fn play(&mut self, mut steps: &[u8], net: &SimNet, side: &mut Side) {
        while let Some(([what, low, high], rest)) = steps.split_first_chunk() {
            let len = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
            let (bytes, rest) = rest.split_at(len);
            steps = rest;
            self.step(*what, bytes);
            for _ in 0..4 {
                net.step();
                side.poll();
                self.poll();
            }
        }
    }

    fn step(&mut self, what: u8, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        let at = if what & 3 == 0 { 4 } else { 0 };
        if what & 4 != 0
            && let Some(tag) = bytes.get_mut(at..at + 4)
            && let Some(real) = self.tags.get(usize::from(tag[0]))
        {
            tag.copy_from_slice(real);
        }
        let (queue_pair, id) = (self.queue_pair, WrId(99));
        let mut none = std::iter::empty().collect();
        let _ = match (what & 3, bytes.split_first_chunk::<4>()) {
            (0, _) => {
                self.describe(&mut bytes);
                self.engine.post_send(queue_pair, id, &bytes, &mut none, false)
            }
            (kind @ 1..=2, Some((tag, header))) => {
                let bit = if kind == 1 { 1 << 63 } else { 1 << 62 };
                let tag = Tag(bit | u64::from(u32::from_le_bytes(*tag)));
                let data = self.region.span().part(0, header.len() * 16 % DATA);
                let mut data = [data].into_iter().collect();
                self.engine.post_tagged_send(queue_pair, id, tag, header, &mut data, false)
            }
            _ => Ok(()),
        };
        self.engine.ring();
    }

    /// Real keys and addresses in descriptors instead of small ones.
    fn describe(&self, bytes: &mut [u8]) {
        let remote = self.region.remote();
        for descriptor in bytes.get_mut(HEADER..).unwrap_or_default().chunks_exact_mut(DESCRIPTOR) {
            if descriptor[0] < 4 && descriptor[1..8] == [0; 7] {
                descriptor[..8].copy_from_slice(&remote.rkey.0.to_le_bytes());
                let offset = u64::from(descriptor[8]) * 256;
                descriptor[8..16].copy_from_slice(&(remote.addr + offset).to_le_bytes());
            }
        }
    }
}

fn message(
    kind: u8,
    mode: u8,
    reply_mode: u8,
    tag: u32,
    lens: [u32; 3],
    spans: [u8; 2],
) -> Vec<u8> {
    let [header_len, data_len, room] = lens;
    let mut out = vec![kind, mode | reply_mode << 4, 0, spans[0]];
    out.extend(tag.to_le_bytes());
    out.extend((header_len as u16).to_le_bytes());
    out.extend([spans[1], 0]);
    for word in [data_len, room, 8, 1 << 20] {
        out.extend(word.to_le_bytes());
    }
    for index in 0..spans[0] + spans[1] {
        let len = if index < spans[0] { data_len / u32::from(spans[0]) } else { room };
        out.extend([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        out.extend(len.to_le_bytes());
    }
    out.extend(vec![0x11; header_len as usize]);
    out
}

fn step(what: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![what];
    out.extend((bytes.len() as u16).to_le_bytes());
    out.extend_from_slice(bytes);
    out
}

/// Steps that an honest peer might take.
pub fn seed(r: &mut Random) -> Vec<u8> {
    let flags = r.below(8) as u8;
    let mut out = vec![flags, 0];
    out.extend(1024u16.to_le_bytes());
    out.extend([9, 0, 0, 0]);
    out.extend(if r.bool() { [0; 4] } else { [0, 64, 0, 0] });
    out.extend((1u32 << 20).to_le_bytes());
    let mut slot = 0u32;
    for _ in 0..=r.below(6) {
        let (header_len, data_len) = (r.below(60) as u32, r.below(400) as u32);
        let (mine, theirs) = (slot << 16, r.below(3) as u32);
        match r.below(10) {
            0..=4 => {
                slot += 1;
                let mode = r.below(3) as u8;
                let mode = if mode == 2 && flags & 1 == 0 {
                    [5, 3][usize::from(flags >> 1 & 1)]
                } else {
                    mode
                };
                let reply_mode = if flags & 1 == 1 { 2 } else { [1, 6][usize::from(flags >> 2)] };
                let data_len = if mode == 0 { 0 } else { data_len };
                let room = r.below(6000) as u32;
                let spans = [u8::from(mode == 3), u8::from(reply_mode == 6)];
                let lens = [header_len, data_len, room];
                let mut request = message(1, mode, reply_mode, mine, lens, spans);
                if mode == 1 {
                    request.extend(vec![0x22; data_len as usize]);
                }
                out.extend(step(0, &request));
                if mode == 2 {
                    let mut push = mine.to_le_bytes().to_vec();
                    push.extend(vec![0; data_len as usize / 16]);
                    out.extend(step(1, &push));
                }
            }
            5 | 6 => {
                let mode = [0, 1, 5, 6][r.below(4) as usize];
                let lens = [header_len, if mode == 0 { 0 } else { data_len }, 0];
                let mut reply = message(2, mode, 0, theirs, lens, [0, 0]);
                if mode == 1 {
                    reply.extend(vec![0x33; data_len as usize]);
                }
                out.extend(step(4, &reply));
            }
            7 => out.extend(step(4, &message(3, 0, 0, theirs, [0, 40_000, 0], [0, 0]))),
            8 => {
                let mut piece = message(4, 1, 0, theirs, [0, data_len, 0], [0, 0]);
                piece.extend(vec![0x44; data_len as usize]);
                out.extend(step(4, &piece));
            }
            _ => out.extend(step(6, &[theirs as u8, 0, 0, 0, 0x55, 0x55])),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What stands in front of all steps: reads and writes, a window of 9, no tags.
    const SETUP_BYTES: [u8; SETUP] = [6, 0, 0, 4, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0];

    /// The seeds get through to the node: the fuzzer is not fenced off by a set-up block or a
    /// header that changed.
    #[test]
    fn an_honest_request_is_served() {
        let net = SimNet::new(SimConfig::new(1));
        let (mut side, domain) = Side::new(&net);
        let address = Address { scheme: "sim".into(), target: "1".into() };
        let mut listener = domain.device().listen(&address).expect("listen");
        let mut peer = Peer::new(&net, &address, &SETUP_BYTES);
        let incoming = loop {
            assert!(net.step());
            if let Some(incoming) = listener.poll_accept() {
                break incoming;
            }
        };
        let conn = side.node.accept(incoming, b"", ConnOptions::default()).expect("accept");
        side.submit(conn);
        let request = message(1, 3, 6, 1 << 16, [20, 300, 4000], [1, 1]);
        for _ in 0..40 {
            net.step();
            peer.poll();
            side.poll();
        }
        assert_eq!(peer.tags.len(), 3, "the node's requests arrive");
        peer.play(&step(0, &request), &net, &mut side);
        peer.play(&step(4, &message(2, 0, 0, 1, [5, 0, 0], [0, 0])), &net, &mut side);
        for _ in 0..200 {
            net.step();
            peer.poll();
            side.poll();
        }
        assert_eq!(side.tokens, 1, "one request was answered");
        assert_eq!(side.node.stats().counters.peer_faults, 0);
    }

    #[test]
    fn seeds_end_well() {
        let mut random = Random(3);
        for _ in 0..300 {
            run(&seed(&mut random));
        }
    }
}
