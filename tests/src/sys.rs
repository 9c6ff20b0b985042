//! System calls that programs make and the standard library lacks: shared mappings, locked memory, children
//! by fork alone, and asynchronous direct I/O (libaio). All unsafe code of the tests.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// What direct I/O wants addresses, offsets and lengths to be multiples of.
pub const BLOCK: usize = 4096;

fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Has these pages, given by their addresses, in memory and keeps them there (mlock).
///
/// # Errors
/// The system's: not mapped, or more than this process may lock.
pub fn lock(pages: &Range<u64>) -> io::Result<()> {
    // SAFETY: no byte changes, whatever is mapped there.
    let result = unsafe { libc::mlock(pages.start as *const _, bytes(pages)) };
    check(result.into()).map(drop)
}

/// Ends what [`lock`] began.
///
/// # Errors
/// The system's: not mapped.
pub fn unlock(pages: &Range<u64>) -> io::Result<()> {
    // SAFETY: no byte changes, whatever is mapped there.
    let result = unsafe { libc::munlock(pages.start as *const _, bytes(pages)) };
    check(result.into()).map(drop)
}

/// A child that has all that this process has, does nothing, and lives until it is killed.
///
/// # Errors
/// The system's.
pub fn fork_one_that_keeps_everything() -> io::Result<()> {
    // SAFETY: the child makes one system call, again and again, which any thread may.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        loop {
            nix::unistd::pause();
        }
    }
    check(pid.into()).map(drop)
}

fn bytes(pages: &Range<u64>) -> usize {
    (pages.end - pages.start) as usize
}

/// How many of these pages are not in memory, or not mapped.
pub fn absent_pages(pages: &Range<u64>) -> usize {
    let mut answers = vec![0u8; bytes(pages).div_ceil(BLOCK)];
    let to = answers.as_mut_ptr();
    // SAFETY: `answers` has a byte for each page.
    let result = unsafe { libc::mincore(pages.start as *mut _, bytes(pages), to) };
    match result {
        0 => answers.iter().filter(|answer| **answer & 1 == 0).count(),
        _ => answers.len(),
    }
}

/// Gives the pages of a span back to the system although they are locked, as nothing should.
///
/// # Errors
/// The system's: before Linux 5.18 it knows no way.
#[cfg(test)]
pub(crate) fn give_back_locked(span: &dafs_fabric::Span) -> io::Result<()> {
    // SAFETY: mapped as long as the span is, whose bytes nobody has a reference to.
    let result =
        unsafe { libc::madvise(span.as_mut_ptr().cast(), span.len(), libc::MADV_DONTNEED_LOCKED) };
    check(result.into()).map(drop)
}

/// The first bytes of a file, mapped shared for reading and writing.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes, which may be more than the file has: those must not be used.
    ///
    /// # Errors
    /// The system's.
    pub fn new(file: &File, len: usize) -> io::Result<Mapping> {
        Mapping::with(file, 0, len, libc::PROT_READ | libc::PROT_WRITE)
    }

    fn with(file: &File, offset: i64, len: usize, prot: libc::c_int) -> io::Result<Mapping> {
        let (fd, any) = (file.as_raw_fd(), std::ptr::null_mut());
        // SAFETY: a fresh mapping at an address that the kernel chooses.
        let base = unsafe { libc::mmap(any, len, prot, libc::MAP_SHARED, fd, offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Mapping { base, len })
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset <= self.len && len <= self.len - offset, "range outside of the mapping");
        self.base.as_ptr().wrapping_add(offset)
    }

    /// Writes bytes. Beyond the page of the file's end the kernel ends the process (SIGBUS).
    ///
    /// # Panics
    /// Outside of the mapping.
    pub fn store(&mut self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: `at` has checked the range; `bytes` is no part of a mapping.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Reads bytes, as [`store`](Self::store) writes them.
    ///
    /// # Panics
    /// Outside of the mapping.
    pub fn load(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let from = self.at(offset, len);
        // SAFETY: `at` has checked the range; `bytes` has room for it.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), len) };
        bytes
    }

    /// msync: returns when what was stored is in the file and durable.
    ///
    /// # Errors
    /// The system's.
    pub fn sync(&self) -> io::Result<()> {
        let base = self.base.as_ptr().cast();
        // SAFETY: the range is mapped.
        let result = unsafe { libc::msync(base, self.len, libc::MS_SYNC) };
        check(result.into()).map(drop)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; no reference into it is ever made.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// What the last block of a file holds after its end, as the disk has it where its pages are clean:
/// no call reads that, a mapping does. Nobody may cut the file meanwhile (the kernel would end the
/// process).
pub fn after_the_end(file: &File, len: u64) -> Vec<u8> {
    let start = len / BLOCK as u64 * BLOCK as u64;
    let used = (len - start) as usize;
    let (Ok(offset), false) = (i64::try_from(start), used == 0) else { return Vec::new() };
    let forget = libc::POSIX_FADV_DONTNEED;
    // SAFETY: advice about a range of an open file.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, BLOCK as i64, forget) };
    let mapping = Mapping::with(file, offset, BLOCK, libc::PROT_READ);
    mapping.map_or_else(|_| Vec::new(), |mapping| mapping.load(used, BLOCK - used))
}

/// Bytes at an address that direct I/O takes.
#[derive(Debug)]
pub struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// Zeros.
    pub fn new(len: usize) -> Aligned {
        let memory = vec![0; len + BLOCK];
        let start = memory.as_ptr().align_offset(BLOCK);
        Aligned { memory, start, len }
    }

    /// A copy.
    pub fn of(bytes: &[u8]) -> Aligned {
        let mut aligned = Aligned::new(bytes.len());
        aligned.bytes_mut().copy_from_slice(bytes);
        aligned
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

/// The kernel's `struct iocb`.
#[repr(C)]
#[derive(Default)]
struct Control {
    data: u64,
    key: u32,
    flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    more_flags: u32,
    event_fd: u32,
}

/// The kernel's `struct io_event`.
#[repr(C)]
#[derive(Default)]
struct Event {
    data: u64,
    control: u64,
    result: i64,
    second: i64,
}

const READ: u16 = 0;
const WRITE: u16 = 1;

/// A context of asynchronous I/O (io_submit, io_getevents), used for one call at a time.
#[derive(Debug)]
pub struct Asynchronous(libc::c_ulong);

impl Asynchronous {
    /// Sets one up.
    ///
    /// # Errors
    /// The system's.
    pub fn new() -> io::Result<Asynchronous> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes the context's number.
        check(unsafe { libc::syscall(libc::SYS_io_setup, 1, &raw mut context) })?;
        Ok(Asynchronous(context))
    }

    /// Reads into the buffer, which gets shorter at the end of the file.
    ///
    /// # Errors
    /// The system's.
    pub fn read(&mut self, file: &File, offset: u64, buffer: Aligned) -> io::Result<Aligned> {
        let mut call = self.begin(READ, file, offset, buffer)?;
        let len = call.wait()?;
        let mut buffer = std::mem::replace(&mut call.buffer, Aligned::new(0));
        buffer.len = len;
        Ok(buffer)
    }

    /// Begins to write the buffer.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&mut self, file: &File, at: u64, buffer: Aligned) -> io::Result<Call<'_>> {
        self.begin(WRITE, file, at, buffer)
    }

    fn begin(
        &mut self,
        opcode: u16,
        file: &File,
        at: u64,
        mut buffer: Aligned,
    ) -> io::Result<Call<'_>> {
        let bytes = buffer.bytes_mut();
        let mut control = Control {
            opcode,
            fd: file.as_raw_fd().cast_unsigned(),
            buffer: bytes.as_mut_ptr() as u64,
            bytes: bytes.len() as u64,
            offset: at.cast_signed(),
            ..Control::default()
        };
        let mut list = [&raw mut control];
        // SAFETY: one control block, which the kernel copies, and its buffer: that is kept, or
        // never given back, until the event has come.
        check(unsafe { libc::syscall(libc::SYS_io_submit, self.0, 1, list.as_mut_ptr()) })?;
        Ok(Call { context: self, buffer, under_way: true })
    }
}

