//! A run: everything that takes part, and how time goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use dafs_client::Error;
use dafs_fabric::sim::{FaultConfig, Rng};
use dafs_protocol::{CreateMode, FileKind, Identity, OpenFlags, SessionId, Status, WriteVerifier};
use dafs_store::Store;

use crate::calls::{Call, Kind, Look};
use crate::client::SimClient;
use crate::lockers::Door;
use crate::model::Moment;
use crate::model::file::File;
use crate::model::locks::Locks;
use crate::model::names::Names;
use crate::networks::Networks;
use crate::plan::{CAPACITY_BYTES, DATA_FILES, Devices, LOCK_FILES, Plan, RACES, YARDS};
use crate::race::Race;
use crate::report::Report;
use crate::server::SimServer;
use crate::slot::Slot;
use crate::storage::{Clock, Storage};
use crate::wake::Wake;

/// Rounds without time going by: more is a loop.
const ROUNDS_MAX: usize = 20_000;

/// What a client that has a session takes to reclaim its locks, at most, if nothing cuts it off.
const RECLAIM_MAX: Duration = Duration::from_millis(1500);

/// Mishaps that wait for their moment.
#[derive(Debug, Default)]
pub(crate) struct Traps {
    /// An unlock that somebody waits for.
    pub(crate) unlock: bool,
    /// A commit that does not cover what was written meanwhile.
    pub(crate) commit: bool,
    /// The same of a sync.
    pub(crate) sync: bool,
    /// A second client joins a race.
    pub(crate) race: bool,
}

/// A run of one seed.
pub struct Sim {
    pub(crate) plan: Plan,
    pub(crate) net: Arc<Networks>,
    clock: Clock,
    pub(crate) host: SimServer,
    pub(crate) clients: Vec<SimClient>,
    pub(crate) rng: Rng,
    moment: Moment,
    next_tag: u64,
    next_change: u32,
    pub(crate) next_open: u64,
    pub(crate) next_who: usize,
    pub(crate) files: Vec<File>,
    pub(crate) names: Names,
    /// Yards in which a call is under way, or unclear.
    pub(crate) busy_yards: Vec<bool>,
    /// Names of data files, and who has them.
    pub(crate) slots: Vec<Slot>,
    pub(crate) races: Vec<Race>,
    pub(crate) looks: Vec<Look>,
    pub(crate) locks: Locks,
    /// What waits for its moment.
    pub(crate) traps: Traps,
    /// No more locks are asked for, and those who have some were told.
    gives_up_locks: bool,
    /// What ends or begins at a time.
    pub(crate) wakes: BTreeMap<(Duration, u64), Wake>,
    pub(crate) wake_number: u64,
    /// Calls are made and things go wrong.
    pub(crate) is_wild: bool,
    /// The store has failed.
    pub(crate) store_failed: bool,
    /// So many kinds of its faults are not over.
    pub(crate) store_bad: usize,
    /// The server's verifier has changed.
    pub(crate) restarted: bool,
    /// So has that of its machine.
    pub(crate) machine_died: bool,
    pub(crate) boots: u64,
    /// Changes that were begun when the server died: of these nobody can know.
    pub(crate) begun: BTreeSet<(usize, SessionId, u32)>,
    /// Calls that ended without it being known whether they were done.
    unknown: usize,
    /// When the server began to stop.
    pub(crate) stopping: Option<(Moment, Duration)>,
    pub(crate) report: Report,
    trace: bool,
}

