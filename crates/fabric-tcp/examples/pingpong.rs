//! Requests of 64 bytes, answers of `size`: this fabric beside plain sockets, in two threads.
//!
//! `cargo run --release -p dafs-fabric-tcp --example pingpong -- [SECONDS] [tcp|unix] [FILTER]`

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use dafs_fabric::{
    Address, Arena, Engine, Opcode, Provider, QueuePair, QueuePairEvent, Span, Status, Tag, WrId,
};
use dafs_fabric_tcp::TcpProvider;
use smallvec::smallvec;

const REQUEST: usize = 64;
const REPLY_HEADER: usize = 32;
/// What the server answers from, and what the client reads into, in turn.
const FILE: usize = 256 * 1024 * 1024;

#[derive(Clone, Copy, Debug)]
struct Shape {
    size: usize,
    depth: usize,
    polled: bool,
    seconds: f64,
}

#[derive(Default)]
struct Outcome {
    ops: u64,
    seconds: f64,
    best: f64,
    p50: f64,
    p99: f64,
    cpu_us: f64,
    client_calls: f64,
    server_calls: f64,
}

fn cpu_seconds() -> f64 {
    // SAFETY: all-zero is a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the buffer outlives the call.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn pin(cpu: usize) {
    // SAFETY: all-zero is a valid set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: a small number within the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set outlives the call.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
}

struct Meter {
    start: Instant,
    cpu: f64,
    times: Vec<f32>,
    ends: Vec<Instant>,
}

impl Meter {
    fn new() -> Meter {
        let (times, ends) = (Vec::with_capacity(1 << 20), Vec::with_capacity(1 << 20));
        Meter { start: Instant::now(), cpu: cpu_seconds(), times, ends }
    }

    fn is_over(&self, shape: &Shape) -> bool {
        self.start.elapsed().as_secs_f64() > shape.seconds
    }

    fn done(&mut self, since: Instant) {
        let now = Instant::now();
        self.times.push((now - since).as_secs_f32());
        self.ends.push(now);
    }

    /// The rate of the best 20 ms: what an undisturbed machine would do all the time.
    fn best_rate(&self) -> f64 {
        let window = Duration::from_millis(20);
        let (mut from, mut best) = (0, 0);
        for (to, end) in self.ends.iter().enumerate() {
            while *end - self.ends[from] > window {
                from += 1;
            }
            best = best.max(to - from);
        }
        best as f64 / window.as_secs_f64()
    }

    fn outcome(mut self) -> Outcome {
        let seconds = self.start.elapsed().as_secs_f64();
        let cpu = cpu_seconds() - self.cpu;
        let ops = self.times.len() as u64;
        let best = self.best_rate();
        self.times.sort_unstable_by(f32::total_cmp);
        let at = |part: f64| {
            let index = (ops as f64 * part) as usize;
            f64::from(self.times.get(index).copied().unwrap_or(0.0)) * 1e6
        };
        Outcome {
            ops,
            seconds,
            best,
            p50: at(0.5),
            p99: at(0.99),
            cpu_us: cpu * 1e6 / ops.max(1) as f64,
            ..Outcome::default()
        }
    }
}

// Plain sockets.

fn receive(stream: &mut TcpStream, into: &mut [u8]) -> usize {
    loop {
        match stream.read(into) {
            Ok(got) => return got,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            // The other end closed with answers on the way.
            Err(_) => return 0,
        }
    }
}

