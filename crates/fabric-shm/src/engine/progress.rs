//! Progress: what an engine does for its queue pairs in one pass, and whom it asks epoll about.
//!
//! Queue pairs on which something happened lately are looked at in each pass; the others have said that they
//! sleep, and their peers ring. Epoll is asked now and then: a pass in which something came counts as many in
//! which nothing did, so that it costs a hundredth of the time either way.

use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{Ordering, fence};

use dafs_fabric::epoll::{self, Watch};
use dafs_fabric::{Opcode, PostedReceive, QueuePairEvent, ShortMessage, Status, WorkCompletion};

use super::{OF_BELL, OF_PROCESS, ShmEngine};
use crate::connection::{CLIENT_LIMITS, Progress};
use crate::peer::Peer;
use crate::queue_pair::{Connection, Heard, Look};
use crate::ring::{LINE_BYTES, RING_BYTES};
use crate::slots::Link;
use crate::sys;
use crate::wire::{MESSAGE_BYTES_MAX, Message, Side};

/// What a pass counts in which something came.
const BUSY_PASS: u32 = 32;
/// Epoll is asked after so much: while some queue pairs are not looked at, and while all are.
const ASK_AFTER: u32 = 1024;
const ASK_AFTER_ALL: u32 = 16 * 1024;
/// A queue pair on which nothing came in so many passes is looked at no more, where there are several.
const IDLE_PASSES: u64 = 4096;
const ACTIVE_MIN: usize = 8;
/// Messages of a ring in one pass, and short ones between two polls, before others have their turn: whoever is
/// answered at once sends more meanwhile.
const TURN_MAX: u32 = 64;
/// A ring has no more messages.
const LAST_MAX: u32 = (RING_BYTES / LINE_BYTES) as u32;
/// Messages of a socket in one pass.
const HEARD_MAX: usize = 16;
/// What a peer sent stays in its socket.
const NO_ROOM: &str =
    "memory that the peer shares: no descriptor is left (RLIMIT_NOFILE, ulimit -n)";
/// Those that one who has ended may have left there.
const HEARD_LAST_MAX: usize = 4096;

impl ShmEngine {
    /// The pass of who has nothing to do but to look at rings, and finds nothing there but short messages, which
    /// stay: most of who spins are that. False: it is more, and nothing was done.
    #[inline(always)]
    pub(super) fn pass_quietly(&mut self) -> bool {
        let all = self.active.len() == self.slots.live;
        let left = self.broken.len() | self.slots.handshakes.len() | self.queue.len();
        let is_more = left > 0
            || self.by_word.is_some()
            || self.slept
            || self.receives.has_filled()
            || self.has_more
            || self.done >= self.ask_after(all)
            || self.active.is_empty()
            || self.active.len() > ACTIVE_MIN;
        if is_more {
            return false;
        }
        let (mut first_short, mut with_short) = (0, 0);
        for (index, slot) in self.active.iter().enumerate().rev() {
            match self.slots.up(*slot).map(|connection| connection.look(self.leaves_short)) {
                Some(Look::Quiet) => {}
                Some(Look::Short) => (first_short, with_short) = (index, with_short + 1),
                Some(Look::Work) | None => return false,
            }
        }
        (self.turn, self.with_short) = (first_short, with_short);
        self.passes += 1;
        let took = std::mem::take(&mut self.took);
        self.is_lively |= took;
        self.done += if took { BUSY_PASS } else { 1 };
        true
    }

