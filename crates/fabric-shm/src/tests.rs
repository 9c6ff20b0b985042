//! Peers that break the rules, at the socket and in the rings. Each loses its own connection, and no more.

mod handshakes;
mod large;
mod lies;
mod lingering;
mod readers;
mod shorts;
mod users;
mod views;
mod wake_model;

use std::ffi::CStr;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dafs_fabric::{
    Access, Address, Arena, Device, Engine, Listener, MemoryRegion, Opcode, Provider, QueuePair,
    QueuePairEvent, Span, Status, WorkCompletion, WrId,
};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use smallvec::smallvec;

use crate::ShmProvider;
use crate::connection::{CLIENT_LIMITS, listen};
use crate::device::{ShmDevice, attributes};
use crate::ring::MEMORY_BYTES;
use crate::shared::Shared;
use crate::sys::{self, Take};
use crate::target::place;
use crate::wire::{self, MESSAGE_BYTES_MAX, Message, Side, Token};

const PATIENCE: Duration = Duration::from_secs(60);

/// Repeats until it is there.
fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "no {what}");
        std::thread::yield_now();
    }
}

/// A server, and an honest client beside whom others break the rules.
struct Server {
    device: Arc<dyn Device>,
    engine: Box<dyn Engine>,
    listener: Box<dyn Listener>,
    address: Address,
    token: Token,
    completions: Vec<WorkCompletion>,
    events: Vec<QueuePairEvent>,
    honest_device: Arc<dyn Device>,
    honest: Box<dyn Engine>,
    pair: Option<(QueuePair, QueuePair)>,
    target: Span,
}

impl Server {
    fn new() -> Server {
        Server::of(ShmProvider::new().open().expect("a device"))
    }

    /// With which each user's peers share so much.
    fn with_share(bytes: usize) -> (Server, Arc<Shared>) {
        let shared = Shared::with_share(attributes(), bytes as u64).expect("memory");
        (Server::of(Arc::new(ShmDevice::of(shared.clone()))), shared)
    }

    /// Of a system that takes descriptors of everybody, and which trusts nobody.
    fn of_strangers() -> Server {
        let mut shared = Shared::new(attributes()).expect("memory");
        Arc::get_mut(&mut shared).expect("nobody else has it").all_are_strangers = true;
        let listen = |address: &Address| listen(address, false).expect("a listener");
        Server::with(Arc::new(ShmDevice::of(shared)), |address| Box::new(listen(address)))
    }

    fn of(device: Arc<dyn Device>) -> Server {
        let listener = device.clone();
        Server::with(device, |address| listener.listen(address).expect("a listener"))
    }

    fn with(device: Arc<dyn Device>, listen: impl FnOnce(&Address) -> Box<dyn Listener>) -> Server {
        let mut token = [0; 16];
        getrandom::fill(&mut token).expect("random");
        let honest_device = ShmProvider::new().open().expect("a device");
        let address = device.same_host(token).expect("a network of one host");
        let mut server = Server {
            engine: device.engine().expect("an engine"),
            listener: listen(&address),
            honest: honest_device.engine().expect("an engine"),
            honest_device,
            device,
            address,
            token,
            completions: Vec::new(),
            events: Vec::new(),
            pair: None,
            target: Arena::new(1 << 16).expect("memory").span(0, 1 << 16),
        };
        server.connect_honest();
        server
    }

    fn poll(&mut self) {
        self.engine.poll(&mut self.completions, 64);
        self.events.extend(std::iter::from_fn(|| self.engine.poll_event()));
    }

    fn connect_honest(&mut self) {
        let near = self.honest.connect(&self.address, b"honest").expect("begins");
        let far = wait("connection request", || {
            self.honest.poll(&mut Vec::new(), 1);
            let incoming = self.listener.poll_accept()?;
            (incoming.private_data == b"honest")
                .then(|| self.engine.accept(incoming, b"").expect("accepted"))
        });
        wait("Connected", || {
            self.honest.poll(&mut Vec::new(), 1);
            self.honest.poll_event()
        });
        self.pair = Some((near, far));
        self.ping();
    }