impl Drop for Asynchronous {
    fn drop(&mut self) {
        // SAFETY: nothing is under way.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

/// A call under way; its buffer belongs to the kernel until it has ended.
#[derive(Debug)]
pub struct Call<'a> {
    context: &'a Asynchronous,
    buffer: Aligned,
    under_way: bool,
}

impl Call<'_> {
    /// Waits for its end; how many bytes were moved.
    ///
    /// # Errors
    /// The system's.
    pub fn wait(&mut self) -> io::Result<usize> {
        let mut event = Event::default();
        while self.under_way {
            let (to, forever) = (&raw mut event, std::ptr::null_mut::<libc::timespec>());
            // SAFETY: room for one event.
            let got =
                unsafe { libc::syscall(libc::SYS_io_getevents, self.context.0, 1, 1, to, forever) };
            self.under_way = got != 1;
        }
        match event.result {
            result @ 0.. => Ok(result as usize),
            error => Err(io::Error::from_raw_os_error(-error as i32)),
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let _ = self.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_mapping_is_the_file() {
        let file = tempfile::tempfile().expect("tempfile");
        file.write_all_at(b"0123456789", 0).expect("write");
        let mut mapping = Mapping::new(&file, 64 << 10).expect("map");
        mapping.store(3, b"abc");
        mapping.sync().expect("msync");
        let mut bytes = [0; 10];
        file.read_exact_at(&mut bytes, 0).expect("read");
        assert_eq!(&bytes, b"012abc6789");
        assert_eq!(mapping.load(2, 3), b"2ab");
    }

    #[test]
    fn what_stands_after_the_end_is_seen() {
        // What is in memory only keeps it; a disk's file system writes zeros there.
        let Ok(file) = tempfile::tempfile_in("/dev/shm") else {
            return println!("skipped: no /dev/shm");
        };
        file.write_all_at(&[1; BLOCK + 10], 0).expect("write");
        assert!(after_the_end(&file, (BLOCK + 10) as u64).iter().all(|byte| *byte == 0));
        let mut mapping = Mapping::new(&file, 2 * BLOCK).expect("map");
        mapping.store(BLOCK + 20, b"left");
        let behind = after_the_end(&file, (BLOCK + 10) as u64);
        assert_eq!((behind.len(), &behind[10..14]), (BLOCK - 10, &b"left"[..]));
        assert!(after_the_end(&file, BLOCK as u64).is_empty());
    }

    #[test]
    fn asynchronous_calls_read_and_write() {
        let file = tempfile::tempfile().expect("tempfile");
        let mut context = Asynchronous::new().expect("io_setup");
        let bytes: Vec<u8> = (0..2 * BLOCK).map(|at| (at / 7) as u8).collect();
        let mut write = context.write(&file, 4096, Aligned::of(&bytes)).expect("io_submit");
        assert_eq!(write.wait().expect("write"), bytes.len());
        drop(write);
        let read = context.read(&file, 4096, Aligned::new(4 * BLOCK)).expect("read");
        assert_eq!(read.bytes(), bytes);
        let closed = File::open("/dev/null").expect("open");
        assert!(context.write(&closed, 0, Aligned::of(&bytes)).is_err(), "opened for reading");
    }
}
