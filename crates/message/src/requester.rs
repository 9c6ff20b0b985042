//! Our requests on a connection, each in a slot, and what may still be sent.

use std::sync::Arc;

use dafs_fabric::{MemoryRegion, SgList, Span};

use crate::bounce::Bounce;
use crate::config::SubmitError;
use crate::credits::CreditHolder;
use crate::fault::Fault;
use crate::header::{Mode, Setup, tag_slot};
use crate::loan::Loan;
use crate::registration::Regions;
use crate::segments;
use crate::shared::Shared;

/// Where the data of a reply is written to.
pub struct Target {
    /// The caller's memory.
    pub span: Span,
    /// Keeps it registered.
    pub region: Arc<MemoryRegion>,
}

/// A request under way.
#[derive(Default)]
pub struct Slot {
    /// In use.
    pub busy: bool,
    /// Tells its requests apart.
    pub generation: u16,
    /// Its caller gave up.
    pub abandoned: bool,
    /// The caller's.
    pub tag: u32,
    /// How its data goes.
    pub mode: Mode,
    /// How the reply's data comes.
    pub reply_mode: Mode,
    /// Bytes of its data.
    pub data_len: u32,
    /// Room for the reply's data.
    pub room: u32,
    /// Sources that the engine does not have.
    pub data: SgList,
    /// Targets that the engine does not have.
    pub reply_into: SgList,
    /// In place of those, where it is one piece that was registered already, and nothing else is relied on.
    pub target: Option<Target>,
    /// What it relies on, where that is more.
    pub kept: Option<Kept>,
    /// Where the header of a tagged reply lands.
    pub memory: Option<u32>,
    /// Work requests posted (or to be posted) and not complete.
    pub work: u32,
    /// Bytes of data that the peer granted so far.
    pub granted: u32,
    /// Bytes of reply data that came in pieces.
    pub arrived: u32,
    /// That of the reply, as far as it came.
    pub header: Vec<u8>,
    /// The reply is here, with so many bytes of data.
    pub reply: Option<u32>,
}

/// All our requests on a connection.
#[derive(Default)]
pub struct Requester {
    /// Requests that we may send.
    pub credits: CreditHolder,
    /// Bytes that we may push.
    pub push: CreditHolder,
    window: u32,
    /// Bytes that we may push at most at a time.
    pub push_window: u32,
    /// All requests, by the upper half of their wire tags.
    pub slots: Vec<Slot>,
    /// Slots that are free.
    free: Vec<u16>,
    slots_max: usize,
    /// Which tags below `slots_max` are in use: most callers have no others.
    low_tags: Vec<bool>,
}

impl Requester {
    /// As the peer's set-up and our own limit say.
    pub fn new(theirs: &Setup, requests_max: u16) -> Requester {
        let slots_max = (usize::from(requests_max) + 1).min(usize::from(theirs.window));
        Requester {
            credits: CreditHolder::new(u32::from(theirs.window)),
            push: CreditHolder::new(theirs.push_bytes),
            window: u32::from(theirs.window),
            push_window: theirs.push_bytes,
            slots: Vec::new(),
            free: Vec::new(),
            slots_max,
            low_tags: vec![false; slots_max],
        }
    }

    fn busy(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether one more request can go; the last credit and slot are for control.
    ///
    /// # Errors
    /// [`SubmitError::NoCredit`], [`SubmitError::QueueFull`].
    #[inline(always)]
    pub fn admit(&self, control: bool) -> Result<(), SubmitError> {
        let kept = u32::from(!control && self.window > 1);
        if self.credits.available() <= kept {
            return Err(SubmitError::NoCredit);
        }
        let kept = usize::from(!control && self.slots_max > 1);
        if self.busy() + kept >= self.slots_max { Err(SubmitError::QueueFull) } else { Ok(()) }
    }

    /// Whether a request with the caller's `tag` is under way.
    pub fn has(&self, tag: u32) -> bool {
        match self.low_tags.get(tag as usize) {
            Some(in_use) => *in_use,
            None => self.slots.iter().any(|slot| slot.busy && slot.tag == tag),
        }
    }

    /// A slot that was free, for a request with the caller's `tag`.
    #[inline(always)]
    pub fn take_slot(&mut self, tag: u32) -> u16 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u16
        });
        let slot = &mut self.slots[usize::from(index)];
        (slot.busy, slot.tag) = (true, tag);
        self.note_tag(tag, true);
        index
    }

    /// A slot that was [released](Slot::release) can be taken again.
    #[inline(always)]
    pub fn free_slot(&mut self, index: u16) {
        self.note_tag(self.slots[usize::from(index)].tag, false);
        self.free.push(index);
    }

    #[inline(always)]
    fn note_tag(&mut self, tag: u32, in_use: bool) {
        if let Some(noted) = self.low_tags.get_mut(tag as usize) {
            *noted = in_use;
        }
    }

    /// The slot of a request that waits for its reply.
    ///
    /// # Errors
    /// The peer's fault: there is no such request.
    pub fn waiting(&mut self, tag: u32) -> Result<&mut Slot, Fault> {
        self.slots
            .get_mut(tag_slot(tag))
            .filter(|slot| slot.busy && slot.generation == tag as u16 && slot.reply.is_none())
            .ok_or_else(|| Fault::peer("answer to a request that is not under way"))
    }
}

/// What a request relies on until it ends.
#[derive(Default)]
pub struct Kept {
    /// Keep registered what the peer may reach, and what is posted.
    pub regions: Regions,
    /// What stands in for its data.
    pub source: Option<Box<Bounce>>,
    /// What stands in for the room for the reply's data.
    pub target: Option<Box<Bounce>>,
    /// The reply may refer to its data.
    pub may_refer: bool,
    /// And lend it.
    pub may_lend: bool,
    /// What it lends.
    pub loan: Option<Box<Loan>>,
    /// It does: what to let go when the data is read.
    pub referred: Option<u32>,
}

impl Slot {
    /// Where the data of its reply goes.
    pub fn targets(&self) -> &[Span] {
        match &self.target {
            Some(target) => std::slice::from_ref(&target.span),
            None => &self.reply_into,
        }
    }

    /// As [`release`](Self::release), of a request that has nothing but a [`Target`].
    #[inline(always)]
    pub fn release_target(&mut self) {
        self.target = None;
        (self.busy, self.reply, self.arrived) = (false, None, 0);
        self.generation = self.generation.wrapping_add(1);
    }

    /// Lets all memory go and makes the slot free; returns the reply's header.
    #[inline(always)]
    pub fn release(&mut self, sh: &mut Shared) -> Vec<u8> {
        if let Some(index) = self.memory.take() {
            sh.reply_memory.put(index);
        }
        segments::let_go(&mut self.data);
        segments::let_go(&mut self.reply_into);
        self.target = None;
        if self.kept.is_some() {
            self.kept = None;
        }
        (self.busy, self.reply) = (false, None);
        (self.work, self.granted, self.arrived) = (0, 0, 0);
        self.generation = self.generation.wrapping_add(1);
        std::mem::take(&mut self.header)
    }
}