impl Sim {
    /// Everything of a seed, about to begin.
    ///
    /// # Errors
    /// What refused.
    pub fn new(seed: u64, devices: Devices, trace: bool) -> Result<Sim, String> {
        let plan = Plan::new(seed, devices);
        let net = Networks::new(&plan.networks);
        let clock = Clock::default();
        let storage = Storage::new(&clock, net.rng(1), CAPACITY_BYTES, plan.direct);
        let inodes = prepare(&storage).map_err(|status| format!("the first files: {status}"))?;
        storage.set_pace(plan.pace);
        let mut host = SimServer::new(net.clone(), clock.clone(), storage);
        host.start(&plan)?;
        let mut clients = Vec::new();
        for who in 0..plan.clients {
            clients.push(SimClient::new(&net, &plan, 10 + who as u32, who)?);
        }
        let files = (0..DATA_FILES).map(|i| File::new(format!("data/f{i}"))).collect();
        Ok(Sim {
            rng: net.rng(2),
            next_who: plan.clients,
            plan,
            net,
            clock,
            host,
            clients,
            moment: 0,
            next_tag: 0,
            next_change: 0,
            next_open: 0,
            files,
            names: Names::new(YARDS),
            busy_yards: vec![false; YARDS],
            slots: inodes.into_iter().enumerate().map(Slot::new).collect(),
            races: (0..RACES).map(|_| Race::default()).collect(),
            looks: Vec::new(),
            locks: Locks::default(),
            traps: Traps::default(),
            gives_up_locks: false,
            wakes: BTreeMap::new(),
            wake_number: 0,
            is_wild: true,
            store_failed: false,
            store_bad: 0,
            restarted: false,
            machine_died: false,
            boots: 1,
            begun: BTreeSet::new(),
            unknown: 0,
            stopping: None,
            report: Report::default(),
            trace,
        })
    }

    /// Runs to the end and checks everything.
    ///
    /// # Errors
    /// What is wrong.
    pub fn run(mut self) -> Result<Report, String> {
        while self.report.operations < self.plan.operations {
            self.turn()?;
        }
        self.calm_down()?;
        self.wait_idle()?;
        self.finish()?;
        for counts in self.net.fault_counts() {
            self.report.count_network(&counts);
        }
        Ok(self.report)
    }

    /// Virtual time.
    pub(crate) fn now(&self) -> Duration {
        self.net.now()
    }

    /// A moment of its own.
    pub(crate) fn tick(&mut self) -> Moment {
        self.moment += 1;
        self.moment
    }

    pub(crate) fn new_change(&mut self) -> u32 {
        self.next_change += 1;
        self.next_change
    }

