//! Random operations, compared with plain vectors. The store completes in random order, work is
//! abandoned at random, readers hold their pages, and the arena is much too small.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::disk::{Disk, DiskFile, Handle, Rng, Task, allocate, overwrite, piece};
use super::entries::Watch;
use super::{Told, VERIFIER, bytes, config, land, writer};
use crate::{
    CacheDomain, CacheDomains, CachedFile, Config, DomainId, FilePosition, Opening, PageEnd,
    PinnedRead, Unifier, WriterId,
};
use dafs_fabric::Arena;
use dafs_protocol::{CacheHint, CommitLevel, Status};

const FILE_BYTES_MAX: u64 = 300_000;

struct Model {
    seed: u64,
    rng: Rng,
    disk: Arc<Disk>,
    /// One or two, between which files move.
    domains: Arc<CacheDomains>,
    unifiers: Vec<Arc<Unifier>>,
    files: Vec<Subject>,
    background: Vec<Task<()>>,
    leases: Vec<(PinnedRead, Vec<u8>)>,
    /// Reads of one page that nobody waits for.
    told: Told,
    watches: Vec<Watch>,
    now: Duration,
    arena_bytes: u64,
    read_bytes_max: usize,
}

struct Subject {
    disk: Arc<DiskFile>,
    cached: Option<Arc<CachedFile>>,
    want: Vec<u8>,
}

impl Model {
    fn new(seed: u64) -> Model {
        let mut rng = Rng::new(seed);
        let count = 1 + rng.below(2) as usize;
        let arena_bytes = (65_536 << rng.below(5)) * count;
        let disk = Disk::new(seed, [0, 50, 100][rng.below(3) as usize]);
        let segment_bytes = 65_536 << rng.below(3);
        let pins = rng.chance(50);
        let arena = || {
            let arena = Arena::in_segments(arena_bytes, segment_bytes).expect("arena");
            arena.span(0, arena_bytes).write_message(0, &vec![0xee; arena_bytes]);
            arena
        };
        let config = || {
            let domain = pins.then(|| super::pinning(seed));
            Config {
                least_bytes: (64 << 10).max(arena_bytes / 2 * (count - 1)),
                domain,
                ..config(arena_bytes)
            }
        };
        let first = Unifier::new(arena(), config(), VERIFIER);
        let others = (1..count).map(|_| first.beside(arena(), config())).collect::<Vec<_>>();
        let unifiers = [vec![first], others].concat();
        let named = |unifier: &Arc<Unifier>| CacheDomain::new("of the model", unifier.clone());
        let domains =
            CacheDomains::new(arena_bytes as u64, unifiers.iter().map(named).collect(), 0);
        let files = (0..3).map(|inode| {
            let len = rng.below(FILE_BYTES_MAX) as usize * (inode as usize % 2);
            let want: Vec<u8> = (0..len).map(|_| rng.below(256) as u8).collect();
            let file = disk.file(inode, want.clone());
            Subject { disk: file, cached: None, want }
        });
        Model {
            seed,
            files: files.collect(),
            rng,
            disk,
            watches: unifiers.iter().map(|_| Watch::default()).collect(),
            domains,
            unifiers,
            background: Vec::new(),
            leases: Vec::new(),
            told: Told::default(),
            now: Duration::ZERO,
            arena_bytes: arena_bytes as u64,
            // Of each, one request takes as small a part.
            read_bytes_max: (arena_bytes / 8 / count).max(4096),
        }
    }

    /// One step of something that is not the foreground; false: there is nothing to do.
    fn step(&mut self) -> bool {
        let woken: Vec<usize> =
            (0..self.background.len()).filter(|at| self.background[*at].is_woken()).collect();
        let choices = woken.len() as u64 + self.disk.waiting() as u64;
        if choices == 0 || self.rng.chance(10) {
            let dropped = self.told.drop_all();
            if choices == 0 {
                return dropped;
            }
        }
        let choice = self.rng.below(choices) as usize;
        match woken.get(choice) {
            Some(at) => {
                if self.background[*at].poll().is_some() {
                    self.background.swap_remove(*at);
                }
            }
            None => {
                self.disk.complete_one();
            }
        }
        true
    }

