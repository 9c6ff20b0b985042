//! From work to a chain of operations: usually one message, with steps before it for long paths
//! and for changes that need two directories.

use dafs_protocol::{
    CommitLevel, CreateMode, ExtentList, FileHandle, OpenFlags, Operation, PATH_BYTES_MAX, StateId,
    Status,
};
use smallvec::SmallVec;

use super::files::Files;
use super::give_back;
use super::ids::{FileKey, PastRequest};
use super::open_options::OpenOptions;
use super::place::{Place, Put};
use super::work::{Step, Work};

/// Operations of one request.
pub(super) type Chain<'a> = SmallVec<[Operation<'a>; 2]>;

/// Bytes of a path that stands beside an attribute's name.
const BESIDE_NAME_BYTES_MAX: usize = 320;
/// Bytes of each of two paths.
const BESIDE_PATH_BYTES_MAX: usize = 280;

/// The step that comes first, if there is one. `tight`: the whole chain did not fit a message.
pub(super) fn step(work: &mut Work, tight: bool) -> Option<Step> {
    if let Work::Read { .. } | Work::Write { .. } = work {
        // What most calls are has no place to be found.
        return None;
    }
    let bytes_max = match work {
        Work::GetXattr { .. } | Work::SetXattr { .. } => BESIDE_NAME_BYTES_MAX,
        Work::RemoveXattr { .. } => BESIDE_NAME_BYTES_MAX,
        Work::Link { .. } | Work::Rename { .. } | Work::Put(_) => BESIDE_PATH_BYTES_MAX,
        _ => PATH_BYTES_MAX,
    };
    // The last component stays: it is what is made, removed or not followed.
    let bytes_max = if tight { 0 } else { bytes_max };
    for (index, place) in work.places().into_iter().enumerate() {
        if let Some(bytes) = place.and_then(|place| walk(place, bytes_max)) {
            return Some(Step::Walk { second: index == 1, bytes });
        }
    }
    let needs_from = match work {
        Work::Link { to, from_handle: None, from } => {
            !to.split().0.is_empty() && !from.rest().is_empty()
        }
        Work::Rename { from, to, from_dir: None, .. } => two_directories(from, to),
        Work::Put(put) if put.from_dir.is_none() => {
            put.rename_to.as_ref().is_some_and(|to| two_directories(&put.place, to))
        }
        _ => false,
    };
    needs_from.then_some(Step::From)
}

fn walk(place: &Place, bytes_max: usize) -> Option<usize> {
    if bytes_max == 0 {
        // Up to the last component, in parts of a path's length.
        let directory = place.split().0.len();
        return match directory {
            0 => None,
            bytes if bytes <= PATH_BYTES_MAX => Some(bytes),
            _ => place.step(PATH_BYTES_MAX),
        };
    }
    place.step(bytes_max)
}

fn two_directories(from: &Place, to: &Place) -> bool {
    let (from_dir, to_dir) = (from.split().0, to.split().0);
    !from_dir.is_empty() && !to_dir.is_empty() && !same_directory(from, to)
}

fn same_directory(from: &Place, to: &Place) -> bool {
    from.base(FileHandle::default()) == to.base(FileHandle::default())
        && from.split().0 == to.split().0
}

/// The operations of a step.
pub(super) fn step_chain<'a>(
    chain: &mut Chain<'a>,
    work: &'a mut Work,
    step: Step,
    root: FileHandle,
) -> Result<(), Status> {
    let no_follow_from = matches!(work, Work::Link { .. });
    let [first, second] = work.places();
    let (place, bytes, no_follow) = match step {
        Step::Walk { second: false, bytes } => (first, Some(bytes), false),
        Step::Walk { second: true, bytes } => (second, Some(bytes), false),
        Step::From => (first, None, no_follow_from),
    };
    let place: &'a Place = place.ok_or(Status::Inval)?;
    let dir = place.base(root);
    let path = match bytes {
        Some(bytes) => place.rest().get(..bytes).ok_or(Status::Inval)?,
        None if no_follow => place.rest(),
        None => place.split().0,
    };
    chain.push(Operation::Lookup { dir, path, no_follow });
    Ok(())
}

