//! Calls come in and go out.

use dafs_fabric::Buffer;
use dafs_protocol::{CredHandle, Status};

use super::call::CallRecord;
use super::{Core, CoreDone, FileKey, Memory, Output, Phase, Work, files};
use crate::error::{Error, Result};

/// Notices to people that nobody fetched.
const NOTICES_MAX: usize = 64;
/// Records of ended calls that are kept for the next ones.
const RECORDS_MAX: usize = 64;
/// Scratch buffers that are kept.
const SCRATCH_MAX: usize = 8;
/// Bytes of a scratch buffer: a batch of entries, or the longest attribute.
const SCRATCH_BYTES: usize = dafs_protocol::XATTR_BYTES_MAX;
/// A request with more data than this is bulk.
pub(super) const SMALL_BYTES_MAX: usize = 64 << 10;

impl Core {
    pub(super) fn take_scratch(&mut self, bytes: usize) -> Result<Buffer> {
        if bytes > SCRATCH_BYTES {
            return Err(Status::TooBig.into());
        }
        match self.answers.scratch.pop() {
            Some(buffer) => Ok(buffer),
            None => Buffer::new(SCRATCH_BYTES).map_err(|error| Error::Local(error.to_string())),
        }
    }

    /// Queues a call, begins to connect where nobody did.
    #[inline(always)]
    pub(super) fn accept(&mut self, mut call: Box<CallRecord>) {
        if call.owner.is_none() {
            self.requests.background += 1;
        }
        if let Work::Read { file, .. } = call.work {
            match self.files.begin(file) {
                Ok(user) => call.user = user,
                Err(status) => return self.deliver(call, Err(status.into())),
            }
        } else if let Some(key) = call.work.file() {
            if matches!(call.work, Work::Close { .. }) {
                match self.files.begin_close(key, call) {
                    Ok(Some(call)) => self.enqueue(call),
                    Ok(None) => {}
                    Err(call) => self.deliver(call, Err(Status::BadF.into())),
                }
                return;
            }
            match self.files.begin(key) {
                Ok(_) if call.work.is_by_caller() => {}
                Ok(user) => call.user = user,
                Err(status) => return self.deliver(call, Err(status.into())),
            }
            if let Some(changed) = call.work.changed_data() {
                call.user = self.files.any(changed).and_then(files::OpenFile::writer);
            }
            if let Some(target) = call.work.target()
                && let Err(status) = self.files.begin(target)
            {
                self.end_of_call(key);
                return self.deliver(call, Err(status.into()));
            }
        }
        self.enqueue(call);
    }

    #[inline(always)]
    pub(super) fn enqueue(&mut self, call: Box<CallRecord>) {
        if matches!(self.phase, Phase::Idle) {
            self.phase = Phase::Opening;
            self.wants_progress = true;
        }
        let (request, reply) = call.work.bytes();
        let queue = usize::from(request.max(reply) > SMALL_BYTES_MAX);
        if call.user.is_none()
            && self.requests.queues[queue].is_empty()
            && matches!(self.phase, Phase::Ready)
            && let Some(link) = self.may_start(queue)
        {
            return self.start(call, link, CredHandle(0));
        }
        self.requests.queues[queue].push_back(call);
        self.pump_queues();
    }

    /// A call that was accepted ended.
    pub(super) fn finish(&mut self, call: Box<CallRecord>, result: Result<Output>) {
        if let (Some(id), Err(_)) = (call.kept, &result)
            && let Some(file) = call.work.file().and_then(|key| self.files.any_mut(key))
        {
            file.kept.remove(id);
        }
        if let (Work::References { .. }, Err(error)) = (&call.work, &result) {
            self.no_reference(&call.work, error.status());
        }
        if !matches!(call.work, Work::Close { .. }) {
            if let Some(key) = call.work.file() {
                self.end_of_call(key);
            }
            if let Some(key) = call.work.target() {
                self.end_of_call(key);
            }
        }
        self.deliver(call, result);
    }

    /// A call on a file ended: a close may have waited for it.
    #[inline(always)]
    pub(super) fn end_of_call(&mut self, key: FileKey) {
        if let Some(close) = self.files.end(key) {
            self.enqueue(close);
        }
    }

    /// Hands an answer out, when the call's buffer is free.
    pub(super) fn deliver(&mut self, mut call: Box<CallRecord>, result: Result<Output>) {
        if call.owner.is_none() && self.requests.background > 0 {
            self.requests.background -= 1;
        }
        let (owner, tag, beside) = (call.owner, call.tag, call.beside.take());
        let mut buffer = None;
        if let Memory::Buffer(posted) = std::mem::replace(&mut call.memory, Memory::None) {
            match posted.take_back() {
                Ok(scratch) if call.work.uses_scratch() => self.keep_scratch(scratch),
                Ok(free) => buffer = Some(free),
                Err(posted) => {
                    let done = CoreDone { owner, tag, result, buffer, beside };
                    self.answers.lingering.push((done, posted));
                    return self.keep_record(call);
                }
            }
        }
        self.keep_record(call);
        if owner.is_none() {
            return self.clean_up(CoreDone { owner, tag, result, buffer, beside });
        }
        self.answers.done.push(CoreDone { owner, tag, result, buffer, beside });
    }

    /// Keeps the memory of a call that ended for another one.
    #[inline(always)]
    pub(super) fn keep_record(&mut self, mut call: Box<CallRecord>) {
        call.end();
        if self.answers.records.len() < RECORDS_MAX {
            self.answers.records.push(call);
        }
    }

    fn hand_out(&mut self, done: CoreDone) {
        if done.owner.is_some() {
            self.answers.done.push(done);
        } else {
            self.clean_up(done);
        }
    }

    /// Nobody takes this answer.
    pub(super) fn clean_up(&mut self, done: CoreDone) {
        match done.result {
            Ok(Output::File(key, _)) => {
                self.close_file(key);
            }
            _ => drop(done.buffer),
        }
    }

    pub(super) fn keep_scratch(&mut self, buffer: Buffer) {
        if self.answers.scratch.len() < SCRATCH_MAX {
            self.answers.scratch.push(buffer);
        }
    }

    #[inline]
    pub(super) fn return_buffers(&mut self) {
        if !self.answers.lingering.is_empty() {
            self.return_some_buffers();
        }
    }

    fn return_some_buffers(&mut self) {
        let mut index = 0;
        while index < self.answers.lingering.len() {
            let (mut done, posted) = self.answers.lingering.swap_remove(index);
            match posted.take_back() {
                Ok(buffer) => {
                    done.buffer = Some(buffer);
                    self.hand_out(done);
                }
                Err(posted) => {
                    self.answers.lingering.push((done, posted));
                    let last = self.answers.lingering.len() - 1;
                    self.answers.lingering.swap(index, last);
                    index += 1;
                }
            }
        }
    }

    pub(super) fn notice(&mut self, text: String) {
        if self.answers.notices.len() < NOTICES_MAX {
            self.answers.notices.push_back(text);
        }
    }
}