fn send(stream: &mut TcpStream, mut slices: &mut [IoSlice<'_>]) {
    while !slices.is_empty() {
        match stream.write_vectored(slices) {
            Ok(sent) => IoSlice::advance_slices(&mut slices, sent),
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(_) => return,
        }
    }
}

fn raw_server(mut stream: TcpStream, shape: Shape, file: &[u8]) {
    let mut requests = vec![0u8; 64 * REQUEST];
    let (mut have, mut at) = (0, 0);
    loop {
        let got = receive(&mut stream, &mut requests[have..]);
        if got == 0 {
            return;
        }
        have += got;
        let mut slices = Vec::new();
        for _ in 0..have / REQUEST {
            slices.push(IoSlice::new(&file[at..at + shape.size]));
            at = (at + shape.size) % FILE;
        }
        requests.copy_within(have / REQUEST * REQUEST..have, 0);
        have %= REQUEST;
        send(&mut stream, &mut slices);
    }
}

fn raw(shape: Shape) -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listener");
    let address = listener.local_addr().expect("address");
    // A client that spins must not keep the server from leaving its processor.
    let pinned = Arc::new(Barrier::new(2));
    let server_pinned = pinned.clone();
    let server = std::thread::spawn(move || {
        pin(1);
        let file = vec![7u8; FILE];
        server_pinned.wait();
        let (stream, _) = listener.accept().expect("accept");
        stream.set_nodelay(true).expect("nodelay");
        stream.set_nonblocking(shape.polled).expect("nonblocking");
        raw_server(stream, shape, &file);
    });
    pinned.wait();
    let mut stream = TcpStream::connect(address).expect("connect");
    stream.set_nodelay(true).expect("nodelay");
    stream.set_nonblocking(shape.polled).expect("nonblocking");
    let request = [1u8; REQUEST];
    let mut buffer = vec![1u8; FILE];
    let mut asked: VecDeque<Instant> = VecDeque::new();
    let (mut at, mut have) = (0, 0);
    let mut wanted = shape.depth;
    let mut meter = Meter::new();
    loop {
        let now = Instant::now();
        let mut slices = vec![IoSlice::new(&request); wanted];
        asked.extend(std::iter::repeat_n(now, wanted));
        send(&mut stream, &mut slices);
        wanted = 0;
        while wanted == 0 && !asked.is_empty() {
            // As much as one call brings of all that was asked for.
            let room = (shape.size * asked.len() - have).min(FILE - at);
            let got = receive(&mut stream, &mut buffer[at..at + room]);
            assert!(got > 0, "the server is gone");
            at = (at + got) % FILE;
            have += got;
            while have >= shape.size {
                have -= shape.size;
                meter.done(asked.pop_front().expect("asked"));
                wanted += 1;
            }
        }
        if meter.is_over(&shape) {
            break;
        }
    }
    let outcome = meter.outcome();
    drop(stream);
    server.join().expect("server");
    outcome
}

// This fabric.

fn turn(engine: &mut dyn Engine, completions: &mut Vec<dafs_fabric::WorkCompletion>, polled: bool) {
    completions.clear();
    if engine.poll(completions, 64) == 0 && !polled && engine.arm() {
        engine.waiter().wait(Some(Duration::from_millis(100)));
    }
}

fn fabric_server(
    mut engine: Box<dyn Engine>,
    shape: Shape,
    file: &Span,
    done: &AtomicBool,
    calls: &AtomicU64,
) {
    let requests = Arena::new(256 * REQUEST).expect("requests").span(0, 256 * REQUEST);
    for slot in 0..256 {
        let span = requests.part(slot * REQUEST, REQUEST);
        engine.post_recv(WrId(slot as u64), smallvec![span]).expect("recv");
    }
    let mut completions = Vec::new();
    let mut request = Vec::new();
    let mut at = 0;
    while !done.load(Ordering::Relaxed) {
        turn(&mut *engine, &mut completions, shape.polled);
        for completion in completions.iter().filter(|done| done.opcode == Opcode::Recv) {
            let span = requests.part(completion.wr_id.0 as usize * REQUEST, REQUEST);
            span.read_message(8, &mut request);
            let tag = Tag(u64::from_le_bytes(request[..8].try_into().expect("8 bytes")));
            let mut data = smallvec![file.part(at, shape.size)];
            at = (at + shape.size) % FILE;
            engine
                .post_tagged_send(
                    completion.queue_pair,
                    WrId(0),
                    tag,
                    &[9; REPLY_HEADER],
                    &mut data,
                    false,
                )
                .expect("reply");
            engine.post_recv(completion.wr_id, smallvec![span]).expect("recv");
        }
    }
    calls.store(engine.system_calls(), Ordering::Relaxed);
}

struct Client {
    engine: Box<dyn Engine>,
    queue_pair: QueuePair,
    buffer: Span,
    headers: Span,
    at: usize,
    next: u64,
    asked: VecDeque<(u64, Instant)>,
}

impl Client {
    fn ask(&mut self, size: usize) {
        let tag = self.next;
        self.next += 1;
        let header = self.headers.part(tag as usize % 1024 * REPLY_HEADER, REPLY_HEADER);
        let mut data = smallvec![self.buffer.part(self.at, size)];
        self.at = (self.at + size) % FILE;
        self.engine
            .post_tagged_recv(self.queue_pair, WrId(tag), Tag(tag), Some(header), &mut data)
            .expect("tagged recv");
        let mut request = [0u8; REQUEST];
        request[..8].copy_from_slice(&tag.to_le_bytes());
        self.engine
            .post_send(self.queue_pair, WrId(0), &request, &mut smallvec![], false)
            .expect("request");
        self.asked.push_back((tag, Instant::now()));
    }
}

