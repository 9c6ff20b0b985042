//! What goes wrong at a time of its own, and when it is over.

use std::time::Duration;

use dafs_client::core::{Owner, Work};
use dafs_fabric::sim::FaultConfig;
use dafs_protocol::Status;
use dafs_store::memory::FaultKind;

use crate::calls::{Kind, Look};
use crate::client::SimClient;
use crate::model::Span;
use crate::model::file::{Crash, Safety};
use crate::plan::{CAPACITY_BYTES, Mishap};
use crate::server;
use crate::sim::Sim;
use crate::storage::Pace;
use crate::wake::Wake;

/// How long a client is cut off whose unlock is not answered.
const CUT_OFF: Duration = Duration::from_millis(10);
/// How long the server is down after it died at a moment that was waited for.
const DOWN: Duration = Duration::from_millis(5);

impl Sim {
    /// Does what the plan has for this number of calls.
    pub(crate) fn mishaps(&mut self) -> Result<(), String> {
        while let Some((at, mishap)) = self.plan.mishaps.first().copied() {
            if at > self.report.operations {
                break;
            }
            self.plan.mishaps.remove(0);
            self.mishap(mishap)?;
        }
        Ok(())
    }

    fn later(&mut self, time: Duration, wake: Wake) {
        self.wake_number += 1;
        self.wakes.insert((self.now() + time, self.wake_number), wake);
    }

    pub(crate) fn do_wakes(&mut self) -> Result<(), String> {
        while let Some(entry) = self.wakes.first_entry() {
            if entry.key().0 > self.net.now() {
                break;
            }
            let wake = entry.remove();
            self.wake(wake)?;
        }
        if let Some((moment, time)) = self.stopping
            && self.host.is_drained()
        {
            self.stopping = None;
            if self.store_bad > 0 {
                self.files.iter_mut().for_each(|file| file.store_fails());
            }
            let end = self.tick();
            let span = Span { start: moment, end };
            for file in &mut self.files {
                file.committed(usize::MAX, None, span, Safety::Stored, None);
            }
            if self.host.conclude() {
                self.report.fault("verifier kept");
            }
            self.server_dies(Crash::Process, time);
        }
        Ok(())
    }

    pub(crate) fn wake(&mut self, wake: Wake) -> Result<(), String> {
        self.log(|| format!("{wake:?}"));
        match wake {
            Wake::Break(node) => self.net.break_connections(node),
            Wake::Heal(node) => self.net.heal(server::NODE, node),
            Wake::HealOne(number, node) => self.net.of(number).heal(server::NODE, node),
            Wake::Start => {
                if !self.host.is_up() {
                    self.host.start(&self.plan)?;
                }
            }
            Wake::StoreHeals => {
                self.store_bad -= 1;
                self.host.storage.store.clear_faults();
                self.files.iter_mut().for_each(|file| file.store_fails());
            }
            Wake::DiskFrees => {
                self.store_bad -= 1;
                self.host.storage.store.set_capacity(CAPACITY_BYTES);
                self.files.iter_mut().for_each(|file| file.store_fails());
            }
            Wake::StorePace => self.host.storage.set_pace(self.plan.pace),
            Wake::FastNode => {
                self.net.change_faults(|faults| FaultConfig { slow_node: None, ..faults });
            }
            Wake::CutOff(node) => {
                self.net.break_connections(node);
                self.net.partition(server::NODE, node);
                self.later(CUT_OFF, Wake::Heal(node));
            }
            Wake::Crash => self.stop_server(Mishap::ProcessCrash(DOWN), DOWN),
            Wake::CrashAndFlush(who, open) => {
                self.stop_server(Mishap::ProcessCrash(DOWN), DOWN);
                let client = self.clients.iter().position(|client| client.who == who);
                client.into_iter().for_each(|client| self.flush_again(client, open));
            }
        }
        Ok(())
    }

    pub(crate) fn lease(&self) -> Duration {
        Duration::from_secs(u64::from(self.plan.limits.lease_seconds))
    }

