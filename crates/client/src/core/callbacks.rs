//! Callbacks: what the server asks, done once each, after the reply that it refers to.

use dafs_fabric::SgList;
use dafs_message::{ConnId, RequestId};
use dafs_protocol::{
    CALLBACK_SLOTS, Callback, CallbackReply, CallbackRequest, Status, decode_callback,
    encode_callback_reply,
};

use super::Core;
use crate::planted::{Defect, planted};

/// The callback slots of a session.
#[derive(Debug, Default)]
pub(super) struct Callbacks {
    slots: [Slot; CALLBACK_SLOTS as usize],
    /// Their replies wait for a reply of the server.
    held: Vec<(RequestId, CallbackRequest)>,
}

#[derive(Debug)]
struct Slot {
    /// Of the last callback.
    sequence: u32,
    /// `None`: it is not done yet.
    result: Option<Result<(), Status>>,
}

impl Default for Slot {
    /// The first callback has sequence 1.
    fn default() -> Slot {
        Slot { sequence: 0, result: Some(Ok(())) }
    }
}

impl Core {
    /// The server asks.
    pub(super) fn on_callback(&mut self, id: RequestId, header: &[u8], data_len: u32) {
        let ready = (0..self.links.len()).find(|link| {
            self.links.get(*link).and_then(super::link::Link::ready_conn) == Some(id.conn())
        });
        let Some(link) = ready else {
            return self.node.disconnect(id.conn(), "a server does not ask before it answers");
        };
        if let Some(link) = self.links.get_mut(link) {
            link.heard(self.now);
        }
        match decode_callback(header) {
            Ok(request) if data_len == 0 => {
                if let Err(what) = self.take_callback(id, request) {
                    self.node.disconnect(id.conn(), what);
                }
            }
            _ => self.node.disconnect(id.conn(), "a callback that cannot be read"),
        }
    }

    fn take_callback(
        &mut self,
        id: RequestId,
        request: CallbackRequest,
    ) -> Result<(), &'static str> {
        let slot = self.callbacks.slots.get_mut(usize::from(request.slot.0));
        let slot = slot.ok_or("a callback on a slot that there is not")?;
        if request.sequence == slot.sequence {
            if slot.result.is_some() {
                self.answer_callback(id, &request);
                return Ok(());
            }
            // Sent again before it was done: answered where it was asked last.
            self.callbacks.held.retain(|(_, held)| held.slot != request.slot);
        } else if request.sequence == slot.sequence.wrapping_add(1) && slot.result.is_some() {
            *slot = Slot { sequence: request.sequence, result: None };
        } else {
            return Err("a callback out of sequence");
        }
        if self.refers_to_flight(&request) {
            self.callbacks.held.push((id, request));
        } else {
            self.do_callback(id, &request);
        }
        Ok(())
    }

    /// The reply that must come first is still on its way.
    fn refers_to_flight(&self, request: &CallbackRequest) -> bool {
        request.referring.is_some_and(|(slot, sequence)| {
            let under_way = self.requests.flights.is_under_way(slot, sequence);
            under_way && !planted(Defect::CallbackTakenEarly)
        })
    }

    fn do_callback(&mut self, id: RequestId, request: &CallbackRequest) {
        let result = match request.what {
            Callback::Lock { ticket, result } => self.wait_ended(ticket, result),
            _ => Ok(()),
        };
        if let Some(slot) = self.callbacks.slots.get_mut(usize::from(request.slot.0)) {
            slot.result = Some(result);
        }
        self.answer_callback(id, request);
    }

    fn answer_callback(&mut self, id: RequestId, request: &CallbackRequest) {
        let slot = self.callbacks.slots.get(usize::from(request.slot.0));
        let Some(result) = slot.and_then(|slot| slot.result) else { return };
        let reply = CallbackReply { slot: request.slot, sequence: request.sequence, result };
        let mut bytes = Vec::new();
        encode_callback_reply(&reply, &mut bytes);
        self.node.reply(id, &bytes, SgList::new(), 0);
        self.requests.rung = false;
    }

    /// Replies came: callbacks may have waited for them.
    #[inline(always)]
    pub(super) fn release_callbacks(&mut self) {
        if !self.callbacks.held.is_empty() {
            self.release_some_callbacks();
        }
    }

    fn release_some_callbacks(&mut self) {
        let held = std::mem::take(&mut self.callbacks.held);
        for (id, request) in held {
            if self.refers_to_flight(&request) {
                self.callbacks.held.push((id, request));
            } else {
                self.do_callback(id, &request);
            }
        }
    }

    /// What was asked on a connection that ended is asked again on another.
    pub(super) fn drop_callbacks_of(&mut self, conn: ConnId) {
        self.callbacks.held.retain(|(id, _)| id.conn() != conn);
    }
}
