//! Two connected nodes that watch each other: every completion and event is checked against
//! what was posted.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::Harness;
use crate::engine::{Device, Engine, Listener};
use crate::error::PostError;
use crate::mem::{Buffer, MemoryRegion, PostedBuffer, Span};
use crate::types::{
    Access, DeviceAttr, NamedAnswer, NamedAsk, Opcode, QueuePair, QueuePairEvent, RemoteSpan,
    SgList, Status, Tag, WorkCompletion, WrId,
};

/// All rights.
pub(crate) const READ_WRITE: Access = Access { remote_read: true, remote_write: true };

/// What is known of a posted work request.
#[derive(Debug, Clone, Copy)]
struct Posted {
    opcode: Opcode,
    queue_pair: Option<QueuePair>,
    signaled: bool,
}

/// A device and an engine, with the books of what was posted.
pub(crate) struct Node {
    pub device: Arc<dyn Device>,
    pub engine: Box<dyn Engine>,
    /// Polled and not yet looked at, oldest first. `opcode` is filled in on errors too.
    pub completions: VecDeque<WorkCompletion>,
    /// Polled and not yet looked at.
    pub events: VecDeque<QueuePairEvent>,
    open: HashMap<WrId, Posted>,
    connecting: HashSet<QueuePair>,
    gone: HashSet<QueuePair>,
    next_wr: u64,
    scratch: Vec<WorkCompletion>,
    local: Vec<MemoryRegion>,
}

impl Node {
    pub fn new(device: Arc<dyn Device>) -> Node {
        let engine = device.engine().expect("an engine");
        Node {
            device,
            engine,
            completions: VecDeque::new(),
            events: VecDeque::new(),
            open: HashMap::new(),
            connecting: HashSet::new(),
            gone: HashSet::new(),
            next_wr: 1,
            scratch: Vec::new(),
            local: Vec::new(),
        }
    }

    pub fn attr(&self) -> DeviceAttr {
        self.device.attr().clone()
    }

    /// A queue pair that waits for `Connected`.
    pub fn connect(&mut self, address: &crate::Address, private_data: &[u8]) -> QueuePair {
        let qp = self.engine.connect(address, private_data).expect("connecting begins");
        assert!(self.connecting.insert(qp) && !self.gone.contains(&qp), "{qp:?} used again");
        qp
    }

    /// Zeroed memory, registered if the device needs that, shared if that needs to be.
    pub fn buffer(&mut self, bytes: usize) -> PostedBuffer {
        let buffer = match self.device.attr().shared_memory {
            true => Buffer::many_shared(1, bytes).map(|mut buffers| buffers.remove(0)),
            false => Buffer::new(bytes),
        };
        let posted = buffer.expect("memory").post();
        if self.device.attr().local_registration && bytes > 0 {
            let none = Access { remote_read: false, remote_write: false };
            let region = self.device.register(posted.span().clone(), none).expect("a region");
            self.local.push(region);
        }
        posted
    }

    /// Memory with the bytes of [`pattern`].
    pub fn filled(&mut self, seed: u64, bytes: usize) -> PostedBuffer {
        let buffer = self.buffer(bytes);
        buffer.span().copy_from(0, &pattern(seed, bytes));
        buffer
    }

    pub fn register(&self, span: &Span, access: Access) -> MemoryRegion {
        self.device.register(span.clone(), access).expect("a region")
    }

    /// The buffer again, which nobody may hold any more.
    pub fn take_back(&mut self, buffer: PostedBuffer) {
        let (from, len) = (buffer.span().addr(), buffer.span().len() as u64);
        self.local.retain(|r| r.span().addr() < from || r.span().addr() >= from + len);
        assert!(buffer.take_back().is_ok(), "the transport still holds a buffer");
    }

    fn post(
        &mut self,
        opcode: Opcode,
        queue_pair: Option<QueuePair>,
        signaled: bool,
        post: impl FnOnce(&mut dyn Engine, WrId) -> Result<(), PostError>,
    ) -> Result<WrId, PostError> {
        let wr_id = WrId(self.next_wr);
        post(&mut *self.engine, wr_id)?;
        self.next_wr += 1;
        self.open.insert(wr_id, Posted { opcode, queue_pair, signaled });
        Ok(wr_id)
    }

    pub fn recv(&mut self, buffers: &[Span]) -> Result<WrId, PostError> {
        self.post(Opcode::Recv, None, true, |e, wr| e.post_recv(wr, list(buffers)))
    }