    fn run<T>(&mut self, work: impl Future<Output = T> + Send + 'static) -> T {
        let mut task = Task::new(work);
        loop {
            if task.is_woken() && self.rng.chance(60) {
                if let Some(value) = task.poll() {
                    return value;
                }
                continue;
            }
            if self.step() || task.is_woken() {
                continue;
            }
            // Everything may be held by readers; not otherwise.
            assert!(!self.leases.is_empty(), "seed {}: waits for ever", self.seed);
            self.check_lease(0);
        }
    }

    /// Polls it a few times, then drops it.
    fn abandon<T>(&mut self, work: impl Future<Output = T> + Send + 'static) {
        let mut task = Task::new(work);
        for _ in 0..self.rng.below(4) {
            if task.poll().is_some() {
                return;
            }
            self.step();
        }
    }

    fn check_lease(&mut self, at: usize) {
        let (lease, want) = self.leases.swap_remove(at);
        assert!(bytes(&lease) == want, "seed {}: a lease has changed", self.seed);
    }

    fn open(&mut self, at: usize, truncated: bool) {
        let file = &self.files[at];
        let mark = self.domains.mark();
        if truncated {
            file.disk.change(Vec::new());
            self.files[at].want.clear();
        }
        let file = &self.files[at];
        let attr = file.disk.attr_now();
        // Time passes between the store's answer and the open.
        for _ in 0..self.rng.below(3) {
            self.step();
        }
        let opening = if truncated { Opening::Truncated } else { Opening::Existing };
        let handle = Arc::new(Handle(self.files[at].disk.clone()));
        let domain = DomainId(self.rng.below(self.unifiers.len() as u64) as usize);
        let cached = self.domains.open(domain.into(), mark, WriterId(1), handle, &attr, opening);
        self.files[at].cached = Some(cached);
    }

    fn close(&mut self, at: usize) {
        let Some(cached) = self.files[at].cached.take() else { return };
        self.run(async move { cached.close(WriterId(1)).await }).expect("close");
        let state = self.files[at].disk.state();
        self.expect(&state.data, at, "closed");
    }

    fn expect(&self, is: &[u8], at: usize, what: &str) {
        let want = &self.files[at].want;
        let differ = is.iter().zip(want).position(|(is, want)| is != want);
        let sizes = (is.len(), want.len());
        assert!(
            is == *want,
            "seed {}: {what} file {at}, sizes {sizes:?}, first difference {differ:?}",
            self.seed
        );
    }

    fn range(&mut self, most: usize) -> (u64, usize) {
        let offset = self.rng.below(FILE_BYTES_MAX);
        let len = self.rng.below(most as u64) as usize + 1;
        match self.rng.below(3) {
            0 => (offset / 4096 * 4096, len.next_multiple_of(4096).min(most.max(4096))),
            1 => (offset, len % 5000),
            _ => (offset, len),
        }
    }

    fn write(&mut self, at: usize, cached: Arc<CachedFile>, append: bool) {
        let range = self.range(self.read_bytes_max.min(100_000));
        self.write_range(at, cached, range, append);
    }

    /// A block that is just being read in; then what can go of it.
    fn overtake(&mut self, at: usize, cached: Arc<CachedFile>) {
        let offset = self.rng.below(FILE_BYTES_MAX) / 4096 * 4096;
        cached.drop_clean(offset, 4096);
        cached.prefetch(offset, 4096);
        self.write_range(at, cached.clone(), (offset, 4096), false);
        if self.rng.chance(50) {
            cached.drop_clean(offset, 4096);
        }
    }

    fn write_range(
        &mut self,
        at: usize,
        cached: Arc<CachedFile>,
        (offset, len): (u64, usize),
        append: bool,
    ) {
        let fill = self.rng.below(255) as u8 + 1;
        let data: Vec<u8> = (0..len).map(|index| fill.wrapping_add(index as u8)).collect();
        let want = &mut self.files[at].want;
        let offset = if append { want.len() as u64 } else { offset };
        if offset + len as u64 > 2 * FILE_BYTES_MAX {
            return;
        }
        if len > 0 {
            let end = offset as usize + len;
            want.resize(want.len().max(end), 0);
            want[offset as usize..end].copy_from_slice(&data);
        }
        let dropped = self.rng.chance(10);
        self.run(async move {
            let reservation = if append {
                cached.reserve_append(len).await
            } else {
                cached.reserve(offset, len).await
            };
            let mut reservation = reservation.expect("reserve");
            if dropped {
                land(&mut reservation, &vec![0xdd; len]);
                drop(reservation);
                reservation = cached.reserve(offset, len).await.expect("reserve");
                if append {
                    drop(reservation);
                    reservation = cached.reserve_append(len).await.expect("reserve");
                }
            }
            land(&mut reservation, &data);
            if append {
                let at = cached.append(reservation, writer(1)).await.expect("append");
                assert_eq!(at, offset);
            } else {
                cached.commit_write(reservation, writer(1)).await.expect("commit");
            }
        });
    }