    pub(crate) fn log(&self, text: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("{:>12.6} {}", self.net.now().as_secs_f64(), text());
        }
    }

    /// A call of a client, not yet handed over.
    pub(crate) fn call(&mut self, client: usize, kind: Kind, len: usize) -> Call {
        self.next_tag += 1;
        let start = self.tick();
        let call = Call {
            tag: self.next_tag,
            kind,
            start,
            since: self.now(),
            len,
            sessions: self.clients[client].sessions,
        };
        self.log(|| {
            format!("client {} asks {}: {:?}", self.clients[client].who, call.tag, call.kind)
        });
        call
    }

    /// What can be done now, what is due, and then the next moment of time.
    pub(crate) fn turn(&mut self) -> Result<(), String> {
        self.progress()?;
        self.do_wakes()?;
        if self.is_wild {
            self.make_calls()?;
        } else if self.gives_up_locks {
            self.release_idle_lockers();
        }
        self.look()?;
        self.progress()?;
        self.look_at_loans()?;
        self.read_by_themselves()?;
        self.check_patience()?;
        self.check_devices()?;
        self.pass_time()
    }

    /// Nobody does to memory what a real device would not forgive.
    fn check_devices(&self) -> Result<(), String> {
        self.net.violation().map_or(Ok(()), Err)
    }

    /// Everybody works until nobody has anything to do.
    pub(crate) fn progress(&mut self) -> Result<(), String> {
        let now = self.now();
        let mut worked = vec![false; self.clients.len() + 1];
        for _ in 0..ROUNDS_MAX {
            let mut busy = self.host.awake_at <= now && self.host.progress(self.plan.key);
            worked[self.clients.len()] |= busy;
            for (index, worked) in worked.iter_mut().enumerate().take(self.clients.len()) {
                let works = self.clients[index].awake_at <= now && self.guest_works(index, now)?;
                *worked |= works;
                busy |= works;
            }
            if !busy {
                self.fall_asleep(&worked);
                return Ok(());
            }
        }
        Err("they do not come to rest".into())
    }

    fn guest_works(&mut self, index: usize, now: Duration) -> Result<bool, String> {
        let mut busy = self.clients[index].core.progress(now);
        self.notice_sessions(index);
        self.hear_notices(index)?;
        self.notice_recovery(index);
        while let Some((call, result, buffer)) = self.clients[index].next_done()? {
            self.answered(index, call, result, buffer)?;
            busy = true;
        }
        self.hear_notices(index)?;
        Ok(busy)
    }

    fn hear_notices(&mut self, index: usize) -> Result<(), String> {
        while let Some(notice) = self.clients[index].core.next_notice() {
            self.log(|| format!("client {} hears: {notice}", self.clients[index].who));
            if notice.ends_with("that is too long ago") {
                self.came_too_late(index)?;
            }
        }
        if self.clients[index].core.is_connected() {
            self.clients[index].in_touch_at = self.now();
        }
        Ok(())
    }

    /// A client says that it writes nothing again: rightly, if it had no server for two leases. In
    /// the first of them it may not have known that.
    fn came_too_late(&mut self, index: usize) -> Result<(), String> {
        let lease = self.lease();
        let SimClient { who, in_touch_at, .. } = self.clients[index];
        if self.now() <= in_touch_at + lease {
            return Err(format!("client {who} writes nothing again, and comes in time"));
        }
        self.files.iter_mut().for_each(|file| file.too_late(who));
        Ok(())
    }

    /// Who had something to do looks at the network again later; much may happen meanwhile.
    fn fall_asleep(&mut self, worked: &[bool]) {
        let (now, lag) = (self.now(), self.plan.lag.as_nanos() as u64);
        let awake = self.clients.iter_mut().map(|client| &mut client.awake_at);
        let awake = awake.chain([&mut self.host.awake_at]).zip(worked);
        for (at, _) in awake.filter(|(_, worked)| **worked && lag > 0) {
            *at = now + Duration::from_nanos(self.rng.below(lag));
        }
    }

    /// The grace period is over for who has not come yet: an attempt to connect may take so long.
    pub(crate) fn note_late(&mut self) {
        if self.now() >= self.grace_end() {
            let boot = self.boots;
            let absent = self.clients.iter_mut().filter(|client| client.boot != boot);
            absent.for_each(|client| client.late = true);
        }
    }

    fn grace_end(&self) -> Duration {
        self.host.started + self.lease()
    }

    /// What was under way in a lost session may be done again in the next one.
    fn notice_sessions(&mut self, index: usize) {
        let session_at = self.now();
        let facts = self.clients[index].core.facts();
        if facts.new_sessions != self.clients[index].sessions {
            self.note_late();
        }
        let client = &mut self.clients[index];
        client.established |= facts.verifier != WriteVerifier::default();
        if facts.new_sessions == client.sessions {
            return;
        }
        client.sessions = facts.new_sessions;
        client.boot = self.boots;
        client.recovers = true;
        client.session_at = session_at;
        for door in &mut client.doors {
            if let Door::Open(open) = door {
                open.excused |= client.cut_off || client.late;
            }
        }
        client.late = false;
        if std::mem::take(&mut client.cut_off) {
            client.cut_off_before = client.sessions;
        }
        let who = client.who;
        let now = self.tick();
        self.files.iter_mut().for_each(|file| file.session_lost(who, now));
        self.log(|| format!("client {who} has a new session"));
    }

    /// When calls flow again, what was kept has been written again.
    fn notice_recovery(&mut self, index: usize) {
        let (now, grace_end) = (self.now(), self.grace_end());
        let client = &mut self.clients[index];
        let server = self.host.verifier;
        let here = client.core.is_connected() && server == Some(client.core.facts().verifier);
        if !client.recovers || !here {
            return;
        }
        client.recovers = false;
        // Who was cut off before its locks were reclaimed may be late with that; so may who came shortly
        // before others could have them.
        let came_shortly_before = client.session_at + RECLAIM_MAX >= grace_end && now >= grace_end;
        let late = client.cut_off || came_shortly_before;
        for door in &mut client.doors {
            if let Door::Open(open) = door {
                open.excused |= late;
            }
        }
        let who = client.who;
        let now = self.tick();
        self.files.iter_mut().for_each(|file| file.written_again(who, now));
        self.log(|| format!("client {who} goes on"));
    }

    pub(crate) fn pass_time(&mut self) -> Result<(), String> {
        let now = self.now();
        let cores = self.clients.iter().filter_map(|client| client.core.next_timeout());
        let asks = self.clients.iter().map(|client| client.next_at).filter(|_| self.is_wild);
        let looks = self.looks.iter().map(|look| look.not_before).filter(|at| *at > now);
        let wakes = self.wakes.keys().next().map(|key| key.0);
        let awake = self.clients.iter().map(|client| client.awake_at).chain([self.host.awake_at]);
        let awake = awake.filter(|at| *at > now).min();
        let slots = self.slots.iter().filter_map(|slot| slot.not_before(now));
        let races = self.races.iter().filter_map(|race| race.not_before(now));
        let next = [self.host.next_at(), wakes, awake].into_iter().flatten();
        let next = next.chain(cores).chain(asks).chain(looks).chain(races).chain(slots).min();
        let next = next.map(|at| at.max(now + Duration::from_micros(1)));
        match (self.net.next_event_at(), next) {
            (Some(event), next) if next.is_none_or(|at| event <= at) => {
                self.net.step();
            }
            (_, Some(at)) => self.net.advance_to(at),
            (_, None) => return Err("nothing will ever happen again".into()),
        }
        self.clock.set(self.net.now());
        self.host.storage.run_until(self.net.now());
        Ok(())
    }

    /// The longest time that any call may take.
    pub(crate) fn patience(&self) -> Duration {
        let lease = self.lease();
        self.plan.options.retry + lease + Duration::from_secs(5)
    }

    fn check_patience(&mut self) -> Result<(), String> {
        let (now, patience) = (self.now(), self.patience());
        let moment = self.tick();
        self.locks.check_waits((moment, now), patience)?;
        for client in &self.clients {
            let oldest = client.calls.values().find(|call| !call.kind.may_wait());
            if let Some(call) = oldest.filter(|call| now.saturating_sub(call.since) > patience) {
                let (who, state) = (client.who, self.host.state());
                return Err(format!(
                    "no answer for {patience:?} to client {who}: {call:?}\n  server: {state}"
                ));
            }
        }
        Ok(())
    }

    /// Nothing goes wrong any more.
    fn calm_down(&mut self) -> Result<(), String> {
        self.log(|| "calm".into());
        self.is_wild = false;
        self.net.change_faults(|faults| FaultConfig {
            delay_max: faults.delay_max,
            ..FaultConfig::default()
        });
        for ((_, _), wake) in std::mem::take(&mut self.wakes) {
            self.wake(wake)?;
        }
        while self.stopping.is_some() || !self.host.is_up() {
            self.turn()?;
        }
        self.look_at_lock_files();
        let end = self.now() + self.patience();
        let looks = |client: &SimClient| {
            client.calls.values().any(|call| matches!(call.kind, Kind::LockLook { .. }))
        };
        while self.clients.iter().any(looks) && self.now() < end {
            self.turn()?;
        }
        self.gives_up_locks = true;
        Ok(())
    }

    /// Until all calls are answered and nothing is unclear.
    pub(crate) fn wait_idle(&mut self) -> Result<(), String> {
        let end = self.now() + self.patience() * 2;
        let is_idle = |sim: &Sim| {
            sim.clients.iter().all(|client| client.calls.is_empty())
                && sim.looks.is_empty()
                && sim.races.iter().all(Race::is_idle)
                && sim.slots.iter().all(Slot::is_settled)
        };
        while !is_idle(self) {
            if self.now() > end {
                return Err("what became of a call cannot be found out".into());
            }
            self.turn()?;
        }
        Ok(())
    }

    /// Lets time go by.
    pub(crate) fn wait_for(&mut self, time: Duration) -> Result<(), String> {
        let end = self.now() + time;
        while self.now() < end {
            self.turn()?;
        }
        Ok(())
    }

    /// What became of a call is not known: the server must have died in the middle of it.
    pub(crate) fn outcome_unknown(&mut self, client: usize, call: &Call) -> Result<(), String> {
        // What was appended to its memory is gone with it, though it was done.
        let in_memory = matches!(call.kind, Kind::Append { .. });
        let client = &self.clients[client];
        // Its session may have ended in the middle of it.
        let cut_off = client.cut_off || call.sessions < client.cut_off_before;
        if self.machine_died || cut_off || in_memory {
            return Ok(());
        }
        self.unknown += 1;
        if self.unknown <= self.begun.len() {
            return Ok(());
        }
        Err(format!("nobody knows what became of it, but only {} were begun", self.begun.len()))
    }

    /// Whether a call may end with this error, given what went wrong.
    pub(crate) fn is_excused(&self, client: usize, call: &Call, error: &Error) -> bool {
        let client = &self.clients[client];
        match error {
            Error::Connect { .. } => !client.established,
            Error::Status { status, .. } => match status {
                Status::Io | Status::NoSpc => self.store_failed,
                Status::Stale => {
                    self.is_orphan(&call.kind) || self.is_cache_excused(&call.kind, *status)
                }
                // It tells nothing of this file now.
                Status::NotSupp => matches!(call.kind, Kind::Where { .. }),
                Status::WritesLost => {
                    let tells =
                        matches!(call.kind, Kind::Commit { .. } | Kind::Close { .. } | Kind::Sync);
                    // What is kept survives the server's process.
                    let number = match call.kind {
                        Kind::Commit { open, .. } | Kind::Close { open, .. } => Some(open),
                        _ => None,
                    };
                    let open = client.opens.iter().find(|open| Some(open.number) == number);
                    let kept = client.keeps && open.is_some_and(|open| !open.append);
                    let gave_up =
                        open.is_some_and(|open| self.files[open.file].gave_up(client.who));
                    let late = open.is_some_and(|open| {
                        self.files[open.file].came_too_late(client.who, open.number)
                    });
                    let lost = !kept || gave_up || late || self.machine_died || self.store_failed;
                    self.restarted && tells && lost
                }
                Status::OutcomeUnknown => {
                    let lost = client.sessions != call.sessions || client.boot != self.boots;
                    lost || client.cut_off || self.stopping.is_some()
                }
                _ => false,
            },
            _ => false,
        }
    }
}

