//! A store for tests: files in memory whose completions come when, and in which order, the test
//! says. Bytes move by the uncounted message functions, so that counted copies are the cache's.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use dafs_fabric::{SgList, sg_bytes};
use dafs_protocol::{Attr, FileExtent, FileHandle, FileKind, SetAttr, Status, Timestamp};
use dafs_store::{Answer, Extents, File, FileId, Found, Pending, SeekKind, pending};

/// Numbers that look random, the same for each seed.
#[derive(Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound.max(1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

type Completion = Box<dyn FnOnce() + Send>;

/// Where files live and completions wait.
pub struct Disk {
    device: u64,
    later: Mutex<Vec<Completion>>,
    rng: Mutex<Rng>,
    /// Percent of calls that complete later.
    delayed: u64,
    clock: Mutex<i64>,
}

/// A file.
pub struct DiskFile {
    disk: Arc<Disk>,
    id: FileId,
    pub state: Mutex<DiskState>,
}

#[derive(Default)]
pub struct DiskState {
    pub data: Vec<u8>,
    /// What a crash leaves.
    pub synced: Vec<u8>,
    pub times: i64,
    pub created: Option<Timestamp>,
    pub generation: Option<u64>,
    /// A local program appends this just before the next write.
    pub append_at_write: Option<Vec<u8>>,
    /// Whoever asks is told that.
    pub for_everybody: bool,
    /// The file system has no longer files.
    pub end_max: Option<u64>,
    /// The system has not written all of it.
    pub unwritten: bool,
    /// It takes so long to ask it.
    pub unwritten_takes: Duration,
    /// The system does not tell that.
    pub tells_nothing: bool,
    /// Next writes fail so.
    pub write_error: Option<Status>,
    pub read_error: Option<Status>,
    pub sync_error: Option<Status>,
    pub copy_error: Option<Status>,
    pub cut_error: Option<Status>,
    /// Reads and writes that touch these bytes fail.
    pub bad: Option<std::ops::Range<u64>>,
    /// The file cannot be longer: there is no space.
    pub size_max: Option<u64>,
    pub copies: usize,
    pub reads: usize,
    pub writes: Vec<(u64, usize)>,
    /// Writes, also those that failed because of `bad` or `size_max`.
    pub tries: usize,
    pub syncs: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Disk {
    pub fn new(seed: u64, delayed: u64) -> Arc<Disk> {
        Disk::of_device(1, seed, delayed)
    }

    /// One beside others.
    pub fn of_device(device: u64, seed: u64, delayed: u64) -> Arc<Disk> {
        Arc::new(Disk {
            device,
            later: Mutex::default(),
            rng: Mutex::new(Rng::new(seed)),
            delayed,
            clock: Mutex::new(1),
        })
    }

    pub fn file(self: &Arc<Self>, inode: u64, data: Vec<u8>) -> Arc<DiskFile> {
        let times = self.tick();
        let state = DiskState { synced: data.clone(), data, times, ..DiskState::default() };
        let id = FileId { device: self.device, inode };
        Arc::new(DiskFile { disk: self.clone(), id, state: Mutex::new(state) })
    }

    pub fn tick(&self) -> i64 {
        let mut clock = lock(&self.clock);
        *clock += 1;
        *clock
    }

    /// Completes one call that waits; false if none does.
    pub fn complete_one(&self) -> bool {
        let completion = {
            let mut later = lock(&self.later);
            if later.is_empty() {
                return false;
            }
            let at = lock(&self.rng).below(later.len() as u64) as usize;
            later.swap_remove(at)
        };
        completion();
        true
    }

    /// Completes the call that waits longest.
    #[cfg(not(feature = "planted"))]
    pub fn complete_first(&self) {
        let completion = lock(&self.later).remove(0);
        completion();
    }

    /// The machine is gone: nothing completes any more.
    pub fn forget_all(&self) {
        let calls = std::mem::take(&mut *lock(&self.later));
        drop(calls);
    }

    pub fn waiting(&self) -> usize {
        lock(&self.later).len()
    }

    /// Takes effect now or at completion, completes now or later.
    fn answer<T: Send + 'static>(
        &self,
        effect: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Answer<T> {
        let (late, early_effect) = {
            let mut rng = lock(&self.rng);
            (rng.chance(self.delayed), rng.chance(50))
        };
        if !late {
            return Pending::ready(effect());
        }
        let (completer, answer) = pending();
        let completion: Completion = if early_effect {
            let value = effect();
            Box::new(move || completer.complete(value))
        } else {
            Box::new(move || completer.complete(effect()))
        };
        lock(&self.later).push(completion);
        answer
    }
}

impl DiskState {
    fn check_bad(&self, start: u64, end: u64) -> Result<(), Status> {
        let touched = |bad: &std::ops::Range<u64>| bad.start < end && start < bad.end;
        if self.bad.as_ref().is_some_and(touched) { Err(Status::Io) } else { Ok(()) }
    }
}

impl DiskFile {
    pub fn state(&self) -> MutexGuard<'_, DiskState> {
        lock(&self.state)
    }