/// Notes what a step found.
pub(super) fn step_found(work: &mut Work, step: Step, handle: FileHandle) {
    match step {
        Step::Walk { second, bytes } => {
            let [first, other] = work.places();
            if let Some(place) = if second { other } else { first } {
                place.walk(bytes, handle);
            }
        }
        Step::From => match work {
            Work::Link { from_handle, .. } => *from_handle = Some(handle),
            Work::Rename { from_dir, .. } => *from_dir = Some(handle),
            Work::Put(put) => put.from_dir = Some(handle),
            _ => {}
        },
    }
}

/// The operations of the work itself. `tight`: as little as possible in one message.
pub(super) fn chain<'a>(
    chain: &mut Chain<'a>,
    work: &'a Work,
    root: FileHandle,
    files: &'a Files,
    tight: bool,
) -> Result<(), Status> {
    match work {
        Work::Null => chain.push(Operation::Null),
        Work::Stats => chain.push(Operation::SessionStats),
        Work::Sync => chain.push(Operation::SyncFs { handle: root }),
        Work::Destroy => chain.push(Operation::SessionDestroy),
        Work::CloseState { state } => chain.push(Operation::Close { state: *state }),
        Work::SlotQuery(PastRequest { session, slot, sequence }) => {
            let (session, slot, sequence) = (*session, *slot, *sequence);
            chain.push(Operation::SlotQuery { session, slot, sequence });
        }
        Work::Register { user, groups } => {
            chain.push(Operation::CredRegister { uid: user.uid, gid: user.gid, groups });
        }
        Work::Unregister { cred } => chain.push(Operation::CredRelease { cred: *cred }),
        Work::OwnerRelease { owner } => chain.push(Operation::OwnerRelease { owner: *owner }),
        Work::CancelLock { ticket } => chain.push(Operation::LockCancel { ticket: *ticket }),
        Work::ReclaimComplete => chain.push(Operation::ReclaimComplete),
        Work::Reclaim { file, lock } => {
            let state = files.usable(*file)?.state;
            chain.push(Operation::Lock { state, lock: *lock, wait: false, reclaim: true });
        }
        Work::GiveBack { file, steps } => {
            chain.extend(give_back::operations(steps, files.usable(*file)?.state));
        }
        Work::Parent { handle } => chain.push(Operation::LookupParent { handle: *handle }),
        Work::LinkFile { file, to } => {
            let file = files.usable(*file)?;
            let (handle, state) = (file.handle, file.state);
            let (dir, name) = find_parent(chain, to, root)?;
            chain.push(Operation::Link { handle, state, dir, name });
        }
        Work::CopyRange { .. } | Work::CloneRange { .. } => {
            chain.push(copy_chain(work, files)?);
            // Nobody keeps what the server copies: it is safe from its end when it is done.
            let to = work.target().ok_or(Status::BadF)?;
            let state = files.usable(to)?.state;
            chain.push(Operation::Commit { state, offset: 0, len: 0, level: CommitLevel::Flush });
        }
        Work::Open { place, options } => chain.push(open(place, options, root)),
        Work::Get { place, len } => get(chain, place, *len, root),
        Work::Put(put) => self::put(chain, put, root, tight)?,
        Work::Link { .. } | Work::Rename { .. } | Work::Remove { .. } | Work::Make { .. } => {
            change(chain, work, root)?;
        }
        Work::Reopen { .. } => reopen(chain, work, root, files)?,
        Work::Rewrite { file, offset, len, .. } => {
            let state = files.usable(*file)?.state;
            let extents = ExtentList::one(*offset, *len);
            let stability = dafs_protocol::Stability::Unstable;
            chain.push(Operation::Write { state, extents, stability, within: false });
        }
        _ if work.file().is_some() => file_chain(chain, work, files)?,
        _ => named_chain(chain, work, root),
    }
    Ok(())
}

/// What is asked for beside the work: it does not fail where this fails.
pub(super) fn beside(
    chain: &mut Chain<'_>,
    work: &Work,
    root: FileHandle,
    files: &Files,
    tight: bool,
) -> Result<(), Status> {
    if !tight && work.changes_names() {
        let looks = work.dirs_to_look_at(root).into_iter().flatten();
        chain.extend(looks.map(|handle| Operation::GetAttr { handle, state: StateId::NONE }));
    }
    if let Some(file) = work.file_to_flush() {
        let state = files.usable(file)?.state;
        chain.push(Operation::Commit { state, offset: 0, len: 0, level: CommitLevel::Flush });
    }
    Ok(())
}

