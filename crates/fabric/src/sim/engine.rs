//! The engine: posting and polling.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::SimNet;
use super::provider::{Request, of_user, parse};
use super::queue_pair::{Landing, PostedTag, Work};
use super::world::{Action, EngineState, Ready, Receive, World};
use crate::engine::{Engine, Waiter};
use crate::error::{ConnectError, PostError};
use crate::mem::{Arena, Piece, Readers, Span, Views};
use crate::types::{
    Address, DeviceAttr, Incoming, NAME_BYTES_MAX, NAMED_READ_BYTES_MAX, NamedAsk, Opcode,
    PeerInfo, QueuePair, QueuePairEvent, RemoteSpan, Rkey, SgList, ShortMessage, Status, Tag,
    WorkCompletion, WrId, sg_bytes,
};

/// Queue pairs, shared receive queue and completion queue of a simulated node.
#[derive(Debug)]
pub struct SimEngine {
    net: Arc<SimNet>,
    id: u64,
    rounds: u64,
    leaves_short: bool,
}

impl SimEngine {
    pub(super) fn new(net: Arc<SimNet>, node: u32, device: u64) -> SimEngine {
        let id = {
            let mut world = net.world();
            let id = world.new_id();
            let state = EngineState {
                node,
                device,
                receives: Vec::new(),
                polled: Default::default(),
                ready: Default::default(),
                looked: false,
                asked: None,
                posted_to: Default::default(),
            };
            world.engines.insert(id, state);
            id
        };
        SimEngine { net, id, rounds: 0, leaves_short: false }
    }

    /// Queues `work`, if there is room for it.
    fn post(&mut self, queue_pair: QueuePair, mut work: Work) -> Result<(), PostError> {
        let attr = &self.net.truth;
        let bytes_max = match work.opcode {
            Opcode::Send => attr.send_bytes_max.saturating_sub(work.header.len()),
            _ => attr.bulk_bytes_max,
        };
        let header_fits = work.header.len() <= attr.header_bytes_max;
        if !header_fits || work.local.len() > attr.sge_max || work.len > bytes_max {
            return Err(PostError::TooLarge);
        }
        assert!(work.remote.is_none_or(|r| r.len as usize == work.len), "lengths differ");
        let mut world = self.net.world();
        let (rate, depth) = (world.faults.queue_full_per_million, attr.send_queue_depth);
        let slots = connected(&mut world, self.id, queue_pair)?.slots;
        world.takes(self.id, &work.local)?;
        let unlucky = slots > 0 && world.rng.chance(rate);
        world.counts.queue_full += u64::from(unlucky);
        if unlucky || slots >= depth {
            return Err(PostError::QueueFull);
        }
        let reads = matches!(work.opcode, Opcode::RdmaRead | Opcode::NamedRead);
        work.stages = !reads && world.rng.coin();
        let qp = connected(&mut world, self.id, queue_pair)?;
        qp.slots += 1;
        work.device = qp.device;
        qp.works.push(work);
        if let Some(engine) = world.engines.get_mut(&self.id) {
            engine.posted_to.insert(queue_pair.0);
        }
        world.do_at_once(queue_pair.0);
        Ok(())
    }

    fn carries(&self, private_data: &[u8]) -> Result<(), ConnectError> {
        let (bytes, bytes_max) = (private_data.len(), self.net.truth.private_data_bytes_max);
        if bytes > bytes_max { Err(ConnectError::PrivateData { bytes, bytes_max }) } else { Ok(()) }
    }

    fn offers(&self, offered: impl Fn(&DeviceAttr) -> bool) -> Result<(), PostError> {
        if offered(&self.net.truth) { Ok(()) } else { Err(PostError::Unsupported) }
    }
}

/// The caller's queue pair, if it can take work.
fn connected(
    world: &mut World,
    engine: u64,
    queue_pair: QueuePair,
) -> Result<&mut super::queue_pair::Qp, PostError> {
    let qp = world.qps.get_mut(&queue_pair.0).filter(|qp| qp.engine == engine);
    qp.filter(|qp| qp.is_connected()).ok_or(PostError::NotConnected)
}

fn work(opcode: Opcode, wr_id: WrId, signaled: bool, header: &[u8], local: &SgList) -> Work {
    Work {
        wr_id,
        opcode,
        signaled,
        device: 0,
        header: header.to_vec(),
        len: sg_bytes(local),
        local: local.clone(),
        remote: None,
        fence: false,
        tag: Tag(0),
        rung: false,
        stages: false,
        staged: None,
        pieces: Vec::new(),
        started: false,
        announced: false,
        done: false,
        status: Status::Success,
        reported: false,
    }
}

