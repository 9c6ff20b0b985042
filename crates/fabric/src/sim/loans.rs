//! What simulated peers lend each other.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::SimNet;
use super::world::World;
use crate::mem::Views;
use crate::types::{QueuePair, QueuePairEvent, RemoteSpan, SgList};

/// Loans by the queue pair that lends.
#[derive(Debug, Default)]
pub(super) struct Loans {
    views: BTreeMap<u64, usize>,
    /// Engines that wait for the end of all of a queue pair.
    awaited: BTreeMap<u64, u64>,
}

/// Something is read.
struct Hold {
    net: Arc<SimNet>,
    lender: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut world = self.net.world();
        let Some(views) = world.loans.views.get_mut(&self.lender) else { return };
        *views -= 1;
        if *views > 0 {
            return;
        }
        world.loans.views.remove(&self.lender);
        if let Some(engine) = world.loans.awaited.remove(&self.lender) {
            world.event(engine, QueuePairEvent::Returned { queue_pair: QueuePair(self.lender) });
        }
    }
}

/// As of [`Engine::view`](crate::Engine::view).
pub(super) fn view(net: &Arc<SimNet>, reader: QueuePair, remotes: &[RemoteSpan]) -> Option<Views> {
    let mut world = net.world();
    if !net.truth.shared_memory {
        return None;
    }
    let lender = world.qps.get(&reader.0).filter(|qp| qp.is_connected())?.peer?;
    let device = world.qps.get(&lender)?.device;
    let mut spans = SgList::new();
    for remote in remotes {
        spans.extend(world.check(device, *remote, false)?);
    }
    *world.loans.views.entry(lender).or_default() += 1;
    Some(Views::simulated(spans, Arc::new(Hold { net: net.clone(), lender })))
}

impl World {
    /// As of [`Engine::is_still_read`](crate::Engine::is_still_read).
    pub fn is_still_read(&mut self, engine: u64, lender: u64, awaited: bool) -> bool {
        let is_read = awaited && self.loans.views.contains_key(&lender);
        if is_read {
            self.loans.awaited.insert(lender, engine);
        }
        is_read
    }
}
