//! Random messages from a seed: for the tests here and the seeds of the fuzzers.
#![allow(dead_code, clippy::unwrap_used)] // each user needs a part

use dafs_protocol::*;

/// SplitMix64.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.bits() % n
    }
    pub fn bool(&mut self) -> bool {
        self.below(2) == 0
    }
    /// Small, large and special numbers alike.
    pub fn u64(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(8),
            1 => u64::MAX - self.below(4),
            _ => self.bits() >> self.below(64),
        }
    }
    pub fn u32(&mut self) -> u32 {
        self.u64() as u32
    }
    pub fn offset(&mut self) -> u64 {
        self.u64() >> 2
    }
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.bits() as u8)
    }
    pub fn bytes(&mut self, max: u64) -> Vec<u8> {
        (0..self.below(max + 1)).map(|_| self.bits() as u8).collect()
    }
    fn option<T>(&mut self, make: impl FnOnce(&mut Random) -> T) -> Option<T> {
        self.bool().then(|| make(self))
    }
    pub fn name(&mut self) -> Vec<u8> {
        let max = if self.below(4) == 0 { 255 } else { 12 };
        let name = (0..=self.below(max)).map(|_| match self.bits() as u8 {
            0 | b'/' | b'.' => b'x',
            byte => byte,
        });
        name.collect()
    }
    pub fn path(&mut self) -> Vec<u8> {
        let max = if self.below(4) == 0 { 640 } else { 24 };
        (0..self.below(max + 1)).map(|_| self.bits() as u8 | 1).collect()
    }
    pub fn handle(&mut self) -> FileHandle {
        match self.below(8) {
            0 => FileHandle::PREVIOUS,
            1 => FileHandle::default(),
            2 => FileHandle(self.array()),
            _ => {
                let mut handle = FileHandle::default();
                let len = 1 + self.below(40) as usize;
                handle.0[..len].iter_mut().for_each(|byte| *byte = self.bits() as u8);
                handle
            }
        }
    }
    pub fn state(&mut self) -> StateId {
        StateId(self.u64())
    }
    pub fn extents(&mut self) -> ExtentList {
        let extents: Vec<Extent> = (0..=self.below(16)).map(|_| self.extent()).collect();
        ExtentList::new(&extents).unwrap()
    }
    fn extent(&mut self) -> Extent {
        match self.below(3) {
            0 => Extent {
                offset: self.offset(),
                len: 1 + self.below(512) as u32,
                count: 2 + self.below(20) as u32,
                stride: self.below(1 << 30),
            },
            1 => Extent::one(self.offset(), 0),
            _ => Extent::one(self.offset(), self.below(1 << 14) as u32),
        }
    }
    fn stability(&mut self) -> Stability {
        [Stability::Unstable, Stability::Data, Stability::File][self.below(3) as usize]
    }
    fn cache(&mut self) -> CacheHint {
        CacheHint { unit: self.u32(), policy: self.bits() as u8, class: self.bits() as u8 }
    }
    pub fn kind(&mut self) -> FileKind {
        use FileKind as K;
        let kinds =
            [K::File, K::Directory, K::Symlink, K::Fifo, K::Socket, K::CharDevice, K::BlockDevice];
        kinds[self.below(7) as usize]
    }
    fn time(&mut self) -> Timestamp {
        Timestamp { seconds: self.u64() as i64, nanoseconds: self.below(1_000_000_000) as u32 }
    }
    fn set_time(&mut self) -> SetTime {
        if self.bool() { SetTime::Now } else { SetTime::To(self.time()) }
    }
    pub fn attr(&mut self) -> Attr {
        Attr {
            kind: self.kind(),
            mode: self.u32(),
            links: self.u32(),
            uid: self.u32(),
            gid: self.u32(),
            size: self.u64(),
            allocated: self.u64(),
            inode: self.u64(),
            device: self.u64(),
            number: self.u64(),
            rdev: self.u64(),
            block_size: self.u32(),
            change: self.u64(),
            accessed: self.time(),
            modified: self.time(),
            changed: self.time(),
            created: self.option(Random::time),
        }
    }
    fn set_attr(&mut self) -> SetAttr {
        SetAttr {
            size: self.option(Random::u64),
            mode: self.option(Random::u32),
            uid: self.option(Random::u32),
            gid: self.option(Random::u32),
            accessed: self.option(Random::set_time),
            modified: self.option(Random::set_time),
        }
    }
    fn fs_attr(&mut self) -> FsAttr {
        FsAttr {
            bytes_total: self.u64(),
            bytes_free: self.u64(),
            bytes_available: self.u64(),
            files_total: self.u64(),
            files_free: self.u64(),
            name_bytes_max: self.u32(),
            block_size: self.u32(),
            read_only: self.bool(),
            lease_seconds: self.u32(),
        }
    }
    pub fn status(&mut self) -> Status {
        match self.below(4) {
            0 => Status::from_code(self.u32().max(1)),
            _ => Status::ALL[self.below(Status::ALL.len() as u64) as usize],
        }
    }
    pub fn entry(&mut self) -> DirEntry {
        DirEntry {
            cookie: self.u64(),
            name: self.name(),
            kind: self.option(Random::kind),
            attr: self.option(Random::attr),
            handle: self.option(Random::handle),
            id: self.option(Random::id),
        }
    }
    fn id(&mut self) -> ObjectId {
        ObjectId { inode: self.u64(), device: self.u64(), number: self.u64() }
    }
    pub fn session_attr(&mut self) -> SessionAttr {
        let waits = [WaitMode::Adaptive, WaitMode::Polled, WaitMode::Sleeping];
        SessionAttr {
            slots: self.bits() as u16,
            data_bytes_max: self.u32(),
            inline_bytes: self.u32(),
            wait: waits[self.below(3) as usize],
            lease_ms: self.u32(),
            tagged: self.bool(),
            rdma_read: self.bool(),
            read_ahead: self.bool(),
        }
    }
    pub fn owner(&mut self) -> OwnerKey {
        let kinds = [LockKind::Posix, LockKind::Ofd, LockKind::Whole];
        OwnerKey { kind: kinds[self.below(3) as usize], number: self.u64() }
    }
    pub fn lock_range(&mut self) -> LockRange {
        let (a, b) = (self.u64(), self.u64());
        LockRange::new(a.min(b), a.max(b)).unwrap()
    }
    pub fn lock(&mut self) -> LockRequest {
        let (owner, range) = (self.owner(), self.lock_range());
        LockRequest { owner, range, exclusive: self.bool(), pid: self.u32() }
    }
    pub fn callback(&mut self) -> CallbackRequest {
        let what = match self.below(3) {
            0 => Callback::Null,
            1 => Callback::Lock { ticket: LockTicket(self.u64().max(1)), result: Ok(()) },
            _ => {
                let ticket = LockTicket(self.u64().max(1));
                Callback::Lock { ticket, result: Err(self.status()) }
            }
        };
        CallbackRequest {
            slot: SlotId(self.bits() as u16),
            sequence: self.u32(),
            referring: self.option(|r| (SlotId(r.bits() as u16), r.u32())),
            what,
        }
    }
    pub fn head(&mut self) -> RequestHead {
        RequestHead {
            slot: SlotId(self.bits() as u16),
            sequence: self.u32(),
            cred: CredHandle(self.u32()),
        }
    }
}

