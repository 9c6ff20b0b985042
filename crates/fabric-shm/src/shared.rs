//! What the engines of a device share.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use dafs_fabric::DeviceAttr;
use dafs_fabric::mem::PAGE_BYTES;

use crate::memory_region::Table;
use crate::peer::{SEGMENT_BYTES_MAX, SEGMENTS_MAX};
use crate::wire::Limits;

/// Entries of a scatter/gather list.
pub const SGE_MAX: usize = 1024;
/// Receives per engine.
pub const RECEIVE_QUEUE_DEPTH: usize = 1 << 20;
/// Work requests under way per queue pair.
pub const SEND_QUEUE_DEPTH: usize = 1024;
/// Bytes of one RDMA read or write.
pub const BULK_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes that all peers of one user may share with a device: no more than this, and than a part of the
/// machine's memory, since whoever touches a page first pays for it.
const USER_BYTES_MAX: u64 = 16 << 30;
const USER_PART: u64 = 4;
/// What a connection may share, as long as there is so much for its user.
const CONNECTION_BYTES_MIN: u64 = 16 << 20;

/// What the engines of a device share.
#[derive(Debug)]
pub struct Shared {
    pub attr: DeviceAttr,
    pub table: Arc<Table>,
    /// Bytes promised to the peers of each user.
    promised: Mutex<HashMap<u32, u64>>,
    user_bytes_max: u64,
}

impl Shared {
    /// Of a new device.
    pub fn new(attr: DeviceAttr) -> io::Result<Arc<Shared>> {
        let table = Table::new()?;
        let user_bytes_max = (memory_bytes() / USER_PART).min(USER_BYTES_MAX);
        Ok(Arc::new(Shared { attr, table, promised: Mutex::default(), user_bytes_max }))
    }

    /// What a connection of this user may share: less, the more all of them may already.
    pub fn promise(self: &Arc<Self>, uid: u32) -> Promise {
        let mut promised = self.promised.lock().unwrap_or_else(PoisonError::into_inner);
        let of_user = promised.entry(uid).or_default();
        let left = self.user_bytes_max.saturating_sub(*of_user);
        let bytes = (left / 4).clamp(CONNECTION_BYTES_MIN.min(left), SEGMENT_BYTES_MAX);
        let bytes = bytes - bytes % PAGE_BYTES as u64;
        *of_user += bytes;
        Promise { shared: self.clone(), uid, limits: Limits { segments: SEGMENTS_MAX, bytes } }
    }
}

/// What a peer may share with this device, until this is dropped.
#[derive(Debug)]
pub struct Promise {
    shared: Arc<Shared>,
    uid: u32,
    pub limits: Limits,
}

impl Drop for Promise {
    fn drop(&mut self) {
        let mut promised = self.shared.promised.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of_user) = promised.get_mut(&self.uid) {
            *of_user -= self.limits.bytes;
            if *of_user == 0 {
                promised.remove(&self.uid);
            }
        }
    }
}

/// Of this machine; where it does not say, a small one.
fn memory_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map_or(2 << 30, |kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_share_and_each_connection_some_of_it() {
        let shared = Shared::new(DeviceAttr::none("shm")).expect("a device");
        let mut promises: Vec<Promise> = Vec::new();
        loop {
            let promise = shared.promise(7);
            if promise.limits.bytes < CONNECTION_BYTES_MIN {
                break;
            }
            promises.push(promise);
        }
        let sum = |of: &[Promise]| of.iter().map(|promise| promise.limits.bytes).sum::<u64>();
        let all = sum(&promises);
        assert!(all <= shared.user_bytes_max && all + CONNECTION_BYTES_MIN > shared.user_bytes_max);
        assert!(shared.user_bytes_max <= memory_bytes() / USER_PART);
        assert!(promises.iter().all(|promise| promise.limits.bytes <= SEGMENT_BYTES_MAX));
        // Others have theirs.
        assert_eq!(shared.promise(8).limits.bytes, promises[0].limits.bytes);
        promises.clear();
        assert!(shared.promised.lock().expect("nobody panics").is_empty());
    }
}