    /// The honest client's message comes.
    fn ping(&mut self) {
        let (near, far) = self.pair.expect("connected");
        self.engine.post_recv(WrId(1), smallvec![self.target.clone()]).expect("posted");
        let none = &mut smallvec![];
        self.honest.post_send(near, WrId(2), b"ping", none, false).expect("posted");
        self.honest.ring();
        let status = wait("honest message", || {
            self.poll();
            let is_it = |c: &WorkCompletion| c.queue_pair == far && c.opcode == Opcode::Recv;
            let at = self.completions.iter().position(is_it)?;
            Some(self.completions.swap_remove(at).status)
        });
        assert_eq!(status, Status::Success);
    }

    /// The completion of a work request.
    fn finish(&mut self, wr_id: WrId) -> Status {
        wait("completion", || {
            self.poll();
            let at = self.completions.iter().position(|c| c.wr_id == wr_id)?;
            Some(self.completions.swap_remove(at).status)
        })
    }

    /// Why a queue pair ended.
    fn ended(&mut self, queue_pair: QueuePair) -> String {
        wait("end of the connection", || {
            self.poll();
            self.end_of(queue_pair)
        })
    }

    /// The same, if it has ended.
    fn end_of(&self, queue_pair: QueuePair) -> Option<String> {
        self.events.iter().find_map(|event| match event {
            QueuePairEvent::Disconnected { queue_pair: of, reason } if *of == queue_pair => {
                Some(reason.clone())
            }
            _ => None,
        })
    }

    /// A socket to it.
    fn socket(&self) -> OwnedFd {
        let place = place(&self.address).expect("a place");
        sys::connect(place.name()).expect("somebody listens").expect("at once")
    }

    /// A handshake up to the offer, which is sent with these descriptors.
    fn offer(&mut self, files: &[BorrowedFd<'_>], token: &Token) -> OwnedFd {
        self.offer_sharing(0, files, token)
    }

    /// And says that it will share so much.
    fn offer_sharing(&mut self, bytes: u64, files: &[BorrowedFd<'_>], token: &Token) -> OwnedFd {
        let (socket, own) = (self.socket(), [7; 16]);
        sys::send(socket.as_raw_fd(), &Message::Hello(own).encode()).expect("sent");
        let answer = self.hear(&socket);
        let Some(Message::Challenge(theirs, proof)) = Message::decode(&answer) else {
            panic!("no challenge: {answer:?}");
        };
        assert!(wire::is_proved(&proof, Some(&self.token), Side::Server, &own, &theirs));
        let proof = wire::prove(Some(token), Side::Client, &own, &theirs);
        send_all(&socket, &Message::Offer(proof, CLIENT_LIMITS, bytes, b"rude"), files);
        socket
    }

    /// What the server says to a peer that is not accepted yet; nothing: it has hung up.
    fn hear(&mut self, socket: &OwnedFd) -> Vec<u8> {
        wait("word of the server", || {
            self.poll();
            assert!(self.listener.poll_accept().is_none(), "it is let in");
            heard(socket)
        })
    }

    /// Somebody with rings who may break the rules.
    fn rude(&mut self) -> Rude {
        let arena = Arena::shared(MEMORY_BYTES).expect("memory");
        let memory = arena.span(0, MEMORY_BYTES);
        let file = memory.shared().expect("shared").file;
        let token = self.token;
        let socket = self.offer(&[file.as_fd()], &token);
        let queue_pair = wait("rude peer", || {
            let incoming = self.listener.poll_accept()?;
            Some(self.engine.accept(incoming, b"").expect("accepted"))
        });
        let answer = wait("acceptance", || heard(&socket));
        assert!(matches!(Message::decode(&answer), Some(Message::Accept(..))));
        Rude { socket, memory, queue_pair }
    }
}

struct Rude {
    socket: OwnedFd,
    memory: Span,
    queue_pair: QueuePair,
}

impl Rude {
    fn say(&self, message: &Message<'_>, files: &[BorrowedFd<'_>]) {
        send_all(&self.socket, message, files);
    }

    fn store(&self, offset: usize, value: u64) {
        self.memory.write_message(offset, &value.to_le_bytes());
    }
}

fn heard(socket: &OwnedFd) -> Option<Vec<u8>> {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    match sys::receive(socket.as_fd(), &mut bytes, Take::Message) {
        Ok(received) => Some(bytes[..received.len].to_vec()),
        Err(error) if sys::is_temporary(&error) => None,
        Err(_) => Some(Vec::new()),
    }
}

/// With any number of descriptors.
fn send_all(socket: &OwnedFd, message: &Message<'_>, files: &[BorrowedFd<'_>]) {
    let bytes = message.encode();
    match files {
        [] => sys::send(socket.as_raw_fd(), &bytes),
        files => sys::send_with(socket.as_raw_fd(), &bytes, files),
    }
    .expect("sent");
}

