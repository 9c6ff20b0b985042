//! A local directory: plain system calls. With a depth above one that many threads work side by
//! side, which is what programs do without an asynchronous interface.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use dafs_fabric::Buffer;

use super::{
    FILL_BYTES, Files, Op, SMALL_FILES, Target, Work, deep_path, own_directory, small_name,
};
use crate::offsets::Offsets;
use crate::slice::Slice;
use crate::sys;
use crate::wait::Wait;

/// A local directory, or anything mounted at one.
#[derive(Debug)]
pub struct Local {
    directory: PathBuf,
    file_bytes: u64,
    /// The large file is read and written past the kernel's cache.
    direct: bool,
    /// The directory is somebody else's, and so is the large file in it.
    foreign: bool,
    /// The next number of a file to make.
    next: AtomicU64,
}

impl Local {
    /// Measures in `target`, an existing directory. `direct`: reads and writes of the large file
    /// go past the kernel's cache; sizes are multiples of what the file system wants for that.
    pub fn new(target: &Path, direct: bool) -> Local {
        let directory = target.join(own_directory());
        let next = AtomicU64::new(SMALL_FILES);
        Local { directory, file_bytes: 0, direct, foreign: false, next }
    }

    /// Measures only operations on the large file, which is `directory/file` and is there.
    pub(crate) fn on_file(directory: &Path, file_bytes: u64, direct: bool) -> Local {
        let (directory, next) = (directory.to_path_buf(), AtomicU64::new(SMALL_FILES));
        Local { directory, file_bytes, direct, foreign: true, next }
    }

    fn open_file(&self) -> io::Result<File> {
        let flags = if self.direct { libc::O_DIRECT } else { 0 };
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(self.file())
    }

    fn small(&self, number: u64) -> PathBuf {
        self.directory.join(small_name(number))
    }

    fn file(&self) -> PathBuf {
        self.directory.join("file")
    }

    fn deep(&self) -> PathBuf {
        self.directory.join(deep_path().join("/"))
    }

    /// One thread's part of a measurement; `first..end` are numbers of files that it may use.
    fn part(&self, work: &Work<'_>, number: u64, removable: &AtomicU64) -> io::Result<Slice> {
        let mut slice = Slice::default();
        // At a page, as direct reads and writes want it.
        let mut buffer = Buffer::new(work.size).map_err(io::Error::other)?;
        buffer.fill(0xa5);
        let depth = work.depth as u64;
        let mut offsets = Offsets::new(self.file_bytes, work.size as u64, work.op.is_random())
            .part(number, depth);
        let mut small = Offsets::new(SMALL_FILES, 1, true).part(number, depth);
        let file = if work.op.uses_file() { Some(self.open_file()?) } else { None };
        let deep = self.deep();
        let started = Instant::now();
        let mut now = started;
        while work.goes_on(started, now) {
            match (work.op, &file) {
                (Op::Read | Op::RandRead, Some(file)) => {
                    file.read_exact_at(&mut buffer, offsets.next())?;
                }
                (Op::Write | Op::RandWrite, Some(file)) => {
                    file.write_all_at(&buffer, offsets.next())?;
                }
                (Op::WriteFsync, Some(file)) => {
                    file.write_all_at(&buffer, offsets.next())?;
                    file.sync_all()?;
                }
                (Op::Stat, _) => _ = fs::metadata(&deep)?,
                (Op::Create | Op::CreateFsync, _) => {
                    if self.made_enough(removable, work) {
                        break;
                    }
                    let number = self.next.fetch_add(1, Ordering::Relaxed);
                    create(&self.small(number), &buffer, work.op == Op::CreateFsync)?;
                }
                (Op::OpenRead, _) => drop(read_whole(&self.small(small.next()), &mut buffer)?),
                (Op::Remove, _) => {
                    let number = removable.fetch_add(1, Ordering::Relaxed);
                    if number >= self.next.load(Ordering::Relaxed) {
                        break;
                    }
                    fs::remove_file(self.small(number))?;
                }
                (_, None) => return Err(io::ErrorKind::InvalidInput.into()),
            }
            let before = std::mem::replace(&mut now, Instant::now());
            slice.latency.record(now - before);
            slice.ops += 1;
            slice.bytes += work.op.bytes(work.size);
        }
        Ok(slice)
    }

    fn made_enough(&self, first: &AtomicU64, work: &Work<'_>) -> bool {
        let made = self.next.load(Ordering::Relaxed) - first.load(Ordering::Relaxed);
        made >= work.files()
    }
}

