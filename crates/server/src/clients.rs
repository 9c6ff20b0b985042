//! The clients of a server: one session each, and which of them may have locks to reclaim.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dafs_protocol::{ClientId, SessionId, Status};
use dafs_store::Pending;
use rustc_hash::FxHashMap;

use crate::locks::Client;

/// Keeps over restarts of the server which clients may have locks.
pub trait ClientRecords: Send + Sync {
    /// As last saved; empty where nothing ever was.
    ///
    /// # Errors
    /// What was kept is not known (`InvalidData`), or nothing can be kept.
    fn load(&self) -> io::Result<BTreeSet<Client>>;
    /// Replaces all. When it is complete they survive a crash of the machine. Does not block.
    fn save(&self, clients: &BTreeSet<Client>) -> Pending<io::Result<()>>;
}

/// Records that live as long as their clones: over restarts within one process.
#[derive(Debug, Clone, Default)]
pub struct MemoryRecords(Arc<Mutex<BTreeSet<Client>>>);

impl ClientRecords for MemoryRecords {
    fn load(&self) -> io::Result<BTreeSet<Client>> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
    fn save(&self, clients: &BTreeSet<Client>) -> Pending<io::Result<()>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone_from(clients);
        Pending::ready(Ok(()))
    }
}

/// A client's session, and where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Live {
    pub uid: u32,
    pub session: SessionId,
    pub worker: u16,
    /// By which attempt of the client it was made.
    pub attempt: u64,
}

#[derive(Default)]
struct Inner {
    live: FxHashMap<ClientId, Live>,
    recorded: BTreeSet<Client>,
}

/// All clients of a server.
pub(crate) struct Clients {
    inner: Mutex<Inner>,
    records: Box<dyn ClientRecords>,
    /// False: nothing can be kept.
    usable: bool,
    recorded_max: usize,
}

/// A change of the records that is on its way to the disk.
pub(crate) type Saving = Pending<io::Result<()>>;

impl Clients {
    /// With what a server before this one recorded; `None` beside it where that is not known.
    pub(crate) fn load(
        records: Box<dyn ClientRecords>,
        recorded_max: usize,
    ) -> (Clients, Option<BTreeSet<Client>>) {
        let mut usable = true;
        let before = match records.load() {
            Ok(clients) => Some(clients),
            Err(error) => {
                usable = error.kind() == io::ErrorKind::InvalidData;
                tracing::warn!(%error, "which clients had locks is not known: all may reclaim");
                None
            }
        };
        let recorded = before.clone().unwrap_or_default();
        let inner = Mutex::new(Inner { recorded, ..Inner::default() });
        (Clients { inner, records, usable, recorded_max }, before)
    }

    /// Its session, of whichever user.
    pub(crate) fn live(&self, id: ClientId) -> Option<Live> {
        self.inner().live.get(&id).copied()
    }

    /// Its session from now on. Answers the one that this replaces; `Err`: of another user, or of a later
    /// attempt.
    pub(crate) fn enter(&self, id: ClientId, live: Live) -> Result<Option<Live>, Status> {
        let mut inner = self.inner();
        if inner.live.get(&id).is_some_and(|older| older.uid != live.uid) {
            return Err(Status::NotAuthorized);
        }
        if inner.live.get(&id).is_some_and(|older| older.attempt > live.attempt) {
            return Err(Status::Delay);
        }
        Ok(inner.live.insert(id, live))
    }

    /// The session is over.
    pub(crate) fn leave(&self, id: ClientId, session: SessionId) {
        let mut inner = self.inner();
        if inner.live.get(&id).is_some_and(|live| live.session == session) {
            inner.live.remove(&id);
        }
    }

    /// The client will have locks: may be granted some when this is complete.
    /// `most`: clients of its user.
    pub(crate) fn record(&self, client: Client, most: usize) -> Result<Saving, Status> {
        if !self.usable {
            return Ok(Pending::ready(Ok(())));
        }
        let mut inner = self.inner();
        if !inner.recorded.contains(&client) {
            let of_user = inner.recorded.iter().filter(|other| other.uid == client.uid).count();
            if inner.recorded.len() >= self.recorded_max || of_user >= most {
                return Err(Status::Resource);
            }
        }
        inner.recorded.insert(client);
        // Also if it is recorded: that may not be on disk yet.
        Ok(self.records.save(&inner.recorded))
    }

    /// Clients have no locks any more. `None`: none of them was recorded.
    pub(crate) fn forget(&self, clients: &[Client]) -> Option<Saving> {
        let mut inner = self.inner();
        let before = inner.recorded.len();
        inner.recorded.retain(|client| !clients.contains(client));
        let changed = inner.recorded.len() < before && self.usable;
        changed.then(|| self.records.save(&inner.recorded))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