/// A look-up where there is something to walk, and the handle to use after it.
fn find<'a>(
    chain: &mut Chain<'a>,
    base: FileHandle,
    path: &'a [u8],
    no_follow: bool,
) -> FileHandle {
    if path.is_empty() {
        return base;
    }
    chain.push(Operation::Lookup { dir: base, path, no_follow });
    FileHandle::PREVIOUS
}

/// The directory of a place, and the name in it.
fn find_parent<'a>(
    chain: &mut Chain<'a>,
    place: &'a Place,
    root: FileHandle,
) -> Result<(FileHandle, &'a [u8]), Status> {
    let (directory, name) = place.split();
    if name.is_empty() {
        return Err(Status::Busy);
    }
    Ok((find(chain, place.base(root), directory, false), name))
}

/// What acts on one object that has a name.
fn named_chain<'a>(chain: &mut Chain<'a>, work: &'a Work, root: FileHandle) {
    let mut find =
        |place: &'a Place, no_follow| find(chain, place.base(root), place.rest(), no_follow);
    let operation = match work {
        Work::Root => return,
        Work::Stat { place, no_follow } => {
            let handle = find(place, *no_follow);
            if handle == FileHandle::PREVIOUS {
                // The look-up answers the attributes.
                return;
            }
            Operation::GetAttr { handle, state: StateId::NONE }
        }
        Work::Find { place } => {
            let handle = find(place, true);
            if handle == FileHandle::PREVIOUS {
                return;
            }
            Operation::GetAttr { handle, state: StateId::NONE }
        }
        Work::StatFs { place } => Operation::StatFs { handle: find(place, false) },
        Work::SyncDir { place } => Operation::SyncDir { dir: find(place, true) },
        Work::Access { place, mask } => {
            Operation::Access { handle: find(place, false), mask: *mask }
        }
        Work::SetAttr { place, set, no_follow } => {
            let handle = find(place, *no_follow);
            Operation::SetAttr { handle, state: StateId::NONE, set: *set }
        }
        Work::ReadLink { place } => Operation::ReadLink { handle: find(place, true) },
        Work::ReadDir { place, cookie, bytes, attributes, handles } => Operation::ReadDir {
            dir: find(place, false),
            cookie: *cookie,
            bytes_max: *bytes,
            attributes: *attributes,
            handles: *handles,
        },
        Work::GetXattr { place, name, .. } => {
            let size_max = u32::try_from(work.reply_bytes()).unwrap_or(0);
            Operation::GetXattr { handle: find(place, false), name, size_max }
        }
        Work::ListXattr { place, .. } => {
            let size_max = u32::try_from(work.reply_bytes()).unwrap_or(0);
            Operation::ListXattr { handle: find(place, false), size_max }
        }
        Work::SetXattr { place, name, value, flags } => {
            let value_bytes = u32::try_from(value.len()).unwrap_or(u32::MAX);
            Operation::SetXattr { handle: find(place, false), name, value_bytes, flags: *flags }
        }
        Work::CacheQueryAt { place, offset, len } => {
            let bytes_max = u32::try_from(work.reply_bytes()).unwrap_or(0);
            let (handle, state) = (find(place, true), StateId::NONE);
            Operation::CacheQuery { handle, state, offset: *offset, len: *len, bytes_max }
        }
        Work::RemoveXattr { place, name } => {
            Operation::RemoveXattr { handle: find(place, false), name }
        }
        other => unreachable!("not on a name: {other:?}"),
    };
    chain.push(operation);
}

/// What changes names.
fn change<'a>(chain: &mut Chain<'a>, work: &'a Work, root: FileHandle) -> Result<(), Status> {
    match work {
        Work::Make { place, kind, mode, rdev, target } => {
            if place.rest().is_empty() {
                return Err(Status::Exist);
            }
            let (dir, name) = find_parent(chain, place, root)?;
            let target_bytes = u32::try_from(target.len()).map_err(|_| Status::NameTooLong)?;
            let (kind, mode, rdev) = (*kind, *mode, *rdev);
            chain.push(Operation::Create { dir, name, kind, mode, rdev, target_bytes });
        }
        Work::Remove { place, directory } => {
            let (dir, name) = find_parent(chain, place, root)?;
            chain.push(Operation::Remove { dir, name, directory: *directory });
        }
        Work::Link { from, to, from_handle } => {
            let handle = match from_handle {
                Some(handle) => *handle,
                None => find(chain, from.base(root), from.rest(), true),
            };
            let (dir, name) = find_parent(chain, to, root)?;
            chain.push(Operation::Link { handle, state: StateId::NONE, dir, name });
        }
        Work::Rename { from, to, from_dir, no_replace, exchange, whiteout } => {
            rename(chain, (from, *from_dir), to, root, [*no_replace, *exchange, *whiteout])?;
        }
        other => unreachable!("no change of names: {other:?}"),
    }
    Ok(())
}

