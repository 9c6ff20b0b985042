//! Sessions: made, found, ended.

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dafs_message::ConnId;
use dafs_protocol::{ClientId, Identity, SessionAttr, SessionId, Status, WaitMode};

use super::Worker;
use crate::budget::UserShare;
use crate::clients::Live;
use crate::ended_sessions::EndedState;
use crate::limits::Limits;
use crate::locks::{Client, LockTable};
use crate::mailbox::Message;
use crate::metrics::SessionMeter;
use crate::planted::{Defect, planted};
use crate::session::{Link, Session};
use crate::shared::{Counted, LimitGuard, tick};

/// Why a session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Destroyed,
    LeaseExpired,
    Replaced,
    ShutDown,
}

impl End {
    fn reason(self) -> &'static str {
        match self {
            End::Destroyed => "destroyed by the client",
            End::LeaseExpired => "lease expired",
            End::Replaced => "replaced by a new session of the client",
            End::ShutDown => "server shuts down",
        }
    }
}

pub(super) struct Kept {
    pub session: Rc<Session>,
    _limit: LimitGuard,
}

/// The most that a session of this user is granted.
fn grants(limits: &Limits, user: &UserShare) -> SessionAttr {
    let may_poll = limits.polled || !user.is_limited();
    SessionAttr {
        slots: limits.slots,
        data_bytes_max: limits.data_bytes,
        inline_bytes: 512,
        wait: if may_poll { WaitMode::Polled } else { WaitMode::Adaptive },
        lease_ms: limits.lease_seconds.saturating_mul(1000),
        tagged: true,
        rdma_read: limits.rdma_read,
        read_ahead: true,
    }
}

const OTHER_USER: &str = "this client is of another user";
/// Of a connection that its client has given up.
pub(crate) const LATER_ATTEMPT: &str = "the client has come by a later attempt";

impl Worker {
    pub(super) fn create(
        &mut self,
        connection: ConnId,
        who: Identity,
        (client, attempt): (ClientId, u64),
        wish: SessionAttr,
        peer: String,
    ) -> Result<(Rc<Session>, bool), (Status, &'static str)> {
        let uid = who.uid;
        let older = self.shared.sessions.clients.live(client);
        if older.is_some_and(|older| older.uid != uid) {
            return Err((Status::NotAuthorized, OTHER_USER));
        }
        if older.is_some_and(|older| older.attempt > attempt) {
            return Err((Status::Delay, LATER_ATTEMPT));
        }
        if let Some(older) = older.filter(|older| older.worker == self.context.number) {
            self.destroy(older.session, End::Replaced);
        }
        let limits = &self.shared.limits;
        let user = self.shared.budgets.of_user(uid);
        let of_user = match uid {
            0 => usize::MAX,
            _ => limits.sessions_per_user.min(user.part_of(limits.sessions)),
        };
        let most = (limits.sessions, of_user);
        let place = LimitGuard::take(&self.shared, &user, Counted::Sessions, most)
            .ok_or((Status::Resource, "server limit reached: sessions"))?;
        let wish = SessionAttr { data_bytes_max: wish.data_bytes_max.max(4096), ..wish };
        let attr = SessionAttr::agree(&wish, &grants(limits, &user));
        let mut id = self.shared.random::<16>();
        if let Some((worker, _)) = id.split_first_chunk_mut::<2>() {
            *worker = self.context.number.to_le_bytes();
        }
        let id = SessionId(id);
        let secret = self.shared.random();
        let live = Live { uid, session: id, worker: self.context.number, attempt };
        let older = self.shared.sessions.clients.enter(client, live);
        let older = older.map_err(|status| match status {
            Status::Delay => (status, LATER_ATTEMPT),
            _ => (status, OTHER_USER),
        })?;
        tracing::info!(?connection, uid = who.uid, "session created");
        let earlier = self.shared.counters.sessions_total.fetch_add(1, Ordering::Relaxed);
        let meter = SessionMeter::new(earlier + 1, client, uid, peer);
        meter.own_reads.begin(self.shared.process.now());
        self.shared.metrics.enter(meter.clone());
        let (who, client) = (Arc::new(who), Client { id: client, uid });
        let logged = user.part_of(limits.logged_sessions);
        let lock_files = user.part_of(limits.lock_files);
        let since = (self.clock.now(), user);
        let mut session = Session::new(id, secret, who, client, attr, since, meter);
        session.intent_log = self
            .shared
            .changes
            .log
            .as_ref()
            .and_then(|intent_log| intent_log.enter(id, client, logged));
        let session = Rc::new(session);
        let number = session.number();
        self.context.locks(|table| {
            table.begin_session(number, (self.context.number, id), (uid, lock_files));
        });
        if let Some(Live { session: older, worker, .. }) = older {
            session.life.hold_back();
            let message = Message::Replaced { session: older, by: id, at: self.context.number };
            self.shared.send(worker, message);
        }
        self.sessions.insert(id, Kept { session: session.clone(), _limit: place });
        self.wait_mode = self.choose_wait_mode();
        Ok((session, false))
    }

