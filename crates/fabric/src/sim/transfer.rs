//! Data moves: one random move of a queue pair's work at a time.

use super::memory::seen;
use super::queue_pair::{Landing, Qp, Work};
use super::rng::Rng;
use super::world::{Action, World};
use crate::mem::Span;
use crate::types::{Opcode, QueuePair, QueuePairEvent, RemoteSpan, SgList, Status, Tag, sg_bytes};

/// Pieces into which a transfer is cut, at most.
const PIECES_MAX: u64 = 8;

/// What can happen next to a work request.
#[derive(Debug, Clone, Copy)]
enum Move {
    /// Its data is copied away.
    Stage,
    /// A message is delivered, or a piece of data moves.
    Advance,
    /// It is given back.
    Report,
}

/// Where data comes from.
pub(super) enum Source<'a> {
    Memory(&'a [Span]),
    Staged(&'a [u8]),
}

impl Work {
    /// `local` is its local memory as the device sees it.
    pub fn source<'a>(&'a self, local: &'a [Span]) -> Source<'a> {
        match &self.staged {
            Some(staged) => Source::Staged(staged),
            None => Source::Memory(local),
        }
    }

    /// The next piece to move, in random order.
    pub fn next_piece(&mut self, rng: &mut Rng) -> (usize, usize) {
        if !self.started {
            self.started = true;
            self.pieces = cut(self.len, rng);
        }
        let piece = self.pieces.swap_remove(rng.index(self.pieces.len()));
        self.done = self.pieces.is_empty();
        piece
    }
}

impl World {
    /// Schedules a move of `id`, if one is possible.
    pub fn kick(&mut self, id: u64) {
        let Some(qp) = self.qps.get(&id).filter(|qp| !qp.is_scheduled) else { return };
        let node = qp.node;
        if self.moves(id).is_empty() {
            return;
        }
        if let Some(qp) = self.qps.get_mut(&id) {
            qp.is_scheduled = true;
        }
        let delay = self.delay(node);
        self.schedule(delay, Action::Step(id));
    }

    /// All moves of `id` that the contract allows now.
    fn moves(&self, id: u64) -> Vec<(usize, Move)> {
        let mut moves = Vec::new();
        let Some(qp) = self.qps.get(&id) else { return moves };
        let peer = qp.peer.and_then(|peer| self.qps.get(&peer));
        let peer = peer.filter(|peer| {
            peer.is_touched() && qp.is_touched() && !self.is_partitioned(qp.node, peer.node)
        });
        let (mut send_before, mut write_before, mut read_before) = (false, false, false);
        let mut answer_before = false;
        for (index, work) in qp.works.iter().enumerate().filter(|(_, work)| work.rung) {
            // What is told of an answer is told of all before it.
            let may_tell = !(answer_before && work.opcode == Opcode::NamedAnswer);
            answer_before |= work.opcode == Opcode::NamedAnswer && !work.reported;
            if qp.is_connected() && work.is_reportable() && may_tell {
                moves.push((index, Move::Report));
            }
            if work.done {
                continue;
            }
            if work.stages && work.staged.is_none() && !work.started && qp.is_connected() {
                moves.push((index, Move::Stage));
            }
            let in_order = match work.opcode {
                Opcode::Send => !(send_before || write_before && self.attr.write_before_send),
                Opcode::TaggedSend => !send_before,
                Opcode::RdmaRead => !(read_before && (self.attr.ordered_reads || work.fence)),
                _ => true,
            };
            if in_order && peer.is_some_and(|peer| self.is_taken(qp, peer, work)) {
                moves.push((index, Move::Advance));
            }
            send_before |= work.opcode == Opcode::Send;
            write_before |= work.opcode == Opcode::RdmaWrite;
            read_before |= work.opcode == Opcode::RdmaRead;
        }
        moves
    }

    /// The receiving end takes what `work` brings.
    fn is_taken(&self, qp: &Qp, peer: &Qp, work: &Work) -> bool {
        match work.opcode {
            Opcode::RdmaRead => qp.paused.is_none() && self.is_attentive(peer),
            // It is with the peer, and the answer moves its data.
            Opcode::NamedRead if work.started => false,
            Opcode::NamedRead => {
                peer.paused.is_none() && peer.is_connected() && self.is_attentive(peer)
            }
            _ if peer.paused.is_some() => false,
            Opcode::RdmaWrite => self.is_attentive(peer),
            Opcode::Send => {
                let engine = self.engines.get(&peer.engine);
                peer.is_connected() && engine.is_some_and(|engine| !engine.receives.is_empty())
            }
            Opcode::TaggedSend => match peer.tagged.get(&work.tag.0) {
                Some(Landing::Posted(posted)) => !posted.taken || work.started,
                Some(Landing::ThrownAway) => true,
                None => work.started || peer.is_connected(),
            },
            _ => true,
        }
    }

    /// The target's CPU, if that is needed, does one-sided work now.
    fn is_attentive(&self, peer: &Qp) -> bool {
        let looked = || self.engines.get(&peer.engine).is_some_and(|engine| engine.looked);
        self.attr.target_cpu_free || looked()
    }

    pub fn step_queue_pair(&mut self, id: u64) {
        let Some(qp) = self.qps.get_mut(&id) else { return };
        qp.is_scheduled = false;
        let (peer, is_connected) = (qp.peer, qp.is_connected());
        let mut moves = self.moves(id);
        if moves.is_empty() {
            return;
        }
        if is_connected && self.rng.chance(self.faults.break_per_million) {
            self.counts.breaks += 1;
            return self.break_end(id, Some("the connection broke"));
        }
        let (index, next) = moves.swap_remove(self.rng.index(moves.len()));
        match next {
            Move::Stage => self.stage(id, index),
            Move::Report => self.report(id, index),
            Move::Advance => {
                let Some(peer) = peer else { return };
                self.advance(id, index, peer);
            }
        }
        self.kick(id);
    }

    fn stage(&mut self, id: u64, index: usize) {
        let Some(work) = self.qps.get_mut(&id).map(|qp| &mut qp.works[index]) else { return };
        work.staged = Some(gather(&seen(&self.regions, &self.attr, work.device, &work.local)));
        work.local.clear();
    }

    /// Gives a work request back to its owner.
    fn report(&mut self, id: u64, index: usize) {
        let Some(qp) = self.qps.get_mut(&id) else { return };
        let work = &mut qp.works[index];
        work.reported = true;
        work.local.clear();
        let (wr_id, opcode, status, len) = (work.wr_id, work.opcode, work.status, work.len);
        let is_told = work.signaled || status != Status::Success;
        if work.done {
            qp.works.remove(index);
        }
        if is_told {
            let reads = matches!(opcode, Opcode::RdmaRead | Opcode::NamedRead);
            let byte_len = if reads { len } else { 0 };
            self.complete(id, wr_id, opcode, status, (byte_len, 0));
        } else {
            qp.slots -= 1;
        }
    }

    /// Moves a piece. The work is taken out of its queue meanwhile, so that both ends can be
    /// borrowed; it keeps its place unless it is finished on both accounts.
    fn advance(&mut self, id: u64, index: usize, peer: u64) {
        let Some(qp) = self.qps.get_mut(&id) else { return };
        let mut work = qp.works.remove(index);
        if !qp.is_connected() || self.qps.get(&peer).is_none_or(|peer| !peer.is_connected()) {
            self.counts.late_writes += 1;
        }
        // A piece that was accepted and reported already is lost without a word when its key ends.
        // What a break gave back was not accepted.
        let is_accepted = work.reported && work.status == Status::Success;
        match work.opcode {
            Opcode::Send => self.deliver(&mut work, peer),
            Opcode::TaggedSend => self.land(&mut work, peer),
            Opcode::NamedRead => self.ask(&mut work, peer),
            Opcode::NamedAnswer => self.answer(&mut work, peer),
            _ => self.access(&mut work, peer),
        }
        let Some(qp) = self.qps.get_mut(&id) else { return };
        // A name that means nothing ends no connection.
        let is_access = work.opcode != Opcode::NamedRead;
        let fault = work.status == Status::RemoteAccess && is_access && !is_accepted;
        if !(work.done && work.reported && qp.is_connected()) {
            qp.works.insert(index, work);
        }
        if fault && !self.attr.recoverable_access_fault {
            if qp.is_connected() {
                self.report(id, index);
                self.break_end(id, Some("the peer refused an access"));
            }
            // What was posted behind the refused access never leaves: a send would announce data
            // that was not placed.
            self.qps.get_mut(&id).into_iter().for_each(|qp| qp.late = false);
        }
    }

    /// A message goes to any posted receive.
    fn deliver(&mut self, work: &mut Work, peer: u64) {
        let Some((engine, device)) = self.qps.get(&peer).map(|qp| (qp.engine, qp.device)) else {
            return;
        };
        let id = engine;
        let Some(engine) = self.engines.get_mut(&id) else { return };
        let receive = engine.receives.swap_remove(self.rng.index(engine.receives.len()));
        work.done = true;
        let (header, total) = (work.header.len(), work.header.len() + work.len);
        if total > sg_bytes(&receive.buffers) {
            drop(receive.buffers);
            self.complete(peer, receive.wr_id, Opcode::Recv, Status::LocalLength, (0, 0));
            return self.break_end(peer, Some("a message was longer than its receive"));
        }
        let to = seen(&self.regions, &self.attr, device, &receive.buffers);
        let local = seen(&self.regions, &self.attr, work.device, &work.local);
        scatter_bytes(&work.header, &to);
        copy(&work.source(&local), 0, &to, header, work.len);
        drop(to);
        self.complete(peer, receive.wr_id, Opcode::Recv, Status::Success, (total, 0));
        self.keep_receive(id, receive);
    }

    /// A piece of a tagged message goes to the buffer posted for it.
    fn land(&mut self, work: &mut Work, peer: u64) {
        let Tag(tag) = work.tag;
        let Some(qp) = self.qps.get_mut(&peer) else { return };
        let (engine, device, is_connected) = (qp.engine, qp.device, qp.is_connected());
        let posted = match qp.tagged.get_mut(&tag) {
            Some(Landing::Posted(posted)) => posted,
            None if !work.started => {
                qp.paused = Some(tag);
                if !work.announced {
                    work.announced = true;
                    let (queue_pair, tag) = (QueuePair(peer), Tag(tag));
                    self.event(engine, QueuePairEvent::UnmatchedTag { queue_pair, tag });
                }
                return;
            }
            landing => {
                // Cancelled, before or meanwhile.
                if landing.is_some() {
                    qp.tagged.remove(&tag);
                }
                work.done = true;
                return;
            }
        };
        posted.taken = true;
        let (header, wr_id) = (work.header.len(), posted.wr_id);
        let header_room = posted.header.as_ref().map_or(0, Span::len);
        let too_long = header > header_room || work.len > sg_bytes(&posted.data);
        if !too_long {
            let (at, len) = work.next_piece(&mut self.rng);
            let (regions, attr) = (&self.regions, &self.attr);
            let local = seen(regions, attr, work.device, &work.local);
            let data = seen(regions, attr, device, &posted.data);
            scatter_bytes(&work.header, &seen(regions, attr, device, posted.header.as_slice()));
            copy(&work.source(&local), at, &data, at, len);
        }
        if !is_connected || !(work.done || too_long) {
            return;
        }
        qp.tagged.remove(&tag);
        work.done = true;
        let status = if too_long { Status::LocalLength } else { Status::Success };
        self.complete(peer, wr_id, Opcode::TaggedRecv, status, (work.len, header));
        if too_long {
            self.break_end(peer, Some("a tagged message was longer than its buffer"));
        }
    }

    /// What a one-sided access reaches at a peer; `None`: it is refused, or bad luck has it.
    pub fn target(&mut self, peer: u64, remote: RemoteSpan, is_write: bool) -> Option<SgList> {
        let device = self.qps.get(&peer).map_or(0, |qp| qp.device);
        if self.rng.chance(self.faults.revoke_per_million) {
            self.revoke(remote.rkey.0);
        }
        let unlucky = self.rng.chance(self.faults.access_fault_per_million);
        self.counts.access_faults += u64::from(unlucky);
        self.check(device, remote, is_write).filter(|_| !unlucky)
    }

    /// A piece of a write or read moves, if the target allows it still.
    pub fn access(&mut self, work: &mut Work, peer: u64) {
        let Some(remote) = work.remote else { return };
        let (device, engine) = self.qps.get(&peer).map_or((0, 0), |qp| (qp.device, qp.engine));
        self.engines.get_mut(&engine).into_iter().for_each(|engine| engine.looked = false);
        let is_write = work.opcode == Opcode::RdmaWrite;
        let target = match work.started {
            true => self.check(device, remote, is_write),
            false => self.target(peer, remote, is_write),
        };
        match target {
            None => {
                work.done = true;
                work.status = Status::RemoteAccess;
            }
            Some(target) => {
                let (at, len) = work.next_piece(&mut self.rng);
                let local = seen(&self.regions, &self.attr, work.device, &work.local);
                if is_write {
                    copy(&work.source(&local), at, &target, at, len);
                } else {
                    copy(&Source::Memory(&target), at, &local, at, len);
                }
            }
        }
    }

    /// The memory behind a key: the device's own, within bounds, with the right.
    pub fn check(&self, device: u64, remote: RemoteSpan, is_write: bool) -> Option<SgList> {
        let region = self.regions.get(&remote.rkey.0).filter(|r| r.device == device)?;
        let right = if is_write { region.access.remote_write } else { region.access.remote_read };
        let offset = remote.addr.checked_sub(region.span.addr()).filter(|_| right)?;
        let room = (region.span.len() as u64).checked_sub(offset)?;
        let len = remote.len as usize;
        (u64::from(remote.len) <= room).then(|| {
            let span = region.span.part(offset as usize, len);
            region
                .pin
                .as_ref()
                .map_or_else(|| SgList::from_iter([span.clone()]), |pin| pin.seen(&span))
        })
    }
}

/// Cuts `len` bytes at random places, which are not aligned to anything.
fn cut(len: usize, rng: &mut Rng) -> Vec<(usize, usize)> {
    let mut cuts: Vec<usize> = (0..rng.below(PIECES_MAX)).map(|_| rng.index(len + 1)).collect();
    cuts.extend([0, len]);
    cuts.sort_unstable();
    cuts.dedup();
    match cuts.len() {
        1 => vec![(0, 0)],
        _ => cuts.windows(2).map(|pair| (pair[0], pair[1] - pair[0])).collect(),
    }
}

/// Calls `piece(span, offset in the span, bytes, bytes before)` for a part of a list.
fn each_piece(
    list: &[Span],
    mut skip: usize,
    len: usize,
    mut piece: impl FnMut(&Span, usize, usize, usize),
) {
    let mut done = 0;
    for span in list {
        if skip >= span.len() {
            skip -= span.len();
            continue;
        }
        let bytes = (span.len() - skip).min(len - done);
        if bytes > 0 {
            piece(span, skip, bytes, done);
        }
        done += bytes;
        skip = 0;
    }
}

pub(super) fn copy(from: &Source<'_>, at: usize, to: &[Span], to_at: usize, len: usize) {
    each_piece(to, to_at, len, |to, offset, bytes, before| match from {
        Source::Staged(staged) => to.copy_from(offset, &staged[at + before..][..bytes]),
        Source::Memory(list) => {
            each_piece(list, at + before, bytes, |from, part, bytes, before| {
                to.copy_span(offset + before, &from.part(part, bytes));
            });
        }
    });
}

/// The bytes of a list.
pub(super) fn gather(list: &[Span]) -> Vec<u8> {
    let mut all = vec![0; sg_bytes(list)];
    each_piece(list, 0, all.len(), |span, offset, bytes, before| {
        span.copy_to(offset, &mut all[before..before + bytes]);
    });
    all
}

/// Puts message bytes at the beginning of a list, as far as they fit.
pub(super) fn scatter_bytes(message: &[u8], to: &[Span]) {
    each_piece(to, 0, message.len(), |span, offset, bytes, before| {
        span.write_message(offset, &message[before..before + bytes]);
    });
}
