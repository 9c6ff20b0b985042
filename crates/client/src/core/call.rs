//! Calls as the core holds them, and their answers.

use std::sync::Arc;

use dafs_fabric::Buffer;
use dafs_protocol::{Attr, CredHandle, Identity, Outcome, RequestHead, SlotId, Status};

use super::ids::Owner;
use super::output::Output;
use super::replay_log::ReplayId;
use super::work::{Memory, Step, Work};
use crate::error::{Error, Result};
use dafs_message::ConnId;

/// A call that is queued or under way. Boxed, since it is large and goes from queue to slot.
#[derive(Debug)]
pub(super) struct CallRecord {
    /// `None`: nobody waits for the answer (any more).
    pub(super) owner: Option<Owner>,
    pub(super) tag: u64,
    /// For whom it acts; `None`: the session's own user.
    pub(super) user: Option<Arc<Identity>>,
    pub(super) work: Work,
    pub(super) memory: Memory,
    /// Its caller gave up and waits only for the memory that it lent.
    pub(super) cancelled: bool,
    /// Its chain did not fit a message: as little as possible in each.
    pub(super) tight: bool,
    /// It writes what is kept under this name.
    pub(super) kept: Option<ReplayId>,
    /// It looks for what it made in a session before.
    pub(super) made: Option<Made>,
    /// Times that a session was lost under it.
    pub(super) sessions_lost: u8,
    /// On which link it must go (a ping).
    pub(super) link: Option<usize>,
    /// What was found beside its answer.
    pub(super) beside: Option<Box<Beside>>,
}

/// What the operations after a call's own found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beside {
    /// The directories after the change, in the order of the names that it took; `None`: they
    /// could not be asked for.
    pub dirs: [Option<Attr>; 2],
    /// The last attributes of what lost its last name.
    pub gone: Option<Attr>,
    /// What became of the flush.
    pub flushed: std::result::Result<(), Status>,
}

impl CallRecord {
    pub(super) fn internal(work: Work) -> Box<CallRecord> {
        Box::new(CallRecord {
            owner: None,
            tag: 0,
            user: None,
            work,
            memory: Memory::None,
            cancelled: false,
            tight: false,
            kept: None,
            made: None,
            sessions_lost: 0,
            link: None,
            beside: None,
        })
    }

    /// Another call, in the memory of one that [ended](CallRecord::end).
    pub(super) fn reuse(
        &mut self,
        owner: Option<Owner>,
        tag: u64,
        user: Option<Arc<Identity>>,
        work: Work,
        memory: Memory,
    ) {
        (self.owner, self.tag, self.user) = (owner, tag, user);
        (self.work, self.memory) = (work, memory);
        (self.cancelled, self.tight, self.sessions_lost) = (false, false, 0);
        (self.kept, self.made, self.link) = (None, None, None);
        self.beside = None;
    }

    /// It was not asked before, and for nothing beside its work.
    pub(super) fn is_new(&self) -> bool {
        !self.cancelled
            && self.sessions_lost == 0
            && self.link.is_none()
            && self.kept.is_none()
            && self.made.is_none()
            && self.beside.is_none()
    }

    /// It ended: what it holds is let go.
    #[inline(always)]
    pub(super) fn end(&mut self) {
        (self.user, self.beside) = (None, None);
        self.memory = Memory::None;
        // A read holds nothing, and is what most calls are.
        if !matches!(self.work, Work::Read { .. }) {
            self.work = Work::Null;
        }
    }
}

/// What a call made, as the server noted it: the call looks for it again in the new session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Made {
    pub(super) inode: u64,
    pub(super) created: bool,
}

impl Made {
    /// What was found under its name is what was made.
    pub(super) fn is(&self, outcome: &Outcome) -> bool {
        match outcome {
            Outcome::Opened { attr, .. } | Outcome::Found { attr, .. } => attr.inode == self.inode,
            Outcome::Attributes { attr } => attr.inode == self.inode,
            _ => false,
        }
    }

    /// What it means for the call when what was made is not found.
    pub(super) fn lost(status: Status) -> Status {
        match status {
            // It was made, and somebody removed it.
            Status::NoEnt | Status::NotDir => Status::Stale,
            _ => Status::OutcomeUnknown,
        }
    }
}

/// A call in its slot.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) call: Box<CallRecord>,
    pub(super) slot: SlotId,
    pub(super) sequence: u32,
    pub(super) cred: CredHandle,
    /// What this request finds out, where it is not the work itself.
    pub(super) step: Option<Step>,
    pub(super) operations: usize,
    /// So many of them, at the end, ask for what goes beside the answer.
    pub(super) beside: usize,
    /// The server notes what becomes of it.
    pub(super) noted: bool,
    pub(super) link: usize,
    /// The connection that may still have its memory.
    pub(super) posted: Option<ConnId>,
    /// It was handed to a connection: the server may have done it.
    pub(super) sent: bool,
    /// The server did not take its pushed data: it waits for a grant.
    pub(super) declined: bool,
    /// Writes of the file that were acknowledged when it was sent first.
    pub(super) writes: u64,
    /// Kept writes of all files that were acknowledged when it was sent first.
    pub(super) kept_writes: u64,
}

impl Flight {
    /// Of one operation, which was not sent.
    #[inline]
    pub(super) fn new(call: Box<CallRecord>, head: RequestHead, link: usize) -> Flight {
        let RequestHead { slot, sequence, cred } = head;
        Flight {
            call,
            slot,
            sequence,
            cred,
            step: None,
            operations: 1,
            beside: 0,
            noted: false,
            link,
            posted: None,
            sent: false,
            declined: false,
            writes: 0,
            kept_writes: 0,
        }
    }
}

/// A call that ended.
#[derive(Debug)]
pub struct CoreDone {
    /// Who submitted it.
    pub owner: Option<Owner>,
    /// As submitted.
    pub tag: u64,
    /// How it ended.
    pub result: Result<Output>,
    /// The buffer of the call.
    pub buffer: Option<Buffer>,
    /// What was asked for beside the answer, where there is an answer.
    pub beside: Option<Box<Beside>>,
}

impl CoreDone {
    pub(crate) fn failed(tag: u64, error: Error, buffer: Option<Buffer>) -> CoreDone {
        CoreDone { owner: None, tag, result: Err(error), buffer, beside: None }
    }
}
