//! What is asked of the core: calls come in.

use std::sync::Arc;

use dafs_protocol::{GROUPS_MAX, Identity, LockKind, LockRange, LockRequest, Status};

use super::call::CallRecord;
use super::plain_reads::Read;
use super::replay_log::{KeptBytes, ReplayId};
use super::{Core, Memory, Owner, Work};
use crate::error::{Error, Result};

impl Core {
    /// Begins a call. Its answer comes by [`next_done`](Self::next_done), exactly once unless
    /// the owner was abandoned.
    pub fn submit(&mut self, owner: Owner, tag: u64, work: Work, memory: Memory) {
        self.submit_as(owner, tag, None, work, memory);
    }

    /// As [`submit`](Self::submit), for another user where the call is not about an open file:
    /// those act for whom they were opened.
    pub fn submit_as(
        &mut self,
        owner: Owner,
        tag: u64,
        user: Option<Arc<Identity>>,
        work: Work,
        memory: Memory,
    ) {
        let mut memory = memory;
        if let (&Work::Read { file, offset, len }, None) = (&work, &user)
            && self.send_read(Read { owner, tag, file, offset, len }, &mut memory)
        {
            // They hold nothing, which is not known where they are dropped.
            std::mem::forget(memory);
            return std::mem::forget(work);
        }
        self.submit_any(owner, tag, user, work, memory);
    }

    #[inline(never)]
    fn submit_any(
        &mut self,
        owner: Owner,
        tag: u64,
        user: Option<Arc<Identity>>,
        work: Work,
        memory: Memory,
    ) {
        let mut call = self.record(Some(owner), tag, user, work, memory);
        if let Err(error) = self.check(&mut call) {
            self.deliver(call, Err(error));
            return;
        }
        self.accept(call);
    }

    /// A record for a call, in memory that an ended one left.
    fn record(
        &mut self,
        owner: Option<Owner>,
        tag: u64,
        user: Option<Arc<Identity>>,
        work: Work,
        memory: Memory,
    ) -> Box<CallRecord> {
        let Some(mut call) = self.answers.records.pop() else {
            return Box::new(CallRecord {
                owner,
                tag,
                user,
                memory,
                ..*CallRecord::internal(work)
            });
        };
        call.reuse(owner, tag, user, work, memory);
        call
    }

    /// As [`submit`](Self::submit), for a write whose `bytes` are kept until they are safe from
    /// an end of the server's process. They are those of `memory`. Files that are open for
    /// appending keep nothing.
    pub fn submit_kept(
        &mut self,
        owner: Owner,
        tag: u64,
        work: Work,
        memory: Memory,
        bytes: impl Into<KeptBytes>,
    ) {
        let mut call = self.record(Some(owner), tag, None, work, memory);
        if let Err(error) = self.check(&mut call) {
            self.deliver(call, Err(error));
            return;
        }
        let file = call.work.file().and_then(|key| self.files.any_mut(key));
        // What is open for appending cannot be written again at its place.
        if let Some(file) = file.filter(|file| !file.options.append) {
            self.recovery.last_kept += 1;
            let id = ReplayId(self.recovery.last_kept);
            file.kept.add(id, bytes);
            call.kept = Some(id);
        }
        self.accept(call);
    }

    /// Arguments against the limits of the session; takes scratch memory.
    #[inline]
    fn check(&mut self, call: &mut CallRecord) -> Result<()> {
        if self.session.closing {
            return Err(self.session.ended.clone().unwrap_or(Error::Interrupted));
        }
        if call.user.as_ref().is_some_and(|user| user.groups.len() > GROUPS_MAX) {
            return Err(Status::Inval.into());
        }
        if let Work::Read { len, .. } = call.work
            && (len as usize) <= self.data_bytes_max().min(call.memory.len())
        {
            return Ok(());
        }
        match &mut call.work {
            Work::Lock { lock: LockRequest { owner, range, .. }, .. }
            | Work::LockTest { lock: LockRequest { owner, range, .. }, .. }
            | Work::Unlock { owner, range, .. }
                if owner.kind == LockKind::Whole =>
            {
                *range = LockRange::ALL;
            }
            _ => {}
        }
        let (request, reply) = call.work.bytes();
        if call.work.uses_scratch() {
            let scratch = self.take_scratch(request.max(reply))?.post();
            match &call.work {
                Work::SetXattr { value, .. } => scratch.span().write_message(0, value),
                Work::Make { target, .. } => scratch.span().write_message(0, target),
                _ => {}
            }
            call.memory = Memory::Buffer(scratch);
            return Ok(());
        }
        let mut bytes = request.max(reply);
        if let Work::Get { len, .. } = &mut call.work {
            *len = (*len).min(self.session.facts.attr.data_bytes_max);
            bytes = *len as usize;
        } else if bytes > self.data_bytes_max() {
            let max = self.data_bytes_max();
            return Err(Error::Config(format!("a call moves at most {max} bytes")));
        }
        if bytes > call.memory.len() {
            return Err(Error::Config("the buffer is too short".into()));
        }
        Ok(())
    }
}
