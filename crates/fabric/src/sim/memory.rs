//! What a device knows of memory: which of it is registered, and what was done to it that a real
//! device would not forgive.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::queue_pair::{Landing, Qp};
use super::world::{Receive, Region, World};
use crate::error::PostError;
use crate::mem::Span;
use crate::types::{Access, DeviceAttr, SgList};

impl World {
    /// Whether `engine` can take these spans as local memory.
    pub fn takes(&self, engine: u64, spans: &[Span]) -> Result<(), PostError> {
        if !self.attr.file_spans && spans.iter().any(Span::is_of_file) {
            return Err(PostError::Unsupported);
        }
        let Some(engine) = self.engines.get(&engine).filter(|_| self.attr.local_registration)
        else {
            return Ok(());
        };
        let is_known = |span: &Span| span.is_empty() || self.is_registered(engine.device, span);
        if spans.iter().all(is_known) { Ok(()) } else { Err(PostError::NotRegistered) }
    }

    /// One region has all of it, with whatever rights: an entry has one local key.
    fn is_registered(&self, device: u64, span: &Span) -> bool {
        self.regions.values().any(|region| region.device == device && holds(&region.span, span))
    }

    /// Books the pages that were given back although a device has them.
    pub fn look_at_pins(&mut self) {
        for region in self.regions.values() {
            let pages = region.pin.as_ref().map_or(0, |pin| pin.take_given_back());
            if pages > 0 {
                let node = region.node;
                self.violations
                    .push(format!("{pages} pages of node {node} given back while registered"));
            }
        }
    }

    /// Books that messages may go where a broken connection may write until it is quiescent.
    pub fn look_at_early_use(&mut self, engine: u64, buffers: &[Span]) {
        let qps = self.qps.values().filter(|qp| qp.engine == engine);
        let mut held = qps.flat_map(|qp| qp.caught.iter().map(|(receive, ..)| (qp.node, receive)));
        let is_early = |receive: &Receive| {
            receive.buffers.iter().any(|held| buffers.iter().any(|span| overlap(held, span)))
        };
        if let Some((node, _)) = held.find(|(_, receive)| is_early(receive)) {
            self.violations.push(format!("a receive of node {node} posted before quiescence"));
        }
    }

    /// A registration ends. Posted work that needs it must have come back before.
    pub fn end_region(&mut self, rkey: u64) {
        self.look_at_pins();
        let Some(region) = self.regions.remove(&rkey) else { return };
        if !self.attr.local_registration {
            return;
        }
        let left = self
            .held(region.device)
            .into_iter()
            .find(|span| overlap(&region.span, span) && !self.is_registered(region.device, span));
        if let Some(span) = left {
            let (node, len) = (region.node, span.len());
            self.violations.push(format!(
                "a registration of node {node} ended under posted work of {len} bytes"
            ));
        }
    }

    /// A peer's way to the region ends; what this device does with it goes on.
    pub fn revoke(&mut self, rkey: u64) {
        let none = Access { remote_read: false, remote_write: false };
        let Some(region) = self.regions.get_mut(&rkey) else { return };
        self.counts.revoked_keys += u64::from(region.access != none);
        region.access = none;
    }

    /// All local memory that engines of a device hold.
    fn held(&self, device: u64) -> Vec<&Span> {
        let engines = self.engines.values().filter(|engine| engine.device == device);
        let receives = engines.flat_map(|engine| &engine.receives);
        let qps = self.qps.values().filter(|qp| qp.device == device);
        receives.flat_map(|receive| &receive.buffers).chain(qps.flat_map(Qp::held)).collect()
    }
}

/// The memory that a device has where its owner sees `list`: other memory only where pages were
/// given back while a device that pins had them registered.
pub(super) fn seen<'a>(
    regions: &BTreeMap<u64, Region>,
    attr: &DeviceAttr,
    device: u64,
    list: &'a [Span],
) -> Cow<'a, [Span]> {
    if !(attr.local_registration && attr.registration_pins) {
        return Cow::Borrowed(list);
    }
    let part = |span: &Span| {
        let region = regions.values().find(|r| r.device == device && holds(&r.span, span));
        let pin = region.and_then(|region| region.pin.as_ref());
        pin.map_or_else(|| SgList::from_iter([span.clone()]), |pin| pin.seen(span))
    };
    Cow::Owned(list.iter().flat_map(part).collect())
}

impl Qp {
    /// Local memory of posted work, until the transport has left it.
    fn held(&self) -> Vec<&Span> {
        let works = self.works.iter().flat_map(|work| &work.local);
        let caught = self.caught.iter().flat_map(|(receive, _, _)| &receive.buffers);
        let posted = self.tagged.values().filter_map(|landing| match landing {
            Landing::Posted(posted) => Some(posted),
            Landing::ThrownAway => None,
        });
        let tagged = posted.flat_map(|posted| posted.header.iter().chain(&posted.data));
        works.chain(caught).chain(tagged).collect()
    }
}

fn end(span: &Span) -> u64 {
    span.addr() + span.len() as u64
}

fn holds(region: &Span, span: &Span) -> bool {
    region.addr() <= span.addr() && end(span) <= end(region)
}

fn overlap(a: &Span, b: &Span) -> bool {
    a.addr() < end(b) && b.addr() < end(a)
}

#[cfg(test)]
mod tests {
    use crate::conformance::pair::{Node, READ_WRITE};
    use crate::engine::Provider;
    use crate::mem::{Arena, Buffer, PAGE_BYTES};
    use crate::sim::{SimConfig, SimNet};

    #[test]
    fn a_registration_that_ends_under_posted_work_is_told() {
        let mut config = SimConfig::new(1);
        config.attr.local_registration = true;
        let net = SimNet::new(config);
        let mut node = Node::new(net.provider(1).open().expect("a device"));
        let buffer = Buffer::new(100).expect("memory").post();
        let [first, second] = [(); 2].map(|()| node.register(buffer.span(), READ_WRITE));
        node.recv(&[buffer.span().part(10, 20)]).expect("posted");
        drop(first);
        assert_eq!(net.violations(), [""; 0], "another region has it");
        drop(second);
        let told = "a registration of node 1 ended under posted work of 20 bytes";
        assert_eq!(net.violations(), [told]);
    }

    #[test]
    fn a_page_given_back_while_registered_is_told() {
        let mut config = SimConfig::new(1);
        config.attr.registration_pins = true;
        let net = SimNet::new(config);
        let node = Node::new(net.provider(1).open().expect("a device"));
        let arena = Arena::new(3 * PAGE_BYTES).expect("memory");
        let region = node.register(&arena.span(PAGE_BYTES, 10), READ_WRITE);
        arena.discard_pinned(2 * PAGE_BYTES, PAGE_BYTES).expect("discard");
        assert_eq!(net.violations(), [""; 0], "another page");
        assert!(arena.discard(0, 2 * PAGE_BYTES).is_err(), "a device holds it");
        arena.discard_pinned(0, 2 * PAGE_BYTES).expect("discard");
        drop(region);
        arena.discard(0, 2 * PAGE_BYTES).expect("discard");
        assert_eq!(net.violations(), ["1 pages of node 1 given back while registered"]);
    }
}
