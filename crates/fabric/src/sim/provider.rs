//! Provider, device and listener of a node.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::SimNet;
use super::connection::Backlog;
use super::engine::SimEngine;
use super::world::Region;
use crate::engine::{Device, Engine, Listener, Provider};
use crate::error::{ConnectError, OpenError, RegisterError};
use crate::mem::{Deregister, MemoryRegion, Span};
use crate::types::{Access, Address, Credentials, DeviceAttr, Incoming, PeerInfo, Pending, Rkey};

/// The network card of one node.
#[derive(Debug, Clone)]
pub struct SimProvider {
    net: Arc<SimNet>,
    node: u32,
}

impl SimProvider {
    pub(super) fn new(net: Arc<SimNet>, node: u32) -> SimProvider {
        SimProvider { net, node }
    }

    /// Where the node is.
    pub fn address(&self) -> Address {
        Address { scheme: self.net.scheme().into(), target: self.node.to_string() }
    }
}

impl Provider for SimProvider {
    fn name(&self) -> &'static str {
        self.net.scheme()
    }

    fn open(&self) -> Result<Arc<dyn Device>, OpenError> {
        let id = self.net.world().new_id();
        Ok(Arc::new(SimDevice { net: self.net.clone(), node: self.node, id }))
    }
}

struct SimDevice {
    net: Arc<SimNet>,
    node: u32,
    id: u64,
}

impl Device for SimDevice {
    fn attr(&self) -> &DeviceAttr {
        &self.net.attr
    }

    fn register(&self, span: Span, access: Access) -> Result<MemoryRegion, RegisterError> {
        if access.remote_write && !span.is_writable() {
            return Err(RegisterError::Refused("memory lent for reading cannot be written to"));
        }
        let is_reached = access.remote_read || access.remote_write;
        if self.net.truth.shared_memory && is_reached && !span.is_shared() {
            return Err(RegisterError::Refused("memory that cannot be shared"));
        }
        let mut world = self.net.world();
        let rate = world.faults.refuse_registration_per_million;
        if world.rng.chance(rate) {
            world.counts.refused_registrations += 1;
            return Err(RegisterError::Refused("injected limit"));
        }
        let mut rkey = world.rng.next();
        while world.regions.contains_key(&rkey) {
            rkey = world.rng.next();
        }
        let pin = if self.net.truth.registration_pins { span.pin() } else { None };
        let (device, node, memory) = (self.id, self.node, span.clone());
        let region = Region { device, node, span: memory, access, pin };
        world.regions.insert(rkey, region);
        Ok(MemoryRegion::new(span, Rkey(rkey), Arc::new(Regions(self.net.clone()))))
    }

    fn engine(&self) -> Result<Box<dyn Engine>, OpenError> {
        Ok(Box::new(SimEngine::new(self.net.clone(), self.node, self.id)))
    }

    fn listen(&self, address: &Address) -> Result<Box<dyn Listener>, ConnectError> {
        let (name, node) = parse(address, &self.net.truth)?;
        let node = node.unwrap_or(self.node);
        let wrong = |reason: &str| {
            Err(ConnectError::Address { address: address.to_string(), reason: reason.into() })
        };
        if node != self.node {
            return wrong("another node's");
        }
        let mut world = self.net.world();
        if world.listeners.contains_key(&name) {
            return wrong("in use");
        }
        let id = world.new_id();
        world.listeners.insert(name.clone(), Backlog { id, node, requests: Default::default() });
        Ok(Box::new(SimListener { net: self.net.clone(), name, id }))
    }

    fn same_host(&self, token: [u8; 16]) -> Option<Address> {
        let scheme = self.net.scheme().into();
        let target = format!("@{:032x}", u128::from_be_bytes(token));
        self.net.same_host.then_some(Address { scheme, target })
    }
}

/// Takes `sim://NODE`, `sim://NODE:PORT` or `sim:@TOKEN` apart: the name of the listener, and its node, if
/// that is told. The scheme is that of the network. Wishes are of no meaning here.
pub(super) fn parse(
    address: &Address,
    attr: &DeviceAttr,
) -> Result<(String, Option<u32>), ConnectError> {
    let (name, _wishes) = address.target.split_once('?').unwrap_or((&address.target, ""));
    let node = name.split(':').next().and_then(|node| node.parse().ok());
    match node {
        Some(_) if attr.takes(address) => Ok((name.into(), node)),
        None if attr.takes(address) && name.starts_with('@') => Ok((name.into(), None)),
        _ => Err(ConnectError::Address {
            address: address.to_string(),
            reason: "not of the form sim://NODE or sim://NODE:PORT".into(),
        }),
    }
}

/// The table of regions, as their owners know it.
struct Regions(Arc<SimNet>);

impl Deregister for Regions {
    fn deregister(&self, rkey: Rkey) {
        self.0.world().end_region(rkey.0);
    }
}

struct SimListener {
    net: Arc<SimNet>,
    name: String,
    id: u64,
}

impl Listener for SimListener {
    fn address(&self) -> Address {
        Address { scheme: self.net.scheme().into(), target: self.name.clone() }
    }

    fn poll_accept(&mut self) -> Option<Incoming> {
        let mut world = self.net.world();
        loop {
            let listener = world.listeners.get_mut(&self.name).filter(|l| l.id == self.id)?;
            let from = listener.requests.pop_front()?;
            // Who gave up meanwhile is passed over.
            let Some(qp) = world.qps.get(&from) else { continue };
            let (private_data, node) = (qp.private_data.clone(), qp.node);
            let inner = Box::new(Request { net: self.net.clone(), from: Some(from) });
            return Some(Incoming {
                private_data,
                peer: of_user(self.net.peer_uid, node),
                device: 0,
                inner,
            });
        }
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        self.net.world().stop_listening(&self.name, Some(self.id));
    }
}

/// A node is one machine, of one user.
pub(super) fn of_user(uid: u32, node: u32) -> PeerInfo {
    let who = Credentials { uid, gid: uid, groups: Vec::new() };
    PeerInfo { credentials: Some(who), ends: None, text: format!("node {node}") }
}

/// A connection request on its way to an engine. Dropped, it is refused.
pub(super) struct Request {
    net: Arc<SimNet>,
    from: Option<u64>,
}

impl Request {
    /// Who asks, if it asked in this network. The request is answered by the caller then.
    pub fn of(incoming: Incoming, net: &Arc<SimNet>) -> Option<u64> {
        let mut request = incoming.into_inner::<Request>()?;
        if Arc::ptr_eq(&request.net, net) { request.from.take() } else { None }
    }
}

impl Pending for Request {
    fn is_established(&self) -> bool {
        self.from.is_some_and(|from| self.net.world().qps.contains_key(&from))
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Some(from) = self.from {
            self.net.world().refuse_later(from, false, "the request was dropped");
        }
    }
}
