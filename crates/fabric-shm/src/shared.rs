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
/// Bytes that all peers of one user may share with a device.
const USER_BYTES_MAX: u64 = 16 << 30;

/// What the engines of a device share.
#[derive(Debug)]
pub struct Shared {
    pub attr: DeviceAttr,
    pub table: Arc<Table>,
    /// Bytes promised to the peers of each user.
    promised: Mutex<HashMap<u32, u64>>,
}

impl Shared {
    /// Of a new device.
    pub fn new(attr: DeviceAttr) -> io::Result<Arc<Shared>> {
        let table = Table::new()?;
        Ok(Arc::new(Shared { attr, table, promised: Mutex::default() }))
    }

    /// What a connection of this user may share: less, the more all of them may already.
    pub fn promise(self: &Arc<Self>, uid: u32) -> Promise {
        let mut promised = self.promised.lock().unwrap_or_else(PoisonError::into_inner);
        let of_user = promised.entry(uid).or_default();
        let left = USER_BYTES_MAX.saturating_sub(*of_user) / 4;
        let bytes = SEGMENT_BYTES_MAX.min(left - left % PAGE_BYTES as u64);
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