impl Target for Local {
    fn transport(&self) -> &str {
        "local"
    }

    fn has_waits(&self) -> bool {
        false
    }

    fn set_up(&mut self, file_bytes: Option<u64>, stop: &AtomicBool) -> io::Result<()> {
        fs::create_dir(&self.directory)?;
        let deep = self.deep();
        if let Some(parent) = deep.parent() {
            fs::create_dir_all(parent)?;
        }
        File::create(deep)?;
        let Some(bytes) = file_bytes else { return Ok(()) };
        self.file_bytes = bytes;
        let mut file = OpenOptions::new().write(true).create_new(true).open(self.file())?;
        let piece = vec![0x5a; FILL_BYTES];
        let mut left = bytes;
        while left > 0 && !stop.load(Ordering::Relaxed) {
            let len = left.min(FILL_BYTES as u64);
            file.write_all(piece.get(..len as usize).unwrap_or_default())?;
            left -= len;
        }
        Ok(())
    }

    fn prepare(&mut self, work: &Work<'_>) -> io::Result<()> {
        if work.op != Op::OpenRead {
            return Ok(());
        }
        let data = vec![0x5a; work.size];
        (0..SMALL_FILES).try_for_each(|number| fs::write(self.small(number), &data))
    }

    fn measure(&mut self, work: &Work<'_>) -> io::Result<Slice> {
        let first = self.next.load(Ordering::Relaxed);
        if work.op == Op::Remove {
            for number in first..first + work.files() {
                create(&self.small(number), &vec![0x5a; work.size], false)?;
            }
            self.next.store(first + work.files(), Ordering::Relaxed);
        }
        let removable = AtomicU64::new(first);
        let cpu_before = sys::process_cpu_ns();
        let started = Instant::now();
        let parts: Vec<io::Result<Slice>> = if work.depth == 1 {
            vec![self.part(work, 0, &removable)]
        } else {
            let (this, removable) = (&*self, &removable);
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..work.depth as u64)
                    .map(|number| scope.spawn(move || this.part(work, number, removable)))
                    .collect();
                let lost = || io::Error::other("a measuring thread panicked");
                threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(lost()))).collect()
            })
        };
        let seconds = started.elapsed().as_secs_f64();
        let cpu = sys::process_cpu_ns() - cpu_before;
        for number in first..self.next.load(Ordering::Relaxed) {
            let _ = fs::remove_file(self.small(number));
        }
        let parts: Vec<Slice> = parts.into_iter().collect::<io::Result<_>>()?;
        let mut slice = Slice::total(&parts).unwrap_or_default();
        slice.seconds = seconds;
        slice.client_cpu_ns = Some(cpu);
        Ok(slice)
    }

    fn begin(&mut self, _wait: Option<Wait>) -> io::Result<Box<dyn Files + '_>> {
        Ok(Box::new(LocalFiles { local: self, buffer: Vec::new(), cpu: sys::process_cpu_ns() }))
    }

    fn clean_up(&mut self) -> io::Result<()> {
        if self.foreign {
            return Ok(());
        }
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let _ = self.clean_up();
    }
}

fn create(path: &Path, data: &[u8], sync: bool) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(data)?;
    if sync { file.sync_all() } else { Ok(()) }
}

fn read_whole(path: &Path, buffer: &mut [u8]) -> io::Result<usize> {
    File::open(path)?.read(buffer)
}

struct LocalFiles<'a> {
    local: &'a Local,
    buffer: Vec<u8>,
    cpu: u64,
}

impl Files for LocalFiles<'_> {
    fn create(&mut self, number: u64, size: usize) -> io::Result<()> {
        self.buffer.resize(size, 0xa5);
        create(&self.local.small(number), &self.buffer, false)
    }

    fn read(&mut self, number: u64, size: usize) -> io::Result<usize> {
        self.buffer.resize(size, 0xa5);
        read_whole(&self.local.small(number), &mut self.buffer)
    }

    fn write(&mut self, number: u64, size: usize) -> io::Result<()> {
        self.buffer.resize(size, 0xa5);
        let path = self.local.small(number);
        OpenOptions::new().write(true).truncate(true).open(path)?.write_all(&self.buffer)
    }

    fn remove(&mut self, number: u64) -> io::Result<()> {
        fs::remove_file(self.local.small(number))
    }

    fn costs(&mut self, slice: &mut Slice) -> io::Result<()> {
        slice.client_cpu_ns = Some(sys::process_cpu_ns() - self.cpu);
        Ok(())
    }
}