    pub(super) fn find(
        &self,
        who: &Identity,
        id: SessionId,
        secret: &[u8; 16],
    ) -> Result<Rc<Session>, (Status, &'static str)> {
        let none = (Status::BadSession, "no such session");
        let gone = || match self.shared.sessions.ended.find(id) {
            None => none,
            Some(EndedState::Flushing) => {
                (Status::Delay, "the session ended; its files are being flushed")
            }
            Some(EndedState::Lost) => {
                (Status::WritesLost, "no such session; some of its writes are lost")
            }
        };
        let live = self.sessions.get(&id).ok_or_else(gone)?;
        let session = &live.session;
        let different = secret.iter().zip(&session.secret).fold(0, |sum, (a, b)| sum | (a ^ b));
        // The groups of a user may have changed meanwhile; the session goes on with those it began with.
        if different != 0 || session.life.has_ended() {
            return Err(none);
        }
        // Not that there is none: it lives, and its client may come by another way.
        if session.who.uid != who.uid {
            return Err((Status::NotAuthorized, "this session is of another user"));
        }
        Ok(session.clone())
    }

    /// Forgets a session: its connections end, its files are closed.
    pub(super) fn destroy(&mut self, id: SessionId, end: End) {
        let Some(live) = self.sessions.remove(&id) else { return };
        let session = live.session;
        self.shared.metrics.leave(session.number());
        let reason = end.reason();
        tracing::info!(uid = session.who.uid, reason, "session ended");
        session.end();
        self.end_log(&session, end);
        for Link { connection, .. } in session.links.take_all() {
            self.node.ring();
            self.node.disconnect(connection, reason);
            self.connections.gone(connection);
        }
        for bind in self.connections.take_binds(|bind| bind.session.id == id) {
            self.node.disconnect(bind.connection, reason);
            self.connections.gone(bind.connection);
        }
        self.end_locks(&session, end);
        self.drop_delayed(&session);
        let opens = session.take_opens();
        if opens.is_empty() {
            return;
        }
        self.shared.sessions.ended.flushing(id);
        let left = Rc::new(Cell::new(opens.len()));
        for open in opens {
            if planted(Defect::OpensLeaked) {
                std::mem::forget(open);
                continue;
            }
            let (shared, left) = (self.shared.clone(), left.clone());
            let uid = session.who.uid;
            let has_written = end != End::Destroyed && open.has_written();
            if has_written && end != End::ShutDown {
                shared.sessions.clean_end.left();
            }
            self.tasks.spawn(async move {
                if let Err(status) = open.file.close(open.writer.id).await {
                    open.could_not_flush(&shared, uid, status);
                    shared.sessions.ended.lost(id);
                    if end == End::ShutDown {
                        shared.sessions.ended.add_unflushed(1);
                    }
                    return;
                }
                if has_written && end == End::ShutDown {
                    shared.sessions.clean_end.closed(&open.stored);
                }
                left.set(left.get() - 1);
                if left.get() == 0 {
                    shared.sessions.ended.forget(id);
                }
            });
        }
    }

    /// Who does not end a session itself may ask what became of its changes.
    fn end_log(&self, session: &Session, end: End) {
        match (&session.intent_log, &self.shared.changes.log) {
            (Some(intent_log), _) if end == End::Destroyed => intent_log.forget(),
            (Some(intent_log), Some(all)) => all.keep(intent_log),
            _ => {}
        }
    }

