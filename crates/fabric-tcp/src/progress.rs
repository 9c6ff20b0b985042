//! Progress: what an engine does for its queue pairs in one pass, and what it watches while its
//! user sleeps.

use dafs_fabric::QueuePairEvent;

use crate::connection::Step;
use crate::engine::{Link, TcpEngine, list};
use crate::queue_pair::Connection;
use crate::receive::Received;
use crate::turns::Load;
use dafs_fabric::epoll::Watch;

/// Up to so many queue pairs are simply tried; more are asked for by epoll first.
const TRIED_MAX: usize = 4;
/// Up to so many are looked at before sleeping.
const LOW_WATER_MAX: usize = 64;
impl TcpEngine {
    /// Goes on with one queue pair.
    pub(crate) fn progress(&mut self, slot: u32) {
        match &mut self.slots[slot] {
            Link::Free => {}
            Link::Connecting(_) => self.step(slot),
            Link::Up(connection) => {
                if connection.send.is_blocked() {
                    let again = connection.flush(&mut self.core);
                    list(connection, slot, again, &mut self.to_flush);
                }
                let received = connection.receive(&mut self.core);
                let answers = connection.send.has_work() && !connection.send.is_blocked();
                list(connection, slot, answers, &mut self.to_flush);
                match received {
                    Received::All => {}
                    Received::More => self.passes.leave_some(),
                    Received::End(reason) => return self.end(slot, reason),
                }
                self.note(slot);
            }
        }
    }

    /// Remembers a slot whose interest changed or that paused.
    pub(crate) fn note(&mut self, slot: u32) {
        match &mut self.slots[slot] {
            Link::Free => {}
            Link::Connecting(handshake) => {
                if !std::mem::replace(&mut handshake.stale, true) {
                    self.watching.stale.push(slot);
                }
            }
            Link::Up(connection) => {
                if !connection.stale && connection.watched != Some(connection.interest()) {
                    connection.stale = true;
                    self.watching.stale.push(slot);
                }
                if !connection.paused && connection.receive.is_paused() {
                    connection.paused = true;
                    self.paused.push(slot);
                }
            }
        }
    }

    /// Goes on with one handshake.
    pub(crate) fn step(&mut self, slot: u32) {
        let queue_pair = self.slots.queue_pair(slot);
        let Link::Connecting(handshake) = &mut self.slots[slot] else { return };
        // At least one call; their exact number does not matter here.
        self.core.system_calls += 1;
        match handshake.step() {
            Step::Pending => return self.note(slot),
            Step::Connected(socket, private_data) => {
                let mut connection = Connection::new(queue_pair, socket, true);
                connection.watched = handshake.watched;
                connection.stale = handshake.stale;
                self.slots[slot] = Link::Up(Box::new(connection));
                self.note(slot);
                self.core.event(QueuePairEvent::Connected { queue_pair, private_data });
            }
            Step::Failed(refused, reason) => {
                self.free_slot(slot);
                self.core.event(QueuePairEvent::Refused { queue_pair, refused, reason });
            }
        }
        self.handshake_ends();
    }

    /// Goes on with all queue pairs that may have something.
    pub(crate) fn progress_all(&mut self) {
        self.passes.begin();
        self.core.turns.begin_to_receive();
        if self.slots.live().len() <= TRIED_MAX {
            return self.try_all();
        }
        // Whoever asks epoll instead of sleeping wants the last bytes of a run, too.
        self.reset_low_water();
        if !self.sync_interest() {
            self.try_unwatched();
        }
        self.ready.ask(&self.waiter);
        while let Some(token) = self.ready.front() {
            if self.core.turns.has_received_enough() {
                return self.passes.leave_some();
            }
            self.ready.pop_front();
            if let Some(slot) = u32::try_from(token).ok().filter(|slot| self.slots.has(*slot)) {
                self.progress(slot);
            }
        }
        self.ready.clear();
        let live = self.slots.live().len();
        self.passes.note_looks(self.ready.len(), !self.ready.is_full(), live);
        self.resume_paused();
        if self.slots.handshakes > 0 {
            self.step_all();
        }
    }

    /// Goes on with all, which are few, or with the one where something came last.
    fn try_all(&mut self) {
        // What epoll told of before would be taken for a look at all when there are more again.
        self.ready.clear();
        let count = self.slots.live().len();
        if count > 1
            && let Some(warm) = self.passes.partial(self.core.taken)
            && self.slots.has(warm)
        {
            return self.progress(warm);
        }
        self.core.taken = 0;
        let turn = self.passes.begin_all();
        for index in 0..count {
            // A queue pair that ended made the list shorter: the next pass sees the rest.
            let Some(slot) = self.slots.live().get((turn + index) % count).copied() else {
                return self.passes.end_all();
            };
            let before = self.core.queue.len();
            self.progress(slot);
            if self.core.queue.len() > before {
                self.passes.brought(slot);
            }
        }
        self.passes.end_all();
        self.passes.round_ends();
    }