    fn read(&mut self, at: usize, cached: Arc<CachedFile>) {
        let (offset, len) = self.range(self.read_bytes_max);
        let want = &self.files[at].want;
        let from = want.len().min(offset as usize);
        let want = want[from..want.len().min(offset as usize + len)].to_vec();
        let size = self.files[at].want.len() as u64;
        let told = Told::default();
        let lease = match told.read(&cached, offset, len, 0) {
            true => self.page_told(&told),
            false => None,
        };
        let lease = lease.unwrap_or_else(|| {
            self.run(async move { cached.read(offset, len).await.expect("read") })
        });
        assert!(bytes(&lease) == want, "seed {}: read {offset}+{len} of {at}", self.seed);
        assert_eq!(lease.end_of_file(), offset + len as u64 >= size, "seed {}", self.seed);
        if self.rng.chance(30) {
            self.leases.push((lease, want));
        }
        if self.leases.len() > 3 {
            self.check_lease(0);
        }
    }

    /// The page that a read was told of; `None`: it is to be read again.
    fn page_told(&mut self, told: &Told) -> Option<PinnedRead> {
        loop {
            match told.take(0) {
                Some(PageEnd::Here(page)) => return Some(page.into_read(false)),
                Some(_) => return None,
                None => assert!(self.step(), "seed {}: nobody is told", self.seed),
            }
        }
    }

    fn truncate(&mut self, at: usize, cached: Arc<CachedFile>) {
        let size = self.rng.below(FILE_BYTES_MAX);
        self.files[at].want.resize(size as usize, 0);
        self.run(async move { cached.truncate(size, false).await }).expect("truncate");
    }

    fn allocate(&mut self, at: usize, cached: Arc<CachedFile>) {
        let (offset, len) = self.range(50_000);
        let (mut offset, mut len) = (offset as usize, len.max(1));
        let mode = [0, 1, 3, 3, 0x10, 0x11, 8, 0x20][self.rng.below(8) as usize];
        let want = &mut self.files[at].want;
        if mode == 8 || mode == 0x20 {
            offset = offset / 4096 * 4096;
            len = len.next_multiple_of(4096);
            let fits = if mode == 8 { offset + len < want.len() } else { offset < want.len() };
            if !fits || want.len() > FILE_BYTES_MAX as usize {
                return;
            }
        }
        allocate(want, mode, offset, len);
        let (offset, len) = (offset as u64, len as u64);
        self.run(async move { cached.fallocate(mode, offset, len, writer(1)).await })
            .expect("fallocate");
    }

    /// From one file to another or within one, in the store or through the cache.
    fn copy(&mut self, at: usize, cached: Arc<CachedFile>) {
        let other = self.rng.below(3) as usize;
        let Some(target) = self.files[other].cached.clone() else { return };
        let ((offset, len), (to_offset, _)) = (self.range(60_000), self.range(1));
        let bytes = piece(&self.files[at].want, offset, len as u64);
        let len = bytes.len() as u64;
        if at == other && offset < to_offset + len && to_offset < offset + len {
            return;
        }
        overwrite(&mut self.files[other].want, to_offset as usize, &bytes);
        let error = self.rng.chance(40).then_some(Status::XDev);
        self.files[at].disk.state().copy_error = error;
        let from = FilePosition { file: cached, offset };
        let to = FilePosition { file: target, offset: to_offset };
        let most = 30_000.min(self.read_bytes_max as u64);
        let copied = self.run(async move {
            let mut done = 0;
            while done < len {
                let from = FilePosition { offset: from.offset + done, ..from.clone() };
                let to = FilePosition { offset: to.offset + done, ..to.clone() };
                let left = len - done;
                match CachedFile::copy_range(&from, &to, left, most, writer(1)).await? {
                    0 => break,
                    bytes => done += bytes,
                }
            }
            Ok::<u64, Status>(done)
        });
        assert_eq!(copied, Ok(len), "seed {}", self.seed);
    }