    /// Others get the locks of a session that ends. If the client does not know of the end, it
    /// is first made sure that it reclaims none after a crash of this server.
    fn end_locks(&mut self, session: &Session, end: End) {
        let (client, number) = (session.client, session.number());
        let context = self.context.clone();
        self.shared.sessions.clients.leave(client.id, session.id);
        let saving = match end {
            End::Destroyed | End::LeaseExpired => self.shared.sessions.clients.forget(&[client]),
            End::Replaced | End::ShutDown => None,
        };
        if matches!(end, End::Destroyed | End::LeaseExpired) {
            context.reclaimed(&client);
        }
        match saving {
            Some(saving) if end == End::LeaseExpired => self.tasks.spawn(async move {
                if let Err(error) = saving.await {
                    tracing::error!(%error, "cannot record that a client has no locks any more");
                }
                context.locks(|table| table.end_session(number));
            }),
            _ => context.locks(|table| table.end_session(number)),
        }
    }

    /// Goes on with locks that somebody may have, and ends the grace period when it has lasted long enough. Who has not come may not come any
    /// more, also not to the next server.
    pub(super) fn watch_locks(&mut self, lease: Duration) {
        let now = self.clock.now();
        let due = self.context.locks(|table| {
            table.go_on();
            table.grace_due(now, lease)
        });
        let Some(missing) = due else { return };
        let context = self.context.clone();
        let saving = self.shared.sessions.clients.forget(&missing);
        self.tasks.spawn(async move {
            if let Some(Err(error)) = match saving {
                Some(saving) => Some(saving.await),
                None => None,
            } {
                tracing::error!(%error, "cannot record that clients lost their locks");
            }
            context.locks(LockTable::end_grace);
        });
    }

    pub(crate) fn session(&self, id: SessionId) -> Option<Rc<Session>> {
        self.sessions.get(&id).map(|live| live.session.clone())
    }

    pub(super) fn is_any_at_work(&self) -> bool {
        self.sessions.values().any(|live| live.session.slots.borrow().running() > 0)
    }

    fn is_at_work(&self, id: SessionId) -> bool {
        self.sessions.get(&id).is_some_and(|live| live.session.slots.borrow().running() > 0)
    }

    /// Sessions alive.
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// A session has not ended whose word of life this is, in the caches that its client reads by itself.
    pub fn stands_for(&self, word: u64) -> bool {
        self.sessions.values().any(|kept| kept.session.has_word(word))
    }

    /// Looks at all sessions, so not for each pass.
    pub(super) fn choose_wait_mode(&self) -> WaitMode {
        let recent = |live: &&Kept| {
            let session = &live.session;
            session.life.unseen(self.clock.now()) < Duration::from_secs(1)
        };
        let mut mode = WaitMode::Sleeping;
        for live in self.sessions.values().filter(recent) {
            match live.session.attr.wait {
                WaitMode::Polled => return WaitMode::Polled,
                WaitMode::Adaptive => mode = WaitMode::Adaptive,
                WaitMode::Sleeping => {}
            }
        }
        if self.sessions.is_empty() { WaitMode::Adaptive } else { mode }
    }

    /// Ends those that were silent for the time of a lease, and of which nothing waited in a
    /// socket at its end.
    pub(super) fn expire_sessions(&mut self, lease: Duration) {
        let (now, rounds) = (self.clock.now(), self.node.rounds());
        if now < self.leases_due {
            return;
        }
        let mut longest = Duration::ZERO;
        let mut silent = |live: &Kept| {
            let unseen = live.session.life.unseen(now);
            longest = longest.max(unseen);
            let is_late = unseen > lease && !planted(Defect::LeaseNeverExpires);
            live.session.life.is_expired(is_late, rounds)
        };
        let mut expired: Vec<_> =
            self.sessions.iter().filter(|(_, live)| silent(live)).map(|(id, _)| *id).collect();
        // Whoever comes, or is heard, has later until then.
        self.leases_due = now + lease.saturating_sub(longest);
        expired.sort_unstable_by_key(|id| id.0);
        for id in expired {
            if let Some(session) = self.session(id) {
                session.end_own_reads();
                self.drop_delayed(&session);
            }
            // What waits for its data ends with its connections.
            if self.is_at_work(id) {
                self.disconnect_all(id, "lease expired");
                continue;
            }
            tick(&self.shared.counters.leases_expired);
            self.destroy(id, End::LeaseExpired);
        }
    }
}