const NAME: &CStr = c"rude";
const BOTH: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW);

/// A file in memory; `None`: the kernel has none of that kind.
fn memfd(flags: MFdFlags, bytes: usize, seals: SealFlag) -> Option<OwnedFd> {
    let file = memfd_create(NAME, flags | MFdFlags::MFD_ALLOW_SEALING).ok()?;
    nix::unistd::ftruncate(&file, i64::try_from(bytes).expect("small")).expect("sized");
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).expect("sealed");
    Some(file)
}

fn regular_file() -> OwnedFd {
    let path = std::env::temp_dir().join(format!("dafs-shm-file-{}", std::process::id()));
    let mut file = std::fs::File::create_new(&path).expect("a file");
    file.write_all(&vec![0; MEMORY_BYTES]).expect("written");
    drop(file);
    let file = std::fs::File::options().read(true).write(true).open(&path).expect("open");
    std::fs::remove_file(&path).expect("removed");
    file.into()
}

/// Descriptors that are no memory to be shared, with what they are.
fn wrong_files(bytes: usize) -> Vec<(&'static str, OwnedFd)> {
    let plain = MFdFlags::empty();
    let sealed = |bytes| memfd(plain, bytes, BOTH).expect("a file");
    let zero = std::fs::File::options().read(true).write(true).open("/dev/zero").expect("open");
    let mut all = vec![
        ("a pipe", OwnedFd::from(std::io::pipe().expect("a pipe").0)),
        ("a regular file", regular_file()),
        ("/dev/zero", zero.into()),
        ("one that can be cut", memfd(plain, bytes, SealFlag::F_SEAL_GROW).expect("a file")),
        ("an empty one", sealed(0)),
        ("one of half a page", sealed(bytes + 2048)),
        ("one that cannot be written", {
            memfd(plain, bytes, BOTH | SealFlag::F_SEAL_WRITE).expect("a file")
        }),
    ];
    match memfd(MFdFlags::MFD_HUGETLB, 2 << 20, BOTH) {
        Some(huge) => all.push(("huge pages", huge)),
        None => println!("no huge pages here: that kind is left out"),
    }
    all
}

const READ_WRITE: Access = Access { remote_read: true, remote_write: true };

/// Epoll is asked now and then; a message costs no system call while both ends look.
#[test]
fn messages_cost_no_system_call_while_both_look() {
    const MESSAGES: u64 = 3000;
    let mut server = Server::new();
    let (near, far) = server.pair.expect("connected");
    let calls = |server: &Server| {
        let rounds = server.engine.rounds() + server.honest.rounds();
        (server.engine.system_calls() + server.honest.system_calls(), rounds)
    };
    server.ping();
    let (before, rounds_before) = calls(&server);
    for _ in 0..MESSAGES {
        server.ping();
        let answer = &mut smallvec![];
        server.honest.post_recv(WrId(5), smallvec![server.target.clone()]).expect("posted");
        server.engine.post_send(far, WrId(6), b"pong", answer, false).expect("posted");
        server.engine.ring();
        let answered = wait("answer", || {
            let mut done = Vec::new();
            server.honest.poll(&mut done, 1);
            done.pop()
        });
        assert_eq!((answered.wr_id, answered.queue_pair), (WrId(5), near));
    }
    let (after, rounds_after) = calls(&server);
    assert_eq!(after - before, rounds_after - rounds_before, "only epoll was asked");
    assert!(after - before < MESSAGES / 50, "{} calls", after - before);
}