    fn advise(&mut self, cached: &Arc<CachedFile>) {
        let (offset, len) = self.range(self.read_bytes_max);
        match self.rng.below(3) {
            0 => drop(cached.prefetch(offset, len as u64)),
            1 => drop(cached.drop_clean(offset, len as u64)),
            _ => {
                let unit = 1 << (12 + self.rng.below(9));
                cached.wish(CacheHint { unit, ..CacheHint::default() });
            }
        }
    }

    fn check_attr(&mut self, at: usize) {
        let mark = self.domains.mark();
        let mut attr = self.files[at].disk.attr_now();
        for _ in 0..self.rng.below(4) {
            self.step();
        }
        self.domains.overlay(mark, &mut attr);
        assert_eq!(attr.size, self.files[at].want.len() as u64, "seed {}: size", self.seed);
        if let Some(file) = self.domains.find(self.files[at].disk.attr_id()) {
            let inner = file.lock();
            let counted =
                inner.blocks.clusters.iter().map(|(_, cluster)| cluster.unwritten()).sum();
            assert_eq!(inner.blocks.unwritten, counted, "seed {}: unwritten blocks", self.seed);
        }
    }

    fn commit(&mut self, at: usize, cached: Arc<CachedFile>) {
        let verifier = self
            .run(async move { cached.commit(WriterId(1), 0, 0, CommitLevel::File).await })
            .expect("commit");
        assert_eq!(verifier, VERIFIER);
        let state = self.files[at].disk.state();
        self.expect(&state.synced, at, "committed");
    }

    fn background(&mut self, at: usize, cached: Arc<CachedFile>) {
        match self.rng.below(5) {
            0 => {
                self.now += Duration::from_secs(self.rng.below(8));
                let (domains, now) = (self.domains.clone(), self.now);
                self.background.push(Task::new(async move { domains.write_back(now).await }));
            }
            1 => self.background.push(Task::new(async move {
                cached.flush().await.expect("flush");
            })),
            2 => self.abandon(async move { cached.flush().await }),
            3 => {
                // Others open it while this goes on.
                self.files[at].cached = None;
                self.background.push(Task::new(async move {
                    cached.close(WriterId(1)).await.expect("close");
                }));
            }
            _ => {
                let (offset, len) = self.range(self.read_bytes_max);
                // Told when others have gone on.
                if self.rng.chance(50) && self.told.read(&cached, offset, len, 0) {
                    return;
                }
                self.abandon(async move { cached.read(offset, len).await.map(drop) });
            }
        }
    }

    fn operation(&mut self) {
        let at = self.rng.below(3) as usize;
        let Some(cached) = self.files[at].cached.clone() else {
            let truncated = self.rng.chance(20);
            return self.open(at, truncated);
        };
        match self.rng.below(100) {
            0..30 => self.write(at, cached, false),
            30..38 => self.write(at, cached, true),
            38..58 => self.read(at, cached),
            58..62 => self.copy(at, cached),
            62..68 => self.truncate(at, cached),
            68..72 => self.allocate(at, cached),
            72..77 => self.commit(at, cached),
            77..83 => self.check_attr(at),
            83..85 => self.close(at),
            85 if self.rng.chance(50) => self.overtake(at, cached),
            85 => self.advise(&cached),
            86 => drop(self.domains.resize(self.rng.below(2 << 20))),
            87 => {
                // A second open, with truncation while the first goes on.
                self.open(at, true);
                self.run(async move { cached.close(WriterId(2)).await }).expect("close");
            }
            88..91 => self.move_out(cached),
            91 => self.domains.balance(),
            _ => self.background(at, cached),
        }
    }

    /// To the first domain, while others go on.
    fn move_out(&mut self, cached: Arc<CachedFile>) {
        let domains = self.domains.clone();
        let work = async move { domains.move_out(&cached).await.expect("moved") };
        match self.rng.below(3) {
            0 => self.run(work),
            1 => self.background.push(Task::new(work)),
            _ => self.abandon(work),
        }
    }

    /// What the cache says to those who read it by themselves is so.
    fn check_entries(&mut self) {
        let with_bytes = self.seed.is_multiple_of(10);
        for (watch, unifier) in self.watches.iter_mut().zip(&self.unifiers) {
            watch.look(unifier, with_bytes, self.seed);
        }
    }

