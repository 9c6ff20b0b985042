//! Named reads: how they are asked, served and answered.
//!
//! The answers come in the order of asking, each in a frame of its own, to receives beside the tagged ones; so they
//! are [predicted](crate::receive_prediction) as replies are, and many come with one system call.

use dafs_fabric::{
    Arena, NamedAnswer, NamedAsk, Opcode, PostError, QueuePair, SgList, Status, WrId, sg_bytes,
};

use crate::core::Core;
use crate::deliver::Begin;
use crate::engine::{TcpEngine, list, slot_of};
use crate::frame::{FrameHeader, Kind};
use crate::queue_pair::Connection;
use crate::receive_side::{Target, Violation};
use crate::requests::{Posted, SEND_QUEUE_DEPTH};
use crate::scatter_gather::Cursor;
use crate::shared::SGE_MAX;

impl TcpEngine {
    pub(crate) fn ask_named(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        into: &mut SgList,
        (name, offset, len): (&[u8], u64, u32),
    ) -> Result<(), PostError> {
        let connection = self.slots.connection(queue_pair)?;
        let taken = connection.requests.len() + connection.tags.named();
        if taken >= SEND_QUEUE_DEPTH {
            return Err(PostError::QueueFull);
        }
        let (opcode, signaled) = (Opcode::NamedRead, false);
        let posted = Posted { wr_id, opcode, signaled, key: 0, addr: offset, total: 0 };
        let (number, sequence) = (connection.send.asked.named(), self.core.next_sequence());
        connection.tags.post_named(number, wr_id, sequence, into);
        let (slot, request) = connection.requests.post(posted, sequence, name, &mut SgList::new());
        request.begin(&FrameHeader {
            header_len: name.len() as u16,
            addr: offset,
            total: len,
            id: number,
            ..FrameHeader::new(Kind::NamedRead)
        });
        connection.send.push(slot, request);
        let go = !connection.send.is_blocked();
        list(connection, slot_of(queue_pair), go, &mut self.to_flush);
        Ok(())
    }
}

impl TcpEngine {
    pub(crate) fn post_refusal(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        id: u32,
    ) -> Result<(), PostError> {
        let sequence = self.core.next_sequence();
        let connection = self.slots.connection(queue_pair)?;
        connection.refuse_named(id, wr_id, sequence)?;
        let go = !connection.send.is_blocked();
        list(connection, slot_of(queue_pair), go, &mut self.to_flush);
        Ok(())
    }

    pub(crate) fn post_answers(
        &mut self,
        queue_pair: QueuePair,
        (before, last): (WrId, WrId),
        answers: &mut Vec<NamedAnswer>,
        signaled: bool,
    ) -> Result<(), PostError> {
        let connection = self.slots.connection(queue_pair)?;
        let (fitting, ended) = connection.fitting(answers);
        let is_all = fitting == answers.len();
        let numbers = (before, is_all.then_some((last, signaled)));
        let sequence = self.core.next_sequences(fitting);
        connection.send.push_answers(answers.drain(..fitting), numbers, sequence);
        connection.send.unanswered.drain(..fitting);
        let go = !connection.send.is_blocked();
        list(connection, slot_of(queue_pair), go, &mut self.to_flush);
        ended
    }
}

impl Connection {
    /// `message` begins with the name. A peer that has more under way than it may is not one of ours.
    #[inline(always)]
    pub fn is_asked(
        &mut self,
        header: &FrameHeader,
        message: &[u8],
        core: &mut Core,
    ) -> Result<(), Violation> {
        if self.send.served() >= SEND_QUEUE_DEPTH {
            return Err("too many reads under way");
        }
        self.send.unanswered.push_back((header.id, header.total));
        let name = (message, usize::from(header.header_len));
        let ask = NamedAsk::of_message((self.id, header.id), name, (header.addr, header.total));
        match (&mut core.asked, ask) {
            (Some(asked), Some(ask)) => asked.push(ask),
            _ => {
                let sequence = core.next_sequence();
                let _ = self.refuse_named(header.id, WrId(0), sequence);
            }
        }
        Ok(())
    }

    /// How many of these are answers to the reads that are next, with no more bytes than asked for, and what is wrong with
    /// the one behind them.
    fn fitting(&self, answers: &[NamedAnswer]) -> (usize, Result<(), PostError>) {
        let mut next = self.send.unanswered.iter();
        for (number, NamedAnswer { id, data }) in answers.iter().enumerate() {
            let wrong = match next.next() {
                Some((asked, len)) if asked == id => {
                    let fits = data.len() <= SGE_MAX && sg_bytes(data) <= *len as usize;
                    (!fits).then_some(PostError::TooLarge)
                }
                _ => Some(PostError::Unsupported),
            };
            if let Some(wrong) = wrong {
                return (number, Err(wrong));
            }
        }
        (answers.len(), Ok(()))
    }

    /// Refuses the read that is next.
    pub fn refuse_named(&mut self, id: u32, wr_id: WrId, sequence: u64) -> Result<(), PostError> {
        match self.send.unanswered.front() {
            Some((next, _)) if *next == id => self.send.unanswered.pop_front(),
            _ => return Err(PostError::Unsupported),
        };
        self.send.push_refusal(id, wr_id, sequence);
        Ok(())
    }

    /// A name of which a part is still to come.
    pub fn begin_named_read(&mut self) -> Result<Begin, Violation> {
        match &mut self.receive.name {
            Some((_, cursor)) => *cursor = Cursor::default(),
            None => {
                let arena = Arena::new(dafs_fabric::mem::PAGE_BYTES);
                let arena = arena.map_err(|_| "no memory for a name")?;
                let span = arena.span(0, dafs_fabric::NAME_BYTES_MAX);
                self.receive.name = Some((span, Cursor::default()));
            }
        }
        Ok(Begin::Body(Target::Name))
    }

    pub fn finish_name(&mut self, header: &FrameHeader, core: &mut Core) -> Result<(), Violation> {
        let mut name = Vec::new();
        if let Some((span, _)) = &self.receive.name {
            span.read_message(usize::from(header.header_len), &mut name); // not payload: a name
        }
        self.is_asked(header, &name, core)
    }

    pub fn begin_named_response(&mut self, header: &FrameHeader) -> Result<Begin, Violation> {
        let slot = self.tags.next_named(header.id).ok_or("answer to another named read")?;
        let receive = self.tags.slots.at_mut(slot);
        if header.total as usize > receive.capacity {
            return Err("answer longer than asked for");
        }
        (receive.started, receive.total, receive.header_len) = (true, header.total, 0);
        Ok(Begin::Body(Target::Tagged(slot)))
    }

    pub fn named_refused(&mut self, id: u32, core: &mut Core) -> Result<Begin, Violation> {
        let slot = self.tags.next_named(id).ok_or("answer to another named read")?;
        self.complete_tagged(slot, Status::RemoteAccess, core);
        Ok(Begin::Done)
    }
}
