//! The peer's requests on a connection, each in a slot, and what it may still send.

use dafs_fabric::{RemoteSpan, SgList};

use crate::credits::CreditGiver;
use crate::fault::Fault;
use crate::header::{Header, Mode, tag_slot};
use crate::references::References;
use crate::shared::Held;

/// How far the data of a request is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fetch {
    /// Nobody asked for it.
    #[default]
    Not,
    /// It is under way.
    Posted,
    /// It is there.
    Done,
}

/// A reply that was given while the fetch was under way.
pub struct LateReply {
    /// The caller's header.
    pub header: Vec<u8>,
    /// Its data.
    pub data: SgList,
    /// For its end, if that is to be told.
    pub token: Option<u64>,
}

impl LateReply {
    /// Takes the list.
    pub fn new(header: &[u8], data: &mut SgList, token: Option<u64>) -> Box<LateReply> {
        Box::new(LateReply { header: header.to_vec(), data: std::mem::take(data), token })
    }
}

/// A request in service (or waiting for it).
#[derive(Default)]
pub struct Slot {
    /// In use.
    pub busy: bool,
    /// Of the request, as the peer has it.
    pub tag: u32,
    /// The tag before, whose data may still be told of.
    pub retired: Option<u32>,
    /// How its data comes.
    pub mode: Mode,
    /// How the reply's data goes.
    pub reply_mode: Mode,
    /// As it came.
    pub flags: u8,
    /// Bytes of its data.
    pub data_len: u32,
    /// Room for the reply's data.
    pub room: u32,
    /// Memory of the peer where its data is.
    pub reads: Vec<RemoteSpan>,
    /// Memory of the peer for the reply's data.
    pub writes: Vec<RemoteSpan>,
    /// Data that came beside the header.
    pub inline: Vec<u8>,
    /// How far its data is.
    pub fetch: Fetch,
    /// Work requests of the fetch.
    pub work: u32,
    /// Where pieces go.
    pub into: SgList,
    /// Of what is posted.
    pub held: Option<Held>,
    /// Bytes of pieces, and of reads that are done.
    pub arrived: u32,
    /// Bytes of pieces that were asked for.
    pub granted: u32,
    /// The reply, if it waits.
    pub late: Option<Box<LateReply>>,
}

/// A reply that has not left.
pub struct PendingReply {
    /// For its end.
    pub token: u64,
    /// Work requests; 0: the entry is free.
    pub work: u32,
    /// Bytes of those that are done.
    pub left: u64,
    /// Of the data.
    pub held: Option<Held>,
    /// The message that follows when the data was written: its header, and the caller's.
    pub message: Option<(Header, Vec<u8>)>,
}

/// All requests of the peer on a connection.
pub struct Responder {
    /// Requests that the peer may send.
    pub credits: CreditGiver,
    /// Bytes that it may push.
    pub push: CreditGiver,
    /// The peer waits for byte credits.
    pub starved: bool,
    /// Requests that the peer may have under way.
    pub window: usize,
    /// Requests in service, by the upper half of their wire tags.
    pub slots: Vec<Slot>,
    /// Replies whose end is to be told.
    pub pending_replies: Vec<PendingReply>,
    /// Free entries of these.
    pub pending_free: Vec<u32>,
    /// What replies refer to, if they may.
    pub references: Option<Box<References>>,
    /// Pushed data on its way to nowhere: tag and length.
    pub discards: Vec<(u32, u32)>,
    /// Delivered and not replied.
    pub in_service: usize,
    /// Replied, and the engine does not have the reply yet.
    pub replying: usize,
}

impl Responder {
    /// Nothing in service; `window` requests and `push_bytes` are granted.
    pub fn new(window: u32, push_bytes: u32) -> Responder {
        Responder {
            credits: CreditGiver::new(window),
            push: CreditGiver::new(push_bytes),
            starved: false,
            window: window as usize,
            slots: Vec::new(),
            pending_replies: Vec::new(),
            pending_free: Vec::new(),
            references: None,
            discards: Vec::new(),
            in_service: 0,
            replying: 0,
        }
    }

    /// The slot of a request that is in service.
    #[inline]
    pub fn serving(&mut self, tag: u32) -> Option<&mut Slot> {
        self.slots.get_mut(tag_slot(tag)).filter(|slot| slot.busy && slot.tag == tag)
    }

    /// The peer has this slot, and no request in it.
    #[inline(always)]
    pub fn is_free(&self, index: usize) -> bool {
        index < self.window && self.slots.get(index).is_none_or(|slot| !slot.busy)
    }

    /// The slot for a request that arrives.
    ///
    /// # Errors
    /// The peer's fault: it may not use the slot.
    #[inline(always)]
    pub fn free_slot(&mut self, tag: u32) -> Result<&mut Slot, Fault> {
        let index = tag_slot(tag);
        if index >= self.window {
            return Err(Fault::peer("request in a slot that it does not have"));
        }
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, Slot::default);
        }
        let slot = &mut self.slots[index];
        if slot.busy {
            return Err(Fault::peer("request in a slot that is in use"));
        }
        Ok(slot)
    }

    /// A request is answered now, and another one may come for it.
    #[inline]
    pub fn replied_one(&mut self) {
        self.credits.give_back(1);
        self.replied();
    }

    /// A request is answered, and the engine has the reply, which tells that another one may come for it.
    #[inline]
    pub fn has_told(&mut self, reply: &Header) {
        self.credits.told_after(1, reply.credit_limit);
        self.push.told_after(0, reply.push_limit);
        self.starved = false;
    }

    /// As [`replied_one`](Self::replied_one), and none may come for it.
    #[inline]
    pub fn replied(&mut self) {
        self.in_service -= 1;
        self.replying += 1;
    }

    /// The engine has a reply.
    #[inline]
    pub fn reply_left(&mut self) {
        self.replying = self.replying.saturating_sub(1);
    }

    /// An entry for a reply whose end is to be told.
    #[inline(always)]
    pub fn leave(&mut self, token: u64) -> u32 {
        let index = self.pending_free.pop().unwrap_or_else(|| self.another_pending());
        let entry = &mut self.pending_replies[index as usize];
        (entry.token, entry.left) = (token, 0);
        index
    }

    #[cold]
    fn another_pending(&mut self) -> u32 {
        if self.pending_replies.is_empty() {
            // Replies are reported late now and then; the usual number fits.
            self.pending_replies.reserve(self.window);
            self.pending_free.reserve(self.window);
        }
        let entry = PendingReply { token: 0, work: 0, left: 0, held: None, message: None };
        self.pending_replies.push(entry);
        (self.pending_replies.len() - 1) as u32
    }
}

impl Slot {
    /// The data of its reply goes there, and it has none itself.
    #[inline(always)]
    pub fn writes_to(&mut self, remote: RemoteSpan) {
        self.reads.clear();
        match &mut self.writes[..] {
            // As it mostly was before.
            [only] => *only = remote,
            _ => {
                self.writes.clear();
                self.writes.push(remote);
            }
        }
    }

    /// Whether pushed data of this tag may arrive.
    pub fn expects(&self, tag: u32) -> bool {
        let now = self.busy && self.tag == tag;
        let pushed =
            self.mode == Mode::Tagged || (self.mode == Mode::Grant && self.fetch != Fetch::Not);
        (now && pushed) || self.retired == Some(tag)
    }
}
