//! Named reads: what is asked for and answered beside the requests, with nothing of them but the connection.

use dafs_fabric::{NamedAnswer, NamedAsk, Span};

use crate::config::SubmitError;
use crate::event::{ConnId, NamedReads};
use crate::node::Node;
use crate::port::Port;

impl Node {
    /// The device of this connection verifies names: this end may [read](Self::read_named) and
    /// [answer](Self::answer_named) by them, where the other end has agreed to it.
    pub fn verifies_names(&self, conn: ConnId) -> bool {
        self.attr_of(conn).is_some_and(|attr| attr.verifies_names && !attr.local_registration)
    }

    /// Reads what the peer knows by a name from an offset on, into the first bytes of a span, as many as are told
    /// (at most [`NAMED_READ_BYTES_MAX`](dafs_fabric::NAMED_READ_BYTES_MAX)). [`Event::NamedRead`] follows, or
    /// [`Event::Quiescent`], and until then the span is held.
    ///
    /// [`Event::NamedRead`]: crate::Event::NamedRead
    /// [`Event::Quiescent`]: crate::Event::Quiescent
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was done and no span is held.
    #[inline]
    pub fn read_named(
        &mut self,
        conn: ConnId,
        tag: u32,
        what: (&[u8], u64),
        into: (&Span, usize),
    ) -> Result<(), SubmitError> {
        let port = self.port(conn).ok_or(SubmitError::NotConnected)?;
        port.read_named(conn, tag, what, into)
    }

    /// From now on [`take_named`](Self::take_named) has what peers ask for by name; before, all is refused.
    pub fn serve_named(&mut self) {
        self.ports_mut().iter_mut().for_each(Port::serve_named);
    }

    /// The named reads that have come by a port, in place of what is there: each is to be answered or refused, those of a
    /// connection in their order. False: none have come.
    #[inline]
    pub fn take_named(&mut self, reads: &mut NamedReads) -> bool {
        self.ports_mut().iter_mut().enumerate().any(|(number, port)| {
            port.take_named(&mut reads.asks);
            reads.port = number;
            !reads.asks.is_empty()
        })
    }

    /// The connection of one of them; `None`: it has ended, and nobody waits for an answer.
    #[inline]
    pub fn asker(&mut self, reads: &NamedReads, ask: &NamedAsk) -> Option<ConnId> {
        self.ports_mut().get_mut(reads.port)?.asker(ask.queue_pair)
    }

    /// Answers named reads of a connection, each with at most as many bytes as it asks for; takes what is in the list. With a
    /// token [`Event::ReplySent`](crate::Event::ReplySent) follows, when the last of these answers and all before it on
    /// this connection have left; what is held for those without is let go then.
    #[inline]
    pub fn answer_named(
        &mut self,
        conn: ConnId,
        answers: &mut Vec<NamedAnswer>,
        token: Option<u64>,
    ) {
        match self.port(conn) {
            Some(port) => port.answer_named(conn, answers, token),
            None => answers.clear(),
        }
    }

    /// The peer does not get what it names by the read with this number.
    pub fn refuse_named(&mut self, conn: ConnId, number: u32) {
        if let Some(port) = self.port(conn) {
            port.refuse_named(conn, number);
        }
    }
}
