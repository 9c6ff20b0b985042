//! Devices that are shared memory: who posts copies by itself. Work may be done when it is posted, so that a peer
//! sees it long before its completion is polled; data and the message behind it go together; and what
//! a receive had stays until the next poll, so that it can be posted again as it was.

use super::queue_pair::Work;
use super::transfer::{Source, copy, gather};
use super::world::{Ready, World};
use crate::mem::Span;
use crate::planted::{Defect, planted};
use crate::types::{Opcode, RemoteSpan, SHORT_MESSAGE_BYTES, ShortMessage, Status, WrId, sg_bytes};

/// More than so many bytes are copied bit by bit.
const AT_ONCE_MAX: usize = 64 * 1024;
/// So many go together with a message.
const TOGETHER_MAX: usize = 1 << 20;

impl Ready {
    /// A message that can be taken without a receive.
    pub fn is_short(&self) -> bool {
        let Ready::Completion { completion, receive: Some(_), .. } = self else { return false };
        completion.status == Status::Success && completion.byte_len as usize <= SHORT_MESSAGE_BYTES
    }
}

impl World {
    /// The peer of a queue pair of which all earlier work is done, and who can be reached now.
    fn peer_at_once(&self, id: u64) -> Option<u64> {
        let qp = self.qps.get(&id).filter(|qp| qp.is_connected())?;
        let peer = self.qps.get(&qp.peer?).filter(|peer| peer.is_connected())?;
        let may = !self.is_partitioned(qp.node, peer.node) && self.attr.target_cpu_free;
        (may && peer.paused.is_none()).then_some(qp.peer?)
    }

    /// Does the one-sided work that was posted last, or leaves it for later.
    pub fn do_at_once(&mut self, id: u64) {
        let may = self.attr.shared_memory && self.attr.recoverable_access_fault && self.rng.coin();
        let Some(peer) = self.peer_at_once(id).filter(|_| may) else { return };
        let Some(qp) = self.qps.get_mut(&id) else { return };
        let Some((last, before)) = qp.works.split_last() else { return };
        let is_one_sided = matches!(last.opcode, Opcode::RdmaWrite | Opcode::RdmaRead);
        if !is_one_sided || last.len > AT_ONCE_MAX || before.iter().any(|work| !work.done) {
            return;
        }
        let Some(mut work) = qp.works.pop() else { return };
        while !work.done {
            self.access(&mut work, peer);
        }
        if let Some(qp) = self.qps.get_mut(&id) {
            qp.works.push(work);
        }
    }

    /// See [`write_and_send`](crate::Engine::write_and_send). `message` has the header.
    pub fn write_and_send(
        &mut self,
        id: u64,
        data: &[Span],
        remote: RemoteSpan,
        message: Work,
    ) -> bool {
        let bytes = sg_bytes(data);
        let fits = bytes <= TOGETHER_MAX && bytes == remote.len as usize;
        let is_behind = self.qps.get(&id).is_none_or(|qp| qp.works.iter().any(|work| !work.done));
        let Some(peer) = self.peer_at_once(id).filter(|_| fits && !is_behind) else { return false };
        let unlucky = self.rng.chance(self.faults.queue_full_per_million);
        self.counts.queue_full += u64::from(unlucky);
        let Some(target) = self.target(peer, remote, true).filter(|_| !unlucky) else {
            return false;
        };
        // Nobody waits for its end.
        let message = Work { rung: true, reported: true, staged: Some(Vec::new()), ..message };
        let mut works = vec![message];
        if planted(Defect::MessageBeforeItsData) {
            let (opcode, len, staged) = (Opcode::RdmaWrite, bytes, Some(gather(data)));
            let (remote, header) = (Some(remote), Vec::new());
            works.push(Work { opcode, len, staged, remote, header, ..works[0].clone() });
        } else {
            copy(&Source::Memory(data), 0, &target, 0, bytes);
        }
        if let Some(qp) = self.qps.get_mut(&id) {
            qp.works.extend(works);
        }
        self.kick(id);
        true
    }

    /// Takes what is ready first, if it is a short message, and has its receive posted as it was.
    pub fn take_short(&mut self, engine: u64, into: &mut ShortMessage) -> bool {
        let Some(state) = self.engines.get_mut(&engine) else { return false };
        if !state.ready.front().is_some_and(Ready::is_short) {
            return false;
        }
        let Some(Ready::Completion { completion, receive: Some(receive), .. }) =
            state.ready.pop_front()
        else {
            return false;
        };
        (into.queue_pair, into.len) = (completion.queue_pair, completion.byte_len as usize);
        let mut at = 0;
        for span in &receive.buffers {
            let len = span.len().min(into.len - at);
            span.part(0, len).copy_to(0, &mut into.bytes[at..at + len]);
            at += len;
        }
        self.look_at_early_use(engine, &receive.buffers);
        self.take_receive(engine, receive);
        true
    }

    /// Posts the receive again whose completion was polled first, if it is this one.
    pub fn receive_again(&mut self, engine: u64, wr_id: WrId) -> bool {
        let depth = self.attr.receive_queue_depth;
        let Some(state) = self.engines.get_mut(&engine) else { return false };
        let is_it = state.polled.front().is_some_and(|receive| receive.wr_id == wr_id);
        if !is_it || state.receives.len() >= depth {
            return false;
        }
        let Some(receive) = state.polled.pop_front() else { return false };
        self.look_at_early_use(engine, &receive.buffers);
        self.take_receive(engine, receive);
        true
    }
}
