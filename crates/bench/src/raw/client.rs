//! The asking side: keeps `depth` requests under way and takes answers in their order.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::message::{Kind, MESSAGE_BYTES, Message};
use super::wire::Wire;
use super::{DEPTH_MAX, FOOTPRINT_MAX, RawOp, RawOptions, SIZE_MAX};
use crate::offsets::Offsets;
use crate::slice::Slice;
use crate::sys;
use crate::wait::Wait;

/// Pieces that one request of a stream asks for.
const STREAM_PIECES: u64 = 256;

pub(super) fn run(
    wire: &mut Wire,
    options: &RawOptions,
    time: Duration,
    stop: &AtomicBool,
) -> io::Result<Slice> {
    check(options)?;
    let region = options.footprint.max(options.size);
    let write_bytes = if options.op == RawOp::Write { options.size } else { 0 };
    let mut begin =
        Message::new(Kind::Begin, region as u64, write_bytes as u64, options.depth as u64);
    begin.wait = options.wait;
    begin.d = options.peer_cpu.map_or(0, |cpu| cpu as u64 + 1);
    let before = exchange(wire, &begin)?;
    let calls_before = wire.system_calls();
    wire.set_wait(options.wait)?;
    let cpu_before = sys::process_cpu_ns();

    let mut run = Run::new(wire, options, region);
    match options.op {
        RawOp::Read => run.reads(time, stop)?,
        RawOp::Write => run.writes(time, stop)?,
        RawOp::Stream => run.stream(time, stop)?,
    }
    let mut slice = run.slice;

    slice.client_cpu_ns = Some(sys::process_cpu_ns() - cpu_before);
    let calls = wire.system_calls() - calls_before;
    wire.set_wait(Wait::Sleeping)?;
    let after = exchange(wire, &Message::new(Kind::End, 0, 0, 0))?;
    slice.server_cpu_ns = after.a.checked_sub(before.a);
    slice.system_calls = after.b.checked_sub(before.b).map(|peer| peer + calls);
    slice.round_trips = (options.op != RawOp::Stream).then_some(slice.ops);
    Ok(slice)
}

