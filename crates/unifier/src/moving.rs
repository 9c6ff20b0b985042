//! A file that is open comes to another cache: what is read and written from then on is in the memory of that.

use std::sync::{Arc, Mutex};

use dafs_protocol::Status;
use dafs_store::{Ancestors, FileId};

use crate::file::{CachedFile, Core, Which};
use crate::job::Outcome;
use crate::wait::locked;

impl CachedFile {
    /// By this way everybody [may open it](dafs_store::File::public_ancestors); `None`: it is not known.
    pub fn note_ancestors(&self, way: Option<Ancestors>) {
        *locked(&self.way) = way;
    }

    /// As far as is known, the way to it leads through this directory.
    pub(crate) fn is_below(&self, dir: FileId) -> bool {
        let is_on_it = |way: &Ancestors| dir.device == self.id().device && way.contains(&dir.inode);
        locked(&self.way).as_ref().is_none_or(is_on_it)
    }

    /// It is open, and the store tells a way by which everybody may open it.
    pub(crate) async fn is_for_everybody(&self) -> bool {
        let handle = self.lock().handle.clone();
        let way = match handle {
            Some(handle) => handle.public_ancestors().await.unwrap_or(None),
            None => None,
        };
        let is_known = way.is_some();
        self.note_ancestors(way);
        is_known
    }

    /// Writes back what is dirty, drops all pages, and goes to `to`, once in its life. Reads and writes under way
    /// end before, or come after; what readers hold they keep. `coming` is locked by who looks for files in
    /// both caches.
    ///
    /// # Errors
    /// The store's: it stays then.
    pub(crate) async fn move_to(
        self: &Arc<Self>,
        to: Arc<Core>,
        coming: Arc<Mutex<()>>,
    ) -> Outcome {
        let file = self.clone();
        let (from, target) = (self.core().clone(), to.clone());
        if Arc::ptr_eq(&from, &to) || self.has_moved() {
            return Ok(());
        }
        let work = async move {
            file.flush_blocks(0, u64::MAX, true).await?;
            file.drop_pages(&mut file.lock(), 0, Which::All);
            let _coming = locked(&coming);
            // Nothing has come since: the file is had alone. But it may be here by another call, or forgotten.
            let is_done = from.hand_over(&file, &target) || !from.has(&file);
            if is_done { Ok(()) } else { Err(Status::ServerFault) }
        };
        self.exclusive(work).await
    }
}
