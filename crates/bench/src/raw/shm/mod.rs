//! The bare mechanism of shared memory: two processes, two rings, no DAFS code.
//!
//! One file in memory, mapped by both, has a ring each way, a segment of the client's, and the pool: as
//! many bytes as the file of the benchmark beside it. A request is one cache line in a ring; its answer
//! is another. What moves data between the two is what a server and a client on one host can do at
//! best: one copy by the server out of its pool into the client's segment; one copy by the client
//! out of the pool that it maps; two copies, in pieces, through a small ring. Beside them is what one process
//! does alone: copying and summing.
//!
//! Who sleeps says so in a word that the other end reads, looks again, and waits in epoll for one byte
//! on a Unix socket.
//!
//! `process_vm_readv`, `process_vm_writev` and `/proc/PID/mem` are here to be compared with only. They
//! need no shared memory, which is tempting, but each call walks the other process's page tables and takes
//! its pages one by one: a fraction of the speed of a mapping. And who may use them may do all that a
//! debugger may: a client that lets a server write its buffers in this way has handed over its whole
//! process. Nothing that DAFS does for files uses them.

mod alone;
mod client;
mod port;
mod row;
mod server;
mod sys;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::slice::Slice;
use crate::wait::Wait;
use port::{End, Port};
use sys::{HUGE_PAGE_BYTES, Mapping};

pub use row::{ShmReport, ShmRow};
pub use server::serve_parent;

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShmOp {
    /// A request of 64 bytes, an answer of 64 bytes.
    Ping,
    /// The server copies out of its pool into the client's segment.
    Copy,
    /// The server copies out of the client's segment into its pool.
    Write,
    /// The client copies out of the server's pool, when it has an answer.
    Mapped,
    /// The server copies into a small ring of pieces, the client out of it.
    Bounce,
    /// One process copies, alone.
    Memcpy,
    /// One process sums the pool, alone.
    Sum,
    /// `process_vm_readv` out of the server's pool.
    VmRead,
    /// `process_vm_writev` into the server's pool.
    VmWrite,
    /// `pread` of the server's `/proc/PID/mem`.
    MemRead,
    /// `pwrite` to the server's `/proc/PID/mem`.
    MemWrite,
}

impl ShmOp {
    /// One process does it, the other one sleeps.
    pub fn is_alone(self) -> bool {
        use ShmOp::{Bounce, Copy, Mapped, Ping, Write};
        !matches!(self, Ping | Copy | Mapped | Write | Bounce)
    }
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct ShmOptions {
    /// What is done.
    pub op: ShmOp,
    /// Bytes per operation, at least 1.
    pub size: usize,
    /// Operations under way, at least 1.
    pub depth: usize,
    /// Bytes of a piece of [`ShmOp::Bounce`].
    pub piece: usize,
    /// How both ends wait.
    pub wait: Wait,
    /// Offsets in random order.
    pub random: bool,
    /// CPUs of the two processes, if they are to be pinned.
    pub cpus: Option<(usize, usize)>,
}

impl ShmOptions {
    /// Bytes of what the server copies at a time.
    fn piece(&self) -> usize {
        if self.op == ShmOp::Bounce { self.piece.min(self.size).max(1) } else { self.size }
    }

    /// Pieces under way at most.
    fn window(&self) -> usize {
        if self.op == ShmOp::Bounce { BOUNCE_PIECES } else { self.depth }
    }

    /// Bytes of the client's segment.
    fn segment_bytes(&self) -> usize {
        self.piece().saturating_mul(self.window())
    }

