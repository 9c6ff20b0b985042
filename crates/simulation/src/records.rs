//! Which clients may have locks, on the server's disk: saved at the pace of the store, not lost
//! with the server.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dafs_server::{Client, ClientRecords};
use dafs_store::{Pending, pending};

use crate::storage::Storage;

#[derive(Debug, Default)]
struct Disk {
    clients: BTreeSet<Client>,
    /// Saves asked for, and the last one that is on disk.
    asked: u64,
    saved: u64,
}

/// Records of a server that comes and goes.
#[derive(Clone)]
pub struct Records {
    disk: Arc<Mutex<Disk>>,
    storage: Storage,
}

impl Records {
    /// Of a server that never ran.
    pub fn new(storage: &Storage) -> Records {
        Records { disk: Arc::default(), storage: storage.clone() }
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientRecords for Records {
    fn load(&self) -> io::Result<BTreeSet<Client>> {
        Ok(self.disk().clients.clone())
    }

    fn save(&self, clients: &BTreeSet<Client>) -> Pending<io::Result<()>> {
        let (completer, pending) = pending();
        let (records, clients) = (self.clone(), clients.clone());
        let number = {
            let mut disk = self.disk();
            disk.asked += 1;
            disk.asked
        };
        self.storage.call(Box::new(move || {
            let mut disk = records.disk();
            // A newer one says all that this one does.
            if number > disk.saved {
                (disk.clients, disk.saved) = (clients, number);
            }
            drop(disk);
            completer.complete(Ok(()));
        }));
        pending
    }
}
