//! Named reads: what is asked for and answered beside the requests, with nothing of them but the connection.

use dafs_fabric::{SgList, Span};

use crate::config::SubmitError;
use crate::event::{ConnId, Named};
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

    /// From now on [`next_named`](Self::next_named) has what peers ask for by name; before, all is refused.
    pub fn serve_named(&mut self) {
        self.ports_mut().iter_mut().for_each(Port::serve_named);
    }

    /// The next named read of a peer: to be answered or refused, those of a connection in their order.
    #[inline]
    pub fn next_named(&mut self) -> Option<Named> {
        match self.ports_mut() {
            [port] => port.next_named(),
            ports => ports.iter_mut().find_map(Port::next_named),
        }
    }

    /// Answers a named read with at most as many bytes as it asks for; takes what is in the list. With a token
    /// [`Event::ReplySent`](crate::Event::ReplySent) follows, when this answer and all before it on this connection have
    /// left; what is held for those without is let go then.
    #[inline]
    pub fn answer_named(&mut self, named: &Named, data: &mut SgList, token: Option<u64>) {
        if let Some(port) = self.port(named.conn()) {
            port.answer_named(named, data, token);
        }
    }

    /// The peer does not get what it names.
    pub fn refuse_named(&mut self, named: &Named) {
        if let Some(port) = self.port(named.conn()) {
            port.refuse_named(named);
        }
    }
}