    pub fn attr_now(&self) -> Attr {
        let state = self.state();
        let time = Timestamp { seconds: state.times, nanoseconds: 0 };
        Attr {
            kind: FileKind::File,
            mode: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            size: state.data.len() as u64,
            allocated: state.data.len().next_multiple_of(4096) as u64,
            inode: self.id.inode,
            device: self.id.device,
            number: 0,
            rdev: 0,
            block_size: 4096,
            change: state.times as u64,
            accessed: time,
            modified: time,
            changed: time,
            created: state.created,
        }
    }

    pub fn attr_id(&self) -> FileId {
        self.id
    }

    /// As a local program does by a mapping, after its first store into a page.
    pub fn store(&self, data: Vec<u8>) {
        self.state().data = data;
    }

    /// As a local program would.
    pub fn change(&self, data: Vec<u8>) {
        let times = self.disk.tick();
        let mut state = self.state();
        state.data = data;
        state.times = times;
    }
}

/// A file behind an `Arc`, as the cache gets it.
pub struct Handle(pub Arc<DiskFile>);

impl File for Handle {
    fn id(&self) -> FileId {
        self.0.id
    }

    fn generation(&self) -> Option<u64> {
        self.0.state().generation
    }

    fn read_at(&self, offset: u64, into: SgList) -> Answer<usize> {
        let file = self.0.clone();
        self.0.disk.answer(move || {
            let mut state = file.state();
            state.reads += 1;
            if let Some(status) = state.read_error {
                return Err(status);
            }
            let end = (offset + sg_bytes(&into) as u64).min(state.data.len() as u64);
            state.check_bad(offset, end)?;
            let mut at = (offset as usize).min(state.data.len());
            let start = at;
            for span in into {
                let bytes = span.len().min(state.data.len() - at);
                span.write_message(0, &state.data[at..at + bytes]);
                at += bytes;
            }
            Ok(at - start)
        })
    }

    fn write_at(&self, offset: u64, from: SgList, _: bool) -> Answer<()> {
        let file = self.0.clone();
        self.0.disk.answer(move || {
            let times = file.disk.tick();
            let mut state = file.state();
            if let Some(status) = state.write_error {
                return Err(status);
            }
            let mut bytes = Vec::new();
            let mut part = Vec::new();
            for span in from {
                span.read_message(span.len(), &mut part);
                bytes.extend_from_slice(&part);
            }
            if let Some(appended) = state.append_at_write.take() {
                state.data.extend(appended);
            }
            let end = offset as usize + bytes.len();
            state.tries += 1;
            state.check_bad(offset, end as u64)?;
            if state.size_max.is_some_and(|most| end as u64 > most) {
                return Err(Status::NoSpc);
            }
            if state.data.len() < end {
                state.data.resize(end, 0);
            }
            state.data[offset as usize..end].copy_from_slice(&bytes);
            state.writes.push((offset, bytes.len()));
            state.times = times;
            Ok(())
        })
    }

    fn sync(&self, _: bool) -> Answer<()> {
        let file = self.0.clone();
        self.0.disk.answer(move || {
            let mut state = file.state();
            if let Some(status) = state.sync_error {
                return Err(status);
            }
            state.syncs += 1;
            state.synced = state.data.clone();
            Ok(())
        })
    }

    fn truncate(&self, size: u64, _: bool) -> Answer<()> {
        let file = self.0.clone();
        self.0.disk.answer(move || {
            let times = file.disk.tick();
            let mut state = file.state();
            if let Some(status) = state.cut_error {
                return Err(status);
            }
            state.data.resize(size as usize, 0);
            state.times = times;
            Ok(())
        })
    }

    fn fallocate(&self, mode: u32, offset: u64, len: u64, _: bool) -> Answer<()> {
        let file = self.0.clone();
        self.0.disk.answer(move || {
            let times = file.disk.tick();
            let mut state = file.state();
            allocate(&mut state.data, mode, offset as usize, len as usize);
            state.times = times;
            Ok(())
        })
    }

    fn copy_range(
        &self,
        offset: u64,
        to: &Arc<dyn File>,
        to_offset: u64,
        len: u64,
        _: bool,
    ) -> Answer<u64> {
        let to = to.as_any().downcast_ref::<Handle>().expect("a file of this disk").0.clone();
        let file = self.0.clone();
        self.0.disk.answer(move || {
            let times = file.disk.tick();
            if let Some(status) = file.state().copy_error {
                return Err(status);
            }
            let bytes = piece(&file.state().data, offset, len);
            let mut target = to.state();
            overwrite(&mut target.data, to_offset as usize, &bytes);
            target.copies += 1;
            target.times = times;
            Ok(bytes.len() as u64)
        })
    }

