//! What belongs together: an open device, and the memory that it is to know as long as that is used.

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use crate::engine::{Device, Engine, Provider};
use crate::error::{OpenError, RegisterError};
use crate::mem::{MemoryRegion, Span};
use crate::planted::{Defect, planted};
use crate::types::{Access, DeviceAttr};

/// An open device and the memory that is registered with it for life: caches, and what is cut from
/// them. It is shared by all threads that have an engine of the device, so that such memory is
/// registered once.
///
/// A device that needs no registration ([`DeviceAttr::local_registration`]) is told of nothing.
pub struct Domain {
    device: Arc<dyn Device>,
    memory: RwLock<Memory>,
}

#[derive(Default)]
struct Memory {
    /// By address; they do not overlap.
    known: Vec<Arc<MemoryRegion>>,
    /// Addresses of what the device did not take.
    refused: Vec<Range<u64>>,
}

impl Memory {
    fn is_no_more_refused(&mut self, memory: &Span) {
        self.refused.retain(|range| range.start != memory.addr());
    }
}

fn addresses(memory: &Span) -> Range<u64> {
    memory.addr()..memory.addr() + memory.len() as u64
}

impl Domain {
    /// Opens a device of this provider, which knows no memory yet.
    ///
    /// # Errors
    /// [`OpenError`], of the provider.
    pub fn open(provider: &dyn Provider) -> Result<Arc<Domain>, OpenError> {
        Ok(Domain::new(provider.open()?))
    }

    /// With this device, which knows no memory yet.
    pub fn new(device: Arc<dyn Device>) -> Arc<Domain> {
        Arc::new(Domain { device, memory: RwLock::default() })
    }

    /// The device.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// What the device can do.
    pub fn attr(&self) -> &DeviceAttr {
        self.device.attr()
    }

    /// A new engine of the device.
    ///
    /// # Errors
    /// [`OpenError`], of the device.
    pub fn engine(&self) -> Result<Box<dyn Engine>, OpenError> {
        self.device.engine()
    }

    /// Makes the device know `memory`, until it is [forgotten](Self::forget): no right for any peer.
    /// Memory that it knows already, or need not know, is left as it is. May take its time, where pages
    /// are pinned: not for a thread that others wait for.
    ///
    /// # Errors
    /// [`RegisterError`], of the device: the memory [is refused](Self::is_refused) for now.
    pub fn register(&self, memory: &Span) -> Result<(), RegisterError> {
        if !self.attr().local_registration || self.find(memory).is_some() {
            return Ok(());
        }
        let none = Access { remote_read: false, remote_write: false };
        let made = self.device.register(memory.clone(), none);
        let mut all = self.memory.write().unwrap_or_else(PoisonError::into_inner);
        all.is_no_more_refused(memory);
        let region = match made {
            Ok(region) => Arc::new(region),
            Err(error) => {
                all.refused.push(addresses(memory));
                return Err(error);
            }
        };
        let at = all.known.partition_point(|other| other.span().addr() < memory.addr());
        // Another thread may have been faster.
        if all.known.get(at).is_none_or(|other| other.span().addr() != memory.addr()) {
            all.known.insert(at, region);
        }
        Ok(())
    }

    /// The device was to know this memory, and did not take it. Nobody else is to register it: who
    /// gives it back would not know of that.
    pub fn is_refused(&self, span: &Span) -> bool {
        let all = self.memory.read().unwrap_or_else(PoisonError::into_inner);
        all.refused.iter().any(|range| range.contains(&span.addr()))
    }

    /// The region in which all of `span` is. Who posts the span holds it until the span is its own
    /// again.
    pub fn find(&self, span: &Span) -> Option<Arc<MemoryRegion>> {
        let known = &self.memory.read().unwrap_or_else(PoisonError::into_inner).known;
        let behind = known.partition_point(|region| region.span().addr() <= span.addr());
        let region = known.get(behind.checked_sub(1)?)?;
        region.span().contains(span).then(|| region.clone())
    }

    /// The device need not know `memory` any more. True: it does not; false: work that is under way
    /// holds it a while longer.
    pub fn forget(&self, memory: &Span) -> bool {
        if planted(Defect::PinnedPagesGivenBack) {
            return true;
        }
        let mut all = self.memory.write().unwrap_or_else(PoisonError::into_inner);
        all.is_no_more_refused(memory);
        let is = |region: &Arc<MemoryRegion>| region.span().addr() == memory.addr();
        let Some(at) = all.known.iter().position(is) else { return true };
        let region = all.known.remove(at);
        drop(all);
        // Deregistered without the lock, if nobody else holds it.
        Arc::into_inner(region).is_some()
    }
}

impl std::fmt::Debug for Domain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Domain").field("provider", &self.attr().provider).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{Arena, PAGE_BYTES};
    use crate::sim::{SimConfig, SimNet};

    fn domain(local_registration: bool) -> Arc<Domain> {
        let mut config = SimConfig::new(1);
        config.attr.local_registration = local_registration;
        config.attr.registration_pins = true;
        Domain::open(&SimNet::new(config).provider(1)).expect("a device")
    }

    #[test]
    fn memory_is_known_until_it_is_forgotten() {
        let domain = domain(true);
        let arena = Arena::new(3 * PAGE_BYTES).expect("memory");
        let pages: Vec<_> = (0..3).map(|page| arena.span(page * PAGE_BYTES, PAGE_BYTES)).collect();
        for page in [2, 0] {
            domain.register(&pages[page]).expect("registered");
            domain.register(&pages[page].part(5, 100)).expect("known already");
        }
        let is_known = |at: usize, len: usize| domain.find(&arena.span(at, len)).is_some();
        assert!(is_known(0, PAGE_BYTES) && is_known(PAGE_BYTES - 1, 1));
        assert!(!is_known(PAGE_BYTES - 1, 2) && !is_known(PAGE_BYTES, 1));
        assert!(is_known(2 * PAGE_BYTES, 1) && !is_known(2 * PAGE_BYTES - 1, 2));
        let posted = domain.find(&pages[0]);
        assert!(!domain.forget(&pages[0]), "somebody holds it");
        assert!(!is_known(0, 1) && arena.discard(0, PAGE_BYTES).is_err());
        drop(posted);
        arena.discard(0, PAGE_BYTES).expect("nobody does");
        assert!(domain.forget(&pages[2]) && domain.forget(&pages[1]));
        arena.discard(0, 3 * PAGE_BYTES).expect("all is free");
    }

    #[test]
    fn a_device_that_needs_none_is_told_of_nothing() {
        let domain = domain(false);
        let arena = Arena::new(PAGE_BYTES).expect("memory");
        domain.register(&arena.span(0, PAGE_BYTES)).expect("nothing to do");
        assert!(domain.find(&arena.span(0, 1)).is_none());
    }
}
