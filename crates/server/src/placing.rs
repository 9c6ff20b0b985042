//! In which cache domain files are that are opened, and what follows when it changes who may open them.

use std::sync::Arc;

use dafs_protocol::{Attr, FileKind, Status};
use dafs_store::{Ancestors, FileId, Opened};
use dafs_unifier::{CachedFile, DomainId, Placement};

use crate::chain::Chain;
use crate::exports::Export;
use crate::scopes::{Scopes, all_may_read, all_may_search};

/// So often a file is judged by an open, before it goes where it may be in any case.
const ROUNDS_MAX: usize = 8;

/// Where a file is to be cached.
pub(crate) struct Placed {
    pub place: Placement,
    /// By which everybody may open it.
    way: Option<Ancestors>,
}

async fn public_ancestors(opened: &Opened, attr: &Attr) -> Option<Ancestors> {
    match all_may_read(attr) {
        true => opened.file.public_ancestors().await.unwrap_or(None),
        false => None,
    }
}

impl Chain {
    fn scopes(&self) -> Option<&Scopes> {
        self.context.shared.scopes.as_deref().filter(|scopes| scopes.are_used())
    }

    /// How often it was changed who may open what: to be asked before a file is opened that is
    /// [placed](Self::place) then.
    pub(crate) fn changes_of_rights(&self) -> u64 {
        self.context.shared.scopes.as_deref().map_or(0, Scopes::changes)
    }

    /// Where the data of a file is to be cached that was opened.
    pub(crate) async fn place(&self, export: &Export, opened: &Opened, writes: bool) -> Placed {
        let placed = |place| Placed { place, way: None };
        let Some(scopes) = self.scopes() else { return placed(export.domain.into()) };
        if export.domain != DomainId::FIRST {
            let barred = scopes.judge(&opened.attr, false).barred;
            return placed(Placement { wished: Some(export.domain), barred });
        }
        let unifier = &self.context.shared.unifier;
        let known = unifier.find(opened.file.id()).and_then(|file| unifier.domain_of(&file));
        let everybody = scopes.everybody();
        let maps = |domain| self.session.mappable.keys(self.conn(), domain).is_some();
        // Of all that there is, it maps what everybody may open, and perhaps what is its user's own.
        let is_other = everybody.is_some_and(maps) && !maps(DomainId::FIRST);
        let uid = self.who.uid;
        let own = scopes.of_user(uid).filter(|_| is_other);
        let is_own = own.is_some() && opened.attr.uid == uid;
        // What it costs to know is paid where it matters.
        let matters = known.is_some() && known == everybody || is_other && !is_own && !writes;
        let way = if matters { public_ancestors(opened, &opened.attr).await } else { None };
        let judged = scopes.judge(&opened.attr, way.is_some());
        let reads = |domain: &DomainId| Some(*domain) == everybody || Some(*domain) == own;
        let stays = known.filter(reads).is_some_and(|known| !judged.barred.contains(known));
        let wished = match is_other && !stays {
            true if is_own => judged.of_owner,
            true if way.is_some() => everybody,
            _ => None,
        };
        Placed { place: Placement { wished, barred: judged.barred }, way }
    }

    /// A file that was placed as it was judged after so many `changes` is where it may be, now that whoever changes
    /// that finds it.
    ///
    /// # Errors
    /// The store's: it could not be brought elsewhere.
    pub(crate) async fn check_place(
        &self,
        file: &Arc<CachedFile>,
        opened: &Opened,
        Placed { mut place, mut way }: Placed,
        mut changes: u64,
    ) -> Result<(), Status> {
        let Some(scopes) = self.scopes() else { return Ok(()) };
        let unifier = &self.context.shared.unifier;
        for round in 0.. {
            let domain = unifier.domain_of(file);
            if !domain.is_some_and(|domain| scopes.have(domain)) {
                // There it stays while it is open.
                return Ok(());
            }
            // Somebody may change rights all the time.
            let is_barred = domain.is_some_and(|domain| place.barred.contains(domain));
            if is_barred || round == ROUNDS_MAX {
                return unifier.move_out(file).await;
            }
            let is_there = domain.is_some() && domain == scopes.everybody();
            if is_there {
                file.note_ancestors(way.take());
            }
            let now = scopes.changes();
            if now == changes {
                return Ok(());
            }
            changes = now;
            let attr = opened.file.attr().await?;
            way = if is_there { public_ancestors(opened, &attr).await } else { None };
            place.barred = scopes.judge(&attr, way.is_some()).barred;
        }
        Ok(())
    }

    /// The mode, the owner or the access control list of an object has changed; these are its attributes now. What
    /// is cached is where it may be when this has ended.
    ///
    /// # Errors
    /// The store's: what somebody has written could not be written back, and stays where it was.
    pub(crate) async fn rights_changed(&self, attr: &Attr, list: bool) -> Result<(), Status> {
        let Some(scopes) = self.scopes() else { return Ok(()) };
        scopes.changed();
        let unifier = &self.context.shared.unifier;
        if attr.kind == FileKind::Directory {
            return match scopes.everybody() {
                Some(everybody) if list || !all_may_search(attr) => {
                    unifier.bar_below(FileId::from(attr), everybody).await
                }
                _ => Ok(()),
            };
        }
        // The path to it is as it was.
        let barred = scopes.judge(attr, !list).barred;
        unifier.bar(FileId::from(attr), barred).await
    }

    /// These objects have names elsewhere now, or one less.
    pub(crate) async fn paths_changed(&self, objects: &[Option<Attr>]) {
        let Some(scopes) = self.scopes() else { return };
        let Some(everybody) = scopes.everybody() else { return };
        scopes.changed();
        let unifier = &self.context.shared.unifier;
        for attr in objects.iter().flatten() {
            let outcome = match attr.kind {
                FileKind::Directory => unifier.bar_below(FileId::from(attr), everybody).await,
                _ => {
                    let barred = scopes.judge(attr, false).barred;
                    unifier.bar(FileId::from(attr), barred).await
                }
            };
            if let Err(status) = outcome {
                let (inode, device) = (attr.inode, attr.device);
                tracing::error!(
                    %status, inode, device,
                    "what all users map of a file stays there: its data cannot be written back"
                );
            }
        }
    }
}
