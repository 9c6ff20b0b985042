//! A file that is open comes to another cache: what is read and written from then on is in the memory of that.

use std::sync::{Arc, Mutex};

use dafs_protocol::Status;

use crate::file::{CachedFile, Core, Which};
use crate::job::Outcome;
use crate::wait::locked;

impl CachedFile {
    /// It is open, and the store [says so](dafs_store::File::is_for_everybody).
    pub(crate) async fn is_for_everybody(&self) -> bool {
        let handle = self.lock().handle.clone();
        match handle {
            Some(handle) => handle.is_for_everybody().await.unwrap_or(false),
            None => false,
        }
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