/// Operations there are.
pub const OPERATIONS: u64 = 46;
/// Outcomes there are.
pub const OUTCOMES: u64 = 22;

/// Names that an operation borrows.
#[derive(Debug, Default)]
pub struct Names {
    pub one: Vec<u8>,
    pub two: Vec<u8>,
    pub path: Vec<u8>,
    pub groups: Vec<u8>,
}

pub fn names(r: &mut Random) -> Names {
    let groups = 4 * r.below(65) as usize;
    let groups = (0..groups).map(|_| r.bits() as u8).collect();
    Names { one: r.name(), two: r.name(), path: r.path(), groups }
}

/// Operation number `which` with random fields.
pub fn operation<'a>(which: u64, r: &mut Random, names: &'a Names) -> Operation<'a> {
    use Operation as O;
    let (name, path) = (&names.one[..], &names.path[..]);
    match which {
        0 => O::Null,
        1 => O::GetRoot { export: if r.bool() { name } else { b"" } },
        2 => O::Lookup { dir: r.handle(), path, no_follow: r.bool() },
        3 => O::LookupParent { handle: r.handle() },
        4 => {
            let creates = [CreateMode::No, CreateMode::Unchecked, CreateMode::Exclusive];
            let flags = OpenFlags {
                read: r.bool(),
                write: r.bool(),
                create: creates[r.below(3) as usize],
                truncate: r.bool(),
                append: r.bool(),
                no_follow: r.bool(),
                unlinked: r.bool(),
                again: r.bool(),
            };
            O::Open { dir: r.handle(), path, flags, mode: r.u32(), cache: r.cache() }
        }
        5 => O::Close { state: r.state() },
        6 => O::OpenDowngrade { state: r.state(), read: r.bool(), write: r.bool() },
        7 => {
            let kind = match r.kind() {
                FileKind::File => FileKind::Symlink,
                kind => kind,
            };
            let target_bytes = if kind == FileKind::Symlink { 1 + r.below(4095) as u32 } else { 0 };
            let (dir, mode, rdev) = (r.handle(), r.u32(), r.u64());
            O::Create { dir, name, kind, mode, rdev, target_bytes }
        }
        8 => O::Link { handle: r.handle(), state: r.state(), dir: r.handle(), name },
        9 => O::Remove { dir: r.handle(), name, directory: r.bool() },
        10 => {
            let no_replace = r.bool();
            let exchange = !no_replace && r.bool();
            O::Rename {
                from_dir: r.handle(),
                from: name,
                to_dir: r.handle(),
                to: &names.two,
                no_replace,
                exchange,
                whiteout: !exchange && r.bool(),
            }
        }
        11 => O::ReadDir {
            dir: r.handle(),
            cookie: r.u64(),
            bytes_max: r.below(1 << 16) as u32,
            attributes: r.bool(),
            handles: r.bool(),
        },
        12 => O::ReadLink { handle: r.handle() },
        13 => O::GetAttr { handle: r.handle(), state: r.state() },
        14 => O::SetAttr { handle: r.handle(), state: r.state(), set: r.set_attr() },
        15 => O::Access { handle: r.handle(), mask: r.below(8) as u8 },
        16 => O::StatFs { handle: r.handle() },
        _ => data_operation(which, r, names),
    }
}

