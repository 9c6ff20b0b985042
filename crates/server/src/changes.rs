//! Before a change that is not to be done twice: the locks of its names, and the log of it.

use dafs_protocol::{CreateMode, FileHandle, Operation, Outcome, StateId, Status};
use dafs_store::FileId;
use smallvec::{SmallVec, smallvec};

use crate::chain::{Chain, Stop};
use crate::exports::{Exports, Place};
use crate::intent_log::{Intent, Name};
use crate::planted::{Defect, planted};

/// Names that an operation changes.
type Names<'a> = SmallVec<[(FileHandle, &'a [u8]); 2]>;

impl Chain {
    /// Does an operation that was not done before.
    pub(crate) async fn run_one(
        &mut self,
        operations: &[Operation<'_>],
        operation: &Operation<'_>,
    ) -> Result<Outcome, Stop> {
        if !operation.is_logged() {
            return self.operation(operation).await;
        }
        // The peer may take for ever: before the lock, for which others wait for.
        if let Operation::Create { target_bytes, .. } = operation {
            self.target = self.bring_bytes(*target_bytes as usize).await?;
        }
        if !self.begin_change(operations, operation).await {
            return Err(Stop::Broken);
        }
        let result = self.operation(operation).await;
        if !is_only_change(operations) {
            self.name_lock = None;
        }
        result
    }

    /// A change comes next. False: the session has ended, and its client may know already that
    /// nothing was begun.
    async fn begin_change(&mut self, operations: &[Operation<'_>], change: &Operation<'_>) -> bool {
        let session = self.session.clone();
        let shared = &self.context.shared;
        // Who may map a file is known by what has the name that goes.
        if shared.changes.log.is_none() && shared.scopes.is_none() {
            return !session.life.has_ended();
        }
        // Not two at a time: who has one and waits for the other could wait for ever.
        self.name_lock = None;
        let names = self.names_of(change);
        if !names.is_empty() && !planted(Defect::NameTurnsNotTaken) {
            let shared = &self.context.shared;
            let keys = names.iter().filter_map(|(dir, name)| turn_key(&shared.exports, dir, name));
            self.name_lock = Some(shared.changes.name_locks.take(keys).await);
        }
        let Some(intent_log) = &session.intent_log else { return !session.life.has_ended() };
        let logged = std::mem::replace(&mut self.logged, true);
        let intent = match is_only_change(operations) && !logged {
            true => self.intent(change, &names).await,
            false => None,
        };
        if session.life.has_ended() {
            return false;
        }
        if !logged {
            let intent = intent.map(|intent| (operations.len(), intent));
            intent_log.begun(self.slot, self.sequence, intent);
        }
        true
    }

    fn names_of<'a>(&self, change: &Operation<'a>) -> Names<'a> {
        let name = |dir: &FileHandle, name: &'a [u8]| Some((self.handle(dir).ok()?, name));
        let names: SmallVec<[_; 2]> = match change {
            Operation::Open { dir, path, flags, .. } if flags.create != CreateMode::No => {
                smallvec![name(dir, path)]
            }
            Operation::Create { dir, name: new, .. } | Operation::Link { dir, name: new, .. } => {
                smallvec![name(dir, new)]
            }
            Operation::Remove { dir, name: old, .. } => smallvec![name(dir, old)],
            Operation::Rename { from_dir, from, to_dir, to, .. } => {
                smallvec![name(from_dir, from), name(to_dir, to)]
            }
            _ => SmallVec::new(),
        };
        names.into_iter().flatten().collect()
    }

    /// What the operation is about to do to these names, if a look at them can tell later whether
    /// it was done.
    async fn intent(&self, change: &Operation<'_>, names: &Names<'_>) -> Option<Intent> {
        let whole = |&(dir, name): &(FileHandle, &[u8])| {
            let name = name.to_vec(); // not payload: a name
            Name { dir, name }
        };
        let first = names.first()?;
        if !can_be_told(change) || first.1.contains(&b'/') {
            return None;
        }
        let there = self.object(*first).await;
        match change {
            Operation::Rename { .. } => {
                let (from, to) = (whole(first), whole(names.get(1)?));
                Some(match there? {
                    Some(object) => Intent::Rename { object, from, to },
                    None => Intent::Fail { name: from, there: false },
                })
            }
            Operation::Remove { .. } => {
                let from = whole(first);
                Some(match there? {
                    Some(object) => Intent::Remove { object, from },
                    None => Intent::Fail { name: from, there: false },
                })
            }
            Operation::Link { handle, state: StateId::NONE, .. } => {
                let (_, export, inner) = self.writable(&self.handle(handle).ok()?).ok()?;
                let attr = export.store.attr(&self.who, &inner).await.ok()?;
                let object = FileId { device: attr.device, inode: attr.inode };
                Some(match there? {
                    Some(_) => Intent::Fail { name: whole(first), there: true },
                    None => Intent::Link { object, to: whole(first) },
                })
            }
            Operation::Open { .. } | Operation::Create { .. } => Some(match there? {
                Some(_) => Intent::Fail { name: whole(first), there: true },
                None => Intent::Make { to: whole(first) },
            }),
            _ => None,
        }
    }

    /// What has this name; the outer `None`: that cannot be told.
    async fn object(&self, (dir, name): (FileHandle, &[u8])) -> Option<Option<FileId>> {
        let (_, export, dir) = self.writable(&dir).ok()?;
        match export.store.object(&self.who, &dir, name).await {
            Ok(attr) => Some(Some(FileId::from(&attr))),
            Err(Status::NoEnt) => Some(None),
            Err(_) => None,
        }
    }
}

/// A look at names before and after it tells whether it was done.
fn can_be_told(change: &Operation<'_>) -> bool {
    match change {
        Operation::Rename { .. } | Operation::Remove { .. } => true,
        Operation::Link { state, .. } => *state == StateId::NONE,
        Operation::Open { flags, .. } => flags.create == CreateMode::Exclusive,
        // Special bits are set after a directory was made.
        Operation::Create { mode, .. } => mode & !0o1777 == 0,
        _ => false,
    }
}

/// By what names are locked: the export, since one whose disk hangs is to keep no other waiting, and
/// the last component, since a directory has several handles, and several ways lead to it.
fn turn_key<'a>(exports: &Exports, dir: &FileHandle, path: &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (number, path) = match exports.place(dir, path).ok()? {
        Place::In { number, path, .. } | Place::Root { number, path, .. } => (number, path),
        Place::Virtual => return None,
    };
    let last = path.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty());
    Some((number, last.unwrap_or_default()))
}

/// There is one change, and all else looks at names and attributes: nothing that waits for
/// others while the lock is held.
fn is_only_change(operations: &[Operation<'_>]) -> bool {
    use Operation as O;
    let looks = |operation: &Operation<'_>| {
        let of_names = matches!(
            operation,
            O::GetRoot { .. } | O::Lookup { .. } | O::LookupParent { .. } | O::Access { .. }
        );
        of_names || matches!(operation, O::GetAttr { .. } | O::StatFs { .. })
    };
    let mut changes = operations.iter().filter(|operation| !looks(operation));
    changes.next().is_some_and(Operation::is_logged) && changes.next().is_none()
}