/// What does not fit into a user's share is not mapped, and refused to who would touch it; who says that it
/// will share more than that is told so.
#[test]
fn a_share_that_is_used_up_ends_nothing_else() {
    const BYTES: usize = 1 << 16;
    let (mut server, shared) = Server::with_share(BYTES);
    let (_, far) = server.pair.expect("connected");
    let register = |server: &Server, bytes: usize| {
        let span = Arena::shared(bytes).expect("memory").span(0, bytes);
        server.honest_device.register(span, READ_WRITE).expect("a region")
    };
    let write = |server: &mut Server, region: &MemoryRegion| {
        let data = &mut smallvec![server.target.part(0, 8)];
        let remote = region.part(0, 8);
        server.engine.post_rdma_write(far, WrId(3), data, remote, true).expect("posted");
        server.finish(WrId(3))
    };
    let first = register(&server, BYTES / 2);
    assert_eq!(write(&mut server, &first), Status::Success);
    // Another program of the user's.
    let other = server.rude();
    let file = memfd(MFdFlags::empty(), BYTES / 2, BOTH).expect("a file");
    other.say(&Message::Segment(1), &[file.as_fd()]);
    let uid = dafs_fabric::local::effective_uid();
    wait("the other's memory", || {
        server.poll();
        (!shared.has_room(uid, 1)).then_some(())
    });
    let second = register(&server, BYTES / 4);
    assert_eq!(write(&mut server, &second), Status::RemoteAccess);
    assert_eq!(write(&mut server, &first), Status::Success);
    let rings = memfd(MFdFlags::empty(), MEMORY_BYTES, BOTH).expect("a file");
    let token = server.token;
    let socket = server.offer_sharing(1, &[rings.as_fd()], &token);
    let incoming = wait("the offer", || server.listener.poll_accept());
    assert!(server.engine.accept(incoming, b"").is_err());
    let answer = wait("an answer", || heard(&socket));
    let Some(Message::Reject(reason)) = Message::decode(&answer) else { panic!("{answer:?}") };
    assert_eq!(reason, b"no room in this user's share of shared memory");
    // There is room again when the other one has left.
    let queue_pair = other.queue_pair;
    drop((second, other));
    server.ended(queue_pair);
    let third = register(&server, BYTES / 4);
    assert_eq!(write(&mut server, &third), Status::Success);
}

/// Where nothing comes nobody looks; what comes then is noticed all the same, both ways.
#[test]
fn idle_queue_pairs_are_rung() {
    const PAIRS: usize = 20;
    const IDLE: usize = 20_000;
    let mut server = Server::new();
    let mut pairs = Vec::new();
    for _ in 0..PAIRS {
        server.connect_honest();
        pairs.extend(server.pair);
    }
    for _ in 0..IDLE {
        server.poll();
        server.honest.poll(&mut Vec::new(), 1);
    }
    for pair in &pairs {
        server.pair = Some(*pair);
        let before = server.honest.system_calls() - server.honest.rounds();
        server.ping();
        let calls = server.honest.system_calls() - server.honest.rounds() - before;
        assert!(calls <= 1, "more than a bell: {calls}");
    }
    for _ in 0..IDLE {
        server.poll();
        server.honest.poll(&mut Vec::new(), 1);
    }
    for (near, far) in pairs {
        server.honest.post_recv(WrId(5), smallvec![server.target.clone()]).expect("posted");
        server.engine.post_send(far, WrId(6), b"pong", &mut smallvec![], false).expect("posted");
        let answered = wait("answer", || {
            server.poll();
            let mut done = Vec::new();
            server.honest.poll(&mut done, 1);
            done.pop()
        });
        assert_eq!((answered.wr_id, answered.queue_pair), (WrId(5), near));
    }
}
