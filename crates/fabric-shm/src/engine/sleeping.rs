//! Before and after an engine sleeps, and how it wakes peers that do.

use std::sync::atomic::{Ordering, fence};

use super::ShmEngine;
use crate::sys;

/// Each of so many sleeps was ended by something that came: then one that is awaited comes soon, as the answer to a call
/// does. Idle clients sleep until they are to ping.
const LIVELY: u32 = 3;

impl ShmEngine {
    /// See [`Engine::arm`](dafs_fabric::Engine::arm).
    pub(super) fn prepare_sleep(&mut self) -> bool {
        self.ring_for_all();
        self.shared.table.sweep();
        if self.has_more || !self.broken.is_empty() || !self.queue.is_drained() {
            return false;
        }
        // Who spins at the other end learns where this one sleeps.
        self.all_are_here();
        let sleep = match self.single() {
            Some(slot) => self.slots.up(slot).map(|up| (slot, up.bell.sleep_by_word())),
            None => None,
        };
        if sleep.is_none() {
            self.say_sleeps();
        }
        // What peers did before is seen now; what they do later, they do after a look at our word.
        fence(Ordering::SeqCst);
        if self.active_have_some() {
            self.say_awake();
            return false;
        }
        (self.is_lively, self.took, self.rang) = (false, false, false);
        self.slept = true;
        match sleep {
            // Nobody asks epoll, which nothing has waited for.
            Some((slot, sleep)) => {
                self.by_word = Some(slot);
                self.waiter.announce(Some(sleep));
            }
            None => {
                // Another thread may have said before that the sleep is by a word. That is no more to be taken back: the
                // peer would not ring, and nobody looks.
                self.by_word = None;
                self.leave_active();
                self.set_looks();
                self.ask_soon();
                self.waiter.announce(None);
            }
        }
        true
    }

    /// The only queue pair that there is, where this end may sleep by a word of its ring: it is lively, and
    /// nothing is awaited of which that word does not tell.
    fn single(&mut self) -> Option<u32> {
        let by_word = self.waiter.sleeps_by_word().unwrap_or_else(|| {
            let came = self.is_lively || self.took;
            self.lively_sleeps = if came { self.lively_sleeps.saturating_add(1) } else { 0 };
            self.lively_sleeps >= LIVELY
        });
        let [slot] = self.active[..] else { return None };
        if !by_word || self.slots.live != 1 {
            return None;
        }
        let connection = self.slots.up(slot)?;
        let waits = !connection.work.is_empty() || connection.peer.lags();
        (connection.bell.may_sleep_by_word() && !waits).then_some(slot)
    }

    /// After the first look since a sleep, which may have ended for its time, or for what other networks have.
    #[inline]
    pub(super) fn judge_sleep(&mut self, came: bool) {
        if self.slept && self.waiter.sleeps_by_word().is_none() {
            self.slept = false;
            if !came {
                self.lively_sleeps = 0;
            }
        }
    }

    /// See [`Engine::peers_are_here`](dafs_fabric::Engine::peers_are_here).
    pub(super) fn all_are_here(&mut self) -> Option<bool> {
        let processor = sys::processor()?;
        let mut all = None;
        for slot in &self.active {
            if let Some(connection) = self.slots.up(*slot) {
                all = Some(connection.bell.peer_is_on(processor) && all != Some(false));
            }
        }
        all
    }

    fn say_sleeps(&mut self) {
        for slot in &self.active {
            if let Some(connection) = self.slots.up(*slot) {
                let wants_room = !connection.work.is_empty();
                connection.bell.sleep(wants_room);
            }
        }
    }

    fn say_awake(&mut self) {
        for slot in &self.active {
            if let Some(connection) = self.slots.up(*slot) {
                connection.bell.wake();
            }
        }
    }

    /// A sleep by a word is over.
    pub(super) fn is_awake(&mut self, slot: u32) {
        if let Some(connection) = self.slots.up(slot) {
            connection.bell.wake();
        }
    }

    pub(super) fn ring_listed(&mut self) {
        while let Some(slot) = self.to_ring.pop() {
            let Some(connection) = self.slots.up(slot) else { continue };
            connection.listed = false;
            let (put, freed) = (connection.put, connection.freed);
            (connection.put, connection.freed) = (false, false);
            if (put || freed)
                && let Some(how) = connection.bell.is_wanted(put)
            {
                connection.ring(how);
                self.system_calls += 1;
            }
        }
    }
}
