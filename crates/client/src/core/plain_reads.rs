//! Reads of one piece, which most calls are: they go and are answered without a record where nothing stands in
//! their way.

use std::sync::Arc;

use dafs_message::ConnId;
use dafs_protocol::{CredHandle, Identity, PlainRead, RequestHead, SlotId, StateId};

use super::call::CallRecord;
use super::delivery::SMALL_BYTES_MAX;
use super::dispatch::look_for_poison;
use super::done_queue::ReadDone;
use super::flights::ReadFlight;
use super::{Core, CoreDone, FileKey, Memory, Output, Owner, Phase, Work};

/// A small call has the first link and queue.
const SMALL: usize = 0;

/// A read, but for its memory.
pub(super) struct Read {
    pub(super) owner: Owner,
    pub(super) tag: u64,
    pub(super) file: FileKey,
    pub(super) offset: u64,
    pub(super) len: u32,
}

/// Of a plain read what its end needs.
pub(super) struct Ends {
    owner: Owner,
    tag: u64,
    link: usize,
    file: FileKey,
    memory: Memory,
}

impl Ends {
    /// Takes its memory.
    #[inline(always)]
    pub(super) fn of(read: &mut ReadFlight) -> Ends {
        let memory = std::mem::replace(&mut read.memory, Memory::None);
        Ends { owner: read.owner, tag: read.tag, link: read.link, file: read.file, memory }
    }
}

impl Core {
    /// Sends a read of the session's own user, if it can go now. False: nothing was done.
    #[inline]
    pub(super) fn send_read(&mut self, read: Read, memory: &mut Memory) -> bool {
        let most = SMALL_BYTES_MAX.min(self.data_bytes_max()).min(memory.len());
        let may_go = read.len as usize <= most
            && matches!(self.phase, Phase::Ready)
            && !self.session.closing
            && self.requests.queues[SMALL].is_empty()
            && self.has_slot(SMALL);
        if !may_go {
            return false;
        }
        let file = read.file;
        let Some(state) = self.files.begin_own(file) else { return false };
        let is_sent = self.post_read(read, (SMALL, CredHandle(0), state), None, memory);
        if !is_sent {
            // Nothing waits for it: the file is not being closed.
            self.files.end(file);
        }
        is_sent
    }

    /// Sends a call that waited, if it is a read without a past. False: nothing was done.
    pub(super) fn start_read(
        &mut self,
        call: &mut CallRecord,
        link: usize,
        cred: CredHandle,
    ) -> bool {
        let (&Work::Read { file, offset, len }, Some(owner)) = (&call.work, call.owner) else {
            return false;
        };
        let state = self.files.usable(file).map(|file| file.state);
        let (Ok(state), true) = (state, call.is_new()) else { return false };
        let read = Read { owner, tag: call.tag, file, offset, len };
        let user = call.user.clone();
        self.post_read(read, (link, cred, state), user, &mut call.memory)
    }

    /// Posts a read in a slot, and takes its memory. False: nothing was done.
    #[inline(always)]
    fn post_read(
        &mut self,
        read: Read,
        (link, cred, state): (usize, CredHandle, StateId),
        user: Option<Arc<Identity>>,
        memory: &mut Memory,
    ) -> bool {
        let Read { owner, tag, file, offset, len } = read;
        let (Some(conn), Some(span)) = (self.links[link].ready_conn(), memory.span()) else {
            return false;
        };
        let Some((slot, sequence)) = self.requests.slots.take() else { return false };
        let head = RequestHead { slot, sequence, cred };
        let request = PlainRead { head, state, offset, len };
        let Ok(bytes) = request.encode() else {
            self.requests.slots.untake(slot);
            return false;
        };
        let room = (span, len as usize);
        let names = self.is_given_names();
        let is_named = names && self.post_named((conn, u32::from(slot.0)), (file, offset), room);
        if !is_named && self.node.submit_empty(conn, u32::from(slot.0), &bytes, room).is_err() {
            self.requests.slots.untake(slot);
            return false;
        }
        let memory = std::mem::replace(memory, Memory::None);
        let read = ReadFlight { conn, link, owner, tag, user, file, request, memory };
        self.requests.flights.put_read(slot, read);
        self.requests.rung = false;
        if !is_named {
            self.session.facts.requests += 1;
            if names {
                self.note_request(file);
            }
        }
        true
    }

    /// The answer of a read that ended well: slot, sequence, bytes, and whether the file ends there. False: it is not
    /// what the tag is for.
    #[inline(always)]
    pub(super) fn on_read_reply(
        &mut self,
        conn: ConnId,
        tag: u32,
        answer: (SlotId, u32, u32, bool),
        data_len: u32,
    ) -> bool {
        let (slot, sequence, bytes, end_of_file) = answer;
        let is_meant = |read: &ReadFlight| {
            let head = &read.request.head;
            (slot, sequence) == (head.slot, head.sequence)
                && bytes <= read.request.len.min(data_len)
        };
        let Some(read) = self.requests.flights.find_read((conn, tag), is_meant) else {
            return self.on_other_read_reply(conn, tag, answer, data_len);
        };
        let ends = Ends::of(read);
        self.requests.slots.release(slot);
        self.end_plain_read(slot, ends, (bytes, end_of_file), data_len);
        true
    }

    /// Ends the plain read that had a slot, which is free.
    #[inline(always)]
    pub(super) fn end_plain_read(
        &mut self,
        slot: SlotId,
        Ends { owner, tag, link, file, memory }: Ends,
        (bytes, end_of_file): (u32, bool),
        data_len: u32,
    ) {
        let bytes = bytes as usize;
        self.requests.flights.end_read(slot);
        self.links[link].heard(self.now);
        look_for_poison(&memory, data_len);
        self.end_of_call(file);
        let buffer = match memory {
            Memory::Buffer(posted) => match posted.take_back() {
                Ok(buffer) => Some(buffer),
                Err(posted) => {
                    let result = Ok(Output::Read { bytes, end_of_file });
                    let (owner, buffer, beside) = (Some(owner), None, None);
                    let done = CoreDone { owner, tag, result, buffer, beside };
                    self.answers.lingering.push((done, posted));
                    return;
                }
            },
            _ => None,
        };
        self.answers.done.push_read(ReadDone { owner, tag, bytes, end_of_file, buffer });
    }
}
