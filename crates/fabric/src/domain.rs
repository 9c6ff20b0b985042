//! What belongs together: open devices, and the memory that they are to know as long as it is used.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use crate::engine::{Device, Engine, Listener, Provider};
use crate::error::{ConnectError, OpenError, RegisterError};
use crate::mem::{MemoryRegion, Readers, Span};
use crate::planted::{Defect, planted};
use crate::types::{Access, Address, DeviceAttr, Incoming, RemoteSpan};

/// The networks that a program can use, in the order in which they are asked for an address.
#[derive(Clone)]
pub struct Providers(Vec<Arc<dyn Provider>>);

impl From<Arc<dyn Provider>> for Providers {
    fn from(one: Arc<dyn Provider>) -> Providers {
        Providers(vec![one])
    }
}

impl<P: Provider + 'static> From<Arc<P>> for Providers {
    fn from(one: Arc<P>) -> Providers {
        Providers(vec![one])
    }
}

impl From<Vec<Arc<dyn Provider>>> for Providers {
    fn from(all: Vec<Arc<dyn Provider>>) -> Providers {
        Providers(all)
    }
}

impl Providers {
    /// Each, in that order.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Provider> {
        self.0.iter().map(|provider| &**provider)
    }
}

/// What a process shares with its networks: their open devices, and the memory that these are to know for
/// life. It is shared by all threads that have an engine of one of the devices, so that such memory is
/// registered once with each.
pub struct Domain {
    parts: Vec<Arc<ProtectionDomain>>,
    missing: Vec<(&'static str, String)>,
}

impl Domain {
    /// Opens a device of this provider, which knows no memory yet.
    ///
    /// # Errors
    /// [`OpenError`], of the provider.
    pub fn open(provider: &dyn Provider) -> Result<Arc<Domain>, OpenError> {
        Ok(Domain::of(vec![provider.open()?]))
    }

    /// Opens a device of each provider; of those behind the first, which a machine may do without, where
    /// that is there.
    ///
    /// # Errors
    /// [`OpenError`], of the first, and of others that fail where they should not, or [`OpenError::Unavailable`] where there is none.
    pub fn open_all(providers: &Providers) -> Result<Arc<Domain>, OpenError> {
        let (mut devices, mut missing) = (Vec::new(), Vec::new());
        for provider in &providers.0 {
            match provider.open() {
                Ok(device) => devices.push(device),
                Err(OpenError::Unavailable { provider, reason }) if !devices.is_empty() => {
                    missing.push((provider, reason));
                }
                Err(error) => return Err(error),
            }
        }
        match devices {
            none if none.is_empty() => {
                let reason = "there is no network in this program".into();
                Err(OpenError::Unavailable { provider: "none", reason })
            }
            devices => Ok(Arc::new(Domain { parts: parts_of(devices), missing })),
        }
    }

    /// With this device, which knows no memory yet.
    pub fn new(device: Arc<dyn Device>) -> Arc<Domain> {
        Domain::of(vec![device])
    }

    /// With these devices, one or more, which know no memory yet.
    ///
    /// # Panics
    /// Without a device.
    pub fn of(devices: Vec<Arc<dyn Device>>) -> Arc<Domain> {
        assert!(!devices.is_empty(), "a domain without a device");
        Arc::new(Domain { parts: parts_of(devices), missing: Vec::new() })
    }

