//! Reads of what has a name: they are asked, and the answer moves their data.

use super::memory::seen;
use super::queue_pair::Work;
use super::transfer::copy;
use super::world::World;
use crate::error::PostError;
use crate::types::{NamedAsk, Opcode, QueuePair, Status, sg_bytes};

impl World {
    /// A named read comes to the peer that is to answer it.
    pub fn ask(&mut self, work: &mut Work, peer: u64) {
        work.started = true;
        let Some(engine) = self.qps.get(&peer).map(|qp| qp.engine) else { return };
        self.engines.get_mut(&engine).into_iter().for_each(|engine| engine.looked = false);
        let unlucky = self.rng.chance(self.faults.access_fault_per_million);
        self.counts.access_faults += u64::from(unlucky);
        let offset = work.remote.map_or(0, |remote| remote.addr);
        let of = (QueuePair(peer), work.tag.0 as u32);
        let ask = NamedAsk::new(of, &work.header, (offset, work.len as u32));
        let asked = self.engines.get_mut(&engine).and_then(|engine| engine.asked.as_mut());
        match (ask, asked) {
            (Some(ask), Some(asked)) if !unlucky => {
                asked.push_back(ask);
                let unanswered = self.qps.get_mut(&peer).map(|qp| &mut qp.unanswered);
                unanswered.into_iter().for_each(|all| all.push_back(of.1));
            }
            _ => (work.done, work.status) = (true, Status::RemoteAccess),
        }
    }

    /// The read to which this end of a connection is to answer.
    fn asking(&mut self, queue_pair: u64, id: u32) -> Option<(u64, &mut Work)> {
        let peer = self.qps.get(&queue_pair)?.peer?;
        let works = &mut self.qps.get_mut(&peer)?.works;
        let is_it = |work: &&mut Work| {
            work.opcode == Opcode::NamedRead && work.tag.0 as u32 == id && !work.done
        };
        Some((peer, works.iter_mut().find(is_it)?))
    }

    /// It is the next one that is to be answered.
    pub fn is_next_named(&self, queue_pair: u64, id: u32) -> bool {
        self.qps.get(&queue_pair).is_none_or(|qp| qp.unanswered.front() == Some(&id))
    }

    /// It has its answer.
    pub fn is_answered(&mut self, queue_pair: u64) {
        self.qps.get_mut(&queue_pair).and_then(|qp| qp.unanswered.pop_front());
    }

    /// It asks for so many bytes, or is gone.
    pub fn asks_for(&mut self, queue_pair: u64, id: u32, bytes: usize) -> bool {
        self.asking(queue_pair, id).is_none_or(|(_, read)| bytes <= read.len)
    }

    /// A read is not answered.
    pub fn refuse_named(&mut self, queue_pair: u64, id: u32) -> Result<(), PostError> {
        if self.qps.get(&queue_pair).is_none_or(|qp| !qp.is_connected()) {
            return Err(PostError::NotConnected);
        }
        if let Some((peer, read)) = self.asking(queue_pair, id) {
            (read.done, read.status) = (true, Status::RemoteAccess);
            self.kick(peer);
        }
        Ok(())
    }

    /// A piece of an answer moves.
    pub fn answer(&mut self, work: &mut Work, peer: u64) {
        let (id, rng) = (work.tag.0 as u32, &mut self.rng);
        let device = self.qps.get(&peer).map_or(0, |qp| qp.device);
        let Some(qp) = self.qps.get_mut(&peer) else { return };
        let is_it = |read: &&mut Work| {
            read.opcode == Opcode::NamedRead && read.tag.0 as u32 == id && !read.done
        };
        let Some(read) = qp.works.iter_mut().find(is_it) else {
            work.done = true;
            return;
        };
        let (at, len) = work.next_piece(rng);
        let local = seen(&self.regions, &self.attr, work.device, &work.local);
        let into = seen(&self.regions, &self.attr, device, &read.local);
        debug_assert!(work.len <= sg_bytes(&into) || read.reported, "it was asked for less");
        copy(&work.source(&local), at, &into, at, len);
        if work.done {
            (read.len, read.done) = (work.len, true);
            self.kick(peer);
        }
    }
}
