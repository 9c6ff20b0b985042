//! Callbacks of a worker's sessions: sent while a connection stands, again after a break.

use std::rc::Rc;

use dafs_fabric::SgList;
use dafs_message::ConnId;
use dafs_protocol::{Callback, CallbackReply, Status, decode_callback_reply, encode_callback};

use crate::locks::Ended;
use crate::session::Session;
use crate::shared::tick;
use crate::worker::{TIMER, Worker};

impl Worker {
    /// A session's wait for a lock is over.
    pub(crate) fn lock_ended(&mut self, ended: Ended) {
        let Some(session) = self.session(ended.session) else { return };
        let what = Callback::Lock { ticket: ended.ticket, result: ended.result };
        session.callbacks.borrow_mut().push(what, Some(ended.origin));
        self.send_callbacks(&session);
    }

    /// Sends what can be sent now; the rest goes with the next answer, request or timer.
    pub(crate) fn send_callbacks(&mut self, session: &Rc<Session>) {
        loop {
            let Some(request) = session.callbacks.borrow().unsent() else { return };
            let mut bytes = self.context.header();
            encode_callback(&request, &mut bytes);
            let tag = u32::from(request.slot.0);
            let sent = session.links.for_callbacks(self.clock.now(), TIMER).into_iter().find(
                |connection| {
                    let none = SgList::new;
                    self.node.submit(*connection, tag, &bytes, none(), none()).is_ok()
                },
            );
            self.context.recycle(bytes);
            let Some(connection) = sent else { return };
            tick(&self.shared.counters.callbacks);
            session.callbacks.borrow_mut().sent(request.slot, connection);
        }
    }

    /// Something came from the client over a connection, which `is_other` than that by which something came last.
    #[inline]
    pub(crate) fn heard(&mut self, session: &Rc<Session>, connection: ConnId, is_other: bool) {
        session.life.seen(self.clock.now());
        if is_other {
            session.links.heard(connection);
        }
        if session.callbacks.borrow().has_unsent() {
            self.send_callbacks(session);
        }
    }

    /// A client answered.
    pub(crate) fn callback_answered(&mut self, connection: ConnId, tag: u32, header: &[u8]) {
        let Some(session) = self.bound_session(connection) else { return };
        let reply = match decode_callback_reply(header) {
            Ok(reply) => reply,
            Err(error) => return self.violation(connection, &error.to_string()),
        };
        let CallbackReply { slot, result, .. } = reply;
        let meant = matches!(result, Ok(()) | Err(Status::NoEnt)) && u32::from(slot.0) == tag;
        let answered = |meant: bool| {
            meant.then(|| session.callbacks.borrow_mut().answered(&reply, connection)).flatten()
        };
        let Some(what) = answered(meant) else {
            return self.violation(connection, "an answer to no callback");
        };
        if let Callback::Lock { ticket, .. } = what {
            let number = session.number();
            self.context.locks(|table| table.confirmed(number, ticket, result.is_ok()));
        }
        self.heard(&session, connection, true);
    }
}
