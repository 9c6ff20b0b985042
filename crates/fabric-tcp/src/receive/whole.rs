//! Messages that came whole, and are what most are: a look at their heads tells whose they are.

use dafs_fabric::Status;

use crate::core::Core;
use crate::deliver::receive_completion;
use crate::frame::{FRAME_HEADER_BYTES, FrameHeader};
use crate::queue_pair::Connection;
use crate::receive_side::{View, Violation};

impl Connection {
    /// Takes such messages, up to the first one that is to be looked at more closely.
    #[inline]
    pub(super) fn take_whole(
        &mut self,
        staging: &[u8],
        view: &mut View,
        core: &mut Core,
    ) -> Result<(), Violation> {
        // A part of a head came before, or the next one is told by that of a run.
        if self.receive.head_len > 0 || self.receive.expected.is_some() || view.direct > 0 {
            return Ok(());
        }
        while view.left >= FRAME_HEADER_BYTES
            && let Some((head, rest)) = staging.get(view.at..).and_then(<[u8]>::split_first_chunk)
        {
            let left = view.left - FRAME_HEADER_BYTES;
            let (staged, placed) = match self.receive.predicted.get(view.judged) {
                Some(slot) => {
                    let Some(len) = self.came_as_predicted(head, *slot, left, core) else { break };
                    view.judged += 1;
                    (0, len)
                }
                None => match self.take_staged(head, rest, left, core)? {
                    Some(len) => (len, 0),
                    None => break,
                },
            };
            view.at += FRAME_HEADER_BYTES + staged;
            view.left = left - staged - placed;
        }
        Ok(())
    }

    /// One of which nothing was predicted: its bytes, if all of the `left` ones of it are there, and it is a send without
    /// data for a receive that has room, or a named read.
    #[inline(always)]
    fn take_staged(
        &mut self,
        head: &[u8; FRAME_HEADER_BYTES],
        rest: &[u8],
        left: usize,
        core: &mut Core,
    ) -> Result<Option<usize>, Violation> {
        if let Some(len) = FrameHeader::short_send(head) {
            let len = usize::from(len);
            let message = rest.get(..len).filter(|_| len <= left);
            let is_taken = message.is_some_and(|message| self.take_short(message, core));
            return Ok(is_taken.then_some(len));
        }
        let Some(header) = FrameHeader::named_read(head) else { return Ok(None) };
        let len = usize::from(header.header_len);
        if len > left {
            return Ok(None);
        }
        self.is_asked(&header, rest, core)?;
        self.receive.note_payload(0);
        self.load.message(header.total as usize);
        Ok(Some(len))
    }

    /// Brings a send without data to its receive; false where that is not plain.
    #[inline(always)]
    fn take_short(&mut self, message: &[u8], core: &mut Core) -> bool {
        let Some(receive) = core.receives.front() else { return false };
        let ([span], len) = (&receive.buffers[..], message.len()) else { return false };
        if len > span.len() {
            return false;
        }
        span.write_message(0, message); // not payload: a header
        let wr_id = receive.wr_id;
        core.receives.fill_front();
        core.complete(receive_completion(self, wr_id, Status::Success, len));
        self.receive.note_payload(0);
        true
    }
}
