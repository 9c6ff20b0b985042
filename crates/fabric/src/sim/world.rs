//! The state of the network: clock, schedule, and tables of everything by number.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::connection::Backlog;
use super::faults::{FaultConfig, FaultCounts};
use super::loans::Loans;
use super::queue_pair::Qp;
use super::rng::Rng;
use crate::mem::{Pin, Span};
use crate::types::{
    Access, DeviceAttr, NamedAsk, Opcode, QueuePair, QueuePairEvent, SgList, Status,
    WorkCompletion, WrId,
};

/// What is scheduled. Actions on queue pairs that are gone do nothing.
#[derive(Debug)]
pub(super) enum Action {
    /// One move of posted work.
    Step(u64),
    /// A connection request arrives.
    Request(u64),
    /// An acceptance arrives.
    Established(u64, Vec<u8>),
    /// A refusal arrives.
    Refuse { qp: u64, refused: bool, reason: String },
    /// The other end is gone.
    Gone { qp: u64, reason: &'static str },
    /// One work request comes back after a break.
    Flush(u64),
    /// The transport leaves the memory of a queue pair.
    Quiesce(u64),
    /// A tagged receive is taken back.
    Cancel(u64, u64),
}

/// Where in the schedule an action is.
pub(super) type Slot = (Duration, u64);

#[derive(Debug)]
pub(super) struct Region {
    pub device: u64,
    pub node: u32,
    pub span: Span,
    pub access: Access,
    /// Where registration pins.
    pub pin: Option<Arc<Pin>>,
}

#[derive(Debug)]
pub(super) struct Receive {
    pub wr_id: WrId,
    pub buffers: SgList,
}

/// What `poll` and `poll_event` give out, in one order.
#[derive(Debug)]
pub(super) enum Ready {
    /// `slot`: polling it frees a place in the send queue.
    Completion {
        completion: WorkCompletion,
        slot: bool,
        /// Where a message is, if the receive can be posted again.
        receive: Option<Receive>,
    },
    Event(QueuePairEvent),
}

#[derive(Debug)]
pub(super) struct EngineState {
    pub node: u32,
    pub device: u64,
    pub receives: Vec<Receive>,
    /// Those whose completions the last poll gave out, until the next one.
    pub polled: VecDeque<Receive>,
    pub ready: VecDeque<Ready>,
    /// It was polled since a piece of one-sided data moved last.
    pub looked: bool,
    /// What peers asked for by name; `None`: it is refused.
    pub asked: Option<VecDeque<NamedAsk>>,
    /// Queue pairs with work that `ring` has to hand out.
    pub posted_to: BTreeSet<u64>,
}

#[derive(Debug)]
pub(super) struct World {
    now: Duration,
    sequence: u64,
    schedule: BTreeMap<Slot, Action>,
    next_id: u64,
    pub rng: Rng,
    pub attr: DeviceAttr,
    pub faults: FaultConfig,
    pub counts: FaultCounts,
    pub violations: Vec<String>,
    pub engines: BTreeMap<u64, EngineState>,
    pub qps: BTreeMap<u64, Qp>,
    pub regions: BTreeMap<u64, Region>,
    pub listeners: BTreeMap<String, Backlog>,
    pub partitions: BTreeSet<(u32, u32)>,
    pub loans: Loans,
}

impl World {
    pub fn new(seed: u64, attr: DeviceAttr, faults: FaultConfig) -> World {
        World {
            now: Duration::ZERO,
            sequence: 0,
            schedule: BTreeMap::new(),
            next_id: 1,
            rng: Rng::new(seed).fork(0),
            attr,
            faults,
            counts: FaultCounts::default(),
            violations: Vec::new(),
            engines: BTreeMap::new(),
            qps: BTreeMap::new(),
            regions: BTreeMap::new(),
            listeners: BTreeMap::new(),
            partitions: BTreeSet::new(),
            loans: Loans::default(),
        }
    }

    pub fn now(&self) -> Duration {
        self.now
    }

    pub fn set_now(&mut self, time: Duration) {
        self.now = self.now.max(time);
    }

    /// A number for a device, engine or queue pair; none is used twice.
    pub fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub fn next_event_at(&self) -> Option<Duration> {
        self.schedule.keys().next().map(|slot| slot.0)
    }

    pub fn step(&mut self) -> bool {
        let Some(((at, _), action)) = self.schedule.pop_first() else { return false };
        self.set_now(at);
        match action {
            Action::Step(qp) => self.step_queue_pair(qp),
            Action::Request(qp) => self.request_arrives(qp),
            Action::Established(qp, data) => self.established(qp, data),
            Action::Refuse { qp, refused, reason } => self.refuse(qp, refused, reason),
            Action::Gone { qp, reason } => self.gone(qp, reason),
            Action::Flush(qp) => self.flush(qp),
            Action::Quiesce(qp) => self.quiesce(qp),
            Action::Cancel(qp, tag) => self.cancel(qp, tag),
        }
        true
    }

    pub fn schedule(&mut self, after: Duration, action: Action) -> Slot {
        self.sequence += 1;
        let slot = (self.now + after, self.sequence);
        self.schedule.insert(slot, action);
        slot
    }

    pub fn unschedule(&mut self, slot: Slot) {
        self.schedule.remove(&slot);
    }

