//! Chains of operations: well-formed, of files of the liar's own and of others.

use dafs_protocol::{
    CacheHint, CommitLevel, CreateMode, CredHandle, Extent, ExtentList, FileHandle, FileKind,
    LockKind, LockRange, LockRequest, OpenFlags, Operation, OwnerKey, SessionId, SetAttr, SlotId,
    Stability, StateId,
};
use dafs_tests::dice::Dice;

use crate::habits::{DEEDS, Deed, Habits};

/// Names of the liar's files, in the directory that is everybody's.
pub(crate) const FILES: [&[u8]; 6] = [b"a", b"b", b"c", b"d", b"e", b"f"];
/// Of its links and directories.
pub(crate) const OTHERS: [&[u8]; 4] = [b"k", b"l", b"m", b"n"];
/// Of values beside a file.
pub(crate) const XATTRS: [&[u8]; 2] = [b"user.one", b"user.two"];
/// What it may not have, but for the first.
const FOREIGN: [&[u8]; 4] = [b"data", b"secret", b"private", b"private/written"];

/// Its files stay below this.
pub(crate) const FILE_BYTES: usize = 4 << 20;
/// Data of one request at most.
pub(crate) const DATA_BYTES: usize = 1 << 20;

/// What a liar knows of the server.
#[derive(Debug, Default, Clone)]
pub(crate) struct Loot {
    pub root: FileHandle,
    /// The directory that is everybody's.
    pub home: FileHandle,
    pub handles: Vec<FileHandle>,
    /// Of all its sessions.
    pub states: Vec<StateId>,
    pub sessions: Vec<SessionId>,
}

/// Draws chains.
pub(crate) struct Drawer<'a> {
    pub dice: &'a mut Dice,
    pub habits: &'a Habits,
    pub loot: &'a Loot,
    /// Of the session that will ask.
    pub states: &'a [StateId],
}

pub(crate) fn flags(write: bool) -> OpenFlags {
    OpenFlags {
        read: true,
        write,
        create: if write { CreateMode::Unchecked } else { CreateMode::No },
        truncate: false,
        append: false,
        no_follow: false,
        unlinked: false,
        again: false,
    }
}

