//! Two engines in two threads, which sleep when there is nothing to do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dafs_fabric::{
    Access, Address, Arena, Device, Engine, Opcode, Provider, QueuePair, QueuePairEvent,
    RemoteSpan, Rkey, Status, Tag, WorkCompletion, WrId,
};
use dafs_fabric_tcp::TcpProvider;
use smallvec::smallvec;

const ROOM: usize = 300_000;
const REQUESTS: u64 = 800;
const DEPTH: u64 = 8;

/// Polls, and sleeps when nothing came.
fn turn(engine: &mut dyn Engine, done: &mut Vec<WorkCompletion>) {
    if engine.poll(done, 64) == 0 && engine.arm() {
        engine.waiter().wait(None);
    }
}

fn connect(device: &dyn Device, address: &Address) -> (Box<dyn Engine>, QueuePair) {
    let mut engine = device.engine().expect("engine");
    let queue_pair = engine.connect(address, b"").expect("connect");
    let mut done = Vec::new();
    loop {
        turn(&mut *engine, &mut done);
        match engine.poll_event() {
            Some(QueuePairEvent::Connected { .. }) => return (engine, queue_pair),
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
}

fn accept(device: &dyn Device, address: &str, tell: impl FnOnce(Address)) -> Box<dyn Engine> {
    let address = Address::parse(address).expect("address");
    let mut listener = device.listen(&address).expect("listener");
    tell(listener.address());
    let mut engine = device.engine().expect("engine");
    loop {
        if let Some(incoming) = listener.poll_accept() {
            engine.accept(incoming, b"").expect("accept");
            return engine;
        }
        std::thread::yield_now();
    }
}

fn len_of(tag: u64) -> usize {
    (tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % ROOM
}

/// Answers each request with as many bytes as its number says.
fn serve(engine: &mut dyn Engine) {
    let arena = Arena::new(1 << 20).expect("arena");
    let bytes: Vec<u8> = (0..ROOM + 256).map(|at| (at % 251) as u8).collect();
    let file = arena.span(0, ROOM + 256);
    file.write_message(0, &bytes);
    let requests = arena.span(512 * 1024, 64 * 8);
    let post = |engine: &mut dyn Engine, slot: u64| {
        let place = smallvec![requests.part(slot as usize * 8, 8)];
        engine.post_recv(WrId(slot), place).expect("recv");
    };
    (0..DEPTH).for_each(|slot| post(engine, slot));
    let (mut done, mut message) = (Vec::new(), Vec::new());
    loop {
        turn(engine, &mut done);
        for completion in done.drain(..) {
            if completion.opcode != Opcode::Recv || completion.status != Status::Success {
                continue;
            }
            requests.part(completion.wr_id.0 as usize * 8, 8).read_message(8, &mut message);
            let tag = u64::from_le_bytes(message[..8].try_into().expect("8 bytes"));
            let mut data = smallvec![file.part(tag as usize % 256, len_of(tag))];
            engine
                .post_tagged_send(
                    completion.queue_pair,
                    WrId(0),
                    Tag(tag),
                    &message,
                    &mut data,
                    false,
                )
                .expect("answer");
            post(engine, completion.wr_id.0);
        }
        if matches!(engine.poll_event(), Some(QueuePairEvent::Disconnected { .. })) {
            return;
        }
    }
}

fn ask_all(engine: &mut dyn Engine, queue_pair: QueuePair) {
    let arena = Arena::new(DEPTH as usize * (ROOM + 64)).expect("arena");
    let place =
        |tag: u64| arena.span((tag % DEPTH) as usize * (ROOM + 64) + tag as usize % 5, ROOM);
    let headers = Arena::new(4096).expect("arena");
    let header = |tag: u64| headers.span((tag % DEPTH) as usize * 8, 8);
    let ask = |engine: &mut dyn Engine, tag: u64| {
        let data = place(tag);
        let mut list = smallvec![data.part(0, 1000), data.part(1000, ROOM - 1000)];
        engine
            .post_tagged_recv(queue_pair, WrId(tag), Tag(tag), Some(header(tag)), &mut list)
            .expect("tagged recv");
        engine
            .post_send(queue_pair, WrId(0), &tag.to_le_bytes(), &mut smallvec![], false)
            .expect("request");
    };
    (0..DEPTH).for_each(|tag| ask(engine, tag));
    let (mut done, mut answered, mut bytes) = (Vec::new(), 0, Vec::new());
    while answered < REQUESTS {
        turn(engine, &mut done);
        for completion in done.drain(..) {
            let tag = completion.wr_id.0;
            assert_eq!(completion.status, Status::Success);
            assert_eq!(completion.byte_len as usize, len_of(tag));
            place(tag).read_message(len_of(tag), &mut bytes);
            let start = tag as usize % 256;
            assert!(bytes.iter().zip(start..).all(|(byte, at)| *byte == (at % 251) as u8));
            header(tag).read_message(8, &mut bytes);
            assert_eq!(bytes, tag.to_le_bytes());
            answered += 1;
            // The buffer of this tag is free; so is the one `DEPTH` later.
            if tag + DEPTH < REQUESTS {
                ask(engine, tag + DEPTH);
            }
        }
    }
}

fn converse(address: &str) {
    std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        scope.spawn(move || {
            let device = TcpProvider::new().open().expect("device");
            let mut engine = accept(&*device, address, |address| tell.send(address).expect("told"));
            serve(&mut *engine);
        });
        let device = TcpProvider::new().open().expect("device");
        let (mut engine, queue_pair) = connect(&*device, &told.recv().expect("an address"));
        ask_all(&mut *engine, queue_pair);
    });
}

#[test]
fn sleepers_wake_over_tcp() {
    converse("tcp://127.0.0.1:0");
}

#[test]
fn sleepers_wake_over_unix_sockets() {
    let path = std::env::temp_dir().join(format!("dafs-threads-{}", std::process::id()));
    converse(&format!("unix:{}", path.display()));
}

/// Lets the other threads end, also when this one panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What is in memory after the end of access is never read by a peer, however the threads meet.
#[test]
fn no_read_outlives_access() {
    const LEN: usize = 1 << 20;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        let (offer, offered) = std::sync::mpsc::sync_channel::<RemoteSpan>(0);
        let stop = &stop;
        scope.spawn(move || {
            let device = TcpProvider::new().open().expect("device");
            let owner = device.clone();
            scope.spawn(move || {
                let span = Arena::new(LEN).expect("arena").span(0, LEN);
                let access = Access { remote_read: true, remote_write: false };
                let public = vec![1; LEN];
                for round in 0..150u64 {
                    span.write_message(0, &public);
                    let region = owner.register(span.clone(), access).expect("region");
                    if offer.send(region.remote()).is_err() {
                        return;
                    }
                    // Somewhere between before and after the read.
                    let start = Instant::now();
                    while start.elapsed() < Duration::from_micros(round * 7 % 400) {
                        std::hint::spin_loop();
                    }
                    drop(region);
                    span.write_message(0, &[2; LEN]);
                }
            });
            let mut engine =
                accept(&*device, "tcp://127.0.0.1:0", |address| tell.send(address).expect("told"));
            let mut done = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                engine.poll(&mut done, 1);
            }
        });
        let _stop = Stop(stop);
        let device = TcpProvider::new().open().expect("device");
        let (mut engine, queue_pair) = connect(&*device, &told.recv().expect("an address"));
        let into = Arena::new(LEN).expect("arena").span(0, LEN);
        let (mut done, mut bytes, mut refused) = (Vec::new(), Vec::new(), 0);
        let stale = RemoteSpan { rkey: Rkey(1), addr: 0, len: 1 };
        for remote in offered.iter().chain([stale]) {
            engine
                .post_rdma_read(queue_pair, WrId(1), &mut smallvec![into.clone()], remote, false)
                .expect("read");
            while engine.poll(&mut done, 1) == 0 {}
            let status = done.pop().expect("a completion").status;
            refused += usize::from(status == Status::RemoteAccess);
            into.read_message(LEN, &mut bytes);
            // Also where the read was refused half way.
            assert!(!bytes.contains(&2), "{status:?}");
        }
        assert!(refused > 0);
    });
}