    pub(crate) fn mishap(&mut self, mishap: Mishap) -> Result<(), String> {
        self.log(|| format!("{mishap:?}"));
        let victim = self.rng.index(self.clients.len());
        let node = self.clients[victim].node;
        match mishap {
            Mishap::Break => {
                let node = if self.rng.coin() { node } else { server::NODE };
                self.net.break_connections(node);
                // Often it breaks again as soon as it is back.
                for _ in 0..self.rng.below(6) {
                    let time = Duration::from_micros(self.rng.range(1, 400));
                    self.later(time, Wake::Break(node));
                }
            }
            Mishap::LoseNetwork(time) => {
                // The one that it prefers: the other is there.
                let number = self.clients[victim].who % self.net.count();
                self.net.of(number).break_connections(node);
                self.net.of(number).partition(server::NODE, node);
                self.later(time, Wake::HealOne(number, node));
                self.report.fault("network lost");
                // Unless nobody is told of the other before the first has answered.
                let only_far = self.net.addresses(node).len() == 1 && number == 0;
                if only_far && time >= self.lease() / 2 {
                    self.clients[victim].cut_off = true;
                    self.report.fault("session cut off");
                }
            }
            Mishap::Partition(time) => {
                self.net.partition(server::NODE, node);
                self.later(time, Wake::Heal(node));
                self.report.fault("partition");
                if time >= self.lease() / 2 {
                    self.clients[victim].cut_off = true;
                    self.report.fault("session cut off");
                }
            }
            Mishap::ProcessCrash(time) | Mishap::MachineCrash(time) | Mishap::Restart(time) => {
                self.stop_server(mishap, time);
            }
            Mishap::ClientDeath => self.client_dies(victim)?,
            Mishap::StoreErrors(time) => self.store_errors(time),
            Mishap::DiskFull(time) => {
                let store = &self.host.storage.store;
                store.set_capacity(store.used_bytes());
                self.store_fails();
                self.later(time, Wake::DiskFrees);
                self.report.fault("disk full");
            }
            Mishap::SlowStore(time) => {
                self.host.storage.set_pace(Pace { at_once: 0, least: 1000, most: 200_000 });
                self.later(time, Wake::StorePace);
                self.report.fault("slow store");
            }
            Mishap::SlowNode(time) => {
                let slow = if self.rng.coin() { node } else { server::NODE };
                let slow_node = Some(slow);
                self.net.change_faults(|faults| FaultConfig { slow_node, ..faults });
                self.later(time, Wake::FastNode);
                self.report.fault("slow node");
            }
            Mishap::GiveUp => self.give_up(victim),
            Mishap::OutliveLease => self.outlive_lease(victim),
            Mishap::CrashAtUnlock => self.traps.unlock = true,
            Mishap::CrashAfterCommit => self.traps.commit = true,
            Mishap::CrashAfterSync => self.traps.sync = true,
            Mishap::CrashInRace => self.traps.race = true,
        }
        Ok(())
    }

    fn outlive_lease(&mut self, victim: usize) {
        let lease = Duration::from_secs(u64::from(self.plan.limits.lease_seconds));
        let node = self.clients[victim].node;
        self.net.partition(server::NODE, node);
        self.later(lease * 5 / 4, Wake::Heal(node));
        self.report.fault("partition");
        self.report.fault("session cut off");
        self.clients[victim].cut_off = true;
        let until = self.now() + lease * 9 / 10;
        self.clients.iter_mut().for_each(|client| client.next_at = client.next_at.max(until));
    }

    /// The answer that a lock is waited for may be lost, and the callback that it is held come
    /// before it: the server sends that when it hears anything, so something else is asked for
    /// first, and again.
    pub(crate) fn break_at_wait(&mut self, client: usize) {
        if self.rng.below(8) > 0 {
            return;
        }
        for _ in 0..self.rng.below(3) {
            let call = self.call(client, Kind::Ping, 0);
            self.clients[client].submit(call, Work::Null, None);
        }
        let way = (self.plan.networks[0].faults.delay_max + self.plan.lag).as_micros() as u64 + 5;
        let time = Duration::from_micros(self.rng.range(1, 4 * way));
        let node = self.clients[client].node;
        // Cut off for a while, in which others give up what it waits for.
        let wake = if self.rng.coin() { Wake::CutOff(node) } else { Wake::Break(node) };
        self.later(time, wake);
    }

