//! The translation and protection table: which keys reach which memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use dafs_fabric::mem::Deregister;
use dafs_fabric::{Access, MemoryRegion, RegisterError, Rkey, Span};

/// The most regions of a device.
const REGIONS_MAX: usize = 1 << 20;
/// Set in [`Region::state`] when access has ended; the other bits count transfers under way.
const REVOKED: u32 = 1 << 31;

/// Registered memory as the NIC sees it.
#[derive(Debug)]
pub struct Region {
    span: Span,
    access: Access,
    state: AtomicU32,
}

impl Region {
    /// The memory.
    pub fn span(&self) -> &Span {
        &self.span
    }

    /// Allows one transfer, unless access has ended. While the pin lives the memory is the
    /// NIC's: [`Table::deregister`] waits for it. Held over one system call, never longer.
    pub fn pin(self: &Arc<Self>) -> Option<Pin> {
        let before = self.state.fetch_add(1, Ordering::AcqRel);
        let pin = Pin(self.clone());
        (before & REVOKED == 0).then_some(pin)
    }

    /// True when access has ended.
    pub fn is_revoked(&self) -> bool {
        self.state.load(Ordering::Acquire) & REVOKED != 0
    }

    fn revoke(&self) {
        self.state.fetch_or(REVOKED, Ordering::AcqRel);
        while self.state.load(Ordering::Acquire) != REVOKED {
            std::thread::yield_now();
        }
    }
}

/// A transfer under way to or from a region.
#[derive(Debug)]
pub struct Pin(Arc<Region>);

impl Pin {
    /// The region that is held.
    pub fn region(&self) -> &Arc<Region> {
        &self.0
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.0.state.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The table of a device, shared by its engines.
#[derive(Debug, Default)]
pub struct Table {
    regions: RwLock<HashMap<u64, Arc<Region>>>,
}

impl Table {
    /// Makes `span` reachable. Keys are random: knowing one is no help in prediction another.
    pub fn register(
        self: &Arc<Self>,
        span: Span,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        if access.remote_write && !span.is_writable() {
            return Err(RegisterError::Refused("memory lent for reading is no target"));
        }
        let region = Region { span: span.clone(), access, state: AtomicU32::new(0) };
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        if regions.len() >= REGIONS_MAX {
            return Err(RegisterError::Refused("too many memory regions"));
        }
        let rkey = loop {
            let key = getrandom::u64().map_err(std::io::Error::from)?;
            if !regions.contains_key(&key) {
                break key;
            }
        };
        regions.insert(rkey, Arc::new(region));
        drop(regions);
        Ok(MemoryRegion::new(span, Rkey(rkey), self.clone()))
    }

    /// The region behind `rkey`, with the offset of `addr` in it, if `len` bytes from there may
    /// be read (or written).
    pub fn find(
        &self,
        rkey: u64,
        addr: u64,
        len: u32,
        write: bool,
    ) -> Option<(Arc<Region>, usize)> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let region = regions.get(&rkey)?;
        let allowed = if write { region.access.remote_write } else { region.access.remote_read };
        let offset = usize::try_from(addr.checked_sub(region.span.addr())?).ok()?;
        let end = offset.checked_add(len as usize)?;
        (allowed && end <= region.span.len()).then(|| (region.clone(), offset))
    }
}

impl Deregister for Table {
    fn deregister(&self, rkey: Rkey) {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        let region = regions.remove(&rkey.0);
        drop(regions);
        if let Some(region) = region {
            region.revoke();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_fabric::{Arena, mem};

    const READ: Access = Access { remote_read: true, remote_write: false };

    #[test]
    fn bounds_and_rights_are_checked() {
        let table = Arc::new(Table::default());
        let span = Arena::new(8192).expect("arena").span(100, 1000);
        let region = table.register(span, READ).expect("region");
        let remote = region.remote();
        let find = |addr, len, write| {
            table.find(remote.rkey.0, addr, len, write).map(|(_, offset)| offset)
        };
        assert_eq!(find(remote.addr, 1000, false), Some(0));
        assert_eq!(find(remote.addr + 999, 1, false), Some(999));
        assert_eq!(find(remote.addr + 1000, 0, false), Some(1000));
        assert_eq!(find(remote.addr, 1001, false), None);
        assert_eq!(find(remote.addr - 1, 1, false), None);
        assert_eq!(find(u64::MAX, u32::MAX, false), None);
        assert_eq!(find(remote.addr, 1, true), None);
        assert!(table.find(remote.rkey.0 ^ 1, remote.addr, 1, false).is_none());
    }

    #[test]
    fn a_region_ends_once_nobody_uses_it() {
        let table = Arc::new(Table::default());
        let span = Arena::new(4096).expect("arena").span(0, 4096);
        let region = table.register(span, READ).expect("region");
        let remote = region.remote();
        let (found, _) = table.find(remote.rkey.0, remote.addr, 1, false).expect("found");
        let pin = found.pin().expect("pin");
        let ender = std::thread::spawn(move || drop(region));
        while !found.is_revoked() {
            std::thread::yield_now();
        }
        assert!(!ender.is_finished());
        assert!(found.pin().is_none());
        drop(pin);
        ender.join().expect("ender");
        assert!(table.find(remote.rkey.0, remote.addr, 1, false).is_none());
    }

    #[test]
    fn memory_lent_for_reading_cannot_be_written_by_peers() {
        let table = Arc::new(Table::default());
        let access = Access { remote_read: true, remote_write: true };
        mem::lend(b"constant", |span| {
            let refused = table.register(span.clone(), access);
            assert!(matches!(refused, Err(RegisterError::Refused(_))));
        });
    }
}