    /// As it was; its completion was taken.
    pub fn recv_again(&mut self, wr: WrId) -> bool {
        let is_posted = self.engine.post_recv_again(wr);
        if is_posted {
            let posted = Posted { opcode: Opcode::Recv, queue_pair: None, signaled: true };
            assert!(self.open.insert(wr, posted).is_none(), "{wr:?} is posted");
        }
        is_posted
    }

    pub fn send(
        &mut self,
        qp: QueuePair,
        header: &[u8],
        data: &[Span],
        signaled: bool,
    ) -> Result<WrId, PostError> {
        self.post(Opcode::Send, Some(qp), signaled, |e, wr| {
            e.post_send(qp, wr, header, &mut list(data), signaled)
        })
    }

    pub fn write(
        &mut self,
        qp: QueuePair,
        data: &[Span],
        remote: RemoteSpan,
        signaled: bool,
    ) -> Result<WrId, PostError> {
        self.post(Opcode::RdmaWrite, Some(qp), signaled, |e, wr| {
            e.post_rdma_write(qp, wr, &mut list(data), remote, signaled)
        })
    }

    pub fn read(
        &mut self,
        qp: QueuePair,
        into: &[Span],
        remote: RemoteSpan,
    ) -> Result<WrId, PostError> {
        self.read_behind(qp, into, remote, false)
    }

    /// As `read`, with a fence or without.
    pub fn read_behind(
        &mut self,
        qp: QueuePair,
        into: &[Span],
        remote: RemoteSpan,
        fence: bool,
    ) -> Result<WrId, PostError> {
        self.post(Opcode::RdmaRead, Some(qp), true, |e, wr| {
            e.post_rdma_read(qp, wr, &mut list(into), remote, fence)
        })
    }

    pub fn tagged_send(
        &mut self,
        qp: QueuePair,
        tag: u64,
        header: &[u8],
        data: &[Span],
        signaled: bool,
    ) -> Result<WrId, PostError> {
        self.post(Opcode::TaggedSend, Some(qp), signaled, |e, wr| {
            e.post_tagged_send(qp, wr, Tag(tag), header, &mut list(data), signaled)
        })
    }

    pub fn tagged_recv(
        &mut self,
        qp: QueuePair,
        tag: u64,
        header: Option<Span>,
        data: &[Span],
    ) -> Result<WrId, PostError> {
        self.post(Opcode::TaggedRecv, Some(qp), true, |e, wr| {
            e.post_tagged_recv(qp, wr, Tag(tag), header, &mut list(data))
        })
    }

    pub fn named_read(
        &mut self,
        qp: QueuePair,
        into: &[Span],
        name: &[u8],
        offset: u64,
    ) -> Result<WrId, PostError> {
        self.post(Opcode::NamedRead, Some(qp), true, |e, wr| {
            e.post_named_read(qp, wr, &mut list(into), name, offset)
        })
    }

    /// Answers a named read; `None`: refuses it.
    pub fn answer(&mut self, ask: &NamedAsk, data: Option<&[Span]>) -> Result<(), PostError> {
        let (qp, id) = (ask.queue_pair, ask.id);
        let Some(data) = data else { return self.engine.answer_named(qp, WrId(0), id, None) };
        self.post(Opcode::NamedAnswer, Some(qp), true, |e, wr| {
            e.answer_named(qp, wr, id, Some((&mut list(data), true)))
        })
        .map(drop)
    }

    /// As [`answer`](Self::answer), of whose end nothing is told.
    pub fn answer_silently(&mut self, ask: &NamedAsk, data: &[Span]) -> Result<(), PostError> {
        let (qp, id) = (ask.queue_pair, ask.id);
        self.post(Opcode::NamedAnswer, Some(qp), false, |e, wr| {
            e.answer_named(qp, wr, id, Some((&mut list(data), false)))
        })
        .map(drop)
    }

    /// Answers several named reads, and is told of the end of the last answer.
    pub fn answer_all(
        &mut self,
        qp: QueuePair,
        answers: &mut Vec<NamedAnswer>,
    ) -> Result<(), PostError> {
        self.post(Opcode::NamedAnswer, Some(qp), true, |e, wr| {
            e.answer_all_named(qp, (WrId(0), wr), answers, true)
        })
        .map(drop)
    }

