//! Sessions: made, lost, made again; what becomes of calls and files.

use std::collections::VecDeque;
use std::time::Duration;

use dafs_protocol::{ClientSlots, Purpose, Status};

use super::call::{CallRecord, Flight};
use super::callbacks::Callbacks;
use super::credentials::Credentials;
use super::files::OpenFile;
use super::flights::Flights;
use super::ids::{FileKey, PastRequest};
use super::in_doubt::InDoubt;
use super::link::{Granted, Link};
use super::rewriting::Rewriting;
use super::unsynced::Unsynced;
use super::work::Work;
use super::{Core, Next, Phase, SessionKeys};
use crate::error::Error;
use crate::planted::{Defect, planted};

/// Sessions lost under one call before it is given up.
const SESSIONS_LOST_MAX: u8 = 8;
/// After the start of a server, in leases, what is kept is not written again.
const REWRITE_LEASES: u32 = 2;
/// Bytes that are written again in one request, and so many of them under way.
const REWRITE_BYTES: usize = 1 << 20;
const REWRITES_MAX: usize = 8;
/// Before another attempt, when a session was lost before it was of use.
const SESSION_PAUSE: Duration = Duration::from_millis(100);
/// A server that grants no lease.
const LEASE_MS_DEFAULT: u32 = 30_000;

/// What is to be done when connection, session or server are lost.
#[derive(Default)]
pub(super) struct Recovery {
    /// Since when each link is gone.
    pub(super) lost_since: [Option<Duration>; 2],
    /// Until then the server is not to be sent what it did not ask for.
    pub(super) push_again_at: Duration,
    /// The last sign of the server of the session before, or that there was none.
    pub(super) old_server_at: Duration,
    /// By which of the user's addresses the server was reached last. Its own way by a network of its host is
    /// none: that the next server is not there does not say that it has not started.
    pub(super) served_at: Option<usize>,
    /// Calls that a server may have done when it, or the session, was lost.
    pub(super) in_doubt: Vec<InDoubt>,
    /// The server is another one: what is kept is written again.
    pub(super) rewrites: bool,
    /// The last name given to a write that is kept.
    pub(super) last_kept: u64,
    /// Kept writes acknowledged so far, over all files.
    pub(super) kept_writes: u64,
    pub(super) unsynced: Unsynced,
}

impl Core {
    /// The server made a session for us.
    pub(super) fn session_made(&mut self, keys: SessionKeys, granted: Granted) {
        let Granted { version, features, attr, verifier, uid, addresses, .. } = granted;
        self.session.keys = Some(keys);
        self.session.facts.attr = attr;
        self.session.facts.version = version;
        self.session.facts.features = features;
        self.session.telling.begin(self.now);
        self.session.facts.addresses = addresses;
        if attr.lease_ms == 0 {
            self.session.facts.attr.lease_ms = LEASE_MS_DEFAULT;
        }
        self.session.facts.uid = uid;
        if std::mem::replace(&mut self.session.established, true) {
            self.session.facts.new_sessions += 1;
            let text = if self.session.facts.verifier == verifier {
                "connected again; the server had ended the session"
            } else {
                "connected again; the server was restarted"
            };
            self.notice(text.into());
        }
        // Still so where a session was lost before all was written.
        self.recovery.rewrites |= self.session.facts.verifier != verifier;
        self.session.facts.verifier = verifier;
        self.files.iter_mut().for_each(|file| file.saw(verifier));
        let slots = usize::from(attr.slots);
        self.requests.slots = ClientSlots::new(attr.slots);
        self.requests.flights = Flights::in_slots(slots);
        self.requests.unposted = 0;
        self.credentials = Credentials::default();
        self.callbacks = Callbacks::default();
        self.phase = Phase::Rooting;
        self.requests.background += 1;
        self.requests.urgent.push_front(CallRecord::internal(Work::Root));
    }

    /// What a connection is made for now.
    pub(super) fn purpose(&self) -> Purpose {
        match self.session.keys {
            Some(SessionKeys { id, secret }) => Purpose::Bind { session: id, secret },
            None => Purpose::Create { attr: self.config.wish(), client: self.session.client },
        }
    }

    /// A link is connected again, in the same session.
    pub(super) fn back_again(&mut self, index: usize) {
        let lost = self.recovery.lost_since[index].take().is_some();
        if lost && index == 0 && matches!(self.phase, Phase::Ready) {
            self.notice("connected again".into());
        }
    }

    pub(super) fn root_found(&mut self) {
        let keys = self.files.keys();
        if keys.is_empty() {
            self.begin_reclaim();
            return;
        }
        self.phase = Phase::Reopening(keys.len());
        for file in keys {
            self.requests.background += 1;
            let work = Work::Reopen { file, by_path: false };
            self.requests.urgent.push_back(self.for_user_of(file, work));
        }
    }