fn data_operation<'a>(which: u64, r: &mut Random, names: &'a Names) -> Operation<'a> {
    use Operation as O;
    let name = &names.one[..];
    match which {
        17 => O::GetXattr { handle: r.handle(), name, size_max: r.below(65_537) as u32 },
        18 => {
            let (value_bytes, flags) = (r.below(65_537) as u32, r.below(3) as u8);
            O::SetXattr { handle: r.handle(), name, value_bytes, flags }
        }
        19 => O::ListXattr { handle: r.handle(), size_max: r.below(65_537) as u32 },
        20 => O::RemoveXattr { handle: r.handle(), name },
        21 => O::Read { state: r.state(), extents: r.extents() },
        22 => {
            let (state, extents, stability) = (r.state(), r.extents(), r.stability());
            O::Write { state, extents, stability, within: r.bool() }
        }
        23 => {
            let bytes = r.below(1 << 17) as u32;
            O::Append { state: r.state(), bytes, stability: r.stability() }
        }
        24 => {
            let (offset, len) = (r.offset(), r.offset());
            let levels = [CommitLevel::Flush, CommitLevel::Data, CommitLevel::File];
            O::Commit { state: r.state(), offset, len, level: levels[r.below(3) as usize] }
        }
        25 => O::SyncFs { handle: r.handle() },
        26 => {
            let (offset, len) = (r.offset(), r.offset());
            O::Fallocate { state: r.state(), mode: r.u32(), offset, len }
        }
        27 => O::Seek { state: r.state(), offset: r.offset(), hole: r.bool() },
        28 => {
            let (offset, len, advice) = (r.offset(), r.offset(), r.bits() as u8);
            O::Advise { state: r.state(), offset, len, advice, cache: r.cache() }
        }
        29 => O::CredRegister { uid: r.u32(), gid: r.u32(), groups: &names.groups },
        30 => O::CredRelease { cred: CredHandle(r.u32()) },
        31 => O::SessionStats,
        32 => O::SessionDestroy,
        _ => newer_operation(which, r),
    }
}