/// The directories and files of the beginning.
fn prepare(storage: &Storage) -> Result<Vec<u64>, Status> {
    let store = &storage.store;
    let root = Arc::new(Identity::root());
    let top = store.root(&root).wait()?.handle;
    let make = |dir, name: &str| {
        store.create(&root, dir, name.as_bytes(), FileKind::Directory, 0o755, 0, b"").wait()
    };
    for yard in 0..YARDS {
        make(&top, &format!("y{yard}"))?;
    }
    make(&top, "race")?;
    let data = make(&top, "data")?.handle;
    let locks = make(&top, "locks")?.handle;
    let names = (0..DATA_FILES).map(|file| (&data, format!("f{file}")));
    let lock_names = (0..LOCK_FILES).map(|file| (&locks, format!("l{file}")));
    let mut inodes = Vec::new();
    for (dir, name) in names.chain(lock_names) {
        let flags = OpenFlags {
            read: false,
            write: true,
            create: CreateMode::Exclusive,
            truncate: false,
            append: false,
            no_follow: false,
            unlinked: false,
            again: false,
        };
        inodes.push(store.open(&root, dir, name.as_bytes(), flags, 0o644).wait()?.attr.inode);
    }
    inodes.truncate(DATA_FILES);
    Ok(inodes)
}