    /// Says what is out of range.
    fn check(&self, segment: usize, pool: usize) -> io::Result<()> {
        let whole = self.op != ShmOp::Bounce || self.size.is_multiple_of(self.piece());
        let good = self.size >= 1
            && self.size <= pool
            && (1..=super::DEPTH_MAX).contains(&self.depth)
            && self.segment_bytes() <= segment
            && whole;
        let text = format!(
            "size must be 1 to the footprint ({pool}) and whole pieces, depth 1 to {}, depth x size \
             at most {SEGMENT_BYTES_MAX}",
            super::DEPTH_MAX
        );
        if good { Ok(()) } else { Err(io::Error::new(io::ErrorKind::InvalidInput, text)) }
    }
}

/// Pieces of the ring that [`ShmOp::Bounce`] goes through.
const BOUNCE_PIECES: usize = 4;
/// The largest segment of a client.
pub const SEGMENT_BYTES_MAX: usize = 1 << 30;

/// How many bytes of the shared memory are in huge pages.
#[derive(Debug, Clone, Copy)]
pub struct HugePages {
    /// All of the shared memory.
    pub of: usize,
    /// As this process maps it.
    pub client: usize,
    /// As the other one does.
    pub server: usize,
}

/// The two ends: a running peer process and the memory between.
#[derive(Debug)]
pub struct Shm {
    port: Port,
    child: Option<Child>,
    layout: Layout,
    huge: HugePages,
}

/// Where things are in the shared memory, behind the rings.
#[derive(Debug, Clone, Copy)]
struct Layout {
    segment: usize,
    segment_bytes: usize,
    pool: usize,
    pool_bytes: usize,
}

impl Layout {
    fn new(footprint: usize, rows: &[ShmOptions]) -> io::Result<Layout> {
        if footprint == 0 || footprint > super::FOOTPRINT_MAX {
            let text = format!("the footprint must be 1 to {} bytes", super::FOOTPRINT_MAX);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let segment_bytes = rows.iter().map(ShmOptions::segment_bytes).max().unwrap_or(0);
        let segment_bytes = segment_bytes.min(SEGMENT_BYTES_MAX).next_multiple_of(HUGE_PAGE_BYTES);
        let segment = port::CONTROL_BYTES.next_multiple_of(HUGE_PAGE_BYTES);
        let pool = segment + segment_bytes;
        Ok(Layout { segment, segment_bytes, pool, pool_bytes: footprint })
    }

    fn bytes(&self) -> usize {
        (self.pool + self.pool_bytes).next_multiple_of(HUGE_PAGE_BYTES)
    }
}

/// The memory, filled; this process's mapping of it.
fn shared(layout: &Layout) -> io::Result<(File, Mapping, usize)> {
    let file = sys::memory_file(layout.bytes())?;
    let mapping = Mapping::new(&file)?;
    // Each page is really there, and there are pages to be made huge.
    mapping.fill(0, layout.segment, 0);
    mapping.fill(layout.segment, layout.bytes() - layout.segment, 0x5a);
    let huge = mapping.collapse();
    Ok((file, mapping, huge))
}

impl Shm {
    /// Starts this program again as `program ARGS`, which is to call [`serve_parent`], with a pool of
    /// `footprint` bytes and memory for what `rows` do.
    ///
    /// # Errors
    /// It could not be started; parameters out of range.
    pub fn spawn(arguments: &[&str], footprint: usize, rows: &[ShmOptions]) -> io::Result<Shm> {
        let layout = Layout::new(footprint, rows)?;
        let (file, mapping, huge) = shared(&layout)?;
        let (own, peer) = UnixStream::pair()?;
        let child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(OwnedFd::from(peer))
            .stdout(OwnedFd::from(file))
            .spawn()?;
        Shm::with(mapping, own, layout, huge, Some(child))
    }

    fn with(
        mapping: Mapping,
        socket: UnixStream,
        layout: Layout,
        huge: usize,
        child: Option<Child>,
    ) -> io::Result<Shm> {
        let port = Port::new(mapping, socket, End::Client)?;
        let huge = HugePages { of: layout.bytes(), client: huge, server: 0 };
        Ok(Shm { port, child, layout, huge })
    }

    /// Measures for about `time`, or until `stop`.
    ///
    /// # Errors
    /// Parameters out of range; the peer ended; the system forbids what is measured.
    pub fn run(
        &mut self,
        options: &ShmOptions,
        time: Duration,
        stop: &AtomicBool,
    ) -> io::Result<Slice> {
        options.check(self.layout.segment_bytes, self.layout.pool_bytes)?;
        client::run(self, options, time, stop)
    }

    /// Whether such a row can be measured in the memory that there is.
    pub fn has_room(&self, options: &ShmOptions) -> bool {
        options.check(self.layout.segment_bytes, self.layout.pool_bytes).is_ok()
    }

    /// Known when something was measured.
    pub fn huge_pages(&self) -> HugePages {
        self.huge
    }

    /// The other process; this one where both ends are threads of it.
    fn peer_pid(&self) -> u32 {
        self.child.as_ref().map_or_else(std::process::id, Child::id)
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        self.port.hang_up();
        if let Some(child) = &mut self.child {
            let _ = child.wait();
        }
    }
}