    fn finish(mut self) {
        while !self.leases.is_empty() {
            self.check_lease(0);
        }
        let domains = self.domains.clone();
        if self.rng.chance(50) {
            let failed = self.run(async move { domains.flush_all().await });
            assert_eq!(failed, []);
            for at in 0..3 {
                if self.files[at].cached.is_some() {
                    let same = self.files[at].disk.state().data == self.files[at].want;
                    assert!(same, "seed {}: flushed file {at}", self.seed);
                }
            }
        }
        for at in 0..3 {
            self.close(at);
        }
        while self.step() {}
        self.told.drop_all();
        // Polls what nobody waits for.
        let (domains, now) = (self.domains.clone(), self.now);
        self.run(async move { domains.write_back(now).await });
        let stats = self.domains.stats();
        assert_eq!(stats.dirty_bytes, 0, "seed {}", self.seed);
        assert_eq!(stats.orphan_bytes, 0, "seed {}", self.seed);
        assert_eq!(stats.decommits_refused, 0, "seed {}", self.seed);
        let kept = self.domains.resize(u64::MAX);
        // Two have whole segments each: more or less than their parts.
        let is_all = kept == self.arena_bytes || self.unifiers.len() > 1;
        assert!(is_all, "seed {}: {kept}", self.seed);
        for file in &self.files {
            self.domains.forget(file.disk.attr_id());
        }
        assert_eq!(self.domains.stats().resident_bytes, 0, "seed {}: leak", self.seed);
    }
}

#[cfg_attr(feature = "planted", allow(dead_code))]
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match number("DAFS_UNIFIER_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..number("DAFS_UNIFIER_SEEDS").unwrap_or(300),
    }
}

#[test]
#[cfg(not(feature = "planted"))]
fn random_operations_agree_with_the_model() {
    seeds().for_each(random_operations);
}

pub(super) fn random_operations(seed: u64) {
    let mut model = Model::new(seed);
    for _ in 0..60 {
        model.operation();
        model.check_entries();
    }
    model.finish();
}

/// Writers of one range that lies across blocks, and readers of it: each read sees one write,
/// and none older than the last acknowledged before.
#[test]
#[cfg(not(feature = "planted"))]
fn reads_and_writes_are_atomic() {
    for seed in seeds() {
        let mut rng = Rng::new(seed);
        let disk = Disk::new(seed, 70);
        let arena_bytes = 65_536 << (1 + rng.below(4));
        let unifier = super::unifier(arena_bytes);
        let file = disk.file(1, vec![1; 20_000]);
        let cached = super::open(&unifier, &file);
        let range = (1000u64, 6000 + rng.below(2000) as usize);
        let acknowledged = Arc::new(std::sync::atomic::AtomicU8::new(1));
        let mut tasks = Vec::new();
        for id in 0..3u8 {
            let (cached, acknowledged) = (cached.clone(), acknowledged.clone());
            tasks.push(Task::new(async move {
                for round in 0..6u8 {
                    let stamp = 2 + round * 3 + id;
                    super::write(&cached, range.0, &vec![stamp; range.1], 1).await;
                    acknowledged.store(stamp, std::sync::atomic::Ordering::SeqCst);
                    if round == 3 && id == 0 {
                        cached.commit(WriterId(1), 0, 0, CommitLevel::Data).await.expect("commit");
                    }
                }
            }));
            let cached = super::open(&unifier, &file);
            tasks.push(Task::new(async move {
                for _ in 0..8 {
                    let seen = super::read(&cached, range.0, range.1).await;
                    assert_eq!(seen.len(), range.1);
                    assert!(seen.iter().all(|byte| *byte == seen[0]), "seed {seed}: torn");
                    yield_once().await;
                }
            }));
        }
        let mut stalled = 0;
        while !tasks.is_empty() {
            let at = rng.below(tasks.len() as u64) as usize;
            let moved = tasks[at].is_woken();
            if tasks[at].poll().is_some() {
                tasks.swap_remove(at);
            }
            let moved = moved | (rng.chance(40) && disk.complete_one());
            stalled = if moved { 0 } else { stalled + 1 };
            assert!(stalled < 1000, "seed {seed}: waits for ever");
        }
        let last = acknowledged.load(std::sync::atomic::Ordering::SeqCst);
        let seen =
            super::disk::run(&disk, async move { super::read(&cached, range.0, range.1).await });
        assert!(seen.iter().all(|byte| *byte == last), "seed {seed}: the last write");
    }
}

#[cfg_attr(feature = "planted", allow(dead_code))]
async fn yield_once() {
    let mut polled = false;
    poll_fn(|context| {
        if std::mem::replace(&mut polled, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