    /// A lock that somebody waits for is given up: perhaps its client is not to hear the answer.
    pub(crate) fn unlock_trap(&mut self, client: usize) {
        if !std::mem::take(&mut self.traps.unlock) {
            return;
        }
        let way = (self.plan.networks[0].faults.delay_max + self.plan.lag).as_micros() as u64 + 5;
        let cut = Duration::from_micros(self.rng.range(1, 3 * way));
        let crash = cut + Duration::from_micros(self.rng.range(way, 8 * way));
        self.later(cut, Wake::CutOff(self.clients[client].node));
        self.later(crash, Wake::Crash);
    }

    /// Several clients change a name: some have begun when the server dies.
    pub(crate) fn race_trap(&mut self) {
        if std::mem::take(&mut self.traps.race) {
            let way =
                (self.plan.networks[0].faults.delay_max + self.plan.lag).as_micros() as u64 + 5;
            let crash = Duration::from_micros(self.rng.range(way / 2, 6 * way));
            self.later(crash, Wake::Crash);
        }
    }

    /// A commit (of an open) or sync was answered that does not cover all that was written.
    pub(crate) fn flush_trap(&mut self, who: usize, open: Option<u64>) {
        let trap = match open {
            Some(_) => &mut self.traps.commit,
            None => &mut self.traps.sync,
        };
        if std::mem::take(trap) {
            self.later(Duration::ZERO, Wake::CrashAndFlush(who, open));
        }
    }

    /// Who was told that all is safe asks again.
    fn flush_again(&mut self, client: usize, open: Option<u64>) {
        let Some(number) = open else { return self.ask_sync(client) };
        let open = self.clients[client].open(number).filter(|open| !open.closing).cloned();
        open.into_iter().for_each(|open| self.commit_all(client, &open));
    }

    fn store_fails(&mut self) {
        self.store_failed = true;
        self.store_bad += 1;
        self.files.iter_mut().for_each(|file| file.store_fails());
    }

    fn store_errors(&mut self, time: Duration) {
        let kinds = [
            FaultKind::Read,
            FaultKind::Write,
            FaultKind::Write,
            FaultKind::ShortWrite,
            FaultKind::Sync,
            FaultKind::Sync,
            FaultKind::Change,
        ];
        for _ in 0..self.rng.range(1, 3) {
            let kind = kinds[self.rng.index(kinds.len())];
            let status = if self.rng.coin() { Status::Io } else { Status::NoSpc };
            let (skip, count) = (self.rng.below(4), self.rng.range(1, 6));
            self.host.storage.store.inject(kind, skip, count, status);
        }
        self.store_fails();
        self.later(time, Wake::StoreHeals);
        self.report.fault("store error");
    }

    fn stop_server(&mut self, how: Mishap, time: Duration) {
        if !self.host.is_up() || self.stopping.is_some() {
            return;
        }
        match how {
            Mishap::Restart(_) => {
                self.report.fault("server restarted");
                self.host.shut_down();
                self.stopping = Some((self.tick(), time));
            }
            Mishap::MachineCrash(_) => {
                self.report.fault("server machine died");
                self.server_dies(Crash::Machine, time);
            }
            _ => {
                self.report.fault("server process died");
                self.server_dies(Crash::Process, time);
            }
        }
    }

    fn server_dies(&mut self, crash: Crash, time: Duration) {
        self.note_late();
        // What a real one has lent stays as it is; this one frees its memory.
        self.clients.iter_mut().for_each(|client| client.loans.clear());
        self.host.die();
        self.begun.extend(self.host.begun());
        if crash == Crash::Machine {
            self.machine_died = true;
            self.host.storage.drop_calls();
            self.host.storage.store.crash();
            self.host.machine_runs += 1;
        } else {
            self.host.storage.server_died();
        }
        let now = self.tick();
        self.files.iter_mut().for_each(|file| file.crash(crash, now));
        self.restarted = true;
        self.boots += 1;
        self.log(|| format!("the server is dead ({crash:?})"));
        self.later(time, Wake::Start);
    }

