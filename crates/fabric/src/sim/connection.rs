//! Connections are requested, accepted, refused; they break and become quiescent.

use std::collections::VecDeque;
use std::time::Duration;

use super::memory::seen;
use super::queue_pair::{Landing, Qp, State};
use super::transfer::scatter_bytes;
use super::world::{Action, World};
use crate::types::{Opcode, QueuePair, QueuePairEvent, Status};

/// Requests that wait at one listener.
const BACKLOG_MAX: usize = 128;
/// How long a request waits for its answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a request is tried again across a partition.
const CONNECT_RETRY: Duration = Duration::from_millis(100);

/// Requests at a listener, oldest first.
#[derive(Debug)]
pub(super) struct Backlog {
    pub id: u64,
    pub node: u32,
    pub requests: VecDeque<u64>,
}

impl World {
    /// A queue pair that asks `target`.
    pub fn connect(&mut self, engine: u64, target: String, private_data: &[u8]) -> Option<u64> {
        let (node, device) = self.engines.get(&engine).map(|e| (e.node, e.device))?;
        let id = self.new_id();
        let mut qp = Qp::new(engine, device, node, State::Connecting);
        (qp.target, qp.private_data) = (target, private_data.to_vec());
        let reason = "no answer in time".to_owned();
        let timeout = Action::Refuse { qp: id, refused: false, reason };
        qp.timer = Some(self.schedule(CONNECT_TIMEOUT, timeout));
        self.qps.insert(id, qp);
        let delay = self.delay(node);
        self.schedule(delay, Action::Request(id));
        Some(id)
    }

    pub fn request_arrives(&mut self, id: u64) {
        let Some(qp) = self.qps.get(&id).filter(|qp| qp.state == State::Connecting) else { return };
        let (node, target) = (qp.node, qp.target.clone());
        let Some(listener) = self.listeners.get(&target) else {
            return self.refuse(id, true, "connection refused".into());
        };
        let peer = listener.node;
        if self.is_partitioned(node, peer) {
            self.schedule(CONNECT_RETRY, Action::Request(id));
        } else if self.rng.chance(self.faults.refuse_connection_per_million) {
            self.counts.refused_connections += 1;
            self.refuse(id, true, "connection refused".into());
        } else if let Some(listener) = self.listeners.get_mut(&target) {
            if listener.requests.len() < BACKLOG_MAX {
                listener.requests.push_back(id);
            } else {
                self.refuse(id, false, "too many requests wait".into());
            }
        }
    }

    /// The other half of a connection that `from` asked for.
    pub fn accept(&mut self, engine: u64, from: u64, private_data: &[u8]) -> Option<u64> {
        let (node, device) = self.engines.get(&engine).map(|e| (e.node, e.device))?;
        let id = self.new_id();
        let mut qp = Qp::new(engine, device, node, State::Connected);
        let delay = self.delay(node);
        let asks = |q: &&mut Qp| q.state == State::Connecting && q.peer.is_none();
        if let Some(asking) = self.qps.get_mut(&from).filter(asks) {
            asking.peer = Some(id);
            qp.peer = Some(from);
            self.schedule(delay, Action::Established(from, private_data.to_vec()));
        } else {
            self.schedule(delay, Action::Gone { qp: id, reason: "the peer gave up" });
        }
        self.qps.insert(id, qp);
        Some(id)
    }

    pub fn established(&mut self, id: u64, private_data: Vec<u8>) {
        let Some(qp) = self.qps.get_mut(&id).filter(|qp| qp.state == State::Connecting) else {
            return;
        };
        qp.state = State::Connected;
        let (engine, peer, timer) = (qp.engine, qp.peer, qp.timer.take());
        timer.into_iter().for_each(|slot| self.unschedule(slot));
        self.event(engine, QueuePairEvent::Connected { queue_pair: QueuePair(id), private_data });
        peer.into_iter().for_each(|peer| self.kick(peer));
    }

    /// An attempt ends; no `Quiescent` follows.
    pub fn refuse(&mut self, id: u64, refused: bool, reason: String) {
        if self.qps.get(&id).is_none_or(|qp| qp.state != State::Connecting) {
            return;
        }
        let Some(qp) = self.qps.remove(&id) else { return };
        qp.timer.into_iter().for_each(|slot| self.unschedule(slot));
        if let Some(peer) = qp.peer {
            self.schedule(CONNECT_RETRY, Action::Gone { qp: peer, reason: "the peer gave up" });
        }
        let queue_pair = QueuePair(id);
        self.event(qp.engine, QueuePairEvent::Refused { queue_pair, refused, reason });
    }

    /// Tells who asked that it is not wanted.
    pub fn refuse_later(&mut self, id: u64, refused: bool, reason: &str) {
        let Some(node) = self.qps.get(&id).map(|qp| qp.node) else { return };
        let delay = self.delay(node);
        self.schedule(delay, Action::Refuse { qp: id, refused, reason: reason.to_owned() });
    }