fn newer_operation<'a>(which: u64, r: &mut Random) -> Operation<'a> {
    use Operation as O;
    match which {
        33 => {
            let (state, bytes_max) = (r.state(), r.below(1 << 16) as u32);
            O::Extents { state, offset: r.offset(), len: r.offset(), bytes_max }
        }
        34 | 35 => {
            let (from, from_offset, to) = (r.state(), r.offset(), r.state());
            let (to_offset, len) = (r.offset(), r.offset());
            match which {
                34 => O::CopyRange { from, from_offset, to, to_offset, len },
                _ => O::CloneRange { from, from_offset, to, to_offset, len },
            }
        }
        36 => O::Lock { state: r.state(), lock: r.lock(), wait: r.bool(), reclaim: r.bool() },
        37 => O::LockTest { state: r.state(), lock: r.lock() },
        38 => O::Unlock { state: r.state(), owner: r.owner(), range: r.lock_range() },
        39 => O::LockCancel { ticket: LockTicket(r.u64().max(1)) },
        40 => O::OwnerRelease { owner: r.owner() },
        41 => O::ReclaimComplete,
        42 => O::SyncDir { dir: r.handle() },
        43 => {
            let (session, slot) = (SessionId(r.array()), SlotId(r.bits() as u16));
            O::SlotQuery { session, slot, sequence: r.u32() }
        }
        44 => {
            let (handle, state, bytes_max) = (r.handle(), r.state(), r.below(1 << 16) as u32);
            O::CacheQuery { handle, state, offset: r.offset(), len: r.offset(), bytes_max }
        }
        45 => {
            let (state, first) = (r.state(), r.below(1 << 40));
            let count = r.below(1 + REFERENCES_MAX as u64) as u32;
            O::RefsGet { state, first, count, accessed: r.u64() }
        }
        _ => unreachable!(),
    }
}

/// Outcome number `which` with random fields.
fn named(r: &mut Random) -> NamedReference {
    let len = 1 + r.below(NAMED_REFERENCE_BYTES_MAX as u64) as usize;
    let bytes: Vec<u8> = (0..len).map(|_| r.u64() as u8).collect();
    NamedReference::new(&bytes).expect("not too long")
}

pub fn outcome(which: u64, r: &mut Random) -> Outcome {
    let verifier = WriteVerifier(r.array());
    match which {
        0 => Outcome::Done,
        1 => Outcome::Found { handle: r.handle(), attr: r.attr() },
        2 => {
            let (handle, state) = (r.handle(), r.state());
            Outcome::Opened { handle, state, attr: r.attr(), created: r.bool() }
        }
        3 => Outcome::Closed { attr: r.attr(), verifier },
        4 => Outcome::Attributes { attr: r.attr() },
        5 => Outcome::Granted { mask: r.bits() as u8 },
        6 => Outcome::FileSystem { attr: r.fs_attr() },
        7 => Outcome::Data { bytes: r.u32(), end: r.bool() },
        8 => Outcome::Read { bytes: r.u32(), end_of_file: r.bool() },
        9 => {
            let (bytes, offset, stability) = (r.u32(), r.u64(), r.stability());
            Outcome::Written { bytes, offset, stability, verifier }
        }
        10 => Outcome::Committed { verifier },
        11 => Outcome::Offset { offset: r.option(Random::u64) },
        12 => Outcome::Credential { cred: CredHandle(r.u32()) },
        13 => {
            let stats = SessionStats {
                session_requests: r.u64(),
                session_replays: r.u64(),
                session_bytes_read: r.u64(),
                session_bytes_written: r.u64(),
                cpu_ns: r.u64(),
                system_calls: r.u64(),
                copied_bytes: r.u64(),
                registrations: r.u64(),
                resident_bytes: r.u64(),
                arena_bytes: r.u64(),
                dirty_bytes: r.u64(),
                cache_hits: r.u64(),
                cache_misses: r.u64(),
                sessions: r.u64(),
                opens: r.u64(),
            };
            Outcome::Stats(Box::new(stats))
        }
        14 => Outcome::Copied { bytes: r.u64() },
        15 => Outcome::Lock(match r.bool() {
            true => Locked::Granted,
            false => Locked::Waiting(LockTicket(r.u64().max(1))),
        }),
        16 => Outcome::Conflict { held: r.option(|r| (r.lock(), r.bool())) },
        17 => Outcome::RequestOutcome(match r.below(6) {
            0 => RequestOutcome::Unknown,
            1 => RequestOutcome::NotBegun,
            2 => RequestOutcome::Begun,
            _ => {
                let (operations, value) = (r.below(17) as u16, r.u64());
                let status = if r.bool() { Ok(()) } else { Err(r.status()) };
                RequestOutcome::Done { operations, status, value, created: r.bool() }
            }
        }),
        18 => Outcome::Advised { bytes: r.u64(), cache: r.cache() },
        19 => Outcome::Cached(CacheInfo {
            bytes: r.u32(),
            next: r.option(Random::u64),
            size: r.u64(),
            clean_bytes: r.u64(),
            dirty_bytes: r.u64(),
            cache: r.cache(),
        }),
        20 => Outcome::References(ReferenceInfo {
            bytes: r.u32(),
            epoch: r.u32(),
            file: r.u64(),
            cache: r.u64(),
            entries: r.u64(),
            server: LifeWord { number: r.u32(), value: r.u64() },
            session: LifeWord { number: r.u32(), value: r.u64() },
        }),
        21 => Outcome::Named(named(r)),
        _ => unreachable!(),
    }
}