    /// A client is gone with all its calls; another one takes its place.
    fn client_dies(&mut self, victim: usize) -> Result<(), String> {
        self.report.fault("client died");
        self.net.crash(self.clients[victim].node);
        let (node, who) = (self.clients[victim].node + 10, self.next_who);
        self.next_who += 1;
        let heir = SimClient::new(&self.net, &self.plan, node, who)?;
        let dead = std::mem::replace(&mut self.clients[victim], heir);
        self.net.heal(server::NODE, dead.node);
        let lease = Duration::from_secs(u64::from(self.plan.limits.lease_seconds));
        // Until then the server may go on with what it was asked.
        let not_before = self.now() + lease + Duration::from_secs(3);
        self.locks.died(dead.who, not_before);
        for call in dead.calls.into_values() {
            self.forget(call.kind, not_before);
        }
        Ok(())
    }

    /// The answer of a call will never come.
    fn forget(&mut self, kind: Kind, not_before: Duration) {
        match kind {
            Kind::Write { file, pieces, .. } => {
                pieces.iter().for_each(|piece| self.files[file].open_ended(piece.change));
            }
            Kind::Append { file, piece, .. } => self.files[file].open_ended(piece.change),
            Kind::Cut { file, change, .. } => self.files[file].open_ended(change),
            Kind::Open { slot, file, cut, .. } => {
                // One that truncates may still do so: the file keeps its name then.
                self.slots[slot].opening -= usize::from(cut.is_none());
                cut.into_iter().for_each(|change| self.files[file].open_ended(change));
            }
            Kind::Name(call) => {
                if let Some(node) = call.node {
                    let file = self.names.node(node).file;
                    call.changes.iter().for_each(|change| self.files[file].open_ended(*change));
                }
                self.name_unclear(*call, not_before);
            }
            Kind::Race { name } => self.races[name].lost(not_before),
            Kind::RaceLook { name } => self.races[name].look_again(),
            Kind::Replace { slot, file, changes } => {
                changes.iter().for_each(|change| self.files[file].open_ended(*change));
                self.slots[slot].look_at(file, not_before);
            }
            Kind::SlotLook { slot, file } => self.slots[slot].look_at(file, not_before),
            Kind::Look(look) => self.looks.push(Look { found: Vec::new(), ..*look }),
            Kind::Ping | Kind::Close { .. } | Kind::Read { .. } | Kind::Commit { .. } => {}
            Kind::Size { .. } | Kind::Sync | Kind::Cache { .. } | Kind::Where { .. } => {}
            // Their owner is dead, or settles them itself.
            Kind::Lock { .. } | Kind::LockTest { .. } | Kind::LockLook { .. } => {}
            Kind::Unlock { .. } | Kind::Release { .. } => {}
            Kind::LockOpen { .. } | Kind::LockClose { .. } => {}
        }
    }

    /// A caller does not wait for its answer any more.
    fn give_up(&mut self, victim: usize) {
        let client = &mut self.clients[victim];
        let may = |kind: &Kind| {
            matches!(kind, Kind::Read { .. } | Kind::Write { .. } | Kind::Size { .. } | Kind::Ping)
                || matches!(kind, Kind::Lock { .. })
        };
        let tags = client.calls.values().filter(|call| may(&call.kind)).map(|call| call.tag);
        let tags: Vec<u64> = tags.collect();
        if tags.is_empty() {
            return;
        }
        let tag = tags[self.rng.index(tags.len())];
        client.core.abandon_owner(Owner(tag as usize));
        let Some(call) = client.calls.remove(&tag) else { return };
        if matches!(call.kind, Kind::Read { .. } | Kind::Write { .. }) {
            client.buffers.out -= 1;
        }
        self.report.fault("call given up");
        if let Kind::Lock { locker, .. } = call.kind {
            self.lock_given_up(victim, locker, tag);
        }
        let now = self.now();
        self.forget(call.kind, now);
    }
}