    /// Providers of which this machine has no device, and why.
    pub fn missing(&self) -> &[(&'static str, String)] {
        &self.missing
    }

    /// Why no device takes an address.
    pub fn unknown_scheme(&self, address: &Address) -> ConnectError {
        let scheme = &address.scheme;
        let missing = self.missing.iter().find(|(provider, _)| provider == scheme);
        let reason = match missing {
            Some((_, reason)) => reason.clone(),
            None => format!("this program has no network for '{scheme}'"),
        };
        ConnectError::Address { address: address.to_string(), reason }
    }

    /// The devices with what they know, in order.
    pub fn parts(&self) -> &[Arc<ProtectionDomain>] {
        &self.parts
    }

    /// The first device.
    pub fn device(&self) -> &dyn Device {
        self.parts[0].device()
    }

    /// What the first device can do.
    pub fn attr(&self) -> &DeviceAttr {
        self.parts[0].attr()
    }

    /// A new engine of the first device.
    ///
    /// # Errors
    /// [`OpenError`], of the device.
    pub fn engine(&self) -> Result<Box<dyn Engine>, OpenError> {
        self.parts[0].engine()
    }

    /// Which of the devices takes addresses like this one: its place in [`parts`](Self::parts).
    pub fn reaches(&self, address: &Address) -> Option<usize> {
        let takes = |part: &Arc<ProtectionDomain>| part.attr().takes(address);
        self.parts.iter().position(takes)
    }

    /// Waits for peers at `address`, by the device that takes it. What comes names the device:
    /// [`Incoming::device`].
    ///
    /// # Errors
    /// [`ConnectError::Address`] where no device takes it; those of the device.
    pub fn listen(&self, address: &Address) -> Result<Box<dyn Listener>, ConnectError> {
        let Some(device) = self.reaches(address) else {
            return Err(self.unknown_scheme(address));
        };
        let inner = self.parts[device].device().listen(address)?;
        Ok(Box::new(PlacedListener { inner, device }))
    }

    /// Some device must know memory before it is posted.
    pub fn needs_registration(&self) -> bool {
        self.parts.iter().any(|part| part.attr().local_registration)
    }

    /// Some device pins what it knows: single pages of that cannot be given back.
    pub fn pins(&self) -> bool {
        let pins = |attr: &DeviceAttr| attr.local_registration && attr.registration_pins;
        self.parts.iter().any(|part| pins(part.attr()))
    }

    /// Makes each device know `memory` that must ([`ProtectionDomain::register`]).
    ///
    /// # Errors
    /// [`RegisterError`], of the first that did not take it; the others know it all the same.
    pub fn register(&self, memory: &Span) -> Result<(), RegisterError> {
        // All are asked, also behind one that refuses.
        let results: Vec<_> = self.parts.iter().map(|part| part.register(memory)).collect();
        results.into_iter().collect()
    }

    /// Some device reaches memory that peers share with it, and shares some with them.
    pub fn shares_memory(&self) -> bool {
        self.parts.iter().any(|part| part.attr().shared_memory)
    }

    /// Lets peers read `memory` by each device that shares some with them, as long as the domain is there:
    /// up to [`READABLE_MAX`] of them.
    ///
    /// # Errors
    /// [`RegisterError`], of the first that did not take it.
    pub fn let_peers_read(&self, memory: &Span) -> Result<(), RegisterError> {
        let mut sharing = self.parts.iter().filter(|part| part.attr().shared_memory);
        sharing.try_for_each(|part| part.let_peers_read(memory))
    }

    /// No device need know `memory` any more. True: none does; false: work that is under way holds it
    /// a while longer.
    pub fn forget(&self, memory: &Span) -> bool {
        // All are told, also behind one that holds it.
        self.parts.iter().filter(|part| !part.forget(memory)).count() == 0
    }
}

impl std::fmt::Debug for Domain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Domain").field("parts", &self.parts).finish()
    }
}

fn parts_of(devices: Vec<Arc<dyn Device>>) -> Vec<Arc<ProtectionDomain>> {
    devices.into_iter().map(ProtectionDomain::new).collect()
}

/// A listener of one of the devices of a domain.
struct PlacedListener {
    inner: Box<dyn Listener>,
    device: usize,
}

impl Listener for PlacedListener {
    fn address(&self) -> Address {
        self.inner.address()
    }

    fn poll_accept(&mut self) -> Option<Incoming> {
        let incoming = self.inner.poll_accept()?;
        Some(Incoming { device: self.device, ..incoming })
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.event_fd()
    }
}

/// An open device and the memory that is registered with it for life: caches, and what is cut from
/// them.
///
/// A device that needs no registration ([`DeviceAttr::local_registration`]) is told of nothing.
pub struct ProtectionDomain {
    device: Arc<dyn Device>,
    memory: RwLock<Memory>,
    /// What peers may read, the first ones.
    readable: [OnceLock<Readable>; READABLE_MAX],
}

/// How many parts of memory peers may read: of the 64 files of which a peer of this host is told, some are left for
/// other memory.
pub const READABLE_MAX: usize = 56;