    /// Writes again what is kept. Locks were reclaimed before: what was written under one that is
    /// lost must not be written over the data of who has it now.
    pub(super) fn begin_rewriting(&mut self) {
        if self.recovery.rewrites && self.is_late() {
            let lost = self.files.iter_mut().filter_map(|file| file.lose_kept().then_some(()));
            if lost.count() > 0 {
                self.recovery.unsynced.lose();
            }
            self.notice(
                "what was written before and not flushed is lost: that is too long ago".into(),
            );
        }
        let rewrites = self.recovery.rewrites && !planted(Defect::KeptForgotten);
        let pieces = if rewrites { self.files.kept() } else { VecDeque::new() };
        self.phase = Phase::Rewriting(Rewriting { pieces, under_way: 0 });
        self.rewrite();
    }

    /// The new server may have started some leases ago: others could write meanwhile, and count on
    /// it. It started after the last sign of the old one, and after each attempt that found none.
    fn is_late(&self) -> bool {
        self.now.saturating_sub(self.recovery.old_server_at) > self.lease() * REWRITE_LEASES
    }

    fn rewrite(&mut self) {
        let bytes_max = REWRITE_BYTES.min(self.data_bytes_max());
        while let Phase::Rewriting(rewriting) = &mut self.phase
            && rewriting.under_way < REWRITES_MAX
        {
            let pieces = rewriting.next(bytes_max as u64);
            let Some(file) = pieces.first().map(|piece| piece.file) else { break };
            match self.files.rewrite(&pieces) {
                Some(Ok((work, memory))) => {
                    rewriting.under_way += 1;
                    self.requests.background += 1;
                    // Also setuid ends again where it did.
                    let user = self.files.any(file).and_then(OpenFile::writer);
                    let call = CallRecord { user, memory, ..*CallRecord::internal(work) };
                    self.requests.urgent.push_back(Box::new(call));
                }
                Some(Err(_)) => self.lose_kept_of(file),
                // It was given up since.
                None => {}
            }
        }
        if matches!(&self.phase, Phase::Rewriting(rewriting) if rewriting.under_way == 0) {
            self.complete_reclaim();
        }
    }

    /// A piece was written again, or could not be: nor is what is kept by other opens of the file,
    /// of which the piece may have replaced some.
    pub(super) fn rewritten(&mut self, file: FileKey, done: bool) {
        if !done {
            self.lose_kept_of(file);
        }
        if let Phase::Rewriting(rewriting) = &mut self.phase {
            rewriting.under_way = rewriting.under_way.saturating_sub(1);
            self.rewrite();
        }
    }

    /// Also who syncs learns of it.
    fn lose_kept_of(&mut self, file: FileKey) {
        let mut lost = false;
        self.files.for_opens_of(file, |open| lost |= open.lose_kept());
        if lost {
            self.recovery.unsynced.lose();
        }
    }

    pub(super) fn become_ready(&mut self) {
        self.phase = Phase::Ready;
        self.recovery.rewrites = false;
        self.recovery.lost_since = [None; 2];
    }

    /// The server forgot the session.
    pub(super) fn lose_session(&mut self) {
        if matches!(self.phase, Phase::Draining(_) | Phase::Closed) {
            return;
        }
        if self.session.closing {
            // That is what was asked for.
            return self.fail_all(Error::Interrupted);
        }
        let since = *self.recovery.lost_since[0].get_or_insert(self.now);
        if self.now.saturating_sub(since) > self.config.retry {
            let reason = "the server forgets one session after the other".into();
            return self.fail_all(Error::Connect { refused: false, reason });
        }
        let pause = !matches!(self.phase, Phase::Ready);
        self.drain(Next::NewSession { pause });
    }

    /// The server could not write what this session left when it ended.
    pub(super) fn writes_were_lost(&mut self) {
        self.files.iter_mut().for_each(OpenFile::lose);
        self.recovery.unsynced.lose();
    }

    /// Nothing can be done: all calls fail when their memory is free. A later call tries again.
    pub(super) fn fail_all(&mut self, error: Error) {
        if matches!(self.phase, Phase::Draining(Next::Fail(_)) | Phase::Closed) {
            return;
        }
        self.session.destroyed |= self.session.closing;
        self.drain(Next::Fail(error));
    }

    /// Does what had to wait for quiescence.
    #[inline]
    pub(super) fn settle(&mut self) {
        if matches!(self.phase, Phase::Draining(_)) && self.links.iter().all(Link::is_down) {
            self.go_to_next_phase();
        }
    }