fn check(options: &RawOptions) -> io::Result<()> {
    let good = (1..=SIZE_MAX).contains(&options.size)
        && (1..=DEPTH_MAX).contains(&options.depth)
        && options.footprint <= FOOTPRINT_MAX;
    if good {
        return Ok(());
    }
    let text = format!(
        "size must be 1 to {SIZE_MAX}, depth 1 to {DEPTH_MAX}, the file at most {FOOTPRINT_MAX}"
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

fn exchange(wire: &mut Wire, message: &Message) -> io::Result<Message> {
    wire.write_all(&mut [IoSlice::new(&message.encode())])?;
    let mut answer = [0; MESSAGE_BYTES];
    wire.read_all(&mut answer)?;
    Message::decode(&answer)
}

struct Run<'a> {
    wire: &'a mut Wire,
    size: usize,
    depth: usize,
    offsets: Offsets,
    /// When each request under way was sent, oldest first.
    sent: VecDeque<Instant>,
    slice: Slice,
}

impl<'a> Run<'a> {
    fn new(wire: &'a mut Wire, options: &RawOptions, region: usize) -> Run<'a> {
        Run {
            wire,
            size: options.size,
            depth: options.depth,
            offsets: Offsets::new(region as u64, options.size as u64, options.random),
            sent: VecDeque::with_capacity(options.depth),
            slice: Slice::default(),
        }
    }

    fn finished(&mut self, count: usize, now: Instant) {
        for _ in 0..count {
            if let Some(sent) = self.sent.pop_front() {
                self.slice.latency.record(now - sent);
            }
        }
        self.slice.ops += count as u64;
        self.slice.bytes += (count * self.size) as u64;
    }

    fn reads(&mut self, time: Duration, stop: &AtomicBool) -> io::Result<()> {
        let ring_bytes = self.depth * self.size;
        let mut ring = Aligned::new(ring_bytes);
        let mut requests = Vec::with_capacity(self.depth * MESSAGE_BYTES);
        // The answer under way: where it starts in the ring, and how much of it is there.
        let (mut head, mut filled) = (0, 0);
        let start = Instant::now();
        let mut now = start;
        while now - start < time && !stop.load(Ordering::Relaxed) || !self.sent.is_empty() {
            if now - start < time && !stop.load(Ordering::Relaxed) {
                requests.clear();
                while self.sent.len() < self.depth {
                    let offset = self.offsets.next();
                    let request = Message::new(Kind::Read, offset, self.size as u64, 1);
                    requests.extend_from_slice(&request.encode());
                    self.sent.push_back(now);
                }
                self.wire.write_all(&mut [IoSlice::new(&requests)])?;
            }
            let wanted = self.sent.len() * self.size - filled;
            let (low, high) = ring.bytes().split_at_mut((head + filled) % ring_bytes);
            let first = high.len().min(wanted);
            let second = low.len().min(wanted - first);
            filled += if second == 0 {
                self.wire.read(&mut high[..first])?
            } else {
                self.wire.read_two(&mut high[..first], &mut low[..second])?
            };
            now = Instant::now();
            let done = filled / self.size;
            head = (head + done * self.size) % ring_bytes;
            filled -= done * self.size;
            self.finished(done, now);
        }
        self.slice.seconds = (now - start).as_secs_f64();
        Ok(())
    }

    fn writes(&mut self, time: Duration, stop: &AtomicBool) -> io::Result<()> {
        let mut data = Aligned::new(self.depth * self.size);
        data.bytes().fill(0xa5);
        let mut answers = vec![0; self.depth * MESSAGE_BYTES];
        let (mut head, mut filled) = (0, 0);
        let start = Instant::now();
        let mut now = start;
        while now - start < time && !stop.load(Ordering::Relaxed) || !self.sent.is_empty() {
            if now - start < time && !stop.load(Ordering::Relaxed) {
                self.send_writes(&data, &mut head, now)?;
            }
            let wanted = self.sent.len() * MESSAGE_BYTES - filled;
            filled += self.wire.read(&mut answers[..wanted])?;
            now = Instant::now();
            let done = filled / MESSAGE_BYTES;
            filled -= done * MESSAGE_BYTES;
            self.finished(done, now);
        }
        self.slice.seconds = (now - start).as_secs_f64();
        Ok(())
    }

    fn send_writes(&mut self, data: &Aligned, head: &mut usize, now: Instant) -> io::Result<()> {
        let free = self.depth - self.sent.len();
        let headers: Vec<[u8; MESSAGE_BYTES]> = (0..free)
            .map(|_| Message::new(Kind::Write, self.offsets.next(), self.size as u64, 1).encode())
            .collect();
        let mut pieces = Vec::with_capacity(free * 2);
        for header in &headers {
            pieces.push(IoSlice::new(header));
            pieces.push(IoSlice::new(&data.shared()[*head * self.size..][..self.size]));
            *head = (*head + 1) % self.depth;
            self.sent.push_back(now);
        }
        self.wire.write_all(&mut pieces)
    }

    fn stream(&mut self, time: Duration, stop: &AtomicBool) -> io::Result<()> {
        let mut data = Aligned::new(self.size);
        let request_bytes = STREAM_PIECES * self.size as u64;
        let (mut asked, mut got) = (0u64, 0u64);
        let start = Instant::now();
        let mut now = start;
        loop {
            let going = now - start < time && !stop.load(Ordering::Relaxed);
            // Two requests ahead, so that the peer never waits for one.
            while going && asked < got + 2 * request_bytes {
                let offset = self.offsets.next();
                let request =
                    Message::new(Kind::Read, offset, self.size as u64, STREAM_PIECES).encode();
                self.wire.write_all(&mut [IoSlice::new(&request)])?;
                asked += request_bytes;
            }
            if asked == got {
                break;
            }
            self.wire.read_all(data.bytes())?;
            got += self.size as u64;
            now = Instant::now();
        }
        self.slice.seconds = (now - start).as_secs_f64();
        self.slice.bytes = got;
        self.slice.ops = got / self.size as u64;
        Ok(())
    }
}

/// Page aligned memory, so that where a buffer happens to lie has no part in the result.
pub(super) struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    pub(super) fn new(len: usize) -> Aligned {
        let memory = vec![1; len + 4096];
        let start = memory.as_ptr().align_offset(4096).min(4096);
        Aligned { memory, start, len }
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.len]
    }

    fn shared(&self) -> &[u8] {
        &self.memory[self.start..][..self.len]
    }
}