impl Drawer<'_> {
    pub(crate) fn chain(&mut self) -> Vec<Operation<'static>> {
        let count = 1 + self.dice.below(self.habits.chain);
        (0..count).map(|_| self.operation()).collect()
    }

    fn operation(&mut self) -> Operation<'static> {
        let mut deed = DEEDS[self.dice.weighted(&self.habits.deeds)];
        let opens = [Deed::Open, Deed::OpenOthers];
        if self.states.is_empty() && !opens.contains(&deed) && !self.dice.once_in(4) {
            let others = self.habits.deeds[1] > self.habits.deeds[0];
            deed = if others { Deed::OpenOthers } else { Deed::Open };
        }
        match deed {
            Deed::Open | Deed::OpenOthers => self.open(deed == Deed::Open),
            Deed::Write | Deed::WriteList | Deed::Append => self.write(deed),
            Deed::Read | Deed::ReadPieces => self.read(deed == Deed::Read),
            Deed::SetXattr | Deed::GetXattr => self.xattr(deed == Deed::SetXattr),
            Deed::MakeLink | Deed::ReadLink | Deed::Names => self.names(deed),
            Deed::List => Operation::ReadDir {
                dir: self.handle(),
                cookie: 0,
                bytes_max: self.dice.size(1 << 16) as u32,
                attributes: self.dice.once_in(2),
                handles: self.dice.once_in(2),
            },
            Deed::Close => Operation::Close { state: self.state() },
            Deed::Copy => Operation::CopyRange {
                from: self.state(),
                from_offset: self.offset(),
                to: self.state(),
                to_offset: self.offset() / 2,
                len: self.dice.size(FILE_BYTES / 2) as u64,
            },
            Deed::Resize => self.resize(),
            Deed::Lock => self.lock(),
            Deed::Look => self.look(),
            Deed::Other => self.other(),
        }
    }

    /// Mostly one of its session.
    fn state(&mut self) -> StateId {
        match self.dice.below(24) {
            0 => StateId(self.dice.draw() % 64),
            1 => StateId::PREVIOUS,
            2 if !self.loot.states.is_empty() => self.dice.one(&self.loot.states),
            _ if self.states.is_empty() => StateId::PREVIOUS,
            _ => self.dice.one(self.states),
        }
    }

    fn handle(&mut self) -> FileHandle {
        match self.dice.below(12) {
            0 => FileHandle::PREVIOUS,
            1 => self.loot.root,
            2 => {
                let mut forged = self.loot.home;
                forged.0[self.dice.below(64)] ^= 1 << self.dice.below(8);
                forged
            }
            3..7 if !self.loot.handles.is_empty() => self.dice.one(&self.loot.handles),
            _ => self.loot.home,
        }
    }

    fn offset(&mut self) -> u64 {
        let offset = self.dice.size(self.habits.offsets) - 1;
        let whole = self.dice.one(&[1, 1, 4096, 65_536]);
        (offset - offset % whole) as u64
    }

    fn open(&mut self, own: bool) -> Operation<'static> {
        let mut flags = flags(own);
        let (dir, path) = match own {
            true => (self.loot.home, self.dice.one(&FILES)),
            false => (self.loot.root, FOREIGN[self.dice.weighted(&[12, 1, 1, 1])]),
        };
        flags.truncate = own && self.dice.once_in(16);
        flags.append = own && self.dice.once_in(8);
        flags.unlinked = own && self.dice.once_in(32);
        let mode = self.dice.one(&[0o600, 0o600, 0o644, 0o4755]);
        Operation::Open { dir, path, flags, mode, cache: CacheHint::default() }
    }

    fn stability(&mut self) -> Stability {
        if self.dice.once_in(32) { Stability::File } else { Stability::Unstable }
    }

    /// As often all as less.
    fn bytes(&mut self, most: usize) -> usize {
        if self.dice.once_in(2) { most } else { self.dice.size(most) }
    }

    fn extents(&mut self, list: bool, most: usize) -> ExtentList {
        let offset = self.offset();
        if !list {
            return ExtentList::one(offset, self.bytes(most) as u32);
        }
        let count = self.dice.one(self.habits.pieces);
        let len = self.dice.size((most / count).max(1));
        let len = if self.dice.once_in(2) { 1 } else { len };
        let stride = self.dice.one(&[1, len, 4096, 65_536]).max(len);
        let stride = stride.min(FILE_BYTES / count).max(len) as u64;
        let extent = Extent { offset, len: len as u32, count: count as u32, stride };
        ExtentList::new(&[extent]).unwrap_or_else(|| ExtentList::one(0, 1))
    }

    fn write(&mut self, deed: Deed) -> Operation<'static> {
        let (state, stability) = (self.state(), self.stability());
        // A chain brings no more than a request may.
        let most = self.habits.bytes.min(DATA_BYTES / self.habits.chain.clamp(1, 4));
        match deed {
            Deed::Append => {
                Operation::Append { state, bytes: self.dice.size(most / 4) as u32, stability }
            }
            _ => {
                let extents = self.extents(deed == Deed::WriteList, most);
                Operation::Write { state, extents, stability, within: self.dice.once_in(8) }
            }
        }
    }

    fn read(&mut self, one: bool) -> Operation<'static> {
        let extents = self.extents(!one, self.habits.bytes);
        Operation::Read { state: self.state(), extents }
    }

    fn xattr(&mut self, set: bool) -> Operation<'static> {
        let (handle, name) = (self.handle(), self.dice.one(&XATTRS));
        match set {
            true => {
                let value_bytes = self.bytes(3000) as u32;
                Operation::SetXattr { handle, name, value_bytes, flags: self.dice.below(3) as u8 }
            }
            false if self.dice.once_in(2) => {
                Operation::ListXattr { handle, size_max: self.dice.size(1 << 16) as u32 }
            }
            false => Operation::GetXattr { handle, name, size_max: self.dice.size(1 << 16) as u32 },
        }
    }

    fn names(&mut self, deed: Deed) -> Operation<'static> {
        let (dir, name) = (self.loot.home, self.dice.one(&OTHERS));
        let other = self.dice.one(&FILES);
        match (deed, self.dice.below(6)) {
            (Deed::MakeLink, _) => {
                let (kind, target_bytes) = (FileKind::Symlink, self.dice.size(4000) as u32);
                Operation::Create { dir, name, kind, mode: 0o777, rdev: 0, target_bytes }
            }
            (Deed::ReadLink, _) => Operation::ReadLink { handle: self.handle() },
            (_, 0) => {
                let kind = FileKind::Directory;
                Operation::Create { dir, name, kind, mode: 0o700, rdev: 0, target_bytes: 0 }
            }
            (_, 1) => Operation::Remove { dir, name, directory: self.dice.once_in(2) },
            (_, 2) => Operation::Remove { dir, name: other, directory: false },
            (_, 3) => {
                let (no_replace, exchange) = (self.dice.once_in(4), self.dice.once_in(8));
                let to = self.dice.one(&FILES);
                Operation::Rename {
                    from_dir: dir,
                    from: other,
                    to_dir: dir,
                    to,
                    no_replace,
                    exchange,
                    whiteout: false,
                }
            }
            (_, 4) => Operation::LookupParent { handle: self.handle() },
            _ => {
                let path = self.dice.one(&[name, other, b"../secret", b"../private"]);
                Operation::Lookup { dir, path, no_follow: self.dice.once_in(2) }
            }
        }
    }

    fn resize(&mut self) -> Operation<'static> {
        let (state, offset) = (self.state(), self.offset());
        if self.dice.once_in(2) {
            let size = Some(offset);
            let set = SetAttr { size, ..SetAttr::default() };
            return Operation::SetAttr { handle: self.handle(), state, set };
        }
        let mode = self.dice.one(&[0, 1, 3, 0x10, 0xff]);
        Operation::Fallocate { state, mode, offset, len: self.dice.size(FILE_BYTES / 2) as u64 }
    }

    fn lock(&mut self) -> Operation<'static> {
        let kind = self.dice.one(&[LockKind::Posix, LockKind::Ofd]);
        let owner = OwnerKey { kind, number: self.dice.draw() % 4 };
        let first = self.dice.draw() % 64;
        let range = LockRange::new(first, first + self.dice.draw() % 64).unwrap_or(LockRange::ALL);
        let lock = LockRequest { owner, range, exclusive: self.dice.once_in(2), pid: 1 };
        let state = self.state();
        match self.dice.below(6) {
            0 => Operation::Unlock { state, owner, range },
            1 => Operation::LockTest { state, lock },
            2 => Operation::OwnerRelease { owner },
            3 => {
                let ticket = dafs_protocol::LockTicket(self.dice.draw() % 64);
                Operation::LockCancel { ticket }
            }
            _ => {
                let (wait, reclaim) = (self.dice.once_in(2), self.dice.once_in(16));
                Operation::Lock { state, lock, wait, reclaim }
            }
        }
    }

    fn look(&mut self) -> Operation<'static> {
        let (state, handle, offset) = (self.state(), self.handle(), self.offset());
        let bytes_max = self.dice.size(1 << 16) as u32;
        match self.dice.below(6) {
            0 => Operation::GetAttr { handle, state: StateId::NONE },
            1 => Operation::CacheQuery { handle, state, offset, len: 0, bytes_max },
            2 => Operation::Extents { state, offset, len: FILE_BYTES as u64, bytes_max },
            3 => Operation::Seek { state, offset, hole: self.dice.once_in(2) },
            4 => Operation::Access { handle, mask: 7 },
            _ => {
                let advice = self.dice.below(6) as u8;
                let (len, cache) = (FILE_BYTES as u64, CacheHint::default());
                Operation::Advise { state, offset, len, advice, cache }
            }
        }
    }

    fn other(&mut self) -> Operation<'static> {
        let state = self.state();
        match self.dice.below(12) {
            0 => Operation::CredRegister { uid: 0, gid: 0, groups: b"" },
            1 => Operation::CredRelease { cred: CredHandle(self.dice.draw() as u32 % 4) },
            2 if !self.loot.sessions.is_empty() => Operation::SlotQuery {
                session: self.dice.one(&self.loot.sessions),
                slot: SlotId(self.dice.below(64) as u16),
                sequence: self.dice.draw() as u32 % 16,
            },
            3 if self.dice.once_in(8) => Operation::SessionDestroy,
            4 => Operation::SessionStats,
            5 => Operation::ReclaimComplete,
            6 => Operation::StatFs { handle: self.handle() },
            7 => Operation::SyncDir { dir: self.handle() },
            8 => Operation::OpenDowngrade { state, read: true, write: self.dice.once_in(2) },
            9 | 10 => {
                let level = self.dice.one(&[CommitLevel::Flush, CommitLevel::Data]);
                Operation::Commit { state, offset: 0, len: 0, level }
            }
            _ => Operation::Null,
        }
    }
}