fn fabric(shape: Shape, unix: bool) -> Outcome {
    let provider = TcpProvider::new();
    let device = provider.open().expect("device");
    let path = std::env::temp_dir().join(format!("dafs-pingpong-{}", std::process::id()));
    let address =
        if unix { format!("unix:{}", path.display()) } else { "tcp://127.0.0.1:0".into() };
    let address = Address::parse(&address).expect("address");
    let mut listener = device.listen(&address).expect("listener");
    let address = listener.address();
    let done = Arc::new(AtomicBool::new(false));
    let calls = Arc::new(AtomicU64::new(0));
    let (server_done, server_calls) = (done.clone(), calls.clone());
    let pinned = Arc::new(Barrier::new(2));
    let server_pinned = pinned.clone();
    let server = std::thread::spawn(move || {
        pin(1);
        let file = Arena::new(FILE).expect("file").span(0, FILE);
        file.zero();
        server_pinned.wait();
        let mut engine = device.engine().expect("engine");
        let incoming = loop {
            if let Some(incoming) = listener.poll_accept() {
                break incoming;
            }
        };
        engine.accept(incoming, b"").expect("accept");
        fabric_server(engine, shape, &file, &server_done, &server_calls);
    });
    pinned.wait();
    let mut engine = provider.open().expect("device").engine().expect("engine");
    let queue_pair = engine.connect(&address, b"").expect("connect");
    loop {
        engine.poll(&mut Vec::new(), 1);
        match engine.poll_event() {
            Some(QueuePairEvent::Connected { .. }) => break,
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
    let buffer = Arena::new(FILE).expect("buffer").span(0, FILE);
    buffer.zero();
    let headers = Arena::new(1024 * REPLY_HEADER).expect("headers").span(0, 1024 * REPLY_HEADER);
    let asked = VecDeque::new();
    let mut client = Client { engine, queue_pair, buffer, headers, at: 0, next: 0, asked };
    let mut completions = Vec::new();
    let before = client.engine.system_calls();
    let mut meter = Meter::new();
    (0..shape.depth).for_each(|_| client.ask(shape.size));
    while !meter.is_over(&shape) {
        turn(&mut *client.engine, &mut completions, shape.polled);
        for completion in &completions {
            assert_eq!(completion.status, Status::Success);
            let place = client.asked.iter().position(|(tag, _)| *tag == completion.wr_id.0);
            let (_, since) = client.asked.remove(place.expect("asked")).expect("asked");
            meter.done(since);
            client.ask(shape.size);
        }
    }
    let mut outcome = meter.outcome();
    outcome.client_calls =
        (client.engine.system_calls() - before) as f64 / outcome.ops.max(1) as f64;
    done.store(true, Ordering::Relaxed);
    server.join().expect("server");
    outcome.server_calls = calls.load(Ordering::Relaxed) as f64 / outcome.ops.max(1) as f64;
    outcome
}

fn print(name: &str, shape: &Shape, outcome: &Outcome) {
    let rate = outcome.ops as f64 / outcome.seconds;
    println!(
        "{:6} {:8} {:>8} x{:<3} {:>9.0}/s, best {:>7.0}/s {:>6.2} GB/s, p50 {:>8.1} p99 {:>8.1} us, cpu {:>7.2} us/op, calls {:.2} + {:.2}",
        name,
        if shape.polled { "polled" } else { "sleeping" },
        shape.size,
        shape.depth,
        rate,
        outcome.best,
        outcome.best * shape.size as f64 / 1e9,
        outcome.p50,
        outcome.p99,
        outcome.cpu_us,
        outcome.client_calls,
        outcome.server_calls,
    );
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seconds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(1.0);
    let unix = arguments.next().is_some_and(|text| text == "unix");
    let filter = arguments.next().unwrap_or_default();
    pin(0);
    for (size, depth) in [(4096, 1), (4096, 8), (4096, 32), (65536, 8), (1 << 20, 1), (1 << 20, 8)]
    {
        for polled in [true, false] {
            let shape = Shape { size, depth, polled, seconds };
            let name = format!("{size}x{depth}{}", if polled { "p" } else { "s" });
            if !name.starts_with(&filter) {
                continue;
            }
            let copied = dafs_fabric::mem::copied_bytes();
            print("raw", &shape, &raw(shape));
            let outcome = fabric(shape, unix);
            print("fabric", &shape, &outcome);
            let copied = dafs_fabric::mem::copied_bytes() - copied;
            println!(
                "       copies per byte {:.4}",
                copied as f64 / (outcome.ops * size as u64) as f64
            );
        }
    }
}