    /// One round: takes what is ready and checks it against the books.
    pub fn poll(&mut self) {
        const MAX: usize = 16;
        let count = self.engine.poll(&mut self.scratch, MAX);
        assert!(count == self.scratch.len() && count <= MAX, "poll miscounts");
        for completion in std::mem::take(&mut self.scratch) {
            let completion = self.check_completion(completion);
            self.completions.push_back(completion);
        }
        while let Some(event) = self.engine.poll_event() {
            self.check_event(&event);
            self.events.push_back(event);
        }
    }

    fn check_completion(&mut self, mut completion: WorkCompletion) -> WorkCompletion {
        let wr_id = completion.wr_id;
        let posted = self.open.remove(&wr_id);
        let posted = posted.unwrap_or_else(|| panic!("{completion:?} twice, or never posted"));
        let qp = completion.queue_pair;
        assert!(posted.queue_pair.is_none_or(|q| q == qp), "{completion:?} of {posted:?}");
        assert!(!self.gone.contains(&qp), "{completion:?} after Quiescent");
        assert!(!self.connecting.contains(&qp), "{completion:?} before Connected");
        if completion.status == Status::Success {
            assert_eq!(completion.opcode, posted.opcode, "{completion:?}");
            assert!(posted.signaled, "{completion:?} is not signaled");
        }
        completion.opcode = posted.opcode;
        completion
    }

    fn check_event(&mut self, event: &QueuePairEvent) {
        match event {
            QueuePairEvent::Connected { queue_pair, .. }
            | QueuePairEvent::Refused { queue_pair, .. } => {
                assert!(self.connecting.remove(queue_pair), "{event:?} is not expected");
            }
            QueuePairEvent::Disconnected { queue_pair, .. } => {
                assert!(!self.gone.contains(queue_pair), "{event:?} after Quiescent");
            }
            QueuePairEvent::Quiescent { queue_pair } => {
                self.connecting.remove(queue_pair);
                assert!(self.gone.insert(*queue_pair), "{event:?} twice");
                let of_it = |p: &Posted| p.queue_pair == Some(*queue_pair);
                let left = self.open.values().find(|p| of_it(p) && p.signaled);
                assert!(left.is_none(), "{event:?} before the completion of {left:?}");
                self.open.retain(|_, p| !of_it(p));
            }
            QueuePairEvent::UnmatchedTag { .. } | QueuePairEvent::Returned { .. } => {}
        }
    }

    /// The completion of `wr`, if it came.
    pub fn take(&mut self, wr: WrId) -> Option<WorkCompletion> {
        let at = self.completions.iter().position(|c| c.wr_id == wr)?;
        self.completions.remove(at)
    }

    /// The oldest completion of `opcode`, if one came.
    pub fn take_opcode(&mut self, opcode: Opcode) -> Option<WorkCompletion> {
        let at = self.completions.iter().position(|c| c.opcode == opcode)?;
        self.completions.remove(at)
    }

    /// The first event that `wanted` likes.
    pub fn take_event(
        &mut self,
        wanted: impl Fn(&QueuePairEvent) -> bool,
    ) -> Option<QueuePairEvent> {
        let at = self.events.iter().position(wanted)?;
        self.events.remove(at)
    }

    pub fn is_gone(&self, qp: QueuePair) -> bool {
        self.gone.contains(&qp)
    }

    /// Work requests that have not completed (unsignaled ones included).
    pub fn open(&self) -> usize {
        self.open.len()
    }

    pub fn is_open(&self, wr: WrId) -> bool {
        self.open.contains_key(&wr)
    }
}

/// Two nodes and one connection between them; `a` connected, `b` accepted.
pub(crate) struct Pair {
    pub a: Node,
    pub b: Node,
    pub qa: QueuePair,
    pub qb: QueuePair,
    pub listener: Box<dyn Listener>,
}

impl Pair {
    pub fn poll(&mut self) {
        self.a.poll();
        self.b.poll();
    }
}

