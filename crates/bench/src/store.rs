//! The store alone: data of one file of this host, as the server's cache reads and writes it,
//! without a network. And the copying that a network would add: memory to memory.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dafs_fabric::{Buffer, PostedBuffer, SgList};
use dafs_protocol::{CreateMode, Identity, OpenFlags, Status};
use dafs_store::{Answer, File};
use dafs_store::{Disk, OpenStore, ThreadIo};

use crate::offsets::Offsets;
use crate::slice::Slice;
use crate::sys::process_cpu_ns;

/// Pieces in which a new file is written.
const FILL_BYTES: usize = 1 << 20;

/// What to do.
#[derive(Debug, Clone, Copy)]
pub struct StoreOptions<'a> {
    /// Writes, not reads.
    pub write: bool,
    /// Offsets in random order.
    pub random: bool,
    /// Bytes per operation.
    pub size: usize,
    /// Operations under way, at least 1.
    pub depth: usize,
    /// For how long, about.
    pub time: Duration,
    /// Ends it sooner.
    pub stop: &'a AtomicBool,
}

/// A file of the store.
pub struct StoreFile {
    file: Arc<dyn File>,
    bytes: u64,
    thread_io: Option<Box<dyn ThreadIo>>,
    /// Of this user.
    is_new: bool,
}

fn myself() -> io::Result<Identity> {
    let process = std::fs::metadata("/proc/self")?;
    Ok(Identity { uid: process.uid(), gid: process.gid(), groups: Vec::new() })
}

fn failed(status: Status) -> io::Error {
    io::Error::other(status.to_string())
}

impl StoreFile {
    /// A new file without a name in the directory `target`, with `bytes` in it; or the file
    /// `target`, to be read only. This thread does what direct transfers want.
    ///
    /// # Errors
    /// It cannot be opened so.
    pub fn open(
        target: &Path,
        disk: Disk,
        bytes: u64,
        open_store: &OpenStore,
    ) -> io::Result<StoreFile> {
        let is_new = target.metadata()?.is_dir();
        let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
        let dir = if is_new { target } else { parent.unwrap_or(Path::new(".")) };
        let store = open_store(dir, !is_new, disk).map_err(io::Error::other)?;
        let thread_io = store.attach_thread()?;
        let who = Arc::new(myself()?);
        let root = store.root(&who).wait().map_err(failed)?.handle;
        let name = target.file_name().unwrap_or_default().as_encoded_bytes();
        let flags = OpenFlags {
            read: true,
            write: is_new,
            create: CreateMode::No,
            unlinked: is_new,
            truncate: false,
            append: false,
            no_follow: false,
            again: false,
        };
        let name = if is_new { &b""[..] } else { name };
        let opened = store.open(&who, &root, name, flags, 0o600).wait().map_err(failed)?;
        let bytes = if is_new { bytes } else { opened.attr.size };
        let file = StoreFile { file: opened.file, bytes, thread_io, is_new };
        if is_new {
            file.fill()?;
        }
        Ok(file)
    }

    fn fill(&self) -> io::Result<()> {
        let memory = Buffer::new(FILL_BYTES).map_err(io::Error::other)?.post();
        let mut at = 0;
        while at < self.bytes {
            let list = SgList::from_iter([memory.span().clone()]);
            self.file.write_at(at, list, false).wait().map_err(failed)?;
            at += FILL_BYTES as u64;
        }
        self.file.sync(false).wait().map_err(failed)
    }

