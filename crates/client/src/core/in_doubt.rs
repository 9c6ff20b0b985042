//! Calls that the server may have done when their session was lost. In the next session it is
//! asked what became of each: those that were not begun are sent again, those that were done are
//! answered, and only what nobody knows is reported as such.

use dafs_protocol::{Outcome, RequestOutcome, Stability, Status};

use super::call::{CallRecord, Made};
use super::ids::{Owner, PastRequest};
use super::output::Output;
use super::work::{Memory, Work};
use super::{Core, Phase};
use crate::error::{Error, Result};

/// A call in doubt.
#[derive(Debug)]
pub(super) struct InDoubt {
    pub(super) call: Box<CallRecord>,
    pub(super) request: PastRequest,
    /// Without those beside the work itself.
    pub(super) operations: usize,
    /// Kept writes that were acknowledged when it was sent.
    pub(super) kept_writes: u64,
}

impl Core {
    /// Asks what became of calls in doubt, and goes on when all is known.
    pub(super) fn begin_asking(&mut self) {
        self.phase = Phase::Asking(self.recovery.in_doubt.len());
        for doubt in &self.recovery.in_doubt {
            self.requests.background += 1;
            let work = Work::SlotQuery(doubt.request);
            self.requests.urgent.push_back(CallRecord::internal(work));
        }
        self.questions_answered();
    }

    fn questions_answered(&mut self) {
        if matches!(self.phase, Phase::Asking(0)) {
            self.begin_rewriting();
        }
    }

    /// One question was answered. Its call may be gone meanwhile.
    pub(super) fn request_outcome_known(
        &mut self,
        request: PastRequest,
        request_outcome: RequestOutcome,
    ) {
        if let Some(at) = self.recovery.in_doubt.iter().position(|doubt| doubt.request == request) {
            let doubt = self.recovery.in_doubt.swap_remove(at);
            self.resolve(doubt, request_outcome);
        }
        if let Phase::Asking(left) = &mut self.phase {
            *left = left.saturating_sub(1);
        }
        self.questions_answered();
    }

    fn resolve(&mut self, doubt: InDoubt, request_outcome: RequestOutcome) {
        let InDoubt { mut call, operations: own, kept_writes, .. } = doubt;
        match request_outcome {
            RequestOutcome::NotBegun => {
                call.work.rewind();
                self.requeue(call);
            }
            RequestOutcome::Done { operations, status: Err(_), .. }
                if usize::from(operations) >= own && call.work.asks_for_more() =>
            {
                self.finish(call, Err(Status::OutcomeUnknown.into()));
            }
            RequestOutcome::Done { operations, value, created, .. }
                if usize::from(operations) >= own =>
            {
                if call.kept.is_none() {
                    self.note_replaced_before(&call.work, value, kept_writes);
                }
                self.was_done(call, value, created);
            }
            RequestOutcome::Done { status: Err(status), .. } => {
                self.finish(call, Err(status.into()))
            }
            _ => self.finish(call, Err(Status::OutcomeUnknown.into())),
        }
    }

    /// The call succeeded: answers it, or looks for what it made.
    fn was_done(&mut self, mut call: Box<CallRecord>, value: u64, created: bool) {
        let work = std::mem::replace(&mut call.work, Work::Null);
        let made = match work {
            Work::Remove { .. }
            | Work::Rename { .. }
            | Work::SetXattr { .. }
            | Work::RemoveXattr { .. }
            | Work::Fallocate { .. } => return self.answer_doubt(call, work, Ok(Output::Unit)),
            Work::Append { .. } => {
                let output = self.appended(&call, &work, value);
                return self.answer_doubt(call, work, output);
            }
            Work::Put(put) if put.made.is_some() => {
                let attr = put.made.ok_or(Error::Interrupted).map(Output::Attr);
                return self.answer_doubt(call, Work::Put(put), attr);
            }
            Work::Put(put) if put.rename_to.is_some() && call.tight => {
                let unknown = Err(Status::OutcomeUnknown.into());
                return self.answer_doubt(call, Work::Put(put), unknown);
            }
            Work::Put(put) => {
                if put.len > 0 && !put.commit {
                    // Its close handed it to the file system of the server.
                    self.recovery.unsynced.wrote(self.session.facts.verifier, false);
                }
                let place = put.rename_to.unwrap_or(put.place);
                Work::Stat { place, no_follow: true }
            }
            Work::Open { place, mut options } => {
                options.no_follow |= options.create && options.exclusive;
                (options.create, options.exclusive, options.truncate) = (false, false, false);
                Work::Open { place, options }
            }
            Work::Make { place, .. } => {
                self.free_scratch(&mut call);
                Work::Find { place }
            }
            Work::Link { to, .. } => Work::Find { place: to },
            Work::LinkFile { file, to } => {
                self.end_of_call(file);
                Work::Find { place: to }
            }
            Work::SetAttr { place, no_follow, .. } => Work::Stat { place, no_follow },
            Work::FileSetAttr { file, .. } | Work::SetAttrOpen { file, .. } => {
                Work::FileAttr { file }
            }
            work => {
                return self.answer_doubt(call, work, Err(Status::OutcomeUnknown.into()));
            }
        };
        call.work = made;
        call.work.rewind();
        call.made = Some(Made { inode: value, created });
        self.requeue(call);
    }

    fn answer_doubt(&mut self, mut call: Box<CallRecord>, work: Work, result: Result<Output>) {
        call.work = work;
        self.finish(call, result);
    }

    /// What was appended is on the server's disk, or kept here and written again. In its memory it
    /// is gone.
    fn appended(&mut self, call: &CallRecord, work: &Work, offset: u64) -> Result<Output> {
        let Work::Append { len, stability, .. } = work else { return Err(Error::Interrupted) };
        if *stability == Stability::Unstable && call.kept.is_none() {
            return Err(Status::OutcomeUnknown.into());
        }
        let verifier = self.session.facts.verifier;
        let written = Outcome::Written { bytes: *len, offset, stability: *stability, verifier };
        self.written(work, &written, call.kept).ok_or_else(|| Status::OutcomeUnknown.into())
    }

    /// The call has small data no more.
    fn free_scratch(&mut self, call: &mut CallRecord) {
        if let Memory::Buffer(posted) = std::mem::replace(&mut call.memory, Memory::None)
            && let Ok(buffer) = posted.take_back()
        {
            self.keep_scratch(buffer);
        }
    }

    /// The session was lost again before all was known.
    pub(super) fn doubts_remain(&mut self, sessions_lost_max: u8) {
        for mut doubt in std::mem::take(&mut self.recovery.in_doubt) {
            let call = &mut doubt.call;
            call.sessions_lost = call.sessions_lost.saturating_add(1);
            if call.sessions_lost > sessions_lost_max && !self.config.is_hard() {
                self.finish(doubt.call, Err(Status::OutcomeUnknown.into()));
            } else {
                self.recovery.in_doubt.push(doubt);
            }
        }
    }

    /// Nobody waits for the calls of `owner`.
    pub(super) fn drop_in_doubt(&mut self, owner: Owner) {
        let (dropped, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.recovery.in_doubt)
            .into_iter()
            .partition(|doubt| doubt.call.owner == Some(owner));
        self.recovery.in_doubt = kept;
        for InDoubt { mut call, .. } in dropped {
            call.owner = None;
            self.requests.background += 1;
            self.finish(call, Err(Error::Interrupted));
        }
    }
}
