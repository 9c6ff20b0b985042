//! The asking side: keeps operations under way and takes answers in their order.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::port::Words;
use super::server::Kind;
use super::{Layout, Shm, ShmOp, ShmOptions, alone};
use crate::offsets::Offsets;
use crate::raw::client::Aligned;
use crate::slice::Slice;
use crate::sys;
use crate::wait::Wait;

pub(super) fn run(
    shm: &mut Shm,
    options: &ShmOptions,
    time: Duration,
    stop: &AtomicBool,
) -> io::Result<Slice> {
    if let Some((own, _)) = options.cpus {
        sys::pin_to_cpu(own)?;
    }
    // Who works alone leaves the other end asleep.
    let wait = if options.op.is_alone() { Wait::Sleeping } else { options.wait };
    let peer_cpu = options.cpus.map_or(0, |(_, peer)| peer as u64 + 1);
    shm.port.send(&[Kind::Begin as u64, wait as u64, peer_cpu, 0, 0, 0, 0]);
    let [server_cpu, server_calls, base, huge, ..] = shm.port.wait()?;
    shm.huge.server = usize::try_from(huge).unwrap_or(0);
    shm.port.set_wait(wait);
    let (cpu, calls) = (sys::process_cpu_ns(), shm.port.system_calls);

    let measured = if options.op.is_alone() {
        alone::run(shm, options, base, time, stop)
    } else {
        let mut run = Run::new(shm, options);
        run.exchange(time, stop).map(|()| run.slice)
    };

    let (cpu, calls) = (sys::process_cpu_ns() - cpu, shm.port.system_calls - calls);
    shm.port.set_wait(Wait::Sleeping);
    shm.port.send(&[Kind::End as u64, 0, 0, 0, 0, 0, 0]);
    let [server_cpu_end, server_calls_end, ..] = shm.port.wait()?;
    let mut slice = measured?;
    slice.client_cpu_ns = Some(cpu);
    if !options.op.is_alone() {
        slice.server_cpu_ns = server_cpu_end.checked_sub(server_cpu);
        slice.system_calls = server_calls_end.checked_sub(server_calls).map(|peer| peer + calls);
        slice.round_trips = Some(slice.ops);
    }
    Ok(slice)
}

struct Run<'a> {
    shm: &'a mut Shm,
    options: &'a ShmOptions,
    layout: Layout,
    offsets: Offsets,
    /// When each operation under way was begun, oldest first.
    begun: VecDeque<Instant>,
    /// Pieces of an operation, bytes of one, and how many are under way at most.
    pieces: usize,
    piece: usize,
    window: usize,
    /// Pieces of the operations begun, those asked for, those answered.
    wanted: usize,
    asked: usize,
    answered: usize,
    /// Where in the pool the operation begins whose pieces are asked for.
    offset: usize,
    /// Memory of this process alone, for what copies into that.
    private: Aligned,
    slice: Slice,
}

impl<'a> Run<'a> {
    fn new(shm: &'a mut Shm, options: &'a ShmOptions) -> Run<'a> {
        let layout = shm.layout;
        let copies = matches!(options.op, ShmOp::Mapped | ShmOp::Bounce);
        let private = Aligned::new(if copies { options.depth * options.size } else { 0 });
        let offsets = Offsets::new(layout.pool_bytes as u64, options.size as u64, options.random);
        let piece = options.piece();
        Run {
            shm,
            options,
            layout,
            offsets,
            begun: VecDeque::with_capacity(options.depth),
            pieces: options.size / piece,
            piece,
            window: options.window(),
            wanted: 0,
            asked: 0,
            answered: 0,
            offset: 0,
            private,
            slice: Slice::default(),
        }
    }

    fn exchange(&mut self, time: Duration, stop: &AtomicBool) -> io::Result<()> {
        let start = Instant::now();
        let mut now = start;
        loop {
            if now - start < time && !stop.load(Ordering::Relaxed) {
                while self.begun.len() < self.options.depth {
                    self.begun.push_back(now);
                    self.wanted += self.pieces;
                }
            }
            self.ask_for_more();
            if self.asked == self.answered {
                break;
            }
            let mut words = self.shm.port.wait()?;
            loop {
                self.take(&words);
                if self.options.op == ShmOp::Bounce {
                    // A place of the ring is free: the server fills it while we empty the next.
                    self.ask_for_more();
                    self.shm.port.wake()?;
                }
                match self.shm.port.take() {
                    Some(next) => words = next,
                    None => break,
                }
            }
            now = Instant::now();
            while self.slice.ops < (self.answered / self.pieces) as u64 {
                self.slice.ops += 1;
                if let Some(begun) = self.begun.pop_front() {
                    self.slice.latency.record(now - begun);
                }
            }
        }
        self.slice.seconds = (now - start).as_secs_f64();
        self.slice.bytes = self.slice.ops * self.options.size as u64;
        Ok(())
    }

    fn ask_for_more(&mut self) {
        while self.asked < self.wanted && self.asked - self.answered < self.window {
            self.ask();
        }
    }

    fn ask(&mut self) {
        let part = self.asked % self.pieces;
        if part == 0 {
            self.offset = usize::try_from(self.offsets.next()).unwrap_or(0);
        }
        let from = self.layout.pool + self.offset + part * self.piece;
        let to = self.layout.segment + self.asked % self.window * self.piece;
        let (kind, from, to) = match self.options.op {
            ShmOp::Copy | ShmOp::Bounce => (Kind::Copy, from, to),
            ShmOp::Write => (Kind::Copy, to, from),
            _ => (Kind::Ping, from, to),
        };
        self.shm.port.send(&[kind as u64, from as u64, to as u64, self.piece as u64, 0, 0, 0]);
        self.asked += 1;
    }

    /// Takes what an answer tells of.
    fn take(&mut self, words: &Words) {
        let [_, pool, segment, ..] = *words;
        let from = match self.options.op {
            ShmOp::Mapped => Some(pool),
            ShmOp::Bounce => Some(segment),
            _ => None,
        };
        if let Some(from) = from {
            let own = self.answered % (self.options.depth * self.pieces) * self.piece;
            let into = &mut self.private.bytes()[own..own + self.piece];
            self.shm.port.mapping.copy_out(usize::try_from(from).unwrap_or(usize::MAX), into);
        }
        self.answered += 1;
    }
}
