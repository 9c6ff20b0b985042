//! Who drives the core: of the threads that wait, one leads and the others sleep.
//!
//! The leader makes progress, hands answers to their sinks, and sleeps without the lock when
//! nothing is ready. A thread that meets a leader rings what it submitted and parks until its
//! own answers are there. When the leader is done it wakes one parked thread, which leads on.
//! The keeper thread leads only when nobody else does: for leases, reconnects, and calls that
//! nobody waits for; it makes way for a caller at once. In a session without calls it listens, so
//! that the end of a connection and what the server asks are noticed when they come. When a leader
//! panics, the session ends, and all that wait fail.

mod fall;
mod give_up;
mod state;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use dafs_fabric::{Span, Spin, Waiter};
use dafs_protocol::{Identity, WaitMode};
use nix::time::{ClockId, clock_gettime};

use crate::core::{
    Beside, Core, CoreDone, FileKey, KeptBytes, KeptMemory, Memory, Output, SharedBytes, Spares,
    Work,
};
use crate::error::{Error, Result};
use crate::interrupt::{Interrupt, Until};
use crate::keeper::KeeperSignal;
use crate::loan::Returns;
use crate::optimistic::Optimistic;
use crate::options::{OnRetry, SessionOptions};
use state::Leader;
pub(crate) use state::State;

/// How long a sleeping leader does not look at [`SessionOptions::cancel`].
const CANCEL_INTERVAL: Duration = Duration::from_millis(100);

/// Looks at the threads that want the lock before they get the CPU too: some microseconds.
const LET_IN_LOOKS: u32 = 200;

/// The keeper listens to a session in which nobody called for so long.
const IDLE: Duration = Duration::from_millis(100);

/// What all handles of a session share.
pub(crate) struct Inner {
    state: Mutex<State>,
    waiter: Arc<dyn Waiter>,
    /// On [`boot_time`].
    epoch: Duration,
    /// Threads that want the lock while a leader spins.
    contenders: AtomicU32,
    cancel: Option<Arc<AtomicBool>>,
    connected: AtomicBool,
    on_retry: Option<OnRetry>,
    keeper: Arc<KeeperSignal>,
    spares: Arc<Spares>,
    /// The server's caches, as far as this process reads them by itself.
    pub(crate) optimistic: Optimistic,
}

/// It goes on while the machine is suspended: what the server forgets meanwhile is forgotten.
fn boot_time() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

/// The keeper: leads whenever it is poked or time has come, until stopped or the session is gone.
fn keeper(weak: &Weak<Inner>, signal: &KeeperSignal) {
    let mut timeout = Duration::ZERO;
    while signal.wait(timeout) {
        let Some(inner) = weak.upgrade() else { return };
        timeout = inner.keep();
    }
}

impl Returns for Inner {
    /// It goes with the next message; where a thread sleeps until something comes, now.
    fn returned(&self) {
        self.lock().leave();
    }
}

impl Inner {
    pub(crate) fn new(core: Core, options: &SessionOptions) -> Inner {
        let waiter = core.waiter();
        let optimistic = Optimistic::new(core.own_reads());
        let state = State {
            core,
            sinks: Vec::new(),
            free: Vec::new(),
            parked: Vec::new(),
            leader: Leader::None,
            keeper_yields: false,
            asleep: false,
            wakers: Vec::new(),
            room_wakers: Vec::new(),
            async_outstanding: 0,
            calls: 0,
            calls_seen: 0,
            cancelled: false,
            wait: options.wait,
            spin: Spin::default(),
            waiter: waiter.clone(),
        };
        Inner {
            state: Mutex::new(state),
            waiter,
            epoch: boot_time(),
            contenders: AtomicU32::new(0),
            cancel: options.cancel.clone(),
            connected: AtomicBool::new(false),
            on_retry: options.on_retry.clone(),
            keeper: Arc::new(KeeperSignal::default()),
            spares: Arc::default(),
            optimistic,
        }
    }