    /// Goes on with all that may have something.
    #[inline(never)]
    pub(super) fn pass(&mut self) {
        self.passes += 1;
        if let Some(slot) = self.by_word.take() {
            self.is_awake(slot);
        }
        self.receives.forget_filled();
        while let Some((slot, why)) = self.broken.pop() {
            self.end(slot, format!("peer violated the protocol: {why}"), false);
        }
        (self.has_more, self.with_short) = (false, 0);
        let before = self.queue.len();
        let (mut index, mut left) = (0, self.active.len());
        while left > 0
            && let Some(slot) = self.active.get(index).copied()
        {
            left -= 1;
            let leaves = self.leaves_short;
            let look = self.slots.up(slot).map(|connection| connection.look(leaves));
            if let Some(Look::Quiet | Look::Short) = look {
                if look == Some(Look::Short) {
                    self.may_have_short();
                }
                index += 1;
                continue;
            }
            self.list_if_freed(slot);
            let is_rest_left = self.progress(slot, false);
            // One that ended made the list shorter.
            if self.active.get(index) == Some(&slot) {
                match is_rest_left {
                    // Others come first the next time, or it could take all receives each time.
                    true => self.active[index..].rotate_left(1),
                    false => index += 1,
                }
            }
        }
        self.retire_idle();
        let busy = self.queue.len() > before || std::mem::take(&mut self.took);
        self.is_lively |= busy;
        // One that copied as much as it may, and has more to copy, took longer than to ask.
        let done = if self.has_more {
            ASK_AFTER
        } else if busy {
            BUSY_PASS
        } else {
            1
        };
        self.done = self.done.saturating_add(done);
        let all = self.active.len() == self.slots.live;
        let must = self.active.is_empty() || !self.slots.handshakes.is_empty();
        if must || self.done >= self.ask_after(all) {
            self.ask();
        }
        self.judge_sleep(busy || self.with_short > 0 || self.rang);
    }

    /// Somebody has a short message, or may have one.
    fn may_have_short(&mut self) {
        self.with_short = self.active.len();
    }

    /// Epoll is asked in the next pass.
    pub(super) fn ask_soon(&mut self) {
        self.done = ASK_AFTER_ALL;
    }

    /// After how much epoll is asked, where all queue pairs are looked at, or not.
    #[inline]
    fn ask_after(&self, all: bool) -> u32 {
        if all { ASK_AFTER_ALL } else { ASK_AFTER }
    }

    /// Asks epoll.
    fn ask(&mut self) {
        self.done = 0;
        for slot in self.slots.handshakes.clone() {
            self.step(slot);
        }
        self.waiter.epoll.ready(&mut self.events);
        for index in 0..self.events.len() {
            let token = self.events.token(index);
            match token.map(|token| (token, u32::try_from(token & !(OF_PROCESS | OF_BELL)))) {
                Some((token, Ok(slot))) if token & OF_PROCESS != 0 => self.told_of_process(slot),
                Some((token, Ok(slot))) if token & OF_BELL != 0 => self.is_rung(slot),
                Some((_, Ok(slot))) => self.told_of(slot, (HEARD_MAX, true)),
                Some((_, Err(_))) | None => {}
            }
        }
        self.tell_who_lags();
        if self.events.is_full() {
            self.ask_soon();
        } else {
            self.rounds += 1;
        }
    }

    /// Peers whose sockets were full are told again: a call for each, so not in each pass, as one who never reads
    /// what is in its socket stays so.
    fn tell_who_lags(&mut self) {
        for slot in &self.active {
            if let Some(connection) = self.slots.up(*slot)
                && connection.peer.lags()
            {
                self.system_calls += 1;
                self.shared.table.tell_again(&connection.peer);
            }
        }
    }

    /// Epoll told of the bell that was given to a peer. Nothing is taken out of it: each time it is rung, it tells.
    fn is_rung(&mut self, slot: u32) {
        // It may be that of a queue pair that has ended.
        if self.slots.up(slot).is_some() {
            self.activate(slot);
            self.progress(slot, false);
        }
    }

