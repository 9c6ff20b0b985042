//! Ends calls whose callers were signalled.
//!
//! The kernel sends an INTERRUPT for any signal, also for those that the program handles and goes
//! on. A disk does not give up a read then, so neither does this loop: a call ends only where it
//! waits for a lock or for a lost server, or where its caller is about to end.

use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dafs_client::{Interrupt, InterruptGuard};

use super::abi::{InHeader, opcode};
use super::lock;
use super::operation::Op;

/// How often a caller that got a signal is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How often it is looked whether a server is lost.
const LOOK_IDLE: Duration = Duration::from_millis(500);

thread_local! {
    static CURRENT: RefCell<Option<Arc<Interrupt>>> = const { RefCell::new(None) };
}

/// True when the call that this thread does should end.
pub fn is_interrupted() -> bool {
    CURRENT.with_borrow(|current| current.as_ref().is_some_and(|current| current.is_fired()))
}

/// A call under way or in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Running {
    unique: u64,
    pid: u32,
    opcode: u32,
    waits_for_lock: bool,
}

impl Running {
    /// The request with this header, for `op`.
    pub fn new(header: &InHeader, op: &Op<'_>) -> Running {
        let InHeader { unique, pid, opcode, .. } = *header;
        Running { unique, pid, opcode, waits_for_lock: op.waits_for_lock() }
    }

    /// Its number.
    pub fn unique(&self) -> u64 {
        self.unique
    }

    /// Whether a descriptor is closed by it.
    pub fn is_flush(&self) -> bool {
        self.opcode == opcode::FLUSH
    }

    /// Whether a signal to the caller ends it now.
    fn should_end(&self, stuck: bool) -> bool {
        stuck || self.waits_for_lock || self.pid == 0 || is_dying(self.pid)
    }
}

/// What one thread does, and the way to end it.
#[derive(Debug)]
pub struct Slot {
    running: Mutex<Option<Running>>,
    /// The kernel may not send an INTERRUPT for its calls: of rings, it sends none for a signal that
    /// comes while it hands over the request, and takes no "ask again" (EAGAIN).
    by_ring: bool,
    interrupt: Arc<Interrupt>,
}

impl Slot {
    /// Of a thread without a call.
    pub fn new() -> Arc<Slot> {
        Slot::make(false)
    }

    /// As [`new`](Slot::new), of a thread whose requests come by a ring.
    pub fn by_ring() -> Arc<Slot> {
        Slot::make(true)
    }

    fn make(by_ring: bool) -> Arc<Slot> {
        Arc::new(Slot { running: Mutex::default(), by_ring, interrupt: Interrupt::new() })
    }

    /// Of this thread while the guard lives.
    pub fn watch(&self) -> InterruptGuard {
        CURRENT.set(Some(self.interrupt.clone()));
        self.interrupt.watch()
    }

    /// A call begins.
    pub fn begin(&self, call: Running) {
        let mut running = lock(&self.running);
        self.interrupt.reset();
        *running = Some(call);
    }

    /// The call is done.
    pub fn end(&self) {
        *lock(&self.running) = None;
    }

    fn running(&self) -> Option<Running> {
        *lock(&self.running)
    }

    fn fire(&self, call: Running) {
        let running = lock(&self.running);
        if *running == Some(call) {
            self.interrupt.fire();
        }
    }
}

/// The calls of all threads, and those whose callers were signalled.
#[derive(Debug, Default)]
pub struct Calls {
    slots: Mutex<Vec<Arc<Slot>>>,
    signalled: Mutex<Signalled>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Signalled {
    uniques: Vec<u64>,
    stopping: bool,
    stopped: bool,
}

/// Requests that no thread has taken yet.
pub trait Waiting {
    /// The one of this number.
    fn find(&self, unique: u64) -> Option<Running>;
    /// Answers it with EINTR, if it is still there.
    fn give_up(&self, call: Running);
    /// Ends of descriptors that wait.
    fn flushes(&self) -> Vec<Running>;
}

impl Calls {
    /// A thread more.
    pub fn add(&self, slot: &Arc<Slot>) {
        lock(&self.slots).push(slot.clone());
    }