    /// How long the next thing takes at `node`.
    pub fn delay(&mut self, node: u32) -> Duration {
        let (low, high) = (self.faults.delay_min, self.faults.delay_max);
        let nanos = self.rng.range(low.as_nanos() as u64, high.as_nanos() as u64);
        let mut delay = Duration::from_nanos(nanos);
        // Now and then one waits for long, so that others run far ahead.
        if self.rng.below(32) == 0 {
            delay *= 20;
        }
        if self.faults.slow_node == Some(node) {
            self.counts.slow_steps += 1;
            delay *= self.faults.slow_factor;
        }
        delay
    }

    pub fn complete(
        &mut self,
        qp: u64,
        wr_id: WrId,
        opcode: Opcode,
        status: Status,
        (byte_len, header_len): (usize, usize),
    ) {
        let Some(engine) = self.qps.get(&qp).map(|qp| qp.engine) else { return };
        let completion = WorkCompletion {
            wr_id,
            queue_pair: QueuePair(qp),
            opcode,
            status,
            byte_len: byte_len as u32,
            header_len: header_len as u32,
        };
        let slot = !matches!(opcode, Opcode::Recv | Opcode::TaggedRecv);
        if let Some(engine) = self.engines.get_mut(&engine) {
            engine.ready.push_back(Ready::Completion { completion, slot, receive: None });
        }
    }

    /// The message that was completed last can be posted again in the same memory.
    pub fn keep_receive(&mut self, engine: u64, receive: Receive) {
        let may_stay = !receive.buffers.iter().any(Span::is_waited_for);
        let engine = self.engines.get_mut(&engine).filter(|_| self.attr.shared_memory && may_stay);
        if let Some(Ready::Completion { receive: kept, .. }) =
            engine.and_then(|engine| engine.ready.back_mut())
        {
            *kept = Some(receive);
        }
    }

    /// A receive is posted.
    pub fn take_receive(&mut self, id: u64, receive: Receive) {
        let Some(engine) = self.engines.get_mut(&id) else { return };
        engine.receives.push(receive);
        if engine.receives.len() == 1 {
            // Messages may have waited for it.
            let own = self.qps.values().filter(|qp| qp.engine == id);
            let peers: Vec<u64> = own.filter_map(|qp| qp.peer).collect();
            peers.into_iter().for_each(|peer| self.kick(peer));
        }
    }

    pub fn event(&mut self, engine: u64, event: QueuePairEvent) {
        if let Some(engine) = self.engines.get_mut(&engine) {
            engine.ready.push_back(Ready::Event(event));
        }
    }

    /// An engine is polled: one-sided data can move from and to its memory, where that takes its CPU.
    pub fn look(&mut self, id: u64) {
        let Some(engine) = self.engines.get_mut(&id) else { return };
        if std::mem::replace(&mut engine.looked, true) {
            return;
        }
        let own = self.qps.values().filter(|qp| qp.engine == id);
        let peers: Vec<u64> = own.filter_map(|qp| qp.peer).collect();
        peers.into_iter().for_each(|peer| self.kick(peer));
    }

    pub fn is_partitioned(&self, a: u32, b: u32) -> bool {
        self.partitions.contains(&(a.min(b), a.max(b)))
    }

    pub fn partition(&mut self, a: u32, b: u32) {
        if self.partitions.insert((a.min(b), a.max(b))) {
            self.counts.partitions += 1;
        }
    }

    pub fn heal(&mut self, a: u32, b: u32) {
        self.partitions.remove(&(a.min(b), a.max(b)));
        let all: Vec<u64> = self.qps.keys().copied().collect();
        for qp in all {
            let told = self.qps.get_mut(&qp).and_then(|q| q.untold.take());
            if let Some(reason) = told {
                let delay = self.delay(a);
                self.schedule(delay, Action::Gone { qp, reason });
            }
            self.kick(qp);
        }
    }

    /// An engine is no more, and its memory is left at once.
    pub fn remove_engine(&mut self, id: u64) {
        self.engines.remove(&id);
        let own: Vec<u64> =
            self.qps.iter().filter(|(_, q)| q.engine == id).map(|(id, _)| *id).collect();
        for qp in own {
            let Some(qp) = self.qps.remove(&qp) else { continue };
            if let Some(slot) = qp.timer {
                self.unschedule(slot);
            }
            if let Some(peer) = qp.peer {
                let delay = self.delay(qp.node) * 10;
                self.schedule(delay, Action::Gone { qp: peer, reason: "the peer died" });
            }
        }
    }

    pub fn crash(&mut self, node: u32) {
        self.counts.crashes += 1;
        let engines: Vec<u64> =
            self.engines.iter().filter(|(_, e)| e.node == node).map(|(id, _)| *id).collect();
        engines.into_iter().for_each(|id| self.remove_engine(id));
        self.look_at_pins();
        self.regions.retain(|_, region| region.node != node);
        let names: Vec<String> =
            self.listeners.iter().filter(|(_, l)| l.node == node).map(|(n, _)| n.clone()).collect();
        names.iter().for_each(|name| self.stop_listening(name, None));
    }

    pub fn break_connections(&mut self, node: u32) {
        let all: Vec<u64> =
            self.qps.iter().filter(|(_, q)| q.node == node).map(|(id, _)| *id).collect();
        for qp in all {
            if self.qps.get(&qp).is_some_and(Qp::is_connected) {
                self.counts.breaks += 1;
                self.break_end(qp, Some("the connection broke"));
            }
        }
    }
}