    pub(crate) fn now(&self) -> Duration {
        boot_time().saturating_sub(self.epoch)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        if let Ok(guard) = self.state.try_lock() {
            return guard;
        }
        self.contenders.fetch_add(1, Ordering::Relaxed);
        let guard = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.contenders.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Submits and waits for the answer; waits for room too.
    pub(crate) fn call(
        &self,
        user: Option<Arc<Identity>>,
        work: Work,
        memory: Memory,
    ) -> Result<Output<FileKey>> {
        self.call_beside(user, work, memory).map(|(output, _)| output)
    }

    /// As `call`; also what was asked for beside the answer.
    pub(crate) fn call_beside(
        &self,
        user: Option<Arc<Identity>>,
        work: Work,
        memory: Memory,
    ) -> Result<(Output<FileKey>, Option<Box<Beside>>)> {
        let submit = |state: &mut State, sink| state.submit(sink, 0, user, work, memory);
        let (done, ()) = self.call_by(submit, |_| ())?;
        Ok((done.result?, done.beside))
    }

    /// As `call`, for a write of `span`, which is kept; also what is kept then.
    pub(crate) fn call_kept(
        &self,
        work: Work,
        span: &Span,
        shared: Option<SharedBytes>,
    ) -> Result<(Output<FileKey>, KeptMemory)> {
        let copy = || {
            let mut bytes = self.spares.take(span.len());
            span.copy_to(0, bytes.as_mut());
            bytes
        };
        let bytes = shared.map_or_else(copy, KeptBytes::from);
        let (file, memory) = (work.file(), Memory::Span(span.clone()));
        let submit = |state: &mut State, sink| state.submit_kept(sink, work, memory, bytes);
        let (done, kept) = self.call_by(submit, |state| match file {
            Some(file) => state.core.kept_memory(file),
            None => KeptMemory::default(),
        })?;
        Ok((done.result?, kept))
    }

    /// Submits without waiting: the sink of the answer, which goes on when somebody waits for it
    /// or for anything else. `None` where there is no room.
    pub(crate) fn begin(&self, user: Option<Arc<Identity>>, work: Work) -> Option<usize> {
        let mut state = self.lock();
        if !state.core.has_room() {
            return None;
        }
        let sink = state.take_sink(false);
        state.submit(sink, 0, user, work, Memory::None);
        if state.leader == Leader::None {
            state.core.ring();
        }
        Some(sink)
    }

    /// Waits for the answer to what was begun; the sink stays its owner's.
    pub(crate) fn answer_of(&self, sink: usize) -> Result<Output<FileKey>> {
        self.answer_or_interrupt(sink).unwrap_or(Err(Error::Interrupted))
    }

    /// As `answer_of`; `None` when it was interrupted.
    pub(crate) fn answer_or_interrupt(&self, sink: usize) -> Option<Result<Output<FileKey>>> {
        let interrupt = Interrupt::watched();
        let until = Until { deadline: None, interrupt: interrupt.as_deref() };
        let mut state = self.wait(self.lock(), sink, 1, until);
        state.sink(sink).done.pop_front().map(|done| done.result)
    }

    /// Submits, waits for the answer, and looks at the state that it left.
    fn call_by<T>(
        &self,
        submit: impl FnOnce(&mut State, usize),
        look: impl FnOnce(&State) -> T,
    ) -> Result<(CoreDone, T)> {
        let interrupt = Interrupt::watched();
        let until = Until { deadline: None, interrupt: interrupt.as_deref() };
        if until.is_over() {
            return Err(Error::Interrupted);
        }
        let mut state = self.lock();
        let sink = state.take_sink(false);
        state = self.wait_for_room(state, sink, until);
        if state.core.has_room() {
            submit(&mut state, sink);
            state = self.wait(state, sink, 1, until);
            if state.sink(sink).done.is_empty() {
                state = self.give_up(state, sink);
            }
        }
        let done = state.sink(sink).done.pop_front();
        state.drop_sink(sink);
        if state.leader == Leader::None && state.needs_driver() {
            self.keeper.poke();
        }
        done.ok_or(Error::Interrupted).map(|done| (done, look(&state)))
    }

    /// Waits until the core takes another call, or it is over.
    pub(crate) fn wait_for_room<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        sink: usize,
        until: Until<'_>,
    ) -> MutexGuard<'a, State> {
        while !state.core.has_room() && !until.is_over() {
            // Room comes with answers to others; a look every now and then is enough, as a full
            // queue is thousands of calls long.
            let deadline = Some(Instant::now() + Duration::from_millis(1));
            state = self.wait(state, sink, usize::MAX, Until { deadline, ..until });
        }
        state
    }

    /// Waits until `sink` has `want` answers, or it is over. The caller makes sure that so many
    /// are outstanding, or that it will be over.
    pub(crate) fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        sink: usize,
        want: usize,
        until: Until<'_>,
    ) -> MutexGuard<'a, State> {
        let mut parked = false;
        while state.sink(sink).done.len() < want {
            if until.is_over() {
                break;
            }
            match state.leader {
                Leader::None => {
                    state.leader = Leader::Caller;
                    let lead = |state| self.lead(state, Some((sink, want)), false, until);
                    state = self.leading(state, lead);
                    self.hand_over(&mut state);
                    continue;
                }
                Leader::Keeper | Leader::Caller => self.take_over(&mut state),
            }
            state = self.park(state, sink, want, until);
            parked = true;
        }
        if parked && state.leader == Leader::None {
            // Woken to lead, and not in need of it any more.
            self.hand_over(&mut state);
        }
        state
    }

    fn progress(&self, state: &mut State, now: Duration) -> bool {
        let busy = state.core.progress(now);
        state.dispatch();
        self.connected.store(state.core.is_connected(), Ordering::Relaxed);
        busy
    }

    /// As of the last look at the network.
    pub(crate) fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Makes progress once, without waiting; nothing where another thread leads.
    pub(crate) fn poll<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if state.leader == Leader::None {
            state = self.leading(state, |mut state| {
                self.progress(&mut state, self.now());
                self.tell(state)
            });
            if state.needs_driver() {
                self.keeper.poke();
            }
        } else if !state.needs_driver() {
            self.take_over(&mut state);
        }
        state
    }

    /// Asks the keeper to make way, where it leads.
    fn take_over(&self, state: &mut State) {
        if state.leader == Leader::Keeper && !state.keeper_yields {
            state.keeper_yields = true;
            self.waiter.wake();
        }
    }

    /// A file is closed: the next call drives that, or the keeper, which looks within [`IDLE`].
    pub(crate) fn drive_close(&self, state: &mut State) {
        if state.leader == Leader::None {
            state.core.ring();
        } else {
            state.leave();
        }
    }

    /// Calls that nobody waits for were submitted: somebody must drive them.
    pub(crate) fn drive_async(&self, state: &mut State) {
        if state.leader == Leader::None {
            state.core.ring();
            self.keeper.poke();
        } else {
            state.leave();
        }
    }

    fn park<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        sink: usize,
        want: usize,
        until: Until<'_>,
    ) -> MutexGuard<'a, State> {
        if !until.may_sleep(&self.waiter) {
            return state;
        }
        let entry = state.sink(sink);
        entry.parked = Some(std::thread::current());
        entry.want = want;
        state.parked.push(sink);
        drop(state);
        let timeout = until.deadline.map(|at| at.saturating_duration_since(Instant::now()));
        until.sleep(timeout, |timeout| match timeout {
            Some(timeout) => std::thread::park_timeout(timeout),
            None => std::thread::park(),
        });
        let mut state = self.lock();
        state.parked.retain(|parked| *parked != sink);
        state.sink(sink).parked = None;
        state
    }

    fn hand_over(&self, state: &mut State) {
        state.leader = Leader::None;
        state.keeper_yields = false;
        while let Some(index) = state.parked.pop() {
            // One that was woken has its answers, and need not lead.
            if let Some(thread) = state.sink(index).parked.take() {
                thread.unpark();
                return;
            }
        }
        if state.needs_driver() {
            self.keeper.poke();
        }
    }

    /// Makes progress until the target is reached; the keeper, which has none, until it is not
    /// needed, and while `listens` until somebody else wants to lead.
    fn lead<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        target: Option<(usize, usize)>,
        listens: bool,
        until: Until<'_>,
    ) -> MutexGuard<'a, State> {
        // A sleeper does not look before it sleeps: what it asked cannot be here yet, and a
        // look costs a system call.
        let sleeps = state.wait == WaitMode::Sleeping;
        if sleeps {
            state = self.sleep(state, self.now(), until);
        }
        loop {
            if !state.cancelled && self.is_cancelled() {
                state.cancelled = true;
                state.core.end(Error::Interrupted);
            }
            let now = self.now();
            let busy = self.progress(&mut state, now);
            state = self.tell(state);
            let listens = listens && !state.core.is_closed();
            let reached = match target {
                Some((sink, want)) => state.sink(sink).done.len() >= want,
                None => state.keeper_yields || !(listens || state.needs_driver()),
            };
            if reached || until.is_over() {
                state.spin.came(now);
                return state;
            }
            if busy {
                state.spin.came(now);
                if sleeps {
                    state = self.sleep(state, now, until);
                }
                continue;
            }
            if listens && !state.needs_driver() {
                state = self.sleep(state, now, until);
                continue;
            }
            let spins = match state.wait {
                WaitMode::Polled => true,
                WaitMode::Sleeping => false,
                WaitMode::Adaptive => state.spins(now),
            };
            if !spins {
                state = self.sleep(state, now, until);
                continue;
            }
            drop(state);
            self.let_in();
            until.spun();
            state = self.lock();
        }
    }

    /// Without the lock: those that want it get it. They may need this very CPU, but giving that
    /// away costs a time slice where other programs want it.
    fn let_in(&self) {
        for _ in 0..LET_IN_LOOKS {
            std::hint::spin_loop();
            if self.contenders.load(Ordering::Relaxed) == 0 {
                return;
            }
        }
        std::thread::yield_now();
    }

    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        now: Duration,
        until: Until<'_>,
    ) -> MutexGuard<'a, State> {
        if !until.may_sleep(&self.waiter) || !state.core.arm() {
            return state;
        }
        let timeouts = [
            state.core.next_timeout().map(|at| at.saturating_sub(now)),
            until.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())),
            self.cancel.as_ref().map(|_| CANCEL_INTERVAL),
        ];
        let timeout = timeouts.into_iter().flatten().min();
        state.asleep = true;
        drop(state);
        until.sleep(timeout, |timeout| self.waiter.wait(timeout));
        let mut state = self.lock();
        state.asleep = false;
        state
    }

    /// Tells wakers and people, without the lock.
    fn tell<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if state.wakers.is_empty() && !state.core.has_notice() {
            return state;
        }
        let wakers = std::mem::take(&mut state.wakers);
        let notices: Vec<String> = std::iter::from_fn(|| state.core.next_notice()).collect();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        if !notices.is_empty() {
            // The server may be lost, or the session. A keeper that listens stays in here.
            self.optimistic.sweep();
        }
        for notice in notices {
            tracing::info!("{notice}");
            if let Some(on_retry) = &self.on_retry {
                on_retry(&notice);
            }
        }
        self.lock()
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|cancel| cancel.load(Ordering::Relaxed))
    }

    /// Ends the session: politely where it stands, within a second. Calls under way end with
    /// [`Error::Interrupted`].
    pub(crate) fn shut_down(&self) {
        self.keeper.stop();
        let mut state = self.lock();
        self.take_over(&mut state);
        if state.core.is_closed() {
            return;
        }
        let start = Instant::now();
        let sink = state.take_sink(false);
        let until = |patience| {
            let end = start + Duration::from_millis(patience);
            let slice = end.min(Instant::now() + Duration::from_millis(20));
            (Instant::now() < end).then_some(Until::deadline(slice))
        };
        state.core.close_session();
        while !state.core.is_destroyed()
            && let Some(slice) = until(750)
        {
            state = self.wait(state, sink, usize::MAX, slice);
        }
        state.core.end(Error::Interrupted);
        while !state.core.is_closed()
            && let Some(slice) = until(1000)
        {
            state = self.wait(state, sink, usize::MAX, slice);
        }
        // What has ended since the last look.
        state.dispatch();
        state = self.tell(state);
        state.drop_sink(sink);
    }

    /// Starts the thread that renews leases, reconnects, and drives calls that nobody waits for.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn start_keeper(self: &Arc<Self>) -> std::io::Result<()> {
        let (weak, signal) = (Arc::downgrade(self), self.keeper.clone());
        let run = move || keeper(&weak, &signal);
        std::thread::Builder::new().name("dafs-keeper".into()).spawn(run)?;
        Ok(())
    }

    /// Leads where the keeper is needed or may listen; how long it may sleep then.
    pub(crate) fn keep(&self) -> Duration {
        self.optimistic.sweep();
        let mut state = self.lock();
        let is_idle = state.calls == state.calls_seen;
        state.calls_seen = state.calls;
        if state.leader == Leader::None {
            state.leader = Leader::Keeper;
            state.keeper_yields = false;
            let listens = is_idle && !self.keeper.is_stopped();
            let lead = |state| self.lead(state, None, listens, Until::default());
            state = self.leading(state, lead);
            self.hand_over(&mut state);
        }
        let next = state.core.next_timeout();
        let pause = next.map_or(IDLE, |at| at.saturating_sub(self.now()));
        pause.clamp(Duration::from_millis(1), IDLE)
    }
}