    fn clone_range(
        &self,
        offset: u64,
        to: &Arc<dyn File>,
        to_offset: u64,
        len: u64,
        clear_privileges: bool,
    ) -> Answer<()> {
        let len = if len == 0 { u64::MAX / 2 } else { len };
        let mut copied = self.copy_range(offset, to, to_offset, len, clear_privileges);
        match copied.try_take() {
            Some(copied) => Pending::ready(copied.map(drop)),
            None => Pending::ready(Err(Status::NotSupp)),
        }
    }

    fn extents(&self, offset: u64, len: u64, _: usize) -> Answer<Extents> {
        let file = self.0.clone();
        self.0.disk.answer(move || {
            let bytes = piece(&file.state().data, offset, len).len() as u64;
            let extent = FileExtent { offset, len: bytes, ..FileExtent::default() };
            Ok(Extents { list: vec![extent], end: true })
        })
    }

    fn link(&self, _: &dafs_store::Caller, _: &FileHandle, _: &[u8]) -> Answer<Found> {
        Pending::ready(Err(Status::NotSupp))
    }

    fn seek(&self, offset: u64, _: SeekKind) -> Answer<Option<u64>> {
        let file = self.0.clone();
        self.0.disk.answer(move || Ok((offset < file.state().data.len() as u64).then_some(offset)))
    }

    fn attr(&self) -> Answer<Attr> {
        let file = self.0.clone();
        self.0.disk.answer(move || Ok(file.attr_now()))
    }

    fn can_end_at(&self, end: u64) -> bool {
        self.0.state().end_max.is_none_or(|most| end <= most)
    }

    fn has_unwritten(&self) -> Option<bool> {
        let takes = self.0.state().unwritten_takes;
        if takes > Duration::ZERO {
            std::thread::sleep(takes);
        }
        let state = self.0.state();
        (!state.tells_nothing).then_some(state.unwritten)
    }

    fn public_ancestors(&self) -> Answer<Option<dafs_store::Ancestors>> {
        let file = self.0.clone();
        self.0.disk.answer(move || Ok(file.state().for_everybody.then(|| [1].into())))
    }

    fn set_attr(&self, _: &dafs_store::Caller, _: &SetAttr) -> Answer<Attr> {
        self.attr()
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// The bytes of a range that are there.
pub fn piece(data: &[u8], offset: u64, len: u64) -> Vec<u8> {
    let start = data.len().min(offset as usize);
    let end = data.len().min(offset.saturating_add(len) as usize);
    data[start..end].to_vec()
}

pub fn overwrite(data: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    data.resize(data.len().max(offset + bytes.len()), 0);
    data[offset..offset + bytes.len()].copy_from_slice(bytes);
}

/// As fallocate(2), of a range that the mode allows.
pub fn allocate(data: &mut Vec<u8>, mode: u32, offset: usize, len: usize) {
    let end = offset + len;
    match mode {
        0 => data.resize(data.len().max(end), 0),
        1 => {}
        8 => drop(data.drain(offset..end)),
        0x20 => drop(data.splice(offset..offset, vec![0; len])),
        _ => {
            if mode == 0x10 {
                data.resize(data.len().max(end), 0);
            }
            let end = end.min(data.len());
            data[offset.min(end)..end].fill(0);
        }
    }
}

/// One thread that polls what was woken.
pub struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A future with its flag.
pub struct Task<T> {
    work: Pin<Box<dyn Future<Output = T> + Send>>,
    flag: Arc<Flag>,
}

impl<T> Task<T> {
    pub fn new(work: impl Future<Output = T> + Send + 'static) -> Task<T> {
        Task { work: Box::pin(work), flag: Arc::new(Flag(AtomicBool::new(true))) }
    }

    pub fn is_woken(&self) -> bool {
        self.flag.0.load(Ordering::SeqCst)
    }

    /// Polls it if it was woken.
    pub fn poll(&mut self) -> Option<T> {
        if !self.flag.0.swap(false, Ordering::SeqCst) {
            return None;
        }
        let waker = Waker::from(self.flag.clone());
        match self.work.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }
}

/// Runs to the end, completing calls of the store as they come.
pub fn run<T>(disk: &Disk, work: impl Future<Output = T> + Send + 'static) -> T {
    let mut task = Task::new(work);
    loop {
        if let Some(value) = task.poll() {
            return value;
        }
        assert!(task.is_woken() || disk.complete_one(), "waits for ever");
    }
}