    /// Queue pairs that paused are not told by epoll when they can go on.
    fn resume_paused(&mut self) {
        let mut index = 0;
        for _ in 0..self.paused.len() {
            let Some(slot) = self.paused.get(index).copied() else { break };
            let Link::Up(connection) = &mut self.slots[slot] else { break };
            let go = connection.can_resume(&self.core);
            if go || !connection.receive.is_paused() {
                connection.paused = false;
                self.paused.swap_remove(index);
            } else {
                index += 1;
            }
            if go {
                self.progress(slot);
            }
        }
    }

    /// Handshakes have deadlines, which epoll does not know.
    fn step_all(&mut self) {
        for index in 0..self.slots.live().len() {
            let Some(slot) = self.slots.live().get(index).copied() else { break };
            self.step(slot);
        }
    }

    pub(crate) fn flush_all(&mut self) {
        self.held = 0;
        if self.core.turns.are_short() {
            // Who asks for little has the first turns, which take little.
            self.flush_listed(|load| !load.is_bulk());
        }
        let served = self.flush_listed(|_| true);
        // Who did not have a turn is first in the next pass.
        self.to_flush.rotate_left(served);
    }

    /// A turn for each of these, while there are some in this pass. How many have more to send.
    fn flush_listed(&mut self, picks: impl Fn(&Load) -> bool) -> usize {
        let mut listed = std::mem::take(&mut self.to_flush);
        let mut served = 0;
        listed.retain(|slot| {
            if self.core.turns.has_sent_enough() {
                return true;
            }
            let Link::Up(connection) = &mut self.slots[*slot] else { return false };
            if !picks(&connection.load) {
                return true;
            }
            let again = connection.flush(&mut self.core);
            connection.send.listed = again;
            served += usize::from(again);
            self.note(*slot);
            again
        });
        self.to_flush = listed;
        served
    }

    /// Makes epoll watch what matters now. False when it cannot watch all.
    pub(crate) fn sync_interest(&mut self) -> bool {
        let mut unwatched = Vec::new();
        while let Some(slot) = self.watching.stale.pop() {
            let (fd, wanted, watched) = match &mut self.slots[slot] {
                Link::Free => continue,
                Link::Up(connection) => {
                    connection.stale = false;
                    (connection.fd(), connection.interest(), &mut connection.watched)
                }
                Link::Connecting(handshake) => {
                    handshake.stale = false;
                    match handshake.interest() {
                        Some((fd, events)) => (fd, events, &mut handshake.watched),
                        None => continue,
                    }
                }
            };
            let watch = match *watched {
                Some(events) if events == wanted => continue,
                Some(_) => Watch::Change(wanted),
                None => Watch::Add(wanted),
            };
            match self.waiter.watch_own(fd, u64::from(slot), watch) {
                Ok(()) => *watched = Some(wanted),
                Err(error) => {
                    self.watching.fails(&error);
                    unwatched.push(slot);
                }
            }
        }
        for slot in &unwatched {
            self.note(*slot);
        }
        if unwatched.is_empty() {
            self.watching.succeeds();
        }
        unwatched.is_empty()
    }

    /// Looks at the queue pairs that epoll does not tell of.
    fn try_unwatched(&mut self) {
        for slot in self.watching.stale.clone() {
            self.progress(slot);
        }
    }

    /// Wakes no more often than messages need it.
    pub(crate) fn sync_low_water(&mut self) {
        if self.slots.live().len() > LOW_WATER_MAX {
            return self.reset_low_water();
        }
        self.watching.low_water_raised = false;
        for index in 0..self.slots.live().len() {
            let slot = self.slots.live()[index];
            if let Link::Up(connection) = &mut self.slots[slot] {
                self.core.system_calls += connection.sync_low_water();
                self.watching.low_water_raised |=
                    connection.low_water.is_some_and(|bytes| bytes > 1);
            }
        }
    }

    /// Lets the first byte make every socket readable.
    fn reset_low_water(&mut self) {
        if !std::mem::replace(&mut self.watching.low_water_raised, false) {
            return;
        }
        for index in 0..self.slots.live().len() {
            let slot = self.slots.live()[index];
            if let Link::Up(connection) = &mut self.slots[slot] {
                self.core.system_calls += connection.reset_low_water();
            }
        }
    }
}
