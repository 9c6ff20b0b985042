//! What the cache learns of the server's own changes of names and extended attributes. They change
//! a file's time of change, as what others do to its data does: without this, a file that was
//! renamed would be read from disk anew.

use dafs_protocol::{Attr, FileHandle, Status};
use dafs_store::{FileId, Store};

use crate::chain::Chain;

/// A cached file that is about to be changed so.
pub(crate) struct Touched {
    id: FileId,
    handle: FileHandle,
}

fn id_of(attr: &Attr) -> FileId {
    FileId { device: attr.device, inode: attr.inode }
}

impl Chain {
    /// Before a change of this name: what others did to its file is not to be taken for that. Also
    /// what has the name.
    pub(crate) async fn before_by_name(
        &self,
        store: &dyn Store,
        dir: &FileHandle,
        name: &[u8],
    ) -> (Option<Attr>, Option<Touched>) {
        match store.object(&self.who, dir, name).await {
            Ok(attr) => (Some(attr), self.look_before(store, (dir, name), id_of(&attr)).await),
            Err(_) => (None, None),
        }
    }

    async fn look_before(
        &self,
        store: &dyn Store,
        (dir, name): (&FileHandle, &[u8]),
        id: FileId,
    ) -> Option<Touched> {
        let unifier = &self.context.shared.unifier;
        unifier.find(id)?;
        let mark = unifier.mark();
        let found = store.lookup(&self.who, dir, name, true).await.ok()?;
        unifier.look(mark, &found.attr);
        Some(Touched { id: id_of(&found.attr), handle: found.handle })
    }

    /// As `before_by_name`, of a handle; dirty data goes out first, since its write-back would undo
    /// a part of some changes.
    pub(crate) async fn before_by_handle(
        &self,
        store: &dyn Store,
        handle: &FileHandle,
    ) -> Option<Touched> {
        let unifier = &self.context.shared.unifier;
        let mark = unifier.mark();
        let attr = store.attr(&self.who, handle).await.ok()?;
        let file = unifier.find(id_of(&attr))?;
        unifier.look(mark, &attr);
        // What cannot be written is told to those who wrote it.
        let _ = file.flush().await;
        Some(Touched { id: id_of(&attr), handle: *handle })
    }

    /// After the change. The pages of a file that has no name any more are of no use, unless it is
    /// open.
    pub(crate) async fn after_change(&self, store: &dyn Store, touched: Option<Touched>) {
        let Some(Touched { id, handle }) = touched else { return };
        let unifier = &self.context.shared.unifier;
        let mark = unifier.mark();
        match store.attr(&self.who, &handle).await {
            Ok(attr) if attr.links > 0 => unifier.note_unmodified(mark, &attr),
            Ok(_) | Err(Status::Stale) => {
                if let (Some(recorder), Some(file)) =
                    (&self.context.shared.recorder, unifier.find(id))
                {
                    recorder.gone(&file);
                }
                unifier.forget(id);
            }
            Err(_) => {}
        }
    }
}