    /// A thread less.
    pub fn remove(&self, slot: &Arc<Slot>) {
        lock(&self.slots).retain(|other| !Arc::ptr_eq(other, slot));
    }

    /// The caller of `unique` got a signal. False: no such call, it is not known yet or over.
    pub fn interrupt(&self, unique: u64, stuck: bool, waiting: &impl Waiting) -> bool {
        match self.look(unique, stuck, waiting) {
            None => false,
            Some(true) => true,
            Some(false) => {
                lock(&self.signalled).uniques.push(unique);
                self.changed.notify_all();
                true
            }
        }
    }

    /// Ends the call if that is the time for it. `None`: it is not there.
    fn look(&self, unique: u64, stuck: bool, waiting: &impl Waiting) -> Option<bool> {
        // The queue first: requests go from there to a slot, never back.
        if let Some(call) = waiting.find(unique) {
            let end = call.should_end(stuck);
            if end {
                waiting.give_up(call);
            }
            return Some(end);
        }
        let find = |slot: &&Arc<Slot>| slot.running().is_some_and(|call| call.unique == unique);
        let slot = lock(&self.slots).iter().find(find).cloned()?;
        let call = slot.running().filter(|call| call.unique == unique)?;
        let end = call.should_end(stuck);
        if end {
            slot.fire(call);
        }
        Some(end)
    }

    /// Looks after calls whose callers were signalled, until [`stop`](Self::stop).
    pub fn watch(&self, is_stuck: impl Fn() -> bool, waiting: &impl Waiting) {
        let (mut seen, mut looked) = (Vec::new(), Instant::now());
        loop {
            let mut signalled = lock(&self.signalled);
            if signalled.stopped {
                return;
            }
            let busy = signalled.stopping || !signalled.uniques.is_empty();
            let time = if busy { LOOK } else { LOOK_IDLE };
            let wait = self.changed.wait_timeout(signalled, time);
            signalled = wait.unwrap_or_else(PoisonError::into_inner).0;
            let mut uniques = std::mem::take(&mut signalled.uniques);
            let stopping = signalled.stopping;
            drop(signalled);
            if looked.elapsed() >= LOOK_IDLE {
                looked = Instant::now();
                self.look_for_signals(&mut seen, &mut uniques);
            }
            let stuck = is_stuck();
            let left = uniques
                .into_iter()
                .filter(|unique| self.look(*unique, stuck, waiting) == Some(false));
            let left: Vec<u64> = left.collect();
            lock(&self.signalled).uniques.extend(left);
            if stuck {
                self.end_stuck(stopping, waiting);
            }
        }
    }

    /// Adds calls by rings that last, and whose callers have a signal, to those that are looked after.
    /// `seen`: what ran by rings before, and does now.
    fn look_for_signals(&self, seen: &mut Vec<u64>, uniques: &mut Vec<u64>) {
        let running = |slot: &Arc<Slot>| slot.running().filter(|_| slot.by_ring);
        let now: Vec<Running> = lock(&self.slots).iter().filter_map(running).collect();
        for call in now.iter().filter(|call| seen.contains(&call.unique)) {
            if !uniques.contains(&call.unique) && is_signalled(call.pid) {
                uniques.push(call.unique);
            }
        }
        seen.clear();
        seen.extend(now.iter().map(|call| call.unique));
    }

    /// A process that ends closes its files, and signals do not reach it any more: calls by which
    /// it does so end where the server is lost. After the unmount all do.
    fn end_stuck(&self, all: bool, waiting: &impl Waiting) {
        for call in waiting.flushes().into_iter().filter(|call| is_exiting(call.pid)) {
            waiting.give_up(call);
        }
        let slots = lock(&self.slots).clone();
        for slot in slots {
            let Some(call) = slot.running() else { continue };
            if all || call.is_flush() && is_exiting(call.pid) {
                slot.fire(call);
            }
        }
    }

    /// Nothing is mounted any more: calls that wait for a lost server end.
    pub fn unmounted(&self) {
        lock(&self.signalled).stopping = true;
        self.changed.notify_all();
    }