fn rename<'a>(
    chain: &mut Chain<'a>,
    (from, from_dir): (&'a Place, Option<FileHandle>),
    to: &'a Place,
    root: FileHandle,
    [no_replace, exchange, whiteout]: [bool; 3],
) -> Result<(), Status> {
    let name = from.split().1;
    if name.is_empty() {
        return Err(Status::Busy);
    }
    let (from_dir, (to_dir, to)) = match from_dir {
        Some(from_dir) => (from_dir, find_parent(chain, to, root)?),
        None if same_directory(from, to) => {
            let (dir, to) = find_parent(chain, to, root)?;
            (dir, (dir, to))
        }
        None => {
            // At most one of the two is walked, see `two_directories`.
            let (from_dir, _) = find_parent(chain, from, root)?;
            (from_dir, find_parent(chain, to, root)?)
        }
    };
    chain.push(Operation::Rename {
        from_dir,
        from: name,
        to_dir,
        to,
        no_replace,
        exchange,
        whiteout,
    });
    Ok(())
}

fn open<'a>(place: &'a Place, options: &OpenOptions, root: FileHandle) -> Operation<'a> {
    let create = match (options.create || options.unlinked, options.exclusive) {
        (false, _) => CreateMode::No,
        (true, false) => CreateMode::Unchecked,
        (true, true) => CreateMode::Exclusive,
    };
    let flags = OpenFlags {
        read: options.read,
        write: options.write || options.append,
        create,
        truncate: options.truncate,
        append: options.append,
        no_follow: options.no_follow,
        unlinked: options.unlinked,
        again: false,
    };
    let (dir, path) = (place.base(root), place.rest());
    Operation::Open { dir, path, flags, mode: options.mode, cache: options.cache }
}

fn get<'a>(chain: &mut Chain<'a>, place: &'a Place, len: u32, root: FileHandle) {
    let state = StateId::PREVIOUS;
    chain.push(open(place, &OpenOptions::read(), root));
    chain.push(Operation::Read { state, extents: ExtentList::one(0, len) });
    chain.push(Operation::Close { state });
}

fn put<'a>(
    chain: &mut Chain<'a>,
    put: &'a Put,
    root: FileHandle,
    tight: bool,
) -> Result<(), Status> {
    let state = StateId::PREVIOUS;
    if put.made.is_none() {
        let options = OpenOptions {
            exclusive: put.exclusive,
            truncate: !put.exclusive,
            mode: put.mode,
            ..OpenOptions::write()
        };
        chain.push(open(&put.place, &options, root));
        if put.len > 0 {
            let extents = ExtentList::one(0, put.len);
            let stability = dafs_protocol::Stability::Unstable;
            chain.push(Operation::Write { state, extents, stability, within: false });
        }
        if put.set != dafs_protocol::SetAttr::default() {
            let handle = FileHandle::PREVIOUS;
            chain.push(Operation::SetAttr { handle, state, set: put.set });
        }
        if put.commit {
            chain.push(Operation::Commit { state, offset: 0, len: 0, level: CommitLevel::File });
        }
        chain.push(Operation::Close { state });
    }
    match &put.rename_to {
        Some(to) if put.made.is_some() || !tight => {
            rename(chain, (&put.place, put.from_dir), to, root, [false; 3])
        }
        _ => Ok(()),
    }
}

