//! Loans: what peers have lent here, and what is lent to peers, also after their connections.

use dafs_fabric::{Access, MemoryRegion, QueuePair, Rkey, SgList, Span, Words};

use super::Port;
use crate::config::SubmitError;
use crate::connection::Connection;
use crate::event::ConnId;
use crate::loan::Loan;
use crate::planted::{Defect, planted};
use crate::references::References;
use crate::requests::Submit;
use crate::shared::Shared;

impl Connection {
    /// The connection is quiescent: what its replies referred to is read no more, but for what was lent, which may
    /// be.
    pub(crate) fn end_references(&self, sh: &mut Shared, references: Option<Box<References>>) {
        let lends = references.as_ref().is_some_and(|references| references.lends())
            && !planted(Defect::LoanEndsWithConnection);
        let is_still_read = sh.engine.is_still_read(self.queue_pair, lends);
        let Some(mut references) = references else { return };
        references.end_all(is_still_read, |token| sh.sent.push_back(token));
        if is_still_read {
            sh.orphans.push((self.queue_pair, references));
        }
    }
}

impl Port {
    /// Has peers know what was returned, with the next messages to them.
    #[cold]
    pub(super) fn take_returned(&mut self) {
        for (conn, number) in self.sh.returned.clone().take() {
            // Of connections that have ended the engine tells.
            if let Some((connection, sh)) = self.find(conn) {
                connection.releases.add(number, (conn.slot(), &mut sh.releasing));
            }
        }
    }

    /// See [`Node::submit_to_lend`](crate::Node::submit_to_lend).
    pub fn submit_to_lend(
        &mut self,
        conn: ConnId,
        tag: u32,
        header: &[u8],
        reply_into: SgList,
    ) -> Result<(), SubmitError> {
        // So that there is room for what is asked for.
        if self.sh.returned.any() {
            self.take_returned();
        }
        self.submit(conn, tag, header, (SgList::new(), reply_into), Submit::Lend)
    }

    /// See [`Node::take_loan`](crate::Node::take_loan).
    pub fn take_loan(&mut self, conn: ConnId, tag: u32) -> Option<Box<Loan>> {
        let at = self.sh.loans.iter().position(|loan| (loan.0, loan.1) == (conn, tag))?;
        Some(self.sh.loans.swap_remove(at).2)
    }

    /// See [`Node::map`](crate::Node::map).
    pub fn map(&mut self, conn: ConnId, rkey: Rkey) -> Option<Span> {
        let (connection, sh) = self.find(conn)?;
        sh.engine.map(connection.queue_pair, rkey)
    }

    /// See [`Node::words`](crate::Node::words).
    pub fn words(&mut self, conn: ConnId, rkey: Rkey) -> Option<Words> {
        let (connection, sh) = self.find(conn)?;
        sh.engine.words(connection.queue_pair, rkey)
    }

    /// See [`Node::share`](crate::Node::share).
    pub fn share(&self, memory: &Span) -> Option<MemoryRegion> {
        let access = Access { remote_read: true, remote_write: true };
        self.sh.domain.device().register(memory.clone(), access).ok()
    }

    /// See [`Node::is_lent`](crate::Node::is_lent).
    pub fn is_lent(&self, conn: ConnId, token: u64) -> bool {
        let references = self.peek(conn).and_then(|it| it.responder.references.as_ref());
        references.is_some_and(|references| references.is_lent(token))
    }

    /// See [`Node::has_lent`](crate::Node::has_lent).
    pub fn has_lent(&self) -> bool {
        let of = |connection: &Connection| {
            connection.responder.references.as_ref().map(|all| all.lends())
        };
        let mut connections = self.connections.iter().flatten();
        !self.sh.orphans.is_empty() || connections.any(|connection| of(connection) == Some(true))
    }

    /// A peer reads no more what it was lent.
    pub(super) fn is_returned(&mut self, queue_pair: QueuePair) {
        let Some(at) = self.sh.orphans.iter().position(|(of, _)| *of == queue_pair) else { return };
        let (_, mut references) = self.sh.orphans.swap_remove(at);
        references.end_all(false, |token| self.sh.sent.push_back(token));
    }
}