impl Harness<'_> {
    /// Two new nodes, not connected.
    pub(crate) fn nodes(&mut self) -> Pair {
        let a = Node::new(self.provider.open().expect("a device"));
        let b = Node::new(self.provider.open().expect("a device"));
        let listener = b.device.listen(&self.address).expect("a listener");
        Pair { a, b, qa: QueuePair(u64::MAX), qb: QueuePair(u64::MAX), listener }
    }

    /// Two new nodes, connected.
    pub(crate) fn pair(&mut self) -> Pair {
        let mut pair = self.nodes();
        (pair.qa, pair.qb) = self.connect(&mut pair);
        pair
    }

    /// One more connection between two nodes.
    pub(crate) fn connect(&mut self, pair: &mut Pair) -> (QueuePair, QueuePair) {
        let qa = pair.a.connect(&pair.listener.address(), b"");
        let mut qb = None;
        self.wait(pair, "connection request", |p| {
            let incoming = p.listener.poll_accept();
            qb = incoming.map(|i| p.b.engine.accept(i, b"").expect("accepted"));
            qb.is_some()
        });
        self.wait(pair, "Connected", |p| {
            p.a.take_event(|e| matches!(e, QueuePairEvent::Connected { .. })).is_some()
        });
        (qa, qb.expect("accepted"))
    }

    /// Polls both nodes until `done`.
    pub(crate) fn wait(
        &mut self,
        pair: &mut Pair,
        what: &str,
        mut done: impl FnMut(&mut Pair) -> bool,
    ) {
        for _ in 0..self.rounds_max {
            pair.poll();
            if done(pair) {
                return;
            }
            (self.progress)();
        }
        panic!("{}: no {what} after {} rounds", self.case, self.rounds_max);
    }

    /// Gives time to what must not happen.
    pub(crate) fn settle(&mut self, pair: &mut Pair) {
        for _ in 0..self.settle_rounds {
            pair.poll();
            (self.progress)();
        }
    }

    /// The completion of `wr` at `a`.
    pub(crate) fn finish_a(&mut self, pair: &mut Pair, wr: WrId) -> WorkCompletion {
        let mut found = None;
        self.wait(pair, &format!("completion of {wr:?} at a"), |p| {
            found = p.a.take(wr);
            found.is_some()
        });
        found.expect("waited for")
    }

    /// The completion of `wr` at `b`.
    pub(crate) fn finish_b(&mut self, pair: &mut Pair, wr: WrId) -> WorkCompletion {
        let mut found = None;
        self.wait(pair, &format!("completion of {wr:?} at b"), |p| {
            found = p.b.take(wr);
            found.is_some()
        });
        found.expect("waited for")
    }

    /// One message each way: the connection lives.
    pub(crate) fn ping(&mut self, pair: &mut Pair) {
        let (qa, qb) = (pair.qa, pair.qb);
        let at_b = pair.b.buffer(64);
        let recv = pair.b.recv(&[at_b.span().clone()]).expect("posted");
        let sent = pair.a.send(qa, b"ping", &[], true).expect("posted");
        let got = self.finish_b(pair, recv);
        assert_eq!((got.status, got.queue_pair, got.byte_len), (Status::Success, qb, 4));
        assert_eq!(self.finish_a(pair, sent).status, Status::Success);
        assert_eq!(&bytes(at_b.span())[..5], b"ping\0");
        let at_a = pair.a.buffer(64);
        let recv = pair.a.recv(&[at_a.span().clone()]).expect("posted");
        let sent = pair.b.send(qb, b"pong!", &[], true).expect("posted");
        let got = self.finish_a(pair, recv);
        assert_eq!((got.status, got.queue_pair, got.byte_len), (Status::Success, qa, 5));
        assert_eq!(self.finish_b(pair, sent).status, Status::Success);
        assert_eq!(&bytes(at_a.span())[..5], b"pong!");
    }
}

/// A list of spans.
pub(crate) fn list(spans: &[Span]) -> SgList {
    spans.iter().cloned().collect()
}

/// Bytes that differ from place to place and from seed to seed: a long random text, read from a
/// place that the seed decides.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    // A prime, so that the text does not repeat at a multiple of any block or page.
    const TEXT_BYTES: usize = 65_521;
    static TEXT: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    let text = TEXT.get_or_init(|| crate::sim::Rng::new(1).bytes(TEXT_BYTES));
    let mut out = Vec::with_capacity(len);
    let mut from = crate::sim::Rng::new(seed).index(TEXT_BYTES);
    while out.len() < len {
        let part = &text[from..text.len().min(from + len - out.len())];
        out.extend_from_slice(part);
        from = 0;
    }
    out
}

/// What the memory holds now.
pub(crate) fn bytes(span: &Span) -> Vec<u8> {
    let mut out = vec![0; span.len()];
    span.copy_to(0, &mut out);
    out
}