    /// Ends [`watch`](Self::watch).
    pub fn stop(&self) {
        lock(&self.signalled).stopped = true;
        self.changed.notify_all();
    }
}

/// True when SIGKILL is pending for the thread (the kernel turns every signal that ends a process
/// at once into that), or when it is gone.
fn is_dying(pid: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/status")) {
        Ok(status) => is_dying_text(&status),
        Err(_) => true,
    }
}

fn is_dying_text(status: &str) -> bool {
    status.lines().any(|line| {
        let pending = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"));
        let bits = pending.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
        bits.is_some_and(|bits| bits & (1 << (libc::SIGKILL - 1)) != 0)
    })
}

/// True when a signal is pending for the thread that it neither blocks nor ignores. Such a one stays
/// pending until the call ends.
fn is_signalled(pid: u32) -> bool {
    // A thread that is seen from here.
    pid != 0
        && std::fs::read_to_string(format!("/proc/{pid}/status"))
            .is_ok_and(|status| is_signalled_text(&status))
}

fn is_signalled_text(status: &str) -> bool {
    let bits = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0)
    };
    (bits("SigPnd:") | bits("ShdPnd:")) & !(bits("SigBlk:") | bits("SigIgn:")) != 0
}

/// True when the thread is being taken down.
fn is_exiting(pid: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => is_exiting_text(&stat),
        Err(_) => true,
    }
}

fn is_exiting_text(stat: &str) -> bool {
    const EXITING: u64 = 4;
    // After the name, which is in parentheses and may hold anything.
    let flags = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(6));
    flags.and_then(|flags| flags.parse::<u64>().ok()).is_some_and(|flags| flags & EXITING != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pending_kill_is_the_end() {
        let status = |own, shared| format!("Name:\tcat\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSig:\t");
        let none = "0000000000000000";
        assert!(!is_dying_text(&status(none, none)));
        assert!(!is_dying_text(&status("0000000000004002", none)), "SIGINT and SIGTERM");
        assert!(is_dying_text(&status("0000000000000100", none)));
        assert!(is_dying_text(&status(none, "0000000000000102")));
        assert!(!is_dying(std::process::id()));
        assert!(is_dying(u32::MAX), "no such process");
    }

    #[test]
    fn a_pending_signal_that_is_neither_blocked_nor_ignored_is_seen() {
        let status = |own, shared, blocked, ignored| {
            format!(
                "Tgid:\t1\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\t{blocked}\nSigIgn:\t{ignored}\n"
            )
        };
        let (none, term, all) = ("0000000000000000", "0000000000004000", "ffffffffffffffff");
        assert!(!is_signalled_text(&status(none, none, none, none)));
        assert!(is_signalled_text(&status(term, none, none, none)));
        assert!(is_signalled_text(&status(none, term, none, none)));
        assert!(!is_signalled_text(&status(term, term, term, none)));
        assert!(!is_signalled_text(&status(term, term, none, all)));
        assert!(!is_signalled(std::process::id()));
        assert!(!is_signalled(0));
    }

    #[test]
    fn only_calls_by_rings_are_looked_at_and_only_such_that_last() {
        let calls = Calls::default();
        let call = |unique| Running { unique, pid: 0, opcode: 3, waits_for_lock: false };
        for (slot, unique) in [(Slot::new(), 2), (Slot::by_ring(), 4)] {
            slot.begin(call(unique));
            calls.add(&slot);
        }
        let (mut seen, mut uniques) = (Vec::new(), Vec::new());
        calls.look_for_signals(&mut seen, &mut uniques);
        assert_eq!((&seen[..], &uniques[..]), (&[4][..], &[][..]));
    }

    #[test]
    fn a_process_being_taken_down_is_seen() {
        let stat = |flags| format!("12 (a) b) S 1 12 12 0 -1 {flags} 100 0");
        assert!(!is_exiting_text(&stat(0x0040_0100)));
        assert!(is_exiting_text(&stat(0x0040_0104)));
        assert!(!is_exiting(std::process::id()));
    }
}
