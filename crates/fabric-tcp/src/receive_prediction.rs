//! Predicting where the next answers go: to the tagged receives in the order of posting, filled to
//! the end, each with as many header bytes as the last one had.

use dafs_fabric::mem::lend_mut;
use dafs_fabric::{Span, Status};

use crate::core::Core;
use crate::frame::{FRAME_HEADER_BYTES, FRAME_PAYLOAD_BYTES_MAX, FrameHeader, Kind};
use crate::queue_pair::Connection;
use crate::receive_side::View;
use crate::sys::Scatter;
use crate::tags::{TaggedReceive, tagged_completion};

/// The most bytes predicted for one read.
const PREDICTED_BYTES: usize = 512 * 1024;

impl Connection {
    /// Adds the places of the messages that are likely to come next. Returns the staging memory
    /// that is left, and how many bytes of it are for the next header.
    pub fn predict<'a>(
        &'a self,
        io: &mut Scatter<'a>,
        mut staging: &'a mut [u8],
        mut head: usize,
        (predicted, guesses_max): (&mut Vec<u32>, usize),
    ) -> (&'a mut [u8], usize) {
        let tagged_header_len = usize::from(self.receive.predicted_header);
        let mut bytes = 2 * FRAME_HEADER_BYTES;
        for (slot, receive) in self.tags.likely().take(self.receive.trust.min(guesses_max)) {
            let header_room = receive.header.as_ref().map_or(0, Span::len);
            let header_len = if receive.named { 0 } else { tagged_header_len };
            bytes += FRAME_HEADER_BYTES + header_len + receive.capacity;
            if header_len > header_room
                || receive.capacity > FRAME_PAYLOAD_BYTES_MAX
                || receive.capacity == 0
                || bytes > PREDICTED_BYTES
            {
                break;
            }
            let (place, rest) = staging.split_at_mut(head);
            staging = rest;
            head = FRAME_HEADER_BYTES;
            predicted.push(slot);
            match (&receive.header, &receive.data[..]) {
                (Some(header), [data]) if io.has_room_for(3) && header_len > 0 => {
                    io.message(place, (header, header_len), data);
                }
                (header, data) => {
                    io.bytes(place);
                    if let Some(span) = header {
                        io.span(span, 0, header_len);
                    }
                    data.iter().for_each(|span| io.span(span, 0, span.len()));
                }
            }
        }
        (staging, head)
    }

    /// True when `header` is that of the message predicted for `slot`.
    pub fn is_predicted(&self, header: &FrameHeader, slot: u32) -> bool {
        if header.kind == Kind::NamedResponse {
            return self.tags.next_named(header.id) == Some(slot)
                && self.tags.slots.at(slot).capacity == header.total as usize;
        }
        let is_for = |receive: &TaggedReceive| {
            receive.tag.0 == header.key
                && !receive.named
                && receive.capacity == header.total as usize
                && usize::from(header.header_len) <= receive.header.as_ref().map_or(0, Span::len)
                && !receive.started
        };
        header.kind == Kind::Tagged
            && header.addr == 0
            && header.payload_len == header.total
            && header.header_len == self.receive.predicted_header
            && self.tags.slots.get(slot).is_some_and(is_for)
    }

    /// Ends the receive in `slot` if this is the head of the message that was predicted for it, all of which is among the
    /// `left` bytes behind the head, and so in its place: bytes of the message. What is the head of another one, or of a
    /// part, is for those who look closer.
    #[inline(always)]
    pub fn came_as_predicted(
        &mut self,
        head: &[u8; FRAME_HEADER_BYTES],
        slot: u32,
        left: usize,
        core: &mut Core,
    ) -> Option<usize> {
        let receive = self.tags.slots.get(slot)?;
        let (named, total) = (receive.named, receive.capacity as u32);
        let header_len = if named { 0 } else { self.receive.predicted_header };
        let len = usize::from(header_len) + receive.capacity;
        let is_it = if named {
            FrameHeader::is_named_response(head, receive.tag.0 as u32, total)
                && self.tags.is_next_named(slot)
        } else {
            FrameHeader::is_whole_tagged(head, receive.tag.0, (header_len, total))
        };
        if !is_it || receive.started || left < len {
            return None;
        }
        let receive =
            if named { self.tags.end_next_named(slot) } else { self.tags.end_tagged(slot) };
        (receive.header_len, receive.total) = (header_len, total);
        core.complete(tagged_completion(self.id, receive, Status::Success));
        self.receive.note_payload(total);
        self.load.message(total as usize);
        Some(len)
    }

    /// Collects `left` bytes in the order of the wire: those at the places predicted from `judged`
    /// on, and those of the staging memory from `at` on.
    pub fn collect(&self, staging: &[u8], view: &View, into: &mut [u8]) {
        let (mut at, mut rest) = (view.at, &mut into[..view.left]);
        let mut message = Vec::new();
        for slot in self.receive.predicted.iter().skip(view.judged) {
            let receive = self.tags.slots.at(*slot);
            if let Some(span) = &receive.header {
                let len = usize::from(self.receive.predicted_header).min(rest.len());
                span.read_message(len, &mut message);
                let (to, after) = rest.split_at_mut(len);
                to.copy_from_slice(&message);
                rest = after;
            }
            for span in &receive.data {
                let (to, after) = rest.split_at_mut(span.len().min(rest.len()));
                span.copy_to(0, to);
                rest = after;
            }
            let (to, after) = rest.split_at_mut(FRAME_HEADER_BYTES.min(rest.len()));
            to.copy_from_slice(&staging[at..at + to.len()]);
            at += to.len();
            rest = after;
        }
        let len = rest.len();
        // What was not looked at may be payload.
        lend_mut(rest, |to| to.copy_from(0, &staging[at..at + len]));
    }
}