/// What acts on an open file.
fn file_chain<'a>(chain: &mut Chain<'a>, work: &'a Work, files: &Files) -> Result<(), Status> {
    let key = work.file().ok_or(Status::BadF)?;
    let file = match work {
        Work::Close { .. } => files.closable(key)?,
        _ => files.usable(key)?,
    };
    let (state, handle) = (file.state, file.handle);
    chain.push(match work {
        Work::Read { offset, len, .. } | Work::Lend { offset, len, .. } => {
            Operation::Read { state, extents: ExtentList::one(*offset, *len) }
        }
        Work::ReadList { extents, .. } => Operation::Read { state, extents: extents.clone() },
        Work::Write { offset, len, stability, within, .. } => Operation::Write {
            state,
            extents: ExtentList::one(*offset, *len),
            stability: *stability,
            within: *within,
        },
        Work::WriteFlush { offset, len, .. } => Operation::Write {
            state,
            extents: ExtentList::one(*offset, *len),
            stability: dafs_protocol::Stability::Unstable,
            within: false,
        },
        Work::WriteList { extents, stability, .. } => {
            let (extents, stability) = (extents.clone(), *stability);
            Operation::Write { state, extents, stability, within: false }
        }
        Work::Append { len, stability, .. } => {
            Operation::Append { state, bytes: *len, stability: *stability }
        }
        Work::Commit { offset, len, level, .. } => {
            Operation::Commit { state, offset: *offset, len: *len, level: *level }
        }
        Work::FileAttr { .. } => Operation::GetAttr { handle, state },
        Work::FileSetAttr { set, .. } => Operation::SetAttr { handle, state, set: *set },
        Work::SetAttrOpen { handle: Some(handle), set, .. } => {
            Operation::SetAttr { handle: *handle, state: StateId::NONE, set: *set }
        }
        Work::SetAttrOpen { handle: None, set, .. } => {
            Operation::SetAttr { handle, state, set: *set }
        }
        Work::Fallocate { mode, offset, len, .. } => {
            Operation::Fallocate { state, mode: *mode, offset: *offset, len: *len }
        }
        Work::Seek { offset, hole, .. } => Operation::Seek { state, offset: *offset, hole: *hole },
        Work::Advise { offset, len, advice, cache, .. } => {
            let (offset, len, advice) = (*offset, *len, *advice);
            Operation::Advise { state, offset, len, advice, cache: *cache }
        }
        Work::CacheQuery { offset, len, .. } => {
            let bytes_max = u32::try_from(work.reply_bytes()).unwrap_or(0);
            Operation::CacheQuery { handle, state, offset: *offset, len: *len, bytes_max }
        }
        Work::References { first, count, accessed, .. } => {
            let (first, count, accessed) = (*first, *count, *accessed);
            Operation::RefsGet { state, first, count, accessed }
        }
        Work::Extents { offset, len, .. } => {
            let bytes_max = u32::try_from(work.reply_bytes()).unwrap_or(0);
            Operation::Extents { state, offset: *offset, len: *len, bytes_max }
        }
        Work::Lock { lock, wait, .. } => {
            Operation::Lock { state, lock: *lock, wait: *wait, reclaim: false }
        }
        Work::Unlock { owner, range, .. } => {
            Operation::Unlock { state, owner: *owner, range: *range }
        }
        Work::LockTest { lock, .. } => Operation::LockTest { state, lock: *lock },
        Work::Close { .. } => Operation::Close { state },
        other => unreachable!("not on a file: {other:?}"),
    });
    Ok(())
}

/// Between two files of the server.
fn copy_chain<'a>(work: &Work, files: &Files) -> Result<Operation<'a>, Status> {
    let states = |file: &FileKey, to: &FileKey| -> Result<_, Status> {
        Ok((files.usable(*file)?.state, files.usable(*to)?.state))
    };
    match work {
        Work::CopyRange { file, offset, to, to_offset, len } => {
            let ((from, to), from_offset) = (states(file, to)?, *offset);
            Ok(Operation::CopyRange { from, from_offset, to, to_offset: *to_offset, len: *len })
        }
        Work::CloneRange { file, offset, to, to_offset, len } => {
            let ((from, to), from_offset) = (states(file, to)?, *offset);
            Ok(Operation::CloneRange { from, from_offset, to, to_offset: *to_offset, len: *len })
        }
        other => unreachable!("no copy: {other:?}"),
    }
}

fn reopen<'a>(
    chain: &mut Chain<'a>,
    work: &Work,
    root: FileHandle,
    files: &'a Files,
) -> Result<(), Status> {
    let Work::Reopen { file, by_path } = work else { return Err(Status::Inval) };
    let file = files.any(*file).ok_or(Status::BadF)?;
    let options = OpenOptions {
        create: false,
        exclusive: false,
        truncate: false,
        unlinked: false,
        ..file.options
    };
    if let Operation::Open { dir, path, flags, mode, cache } = open(&file.place, &options, root) {
        let flags = OpenFlags { again: true, ..flags };
        let (dir, path) = if *by_path { (dir, path) } else { (file.handle, &[][..]) };
        chain.push(Operation::Open { dir, path, flags, mode, cache });
    }
    Ok(())
}
