//! A device that must know local memory and pins it, on a host that has none.
//!
//! [`Pinning`] wraps the provider of another device and behaves as one that does RDMA by hardware:
//! registering locks the pages in memory (mlock), up to a limit beyond which it is refused, and what
//! is posted must be registered. What a real device would not forgive is no error here but a
//! [violation](Pinning::violations), which tests look at: memory posted that is not registered, a
//! registration that ends under posted work, a registered page that is not there any more.

mod engine;
mod locked;
mod table;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use dafs_fabric::{
    Access, Address, ConnectError, Device, DeviceAttr, Engine, Listener, MemoryRegion, OpenError,
    Provider, RegisterError, Span,
};

use engine::PinningEngine;
pub use locked::locked_bytes_of_process;
use table::Table;

/// Receives of an engine: about what devices have.
const RECEIVE_QUEUE_DEPTH: usize = 32_767;
/// Violations that are kept in words.
const TOLD_MAX: usize = 100;

/// See the module. All clones are one provider.
#[derive(Clone)]
pub struct Pinning {
    inner: Arc<dyn Provider>,
    books: Arc<Books>,
    /// The only addresses that its devices take, if not all that those below do.
    schemes: Option<&'static [&'static str]>,
}

/// What the devices of a provider have in common.
struct Books {
    /// Tells what is locked for this provider from what is for others.
    number: u64,
    /// Bytes that may be locked.
    limit: AtomicU64,
    /// The most that were.
    peak: AtomicU64,
    registrations: AtomicU64,
    refused: AtomicU64,
    tables: Mutex<Vec<Weak<Table>>>,
    violations: Mutex<Vec<String>>,
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Books {
    fn violation(&self, text: String) {
        let mut all = guard(&self.violations);
        if all.len() < TOLD_MAX {
            all.push(text);
        }
    }

    fn tables(&self) -> Vec<Arc<Table>> {
        guard(&self.tables).iter().filter_map(Weak::upgrade).collect()
    }
}

impl Pinning {
    /// Devices of this provider, which must not have local registration themselves.
    pub fn new(inner: Arc<dyn Provider>) -> Pinning {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let books = Books {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            limit: AtomicU64::new(u64::MAX),
            peak: AtomicU64::new(0),
            registrations: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            tables: Mutex::default(),
            violations: Mutex::default(),
        };
        Pinning { inner, books: Arc::new(books), schemes: None }
    }

    /// Of TCP, with RDMA read.
    pub fn over_tcp() -> Pinning {
        Pinning::new(Arc::new(dafs_fabric_tcp::TcpProvider::new()))
    }

    /// Its devices take addresses of these schemes only: another one serves the others.
    #[must_use]
    pub fn only(self, schemes: &'static [&'static str]) -> Pinning {
        Pinning { schemes: Some(schemes), ..self }
    }

    /// From now on its devices lock no more than so many bytes together, as under `ulimit -l`. What is
    /// locked stays.
    pub fn limit_locked_bytes(&self, bytes: u64) {
        self.books.limit.store(bytes, Ordering::Relaxed);
    }

    /// Bytes that are locked, each page once.
    pub fn locked_bytes(&self) -> u64 {
        locked::bytes_of(self.books.number)
    }

    /// The most that were locked at a time.
    pub fn locked_bytes_max(&self) -> u64 {
        self.books.peak.load(Ordering::Relaxed)
    }

    /// Addresses of all regions, of all devices.
    pub fn regions(&self) -> Vec<Range<u64>> {
        self.books.tables().iter().flat_map(|table| table.regions()).collect()
    }

    /// Regions made so far, and how often one was refused at the limit.
    pub fn registrations(&self) -> (u64, u64) {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (get(&self.books.registrations), get(&self.books.refused))
    }

    /// What was done that a real device would not forgive, in words. A run in which this is not empty
    /// has failed.
    pub fn violations(&self) -> Vec<String> {
        self.books.tables().iter().for_each(|table| table.look_at_pages());
        guard(&self.books.violations).clone()
    }
}

impl Provider for Pinning {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn open(&self) -> Result<Arc<dyn Device>, OpenError> {
        let inner = self.inner.open()?;
        let mut attr = attributes(inner.attr());
        attr.schemes = self.schemes.unwrap_or(attr.schemes);
        let table = Arc::new(Table::new(self.books.clone()));
        let mut tables = guard(&self.books.tables);
        tables.retain(|table| table.strong_count() > 0);
        tables.push(Arc::downgrade(&table));
        Ok(Arc::new(PinningDevice { inner, attr, table }))
    }
}

fn attributes(of: &DeviceAttr) -> DeviceAttr {
    let mut attr = of.clone();
    assert!(!attr.local_registration, "a device below that knows memory itself");
    attr.provider = "pinning";
    (attr.local_registration, attr.registration_pins) = (true, true);
    // No region holds pages of a file.
    (attr.file_spans, attr.verifies_names) = (false, false);
    attr.receive_queue_depth = attr.receive_queue_depth.min(RECEIVE_QUEUE_DEPTH);
    attr
}

struct PinningDevice {
    inner: Arc<dyn Device>,
    attr: DeviceAttr,
    table: Arc<Table>,
}

impl Device for PinningDevice {
    fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    fn register(&self, span: Span, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.table.register(&*self.inner, span, access)
    }

    fn engine(&self) -> Result<Box<dyn Engine>, OpenError> {
        let inner = self.inner.engine()?;
        Ok(Box::new(PinningEngine::new(inner, self.attr.clone(), self.table.clone())))
    }

    fn listen(&self, address: &Address) -> Result<Box<dyn Listener>, ConnectError> {
        self.inner.listen(address)
    }
}

#[cfg(test)]
mod tests;