    fn go_to_next_phase(&mut self) {
        let Phase::Draining(next) = std::mem::replace(&mut self.phase, Phase::Opening) else {
            return;
        };
        let session = self.session.keys.take();
        let heard =
            self.links.iter().map(Link::heard_at).fold(self.recovery.old_server_at, Duration::max);
        self.recovery.old_server_at = heard;
        self.links.iter_mut().for_each(Link::forget);
        self.look_again();
        self.requests.slots = ClientSlots::new(0);
        let flights = self.requests.flights.take_all();
        self.requests.unposted = 0;
        let urgent = std::mem::take(&mut self.requests.urgent);
        let waits = self.locks.take_waits();
        for call in flights.iter().flatten().filter(|f| f.sent).map(|f| &f.call).chain(&waits) {
            self.may_have_given_up(&call.work);
        }
        match next {
            Next::NewSession { pause } => {
                if pause {
                    self.links[0].retry_at(self.now + SESSION_PAUSE);
                }
                for call in urgent {
                    self.carry_over(call);
                }
                self.doubts_remain(SESSIONS_LOST_MAX);
                // To the front, so the last one first.
                for flight in flights.into_iter().rev().flatten() {
                    // A step only looks.
                    if flight.sent && flight.step.is_none() {
                        self.carry_over_sent(flight, session);
                    } else {
                        self.carry_over(flight.call);
                    }
                }
                for call in waits.into_iter().rev() {
                    self.carry_over(call);
                }
            }
            Next::Fail(error) => {
                let doubts =
                    std::mem::take(&mut self.recovery.in_doubt).into_iter().map(|doubt| doubt.call);
                let calls = urgent.into_iter().chain(waits).chain(doubts).collect();
                self.fail_calls(flights, calls, &error);
            }
        }
    }

    /// A call that the server may have done when the session was lost.
    fn carry_over_sent(&mut self, flight: Flight, session: Option<SessionKeys>) {
        let Flight { call, slot, sequence, operations, beside, noted, kept_writes, .. } = flight;
        let guessed = planted(Defect::OutcomeGuessed);
        let is_over = call.work.is_internal() || call.link.is_some() || is_unwanted(&call);
        if is_over || self.is_repeatable(&call.work) || guessed {
            return self.carry_over(call);
        }
        match session.filter(|_| noted) {
            Some(SessionKeys { id, .. }) => {
                let request = PastRequest { session: id, slot, sequence };
                self.recovery.in_doubt.push(InDoubt {
                    call,
                    request,
                    operations: operations - beside,
                    kept_writes,
                });
            }
            None => self.finish(call, Err(Status::OutcomeUnknown.into())),
        }
    }

    /// A call that goes on in the next session.
    fn carry_over(&mut self, mut call: Box<CallRecord>) {
        if call.work.is_internal() || call.link.is_some() {
            self.deliver(call, Err(Error::Interrupted));
            return;
        }
        if is_unwanted(&call) {
            self.finish(call, Err(Error::Interrupted));
            return;
        }
        call.sessions_lost = call.sessions_lost.saturating_add(1);
        if call.sessions_lost > SESSIONS_LOST_MAX && !self.config.is_hard() {
            let what = "the server forgets one session after the other";
            self.finish(call, Err(Error::PeerProtocol(what.into())));
            return;
        }
        call.work.rewind();
        self.requeue(call);
    }

    fn is_repeatable(&self, work: &Work) -> bool {
        let appends = || {
            let file = work.file().and_then(|key| self.files.any(key));
            file.is_some_and(|file| file.options.append)
        };
        match work {
            Work::Write { .. } | Work::WriteList { .. } | Work::WriteFlush { .. } => !appends(),
            other => other.is_repeatable(),
        }
    }

    fn fail_calls(
        &mut self,
        flights: Vec<Option<Flight>>,
        urgent: Vec<Box<CallRecord>>,
        error: &Error,
    ) {
        self.phase = if self.session.closing { Phase::Closed } else { Phase::Idle };
        self.recovery.lost_since = [None; 2];
        let queued: Vec<Box<CallRecord>> =
            self.requests.queues.iter_mut().flat_map(|queue| queue.drain(..)).collect();
        let calls = flights.into_iter().flatten().map(|flight| flight.call);
        let calls: Vec<Box<CallRecord>> = calls.chain(urgent).chain(queued).collect();
        // Closes that wait for these calls find the queue open, and fail in turn.
        for call in calls {
            self.fail_call(call, error);
        }
        loop {
            let queued: Vec<Box<CallRecord>> =
                self.requests.queues.iter_mut().flat_map(|queue| queue.drain(..)).collect();
            if queued.is_empty() {
                break;
            }
            for call in queued {
                self.fail_call(call, error);
            }
        }
        if matches!(self.phase, Phase::Opening) {
            self.phase = if self.session.closing { Phase::Closed } else { Phase::Idle };
        }
    }

    fn fail_call(&mut self, call: Box<CallRecord>, error: &Error) {
        if let Work::Close { file } = call.work {
            // Nobody can use it any more.
            self.remove_file(file);
        }
        self.finish(call, Err(error.clone()));
    }
}

/// Nobody waits for its answer, nor needs it to be done.
fn is_unwanted(call: &CallRecord) -> bool {
    call.cancelled || (call.owner.is_none() && !matches!(call.work, Work::Close { .. }))
}
