//! Named reads, of this end and of peers.

use dafs_fabric::{NamedAnswer, NamedAsk, PostError, QueuePair, SgList, Span};

use super::Port;
use crate::config::SubmitError;
use crate::connection::State;
use crate::event::ConnId;
use crate::work::Target;

impl Port {
    /// See [`Node::serve_named`](crate::Node::serve_named).
    pub fn serve_named(&mut self) {
        self.sh.engine.serve_named();
    }

    pub fn read_named(
        &mut self,
        conn: ConnId,
        tag: u32,
        (name, offset): (&[u8], u64),
        (span, len): (&Span, usize),
    ) -> Result<(), SubmitError> {
        let (connection, sh) = self.find(conn).ok_or(SubmitError::NotConnected)?;
        // What waits goes first, and takes the room that there will be.
        if connection.state != State::Open || !connection.outbox_is_empty() {
            return Err(SubmitError::QueueFull);
        }
        let (queue_pair, id) = (connection.queue_pair, connection.work_id(Target::Named, tag));
        let mut into = SgList::from_iter([span.part(0, len)]);
        let posted = sh.engine.post_named_read(queue_pair, id, &mut into, name, offset);
        posted.map_err(|error| match error {
            PostError::QueueFull => SubmitError::QueueFull,
            PostError::NotConnected => SubmitError::NotConnected,
            PostError::NotRegistered => SubmitError::NoMemory,
            _ => SubmitError::TooLarge,
        })?;
        sh.posted = true;
        Ok(())
    }

    #[inline]
    pub fn take_named(&mut self, asks: &mut Vec<NamedAsk>) {
        self.sh.engine.take_named(asks);
    }

    pub fn asker(&mut self, queue_pair: QueuePair) -> Option<ConnId> {
        let index = self.place_of(queue_pair)?;
        let connection = self.connections.get(index as usize)?.as_ref()?;
        (connection.state == State::Open).then_some(connection.id)
    }

    pub fn answer_named(
        &mut self,
        conn: ConnId,
        answers: &mut Vec<NamedAnswer>,
        token: Option<u64>,
    ) {
        let Some((connection, sh)) = self.find(conn) else {
            answers.clear();
            return self.sh.unsent(token);
        };
        let id = match token {
            Some(token) => {
                let pending = connection.responder.leave(token);
                connection.responder.pending_replies[pending as usize].work = 1;
                connection.work_id(Target::Reply, pending)
            }
            None => connection.work_id(Target::Control, 0),
        };
        connection.answer_named(sh, id, answers, token.is_some());
    }

    pub fn refuse_named(&mut self, conn: ConnId, number: u32) {
        if let Some((connection, sh)) = self.find(conn) {
            let id = connection.work_id(Target::Control, 0);
            connection.refuse_named(sh, id, number);
        }
    }
}