    /// Ends a listener (only the one with number `id`, if given).
    pub fn stop_listening(&mut self, name: &str, id: Option<u64>) {
        if self.listeners.get(name).is_none_or(|l| id.is_some_and(|id| l.id != id)) {
            return;
        }
        let Some(listener) = self.listeners.remove(name) else { return };
        for request in listener.requests {
            self.refuse_later(request, true, "connection refused");
        }
    }

    /// The other end is gone, or cannot be reached any more.
    pub fn gone(&mut self, id: u64, reason: &'static str) {
        let Some(qp) = self.qps.get(&id) else { return };
        let (node, state) = (qp.node, qp.state);
        let peer_node = qp.peer.and_then(|peer| self.qps.get(&peer)).map(|peer| peer.node);
        if peer_node.is_some_and(|peer| self.is_partitioned(node, peer)) {
            if let Some(qp) = self.qps.get_mut(&id) {
                qp.untold = Some(reason);
            }
            return;
        }
        match state {
            State::Connecting => self.refuse(id, false, reason.into()),
            State::Connected => self.break_end(id, Some(reason)),
            State::Broken => {}
        }
    }

    /// One end of a connection fails now, the other one later. `reason` is told by an event.
    pub fn break_end(&mut self, id: u64, reason: Option<&str>) {
        let late = self.rng.chance(self.faults.late_write_per_million);
        let Some(qp) = self.qps.get_mut(&id).filter(|qp| qp.state != State::Broken) else { return };
        // What never was connected has nothing on its way.
        let late = late && qp.is_connected();
        (qp.state, qp.late) = (State::Broken, late);
        let (engine, node, peer, timer) = (qp.engine, qp.node, qp.peer, qp.timer.take());
        timer.into_iter().for_each(|slot| self.unschedule(slot));
        if let Some(reason) = reason {
            let (queue_pair, reason) = (QueuePair(id), reason.to_owned());
            self.event(engine, QueuePairEvent::Disconnected { queue_pair, reason });
        }
        if let Some(peer) = peer {
            let delay = self.delay(node);
            self.schedule(delay, Action::Gone { qp: peer, reason: "the peer disconnected" });
            if late {
                self.catch_receive(id, engine, peer);
                self.kick(peer);
            }
        }
        let delay = self.delay(node);
        self.schedule(delay, Action::Flush(id));
        self.kick(id);
    }

    /// A message that was arriving takes a posted receive with it: it comes back `Flushed`.
    fn catch_receive(&mut self, id: u64, engine: u64, peer: u64) {
        let Some(message) = self.qps.get(&peer).and_then(Qp::next_message) else { return };
        let Some(engine) = self.engines.get_mut(&engine) else { return };
        if engine.receives.is_empty() {
            return;
        }
        let receive = engine.receives.swap_remove(self.rng.index(engine.receives.len()));
        if let Some(qp) = self.qps.get_mut(&id) {
            qp.caught.push((receive, message, false));
        }
    }

    /// One work request after the other comes back, in any order.
    pub fn flush(&mut self, id: u64) {
        let Some(qp) = self.qps.get_mut(&id) else { return };
        let node = qp.node;
        let mut left = qp.unfinished();
        if left.is_empty() {
            let delay = self.delay(node) * self.rng.range(1, 10) as u32;
            self.schedule(delay, Action::Quiesce(id));
            return;
        }
        let (wr_id, opcode) = left.swap_remove(self.rng.index(left.len()));
        qp.mark_flushed(wr_id, opcode);
        self.complete(id, wr_id, opcode, Status::Flushed, (0, 0));
        let delay = self.delay(node);
        self.schedule(delay, Action::Flush(id));
    }

    /// The last moment at which the memory of a queue pair is touched.
    pub fn quiesce(&mut self, id: u64) {
        let Some(qp) = self.qps.remove(&id) else { return };
        for (receive, message, _) in &qp.caught {
            self.counts.late_writes += 1;
            let to = seen(&self.regions, &self.attr, qp.device, &receive.buffers);
            scatter_bytes(message, &to);
        }
        let engine = qp.engine;
        drop(qp);
        self.event(engine, QueuePairEvent::Quiescent { queue_pair: QueuePair(id) });
    }

    /// Takes back a tagged receive, unless it completed meanwhile.
    pub fn cancel(&mut self, id: u64, tag: u64) {
        let Some(qp) = self.qps.get_mut(&id).filter(|qp| qp.is_connected()) else { return };
        let Some(Landing::Posted(posted)) = qp.tagged.get_mut(&tag) else { return };
        if !posted.cancelled {
            return;
        }
        let wr_id = posted.wr_id;
        if posted.taken {
            // The rest of the message under way finds no landing and is thrown away.
            qp.tagged.remove(&tag);
        } else {
            qp.tagged.insert(tag, Landing::ThrownAway);
        }
        let peer = qp.peer;
        self.complete(id, wr_id, Opcode::TaggedRecv, Status::Cancelled, (0, 0));
        peer.into_iter().for_each(|peer| self.kick(peer));
    }
}