    /// Measures for about the time of `options`.
    ///
    /// # Errors
    /// The store's; writes to a file that is somebody's.
    pub fn run(&self, options: &StoreOptions<'_>) -> io::Result<Slice> {
        if options.write && !self.is_new {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a file that is there is only read: name a directory to write",
            ));
        }
        let count = options.depth.max(1);
        let buffers = Buffer::many(count, options.size).map_err(io::Error::other)?;
        let memory: Vec<_> = buffers.into_iter().map(Buffer::post).collect();
        let mut offsets = Offsets::new(self.bytes, options.size as u64, options.random);
        let (start, cpu) = (Instant::now(), process_cpu_ns());
        let mut slice = Slice::default();
        let mut begun: Vec<_> =
            memory.iter().map(|m| Some(self.begin(options, &mut offsets, m))).collect();
        let mut left = count;
        while left > 0 {
            let mut any = self.thread_io.as_ref().is_some_and(|io| io.poll());
            for (slot, memory) in begun.iter_mut().zip(&memory) {
                let Some((since, way)) = slot else { continue };
                let Some(bytes) = way.ended(options.size) else { continue };
                any = true;
                slice.latency.record(since.elapsed());
                slice.ops += 1;
                slice.bytes += bytes.map_err(failed)? as u64;
                let over = start.elapsed() >= options.time || options.stop.load(Ordering::Relaxed);
                *slot = (!over).then(|| self.begin(options, &mut offsets, memory));
                left -= usize::from(over);
            }
            if !any {
                std::thread::yield_now();
            }
        }
        slice.seconds = start.elapsed().as_secs_f64();
        slice.client_cpu_ns = Some(process_cpu_ns() - cpu);
        Ok(slice)
    }

    fn begin(
        &self,
        options: &StoreOptions<'_>,
        offsets: &mut Offsets,
        memory: &PostedBuffer,
    ) -> (Instant, UnderWay) {
        let (since, offset) = (Instant::now(), offsets.next());
        let list = SgList::from_iter([memory.span().clone()]);
        let way = match options.write {
            true => UnderWay::Write(self.file.write_at(offset, list, false)),
            false => UnderWay::Read(self.file.read_at(offset, list)),
        };
        (since, way)
    }
}

enum UnderWay {
    Read(Answer<usize>),
    Write(Answer<()>),
}

impl UnderWay {
    fn ended(&mut self, size: usize) -> Option<Result<usize, Status>> {
        match self {
            UnderWay::Read(answer) => answer.try_take(),
            UnderWay::Write(answer) => answer.try_take().map(|ended| ended.map(|()| size)),
        }
    }
}

/// Copies pieces of `size` from one area of `footprint` bytes to another, as payload is copied.
///
/// # Errors
/// No memory.
pub fn memcpy(
    size: usize,
    footprint: usize,
    time: Duration,
    stop: &AtomicBool,
) -> io::Result<Slice> {
    let area = || Buffer::new(footprint.max(size)).map_err(io::Error::other);
    let (mut from, mut to) = (area()?, area()?);
    // The first touch of memory is not measured.
    from.fill(1);
    to.fill(2);
    let (from, to) = (from.post(), to.post());
    let mut offsets = Offsets::new(footprint.max(size) as u64, size as u64, false);
    let (start, cpu) = (Instant::now(), process_cpu_ns());
    let mut slice = Slice::default();
    loop {
        let since = Instant::now();
        let at = usize::try_from(offsets.next()).unwrap_or(0);
        to.span().copy_span(at, &from.span().part(at, size));
        slice.latency.record(since.elapsed());
        slice.ops += 1;
        slice.bytes += size as u64;
        if start.elapsed() >= time || stop.load(Ordering::Relaxed) {
            break;
        }
    }
    slice.seconds = start.elapsed().as_secs_f64();
    slice.client_cpu_ns = Some(process_cpu_ns() - cpu);
    Ok(slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_is_written_and_one_that_is_there_is_read() {
        let dir = std::env::temp_dir();
        let (time, stop) = (Duration::from_millis(20), AtomicBool::new(false));
        let options =
            StoreOptions { write: true, random: true, size: 4096, depth: 4, time, stop: &stop };
        let read = StoreOptions { write: false, ..options };
        for disk in [Disk::Buffered, Disk::Auto] {
            let file =
                StoreFile::open(&dir, disk, 4 << 20, &dafs_store_posix::open).expect("a file");
            for options in [options, read] {
                let slice = file.run(&options).expect("runs");
                assert!(slice.ops >= 4 && slice.bytes == slice.ops * 4096);
            }
        }
        let own = std::env::current_exe().expect("this program");
        let file =
            StoreFile::open(&own, Disk::Buffered, 0, &dafs_store_posix::open).expect("a file");
        assert!(file.run(&read).expect("reads").ops >= 4);
        assert!(file.run(&options).is_err(), "it is not ours to write");
    }

    #[test]
    fn what_is_copied_is_counted() {
        let stop = AtomicBool::new(false);
        let slice = memcpy(4096, 1 << 20, Duration::from_millis(5), &stop).expect("copies");
        assert!(slice.ops > 0 && slice.bytes == slice.ops * 4096);
    }
}