pub fn reply(r: &mut Random) -> Reply {
    let results = match r.below(8) {
        0 => Err(r.status()),
        _ => {
            let some = (0..=r.below(CHAIN_MAX as u64)).take(CHAIN_MAX);
            let result = |_| match r.below(4) {
                0 => Err(r.status()),
                _ => {
                    let which = r.below(OUTCOMES);
                    Ok(outcome(which, r))
                }
            };
            Ok(some.map(result).collect())
        }
    };
    Reply { slot: SlotId(r.bits() as u16), sequence: r.u32(), results }
}

pub fn setup_request(r: &mut Random) -> SetupRequest {
    let classes = [SizeClass::Any, SizeClass::Small, SizeClass::Bulk];
    let purpose = match r.bool() {
        true => Purpose::Create { attr: r.session_attr(), client: ClientId(r.array()) },
        false => Purpose::Bind { session: SessionId(r.array()), secret: r.array() },
    };
    match r.below(3) {
        0 => SetupRequest::Prove { dialled: Dialled(r.array()), proof: r.array() },
        _ => SetupRequest::Hello {
            version: PROTOCOL_VERSION + r.below(2) as u32,
            oldest: PROTOCOL_VERSION_OLDEST,
            features: Features(r.bits()),
            attempt: r.u64(),
            nonce: r.array(),
            class: classes[r.below(3) as usize],
            keyed: r.bool(),
            purpose,
        },
    }
}

pub fn setup_reply(r: &mut Random) -> SetupReply {
    match r.below(3) {
        0 => SetupReply::Ready {
            version: PROTOCOL_VERSION,
            features: Features(r.bits()),
            session: SessionId(r.array()),
            secret: r.array(),
            attr: r.session_attr(),
            verifier: WriteVerifier(r.array()),
            proof: r.option(Random::array),
            uid: r.u32(),
            addresses: (0..r.below(4)).map(|port| format!("host:{port}")).collect(),
            same_host: r.option(Random::array),
        },
        1 => SetupReply::Challenge { nonce: r.array() },
        _ => {
            let text = (0..r.below(100)).map(|_| ['a', 'ö', ' ', '7'][r.below(4) as usize]);
            let text = text.collect();
            SetupReply::Refused { status: r.status(), text, proof: r.option(Random::array) }
        }
    }
}

/// A request of one to three operations, as bytes.
pub fn request_bytes(r: &mut Random) -> Vec<u8> {
    loop {
        let chain: Vec<Names> = (0..=r.below(3)).map(|_| names(r)).collect();
        let operations: Vec<Operation<'_>> = chain
            .iter()
            .map(|names| {
                let which = r.below(OPERATIONS);
                operation(which, r, names)
            })
            .collect();
        let mut bytes = vec![];
        if encode_request(&r.head(), &operations, &mut bytes).is_ok() {
            return bytes;
        }
    }
}