struct Readable {
    region: MemoryRegion,
    readers: Readers,
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

impl ProtectionDomain {
    /// With this device, which knows no memory yet.
    pub fn new(device: Arc<dyn Device>) -> Arc<ProtectionDomain> {
        let memory = RwLock::default();
        let readable = std::array::from_fn(|_| OnceLock::new());
        Arc::new(ProtectionDomain { device, memory, readable })
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

    /// Lets peers read `memory`, as long as the domain is there: up to [`READABLE_MAX`] of them. Who is connected
    /// and may read it has been told when this returns, or is before what is sent to him next.
    ///
    /// # Errors
    /// [`RegisterError`], of the device.
    pub fn let_peers_read(&self, memory: &Span) -> Result<(), RegisterError> {
        const MANY: RegisterError =
            RegisterError::Refused("peers read too many other parts of memory");
        // Before anybody is told.
        if self.readable.last().is_some_and(|last| last.get().is_some()) {
            return Err(MANY);
        }
        let access = Access { remote_read: true, remote_write: false };
        let region = self.device.register(memory.clone(), access)?;
        let readers = memory.shared().and_then(|part| part.file.readers()).unwrap_or(Readers::Own);
        let mut readable = Readable { region, readers };
        for place in &self.readable {
            match place.set(readable) {
                Ok(()) => return Ok(()),
                Err(not_here) => readable = not_here,
            }
        }
        Err(MANY)
    }

    /// By what a peer [may read](Self::let_peers_read) this memory, and which peers may.
    #[inline]
    pub fn readable(&self, span: &Span) -> Option<(RemoteSpan, Readers)> {
        self.readable_near(span, &mut 0)
    }

    /// As [`readable`](Self::readable), for who asks often: `last` is where that of the last time was found, which is
    /// looked at first.
    #[inline]
    pub fn readable_near(&self, span: &Span, last: &mut usize) -> Option<(RemoteSpan, Readers)> {
        let near = self.readable.get(*last).and_then(OnceLock::get);
        let part = match near.filter(|part| part.region.span().contains(span)) {
            Some(part) => part,
            None => self.search(span, last)?,
        };
        let offset = usize::try_from(span.addr() - part.region.span().addr()).ok()?;
        Some((part.region.part(offset, span.len()), part.readers))
    }

    fn search(&self, span: &Span, last: &mut usize) -> Option<&Readable> {
        let mut known = self.readable.iter().map_while(OnceLock::get).enumerate();
        let (at, part) = known.find(|(_, part)| part.region.span().contains(span))?;
        *last = at;
        Some(part)
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

impl std::fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let provider = &self.attr().provider;
        f.debug_struct("ProtectionDomain").field("provider", provider).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{Arena, PAGE_BYTES};
    use crate::sim::{SimConfig, SimNet};

    fn domain(local_registration: bool) -> Arc<ProtectionDomain> {
        let mut config = SimConfig::new(1);
        config.attr.local_registration = local_registration;
        config.attr.registration_pins = true;
        ProtectionDomain::new(SimNet::new(config).provider(1).open().expect("a device"))
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

    #[test]
    fn peers_read_so_many_parts_and_what_comes_later_is_refused() {
        let domain = domain(false);
        let arena = Arena::new((READABLE_MAX + 1) * PAGE_BYTES).expect("memory");
        let page = |number: usize| arena.span(number * PAGE_BYTES, PAGE_BYTES);
        for number in 0..READABLE_MAX {
            domain.let_peers_read(&page(number)).expect("room");
        }
        let refused = domain.let_peers_read(&page(READABLE_MAX));
        assert!(matches!(refused, Err(RegisterError::Refused(_))), "{refused:?}");
        assert!((0..READABLE_MAX).all(|number| domain.readable(&page(number)).is_some()));
        assert!(domain.readable(&page(READABLE_MAX)).is_none());
        // Wherever it is looked for first.
        let mut last = 0;
        for number in (0..READABLE_MAX).rev().chain([3, 3, READABLE_MAX / 2]) {
            let (remote, readers) = domain.readable_near(&page(number), &mut last).expect("told");
            assert_eq!((last, readers), (number, Readers::Own));
            assert_eq!(Some((remote, readers)), domain.readable(&page(number)));
        }
        assert!(domain.readable_near(&page(READABLE_MAX), &mut last).is_none());
        last = usize::MAX;
        assert!(domain.readable_near(&page(READABLE_MAX), &mut last).is_none());
    }

    fn network(name: &'static str, local_registration: bool) -> Arc<dyn Provider> {
        let mut config = SimConfig::new(1);
        config.attr.local_registration = local_registration;
        config.attr.schemes = if name == "one" { &["one"] } else { &["other"] };
        Arc::new(SimNet::new(config).provider(1))
    }

    #[test]
    fn devices_are_found_by_address_and_know_what_they_must() {
        let providers = Providers(vec![network("one", false), network("other", true)]);
        let domain = Domain::open_all(&providers).expect("devices");
        let address = |text| Address::parse(text).expect("an address");
        assert_eq!(domain.reaches(&address("one://1")), Some(0));
        assert_eq!(domain.reaches(&address("other://1")), Some(1));
        let nowhere = address("third://1");
        assert!(domain.reaches(&nowhere).is_none());
        let error = domain.listen(&nowhere).map(drop).expect_err("nobody takes it");
        assert!(error.to_string().contains("no network for 'third'"), "{error}");
        assert_eq!(
            domain.listen(&address("other://1")).expect("listens").address().scheme,
            "other"
        );
        assert!(domain.needs_registration() && !domain.pins());
        let arena = Arena::new(PAGE_BYTES).expect("memory");
        let page = arena.span(0, PAGE_BYTES);
        domain.register(&page).expect("registered");
        let known = |part: usize| domain.parts()[part].find(&page);
        assert!(known(0).is_none());
        let posted = known(1);
        assert!(posted.is_some() && !domain.forget(&page), "somebody holds it");
        assert!(known(1).is_none() && domain.forget(&page));
        assert!(Domain::open_all(&Providers(Vec::new())).is_err());
    }

    /// A network that this machine has not.
    struct Missing;

    impl Provider for Missing {
        fn name(&self) -> &'static str {
            "third"
        }

        fn open(&self) -> Result<Arc<dyn Device>, OpenError> {
            Err(OpenError::Unavailable { provider: "third", reason: "it is forbidden".into() })
        }
    }

    #[test]
    fn why_a_network_is_missing_is_told() {
        let providers = Providers(vec![network("one", false), Arc::new(Missing)]);
        let domain = Domain::open_all(&providers).expect("one device");
        assert_eq!(domain.missing(), [("third", "it is forbidden".to_owned())]);
        let address = Address::parse("third://1").expect("an address");
        let error = domain.listen(&address).map(drop).expect_err("nobody takes it");
        assert!(error.to_string().contains("it is forbidden"), "{error}");
    }
}
