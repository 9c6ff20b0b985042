//! The slots of a session, and where their replies go.

use std::cell::{Ref, RefCell, RefMut};

use dafs_message::RequestId;
use dafs_protocol::{ServerSlots, SlotId};

/// Slots, and of each the connection that asked last.
pub(crate) struct Slots {
    slots: RefCell<ServerSlots>,
    targets: RefCell<Vec<Option<RequestId>>>,
}

impl Slots {
    /// So many.
    pub(crate) fn new(count: u16) -> Slots {
        let targets = RefCell::new(vec![None; usize::from(count)]);
        Slots { slots: RefCell::new(ServerSlots::new(count)), targets }
    }

    /// As the protocol knows them.
    #[inline]
    pub(crate) fn borrow(&self) -> Ref<'_, ServerSlots> {
        self.slots.borrow()
    }

    /// As the protocol knows them.
    #[inline]
    pub(crate) fn borrow_mut(&self) -> RefMut<'_, ServerSlots> {
        self.slots.borrow_mut()
    }

    /// The reply of a slot goes there.
    pub(crate) fn set_target(&self, slot: SlotId, id: RequestId) {
        if let Some(target) = self.targets.borrow_mut().get_mut(usize::from(slot.0)) {
            *target = Some(id);
        }
    }

    /// Where the reply of a slot goes, once.
    pub(crate) fn take_target(&self, slot: SlotId) -> Option<RequestId> {
        self.targets.borrow_mut().get_mut(usize::from(slot.0)).and_then(Option::take)
    }
}