    /// Epoll told of a slot: it was rung, its peer shares memory, or has hung up. `hears` as of
    /// [`Connection::hear`].
    fn told_of(&mut self, slot: u32, hears: (usize, bool)) {
        self.system_calls += 1;
        self.rang = true;
        match self.slots.link(slot) {
            Some(Link::Up(connection)) => {
                let heard = connection.hear(hears.0, hears.1);
                self.activate(slot);
                // What came before an end has a completion, which comes before that is told.
                let ends = !hears.1 || heard != Ok(Heard::All);
                self.progress(slot, ends);
                match heard {
                    Ok(Heard::All) => {}
                    Ok(_) if self.slots.up(slot).is_none() => {}
                    Ok(Heard::End) => self.end(slot, "closed by the peer".into(), true),
                    Ok(Heard::Left) => self.end(slot, "closed by the peer".into(), false),
                    Ok(Heard::NoRoom) => self.end(slot, NO_ROOM.into(), false),
                    Err(why) => {
                        self.end(slot, format!("peer violated the protocol: {why}"), false);
                    }
                }
            }
            Some(Link::Closing(peer)) => {
                let mut bytes = [0; MESSAGE_BYTES_MAX];
                match peer.socket().receive(&mut bytes) {
                    Err(error) if sys::is_temporary(&error) => return,
                    Ok(received) if received.len > 0 => {
                        let message = Message::decode(bytes.get(..received.len).unwrap_or(&[]));
                        if message == Some(Message::Leave) && peer.may_read() {
                            self.is_left(slot);
                        }
                        return;
                    }
                    // It is not waited for, as its queue cannot be read. It may still write to our memory.
                    Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                        self.shared.table.retire(&peer.was_told());
                    }
                    _ => {}
                }
                self.is_quiescent(slot);
            }
            Some(Link::Read(peer)) => {
                let mut bytes = [0; MESSAGE_BYTES_MAX];
                match peer.socket().receive(&mut bytes) {
                    Err(error) if sys::is_temporary(&error) => {}
                    Ok(received) if received.len > 0 => {}
                    // One whose queue cannot be read may still read; its process ends some day. Of the queue
                    // epoll would tell again and again.
                    Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                        let peer = peer.clone();
                        self.forget(peer.socket());
                    }
                    _ => self.is_returned(slot),
                }
            }
            // Handshakes are looked at anyway.
            Some(Link::Free | Link::Connecting(_)) | None => {}
        }
    }

    /// Epoll told that the process of a peer has ended. What it has sent is taken, as when it hangs up. If
    /// it has not, a child has its socket, and may have our memory: nothing more is cut from that.
    pub(super) fn told_of_process(&mut self, slot: u32) {
        let peer = match self.slots.link(slot) {
            Some(Link::Up(connection)) => connection.peer.clone(),
            Some(Link::Closing(peer) | Link::Read(peer)) => peer.clone(),
            Some(Link::Free | Link::Connecting(_)) | None => return,
        };
        self.system_calls += 1;
        // The slot may be another queue pair's since epoll was asked.
        if !peer.process().has_ended() {
            return;
        }
        // What is in the socket, and whether it has hung up as well.
        self.told_of(slot, (HEARD_LAST_MAX, false));
        match self.slots.link(slot) {
            Some(Link::Up(_)) => self.end(slot, "the peer's process has ended".into(), false),
            Some(Link::Closing(_)) => {}
            Some(Link::Read(_)) => return self.is_returned(slot),
            _ => return,
        }
        if let Some(Link::Closing(_)) = self.slots.link(slot) {
            self.shared.table.retire(&peer.was_told());
            self.is_quiescent(slot);
        }
    }

    /// The peer has left our memory.
    fn is_quiescent(&mut self, slot: u32) {
        let queue_pair = self.slots.queue_pair(slot);
        drop(self.free_slot(slot));
        self.queue.push_event(QueuePairEvent::Quiescent { queue_pair });
    }

    /// The peer has left our memory, but for what it was lent.
    pub(super) fn is_left(&mut self, slot: u32) {
        let queue_pair = self.slots.queue_pair(slot);
        let Some(Link::Closing(peer)) = self.slots.link(slot) else { return };
        let peer = peer.clone();
        drop(self.slots.put(slot, Link::Read(peer)));
        self.queue.push_event(QueuePairEvent::Quiescent { queue_pair });
    }

    /// Nor does it read that any more.
    fn is_returned(&mut self, slot: u32) {
        let queue_pair = self.slots.queue_pair(slot);
        drop(self.free_slot(slot));
        self.queue.push_event(QueuePairEvent::Returned { queue_pair });
    }

    /// Goes on with one queue pair that is connected; one that `ends` has all that is there taken. True: it had its
    /// turn, and may have more.
    fn progress(&mut self, slot: u32, ends: bool) -> bool {
        let leaves_short = self.leaves_short && !ends;
        if leaves_short {
            self.may_have_short();
        }
        let most = if ends { LAST_MAX } else { TURN_MAX };
        let receives = &mut self.receives;
        let Some(connection) = self.slots.up(slot) else { return false };
        let mut taken = 0;
        while taken < most && !receives.is_empty() {
            let message = match connection.receiver.front() {
                Ok(None) => break,
                Ok(Some(message)) if leaves_short && message.is_short() => break,
                Ok(Some(message)) => message,
                Err(why) => {
                    self.end(slot, format!("peer violated the protocol: {why}"), false);
                    return false;
                }
            };
            let Some(PostedReceive { wr_id, buffers }) = receives.front() else { break };
            let (wr_id, fits) = (*wr_id, connection.receiver.copy_to(message, buffers));
            receives.fill_front();
            let status = if fits { Status::Success } else { Status::LocalLength };
            self.queue.push(WorkCompletion {
                wr_id,
                queue_pair: connection.queue_pair,
                opcode: Opcode::Recv,
                status,
                byte_len: if fits { message.len as u32 } else { 0 },
                header_len: 0,
            });
            connection.receiver.pop(message);
            taken += 1;
        }
        let is_rest_left = taken == most || taken > 0 && receives.is_empty();
        if taken > 0 {
            connection.freed = true;
            connection.told = self.queue.queued();
            connection.last = self.passes;
        }
        if !connection.work.is_empty() {
            self.go_on(slot);
        }
        is_rest_left
    }

    /// A peer is to be rung for room, as nothing was sent since that was made.
    pub(super) fn list_if_freed(&mut self, slot: u32) {
        if let Some(connection) = self.slots.up(slot)
            && connection.freed
            && !std::mem::replace(&mut connection.listed, true)
        {
            self.to_ring.push(slot);
        }
    }

    /// See [`Engine::take_short`](dafs_fabric::Engine::take_short).
    #[inline(always)]
    pub(super) fn take_next_short(&mut self, into: &mut ShortMessage) -> bool {
        self.with_short > 0 && (self.take_turn(into) || self.take_of_others(into))
    }

    /// Takes one of whose turn it is.
    #[inline(always)]
    fn take_turn(&mut self, into: &mut ShortMessage) -> bool {
        if self.taken < TURN_MAX
            && let Some(slot) = self.active.get(self.turn)
            && let Some(connection) = self.slots.up(*slot)
            && connection.take_short(into, self.queue.polled())
        {
            self.taken += 1;
            self.took = true;
            connection.last = self.passes;
            return true;
        }
        false
    }

    /// Takes one of those who come next.
    #[inline(always)]
    fn take_of_others(&mut self, into: &mut ShortMessage) -> bool {
        (self.turn, self.taken) = (self.turn + 1, 0);
        self.with_short -= 1;
        self.with_short > 0 && self.take_next(into)
    }

    /// As [`take_of_others`](Self::take_of_others), of any that comes next.
    #[inline(never)]
    fn take_next(&mut self, into: &mut ShortMessage) -> bool {
        while self.turn < self.active.len() {
            if self.take_turn(into) {
                return true;
            }
            (self.turn, self.taken) = (self.turn + 1, 0);
        }
        self.with_short = 0;
        false
    }

    /// So much was copied to answer a message that whose it is has had its turn.
    #[cold]
    pub(super) fn has_copied(&mut self) {
        self.taken = TURN_MAX;
        // It took longer than to ask.
        self.done = self.done.saturating_add(ASK_AFTER);
    }

    /// Does what was posted to a queue pair and could not be done then.
    pub(super) fn go_on(&mut self, slot: u32) {
        let queue = (&mut self.queue, self.polls);
        let Some(connection) = self.slots.up(slot) else { return };
        match connection.go_on(queue) {
            Ok(more) => self.has_more |= more,
            Err(why) => return self.end(slot, format!("peer violated the protocol: {why}"), false),
        }
        if connection.put && !std::mem::replace(&mut connection.listed, true) {
            self.to_ring.push(slot);
        }
    }

    /// Some queue pair that is looked at has something that can be taken now.
    pub(super) fn active_have_some(&mut self) -> bool {
        let (can_receive, leaves_short) = (!self.receives.is_empty(), self.leaves_short);
        let slots = &mut self.slots;
        self.active.iter().any(|slot| {
            slots.up(*slot).is_some_and(|connection| {
                let has_room = connection.work.front().is_some_and(|work| {
                    !connection.peer.lags() && connection.sender.has_room(work.total) != Ok(false)
                });
                has_room
                    || can_receive && connection.receiver.has_some()
                    || leaves_short && connection.has_short()
            })
        })
    }

    /// Peers ring from now on. Those that have sent what nobody has posted a receive for are looked at all
    /// the same.
    pub(super) fn leave_active(&mut self) {
        let slots = &mut self.slots;
        self.active.retain(|slot| {
            let Some(connection) = slots.up(*slot) else { return false };
            connection.active = connection.receiver.has_some() || connection.peer.lags();
            connection.active
        });
    }

    /// Looks no more at queue pairs on which nothing comes.
    fn retire_idle(&mut self) {
        if self.active.len() <= ACTIVE_MIN || !self.passes.is_multiple_of(IDLE_PASSES / 4) {
            return;
        }
        let (slots, passes) = (&mut self.slots, self.passes);
        let is_idle = |connection: &Connection| {
            passes - connection.last > IDLE_PASSES && connection.work.is_empty()
        };
        for slot in &self.active {
            if let Some(connection) = slots.up(*slot).filter(|connection| is_idle(connection)) {
                connection.bell.sleep(false);
            }
        }
        fence(Ordering::SeqCst);
        self.active.retain(|slot| {
            let Some(connection) = slots.up(*slot) else { return false };
            if is_idle(connection) {
                connection.active = connection.receiver.has_some();
                if connection.active {
                    connection.bell.wake();
                }
            }
            connection.active
        });
    }

    /// Says what must be looked at after a time of which no descriptor tells: handshakes, and peers that are
    /// to be told more when their sockets have room.
    pub(super) fn set_looks(&mut self) {
        let slots = &mut self.slots;
        let lags = |slot: &u32| slots.up(*slot).is_some_and(|connection| connection.peer.lags());
        let some = self.active.iter().any(lags) || !slots.handshakes.is_empty();
        self.waiter.epoll.set_handshakes(some);
    }

    /// Goes on with one handshake.
    pub(super) fn step(&mut self, slot: u32) {
        let queue_pair = self.slots.queue_pair(slot);
        let Some(Link::Connecting(handshake)) = self.slots.link(slot) else { return };
        // At least one call; their exact number does not matter here.
        self.system_calls += 1;
        let step = handshake.step();
        let watch = Watch::Add(epoll::EPOLLIN | epoll::EPOLLRDHUP);
        if !handshake.watched
            && let Some(socket) = handshake.socket()
        {
            let fd = socket.as_fd().as_raw_fd();
            let watched = self.waiter.epoll.watch_own(fd, u64::from(slot), watch);
            handshake.watched = watched.is_ok();
        }
        match step {
            Progress::Pending => {}
            Progress::Connected { socket, limits, .. } if !self.shared.table.fits(limits) => {
                self.forget(&socket);
                drop(self.free_slot(slot));
                let reason = "this program shares more memory than the server takes".into();
                self.queue.push_event(QueuePairEvent::Refused {
                    queue_pair,
                    refused: false,
                    reason,
                });
            }
            Progress::Connected { socket, memory, limits, private_data, bell } => {
                self.slots.handshakes.retain(|listed| *listed != slot);
                self.waiter.epoll.set_handshakes(!self.slots.handshakes.is_empty());
                let peer = Peer::new(socket, true, limits);
                let given = (CLIENT_LIMITS, None);
                let mut connection =
                    Connection::new(queue_pair, Side::Client, peer, &memory, given);
                connection.peers_bell = bell;
                self.queue.push_event(QueuePairEvent::Connected { queue_pair, private_data });
                self.is_up(slot, connection);
            }
            Progress::Failed(refused, reason) => {
                drop(self.free_slot(slot));
                self.queue.push_event(QueuePairEvent::Refused { queue_pair, refused, reason });
            }
        }
    }
}