/// The bytes of these pieces.
fn together(pieces: &[Piece<'_>]) -> Option<Span> {
    let bytes = pieces.iter().map(Piece::len).sum();
    let span = Arena::new(bytes).ok()?.span(0, bytes);
    let mut at = 0;
    for piece in pieces {
        span.copy_piece(at, *piece);
        at += piece.len();
    }
    Some(span)
}

fn assert_writable(spans: &[Span]) {
    assert!(spans.iter().all(Span::is_writable), "memory lent for reading is no target");
}

impl Engine for SimEngine {
    fn attr(&self) -> &DeviceAttr {
        &self.net.attr
    }

    fn connect(
        &mut self,
        address: &Address,
        private_data: &[u8],
    ) -> Result<QueuePair, ConnectError> {
        let (name, _) = parse(address, &self.net.truth)?;
        self.carries(private_data)?;
        let qp = self.net.world().connect(self.id, name, private_data);
        qp.map(QueuePair).ok_or(ConnectError::Resource("the node crashed"))
    }

    fn accept(
        &mut self,
        incoming: Incoming,
        private_data: &[u8],
    ) -> Result<QueuePair, ConnectError> {
        self.carries(private_data)?;
        let from = Request::of(incoming, &self.net);
        let from = from.ok_or(ConnectError::Resource("a request of another network"))?;
        let qp = self.net.world().accept(self.id, from, private_data);
        qp.map(QueuePair).ok_or(ConnectError::Resource("the node crashed"))
    }

    fn reject(&mut self, incoming: Incoming, reason: &str) {
        if let Some(from) = Request::of(incoming, &self.net) {
            let reason = format!("rejected by the peer: {reason}");
            self.net.world().refuse_later(from, false, &reason);
        }
    }

    fn disconnect(&mut self, queue_pair: QueuePair) {
        let mut world = self.net.world();
        if world.qps.get(&queue_pair.0).is_some_and(|qp| qp.engine == self.id) {
            world.break_end(queue_pair.0, None);
        }
    }

    fn peer(&self, queue_pair: QueuePair) -> Option<PeerInfo> {
        if !self.net.truth.shared_memory {
            return None;
        }
        let world = self.net.world();
        let peer = world.qps.get(&queue_pair.0).filter(|qp| qp.is_connected())?.peer?;
        Some(of_user(self.net.peer_uid, world.qps.get(&peer)?.node))
    }

    fn lets_read(&self, _: QueuePair, readers: Readers) -> bool {
        let uid = self.net.peer_uid;
        uid == 0 || readers == Readers::All || readers == Readers::User(uid)
    }

    fn view(&mut self, queue_pair: QueuePair, remotes: &[RemoteSpan]) -> Option<Views> {
        super::loans::view(&self.net, queue_pair, remotes)
    }

    fn map(&mut self, queue_pair: QueuePair, rkey: Rkey) -> Option<Span> {
        let world = self.net.world();
        let peer = world.qps.get(&queue_pair.0).filter(|qp| qp.is_connected())?.peer?;
        let device = world.qps.get(&peer)?.device;
        let region = world.regions.get(&rkey.0).filter(|region| region.device == device)?;
        let may = self.net.truth.shared_memory && region.access.remote_read;
        may.then(|| region.span.clone())
    }

    fn is_still_read(&mut self, queue_pair: QueuePair, awaited: bool) -> bool {
        self.net.world().is_still_read(self.id, queue_pair.0, awaited)
    }

    fn post_recv(&mut self, wr_id: WrId, buffers: SgList) -> Result<(), PostError> {
        assert_writable(&buffers);
        if buffers.len() > self.net.truth.sge_max {
            return Err(PostError::TooLarge);
        }
        let mut world = self.net.world();
        world.takes(self.id, &buffers)?;
        let engine = world.engines.get_mut(&self.id).ok_or(PostError::NotConnected)?;
        if engine.receives.len() >= self.net.truth.receive_queue_depth {
            return Err(PostError::QueueFull);
        }
        world.look_at_early_use(self.id, &buffers);
        world.take_receive(self.id, Receive { wr_id, buffers });
        Ok(())
    }

    fn post_recv_again(&mut self, wr_id: WrId) -> bool {
        self.net.world().receive_again(self.id, wr_id)
    }

    fn post_send(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        header: &[u8],
        data: &mut SgList,
        signaled: bool,
    ) -> Result<(), PostError> {
        self.post(queue_pair, work(Opcode::Send, wr_id, signaled, header, data))?;
        data.clear();
        Ok(())
    }

    fn post_rdma_write(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        data: &mut SgList,
        remote: RemoteSpan,
        signaled: bool,
    ) -> Result<(), PostError> {
        self.offers(|attr| attr.rdma_write)?;
        let work = work(Opcode::RdmaWrite, wr_id, signaled, &[], data);
        self.post(queue_pair, Work { remote: Some(remote), ..work })?;
        data.clear();
        Ok(())
    }

    fn write_and_send(
        &mut self,
        queue_pair: QueuePair,
        data: &[Piece<'_>],
        remote: RemoteSpan,
        header: &[u8],
    ) -> bool {
        let attr = &self.net.truth;
        let fits = data.len() <= attr.sge_max && header.len() <= attr.header_bytes_max;
        let mut world = self.net.world();
        let may = attr.shared_memory && attr.rdma_write && attr.recoverable_access_fault && fits;
        if !may || connected(&mut world, self.id, queue_pair).is_err() {
            return false;
        }
        let mut message = work(Opcode::Send, WrId(0), false, header, &SgList::new());
        message.device = world.engines.get(&self.id).map_or(0, |engine| engine.device);
        let Some(data) = together(data) else { return false };
        world.write_and_send(queue_pair.0, &[data], remote, message)
    }

    fn post_rdma_read(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        into: &mut SgList,
        remote: RemoteSpan,
        fence: bool,
    ) -> Result<(), PostError> {
        self.offers(|attr| attr.rdma_read)?;
        assert_writable(into);
        let work = work(Opcode::RdmaRead, wr_id, true, &[], into);
        self.post(queue_pair, Work { remote: Some(remote), fence, ..work })?;
        into.clear();
        Ok(())
    }

    fn post_named_read(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        into: &mut SgList,
        name: &[u8],
        offset: u64,
    ) -> Result<(), PostError> {
        self.offers(|attr| attr.verifies_names)?;
        assert_writable(into);
        let mut work = work(Opcode::NamedRead, wr_id, true, name, into);
        if name.len() > NAME_BYTES_MAX || work.len > NAMED_READ_BYTES_MAX {
            return Err(PostError::TooLarge);
        }
        work.tag = Tag(self.net.world().new_id());
        let remote = RemoteSpan { rkey: Rkey(0), addr: offset, len: work.len as u32 };
        self.post(queue_pair, Work { remote: Some(remote), ..work })?;
        into.clear();
        Ok(())
    }

    fn serve_named(&mut self) -> bool {
        let mut world = self.net.world();
        let engine = world.engines.get_mut(&self.id).filter(|_| self.net.truth.verifies_names);
        engine.is_some_and(|engine| engine.asked.get_or_insert_default().is_empty())
    }

    fn next_named(&mut self) -> Option<NamedAsk> {
        let mut world = self.net.world();
        loop {
            let ask = world.engines.get_mut(&self.id)?.asked.as_mut()?.pop_front()?;
            if connected(&mut world, self.id, ask.queue_pair).is_ok() {
                return Some(ask);
            }
        }
    }

    fn answer_named(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        id: u32,
        data: Option<(&mut SgList, bool)>,
    ) -> Result<(), PostError> {
        self.offers(|attr| attr.verifies_names)?;
        if !self.net.world().is_next_named(queue_pair.0, id) {
            return Err(PostError::Unsupported);
        }
        let Some((data, signaled)) = data else {
            self.net.world().is_answered(queue_pair.0);
            return self.net.world().refuse_named(queue_pair.0, id);
        };
        if !self.net.world().asks_for(queue_pair.0, id, sg_bytes(data)) {
            return Err(PostError::TooLarge);
        }
        let work = work(Opcode::NamedAnswer, wr_id, signaled, &[], data);
        self.post(queue_pair, Work { tag: Tag(id.into()), ..work })?;
        self.net.world().is_answered(queue_pair.0);
        data.clear();
        Ok(())
    }

    fn post_tagged_send(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        tag: Tag,
        header: &[u8],
        data: &mut SgList,
        signaled: bool,
    ) -> Result<(), PostError> {
        self.offers(|attr| attr.tag_match)?;
        let work = work(Opcode::TaggedSend, wr_id, signaled, header, data);
        self.post(queue_pair, Work { tag, ..work })?;
        data.clear();
        Ok(())
    }

    fn post_tagged_recv(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        tag: Tag,
        header: Option<Span>,
        data: &mut SgList,
    ) -> Result<(), PostError> {
        self.offers(|attr| attr.tag_match)?;
        assert_writable(data);
        if data.len() > self.net.truth.sge_max {
            return Err(PostError::TooLarge);
        }
        let mut world = self.net.world();
        let qp = connected(&mut world, self.id, queue_pair)?;
        if qp.tagged.contains_key(&tag.0) {
            return Err(PostError::TagInUse);
        }
        world.takes(self.id, header.as_slice())?;
        world.takes(self.id, data)?;
        let qp = connected(&mut world, self.id, queue_pair)?;
        let data = std::mem::take(data);
        let posted =
            PostedTag { wr_id, header, data, taken: false, cancelled: false, flushed: false };
        qp.tagged.insert(tag.0, Landing::Posted(posted));
        let peer = qp.peer;
        if qp.paused == Some(tag.0) {
            qp.paused = None;
            world.kick(queue_pair.0);
        }
        peer.into_iter().for_each(|peer| world.kick(peer));
        Ok(())
    }

    fn cancel_tagged_recv(&mut self, queue_pair: QueuePair, tag: Tag) {
        let mut world = self.net.world();
        let Ok(qp) = connected(&mut world, self.id, queue_pair) else { return };
        let node = qp.node;
        match qp.tagged.get_mut(&tag.0) {
            Some(Landing::Posted(posted)) if !posted.cancelled => posted.cancelled = true,
            _ => return,
        }
        let delay = world.delay(node);
        world.schedule(delay, Action::Cancel(queue_pair.0, tag.0));
    }

    fn ring(&mut self) {
        let mut world = self.net.world();
        let Some(engine) = world.engines.get_mut(&self.id) else { return };
        for id in std::mem::take(&mut engine.posted_to) {
            let Some(qp) = world.qps.get_mut(&id) else { continue };
            qp.works.iter_mut().for_each(|work| work.rung = true);
            world.kick(id);
        }
    }

    fn poll(&mut self, completions: &mut Vec<WorkCompletion>, max: usize) -> usize {
        self.ring();
        self.rounds += 1;
        let mut world = self.net.world();
        let World { engines, qps, .. } = &mut *world;
        let Some(engine) = engines.get_mut(&self.id) else { return 0 };
        engine.polled.clear();
        let mut count = 0;
        while count < max {
            let Some(front) = engine.ready.front_mut() else { break };
            if self.leaves_short && front.is_short() {
                break;
            }
            let Ready::Completion { completion, slot, receive } = front else { break };
            engine.polled.extend(receive.take());
            let qp = qps.get_mut(&completion.queue_pair.0);
            qp.into_iter().for_each(|qp| qp.slots -= usize::from(*slot));
            completions.push(*completion);
            engine.ready.pop_front();
            count += 1;
        }
        if !self.net.truth.target_cpu_free {
            world.look(self.id);
        }
        count
    }

    fn leave_short(&mut self) -> bool {
        self.leaves_short = self.net.truth.shared_memory;
        self.leaves_short
    }

    fn take_short(&mut self, into: &mut ShortMessage) -> bool {
        self.leaves_short && self.net.world().take_short(self.id, into)
    }

    fn rounds(&self) -> u64 {
        self.rounds
    }

    fn poll_event(&mut self) -> Option<QueuePairEvent> {
        let mut world = self.net.world();
        let ready = &mut world.engines.get_mut(&self.id)?.ready;
        match ready.pop_front()? {
            Ready::Event(event) => Some(event),
            completion => {
                ready.push_front(completion);
                None
            }
        }
    }

    fn arm(&mut self) -> bool {
        self.ring();
        let idle = |engine: &EngineState| {
            engine.ready.is_empty() && engine.asked.as_ref().is_none_or(VecDeque::is_empty)
        };
        self.net.world().engines.get(&self.id).is_none_or(idle)
    }

    fn waiter(&self) -> Arc<dyn Waiter> {
        Arc::new(SimWaiter)
    }
}

impl Drop for SimEngine {
    fn drop(&mut self) {
        self.net.world().remove_engine(self.id);
    }
}

/// Nobody sleeps in virtual time: a step of the network is what one waits for.
struct SimWaiter;

impl Waiter for SimWaiter {
    fn wait(&self, _timeout: Option<Duration>) {}

    fn wake(&self) {}
}
