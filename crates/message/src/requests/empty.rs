//! Requests without data whose reply goes to one piece of memory, which most are: nothing is to be decided.

use std::sync::Arc;

use dafs_fabric::{Access, MemoryRegion, RemoteSpan, SgList, Span};

use super::Submit;
use crate::config::SubmitError;
use crate::connection::{Connection, State, Work, reply_tag};
use crate::header::{
    HEADER_BYTES, Header, Kind, Mode, REMOTE_SPAN_BYTES, SMALL_MESSAGE_BYTES, wire_tag,
};
use crate::requester::{self, Slot};
use crate::shared::Shared;
use crate::work::Target;

impl Connection {
    /// As [`submit`](Self::submit), of a request without data, whose reply's data goes to the first bytes of a
    /// span, so many.
    ///
    /// # Errors
    /// [`SubmitError`].
    #[inline(always)]
    pub fn submit_empty<const N: usize>(
        &mut self,
        sh: &mut Shared,
        tag: u32,
        caller_header: &[u8; N],
        (into, room): (&Span, usize),
    ) -> Result<(), SubmitError> {
        let is_small = const { HEADER_BYTES + REMOTE_SPAN_BYTES + N <= SMALL_MESSAGE_BYTES };
        if room == 0 || room > into.len() || !is_small || sh.attr.local_registration {
            return self.submit_as_any(sh, tag, caller_header, (into, room));
        }
        if self.agreed.tagged {
            self.submit_tagged(sh, tag, caller_header, (into, room))
        } else {
            self.submit_untagged(sh, tag, caller_header, (into, room))
        }
    }

    /// The same as all other requests go.
    #[inline(never)]
    fn submit_as_any(
        &mut self,
        sh: &mut Shared,
        tag: u32,
        caller_header: &[u8],
        (into, room): (&Span, usize),
    ) -> Result<(), SubmitError> {
        let mut list = SgList::new();
        list.push(into.part(0, room.min(into.len())));
        self.submit(sh, tag, caller_header, SgList::new(), list, Submit::Plain)
    }

    /// Looks whether such a request can go.
    #[inline(always)]
    fn admit_empty(&mut self, sh: &Shared, tag: u32, room: usize) -> Result<(), SubmitError> {
        if self.state != State::Open {
            return Err(SubmitError::NotConnected);
        }
        if room > sh.attr.bulk_bytes_max.min(u32::MAX as usize) {
            return Err(SubmitError::TooLarge);
        }
        if self.requester.has(tag) {
            return Err(SubmitError::TagInUse);
        }
        if let Err(error) = self.requester.admit(false) {
            self.counters.credit_stalls += u64::from(error == SubmitError::NoCredit);
            return Err(error);
        }
        Ok(())
    }

    /// The slot of such a request that goes now, and its number.
    #[inline(always)]
    fn begin_empty(&mut self, tag: u32, room: u32) -> (&mut Slot, u16) {
        self.counters.data_none += 1;
        self.counters.requests_sent += 1;
        self.requester.credits.spend(1);
        let index = self.requester.take_slot(tag);
        let slot = &mut self.requester.slots[usize::from(index)];
        (slot.mode, slot.data_len, slot.room) = (Mode::None, 0, room);
        (slot, index)
    }

    /// Where replies come by tag, to whatever memory there is.
    #[inline(always)]
    fn submit_tagged<const N: usize>(
        &mut self,
        sh: &mut Shared,
        tag: u32,
        caller_header: &[u8; N],
        (into, room): (&Span, usize),
    ) -> Result<(), SubmitError> {
        if N > self.request_header_max() {
            return Err(SubmitError::TooLarge);
        }
        self.admit_empty(sh, tag, room)?;
        let memory = sh.reply_memory.take(&sh.domain)?;
        let (span, room) = (into.part(0, room), room as u32);
        let (slot, index) = self.begin_empty(tag, room);
        slot.reply_mode = Mode::Tagged;
        (slot.memory, slot.work) = (Some(memory), 1);
        let mut header = Header::new(Kind::Request, wire_tag(index, slot.generation));
        (header.reply_mode, header.room) = (Mode::Tagged, room);
        let (wire, mut list) = (header.tag, SgList::new());
        list.push(span);
        let id = self.work_id(Target::ReplyReceive, wire);
        let receive = Work::TaggedRecv(reply_tag(wire), Some(memory));
        self.post_inline(sh, receive, id, &[], &mut list, true);
        header.header_len = N as u16;
        self.piggyback_credits(&mut header);
        let mut small = [0; SMALL_MESSAGE_BYTES];
        let message = header.with_header(caller_header, &mut small);
        let message = message.expect("its length was looked at before");
        let id = self.work_id(Target::Control, wire);
        self.post_inline(sh, Work::Send, id, message, &mut SgList::new(), false);
        Ok(())
    }

    /// Where there are no tags: most replies are written to memory that is registered already.
    #[inline(always)]
    fn submit_untagged<const N: usize>(
        &mut self,
        sh: &mut Shared,
        tag: u32,
        caller_header: &[u8; N],
        (into, room): (&Span, usize),
    ) -> Result<(), SubmitError> {
        let Some((region, remote)) = self.known_room(sh, N, (into, room)) else {
            return self.submit_as_any(sh, tag, caller_header, (into, room));
        };
        self.admit_empty(sh, tag, room)?;
        let (span, room) = (into.part(0, room), room as u32);
        let (slot, index) = self.begin_empty(tag, room);
        slot.reply_mode = Mode::Write;
        // It had none, which is not known where it would be dropped.
        std::mem::forget(slot.target.replace(requester::Target { span, region }));
        let mut header = Header::new(Kind::Request, wire_tag(index, slot.generation));
        (header.reply_mode, header.room) = (Mode::Write, room);
        (header.writes, header.header_len) = (1, N as u16);
        self.piggyback_credits(&mut header);
        let mut small = [0; SMALL_MESSAGE_BYTES];
        let message = header.with_descriptor(&remote, caller_header, &mut small);
        let message = message.expect("its length was looked at before");
        let id = self.work_id(Target::Control, header.tag);
        self.send_small(sh, id, message);
        Ok(())
    }

    /// The room for a reply that is registered memory, and fits into a small message.
    #[inline(always)]
    fn known_room(
        &self,
        sh: &mut Shared,
        header_len: usize,
        (into, room): (&Span, usize),
    ) -> Option<(Arc<MemoryRegion>, RemoteSpan)> {
        let message = HEADER_BYTES + REMOTE_SPAN_BYTES + header_len;
        let is_plain = self.agreed.rdma_write
            && room > self.options.inline_bytes as usize
            && message <= self.agreed.small_request_bytes;
        let access = Access { remote_read: false, remote_write: true };
        is_plain.then(|| sh.registrations.known((into, room), access)).flatten()
    }
}
