//! What one process does: copies, sums, and calls that reach into another process.

use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{Shm, ShmOp, ShmOptions, sys};
use crate::offsets::Offsets;
use crate::raw::client::Aligned;
use crate::slice::Slice;

/// One operation after the other; `base`: where the peer has the shared memory.
pub(super) fn run(
    shm: &mut Shm,
    options: &ShmOptions,
    base: u64,
    time: Duration,
    stop: &AtomicBool,
) -> io::Result<Slice> {
    let (layout, size, depth) = (shm.layout, options.size, options.depth);
    let mut offsets = Offsets::new(layout.pool_bytes as u64, size as u64, options.random);
    let pid = shm.peer_pid();
    let mem = match options.op {
        ShmOp::MemRead | ShmOp::MemWrite => Some(memory_of(pid)?),
        _ => None,
    };
    let mut private = Aligned::new(size * depth);
    let (mut slice, mut at) = (Slice::default(), 0);
    let start = Instant::now();
    let mut before = start;
    loop {
        let offset = layout.pool + usize::try_from(offsets.next()).unwrap_or(0);
        let own = &mut private.bytes()[at * size..][..size];
        match options.op {
            ShmOp::Sum => drop(black_box(shm.port.mapping.sum(offset, size))),
            ShmOp::VmRead | ShmOp::VmWrite => {
                let there = usize::try_from(base).map_err(io::Error::other)? + offset;
                whole(sys::process_vm(pid, options.op == ShmOp::VmWrite, own, there)?, size)?;
            }
            ShmOp::MemRead | ShmOp::MemWrite => {
                let mem = mem.as_ref().ok_or(io::ErrorKind::NotFound)?;
                let there = base + offset as u64;
                match options.op {
                    ShmOp::MemRead => mem.read_exact_at(own, there)?,
                    _ => mem.write_all_at(own, there)?,
                }
            }
            _ => shm.port.mapping.copy(offset, layout.segment + at * size, size),
        }
        at = (at + 1) % depth;
        let now = Instant::now();
        slice.latency.record(now - before);
        before = now;
        slice.ops += 1;
        if now - start >= time || stop.load(Ordering::Relaxed) {
            break;
        }
    }
    slice.bytes = slice.ops * size as u64;
    slice.seconds = (before - start).as_secs_f64();
    if !matches!(options.op, ShmOp::Memcpy | ShmOp::Sum) {
        slice.system_calls = Some(slice.ops);
    }
    Ok(slice)
}

fn memory_of(pid: u32) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"))
}

fn whole(moved: usize, size: usize) -> io::Result<()> {
    if moved == size {
        return Ok(());
    }
    Err(io::Error::other(format!("the call moved {moved} bytes of {size}")))
}
