//! Memory of one user: processes of several users look for it in all that they map.

use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dafs_fabric::mem::PAGE_BYTES;
use dafs_fabric::{
    Access, Address, Arena, Device, Engine, Listener, MemoryRegion, Provider, QueuePair,
    QueuePairEvent, Readers, Rkey, Span, WorkCompletion, WrId,
};
use dafs_fabric_shm::ShmProvider;
use nix::unistd::{Uid, seteuid};
use smallvec::smallvec;

const PATIENCE: Duration = Duration::from_secs(60);
const DEED: &str = "DAFS_SHM_TEST_USERS_DEED";
const PLACE: &str = "DAFS_SHM_TEST_USERS_PLACE";
const HIM: u32 = 54_321;
const HER: u32 = 54_322;
/// Of users without a number.
const NOBODY: u32 = 65_534;
const BYTES: usize = 4 << 20;
const READERS: [Readers; 4] = [Readers::Own, Readers::User(HIM), Readers::User(HER), Readers::All];
/// As whom the other process connects, and who it is when it is admitted and told.
const VISITS: [(u32, u32); 6] =
    [(HIM, HIM), (HER, HER), (HIM, HER), (HER, HIM), (0, HIM), (HIM, 0)];

fn mark(number: usize) -> [u8; 16] {
    let mut mark = *b"marked, as no. 0";
    mark[15] += number as u8;
    mark
}

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

/// One end of connections.
struct End {
    engine: Box<dyn Engine>,
    into: Span,
    done: Vec<WorkCompletion>,
    events: Vec<QueuePairEvent>,
}

impl End {
    fn new(device: &dyn Device) -> End {
        let into = Arena::new(PAGE_BYTES).expect("memory").span(0, 64);
        let engine = device.engine().expect("an engine");
        End { engine, into, done: Vec::new(), events: Vec::new() }
    }

    fn poll(&mut self) {
        self.engine.poll(&mut self.done, 16);
        self.events.extend(std::iter::from_fn(|| self.engine.poll_event()));
    }

    fn wait_for(&mut self, what: &str, is_it: impl Fn(&QueuePairEvent) -> bool) {
        wait(what, || {
            self.poll();
            let at = self.events.iter().position(&is_it)?;
            Some(self.events.swap_remove(at))
        });
    }

    fn send(&mut self, qp: QueuePair, message: &[u8]) {
        self.engine.post_send(qp, WrId(1), message, &mut smallvec![], false).expect("posted");
        self.engine.ring();
    }

    fn receive<const N: usize>(&mut self) -> [u8; N] {
        self.engine.post_recv(WrId(2), smallvec![self.into.clone()]).expect("posted");
        wait("message", || {
            self.poll();
            let at = self.done.iter().position(|done| done.wr_id == WrId(2))?;
            Some(self.done.swap_remove(at))
        });
        let mut bytes = [0; N];
        self.into.copy_to(0, &mut bytes);
        bytes
    }
}

fn become_user(uid: u32) {
    seteuid(Uid::from_raw(0)).expect("root again");
    seteuid(Uid::from_raw(uid)).expect("another user");
}

/// Which of the marks stand in memory that this process shares with others.
fn marks() -> [bool; 4] {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("mappings");
    let memory = std::fs::File::open("/proc/self/mem").expect("memory");
    let mut seen = [false; 4];
    for line in maps.lines().filter(|line| line.contains("/memfd:")) {
        let (start, rest) = line.split_once('-').expect("a range");
        let end = rest.split(' ').next().expect("an end");
        let [start, end] = [start, end].map(|at| u64::from_str_radix(at, 16).expect("an address"));
        for page in (start..end).step_by(PAGE_BYTES) {
            let mut bytes = [0; 16];
            if memory.read_exact_at(&mut bytes, page).is_ok() {
                (0..4).filter(|number| bytes == mark(*number)).for_each(|at| seen[at] = true);
            }
        }
    }
    seen
}

/// No test: what the other process does.
#[test]
fn the_other_process() {
    let Ok(deed) = std::env::var(DEED) else { return };
    let address = Address::parse(&std::env::var(PLACE).expect("a place")).expect("an address");
    match deed.as_str() {
        "look" => look(&address),
        "serve" => serve_one(&address),
        "connect" => {
            become_user(HIM);
            let mut end = End::new(&*ShmProvider::new().open().expect("a device"));
            end.engine.connect(&address, b"").expect("begins");
            end.wait_for("Connected", |e| matches!(e, QueuePairEvent::Connected { .. }));
            // Until it is killed.
            loop {
                end.poll();
                std::thread::yield_now();
            }
        }
        other => panic!("{other}"),
    }
}

fn look(address: &Address) {
    let device = ShmProvider::new().open().expect("a device");
    let mut end = End::new(&*device);
    for (first, then) in VISITS {
        become_user(first);
        let qp = end.engine.connect(address, b"").expect("begins");
        end.wait_for("Connected", |e| matches!(e, QueuePairEvent::Connected { .. }));
        become_user(then);
        end.send(qp, b"admit");
        let keys: [u8; 32] = end.receive();
        let key = |at: usize| u64::from_le_bytes(keys[8 * at..8 * at + 8].try_into().expect("it"));
        let mapped: [bool; 4] =
            std::array::from_fn(|at| end.engine.map(qp, Rkey(key(at))).is_some());
        become_user(0);
        let found = [mapped, marks()].concat().iter().map(|is| u8::from(*is)).collect::<Vec<_>>();
        end.send(qp, &found);
        end.wait_for("Quiescent", |e| matches!(e, QueuePairEvent::Quiescent { .. }));
    }
}

/// Ended with the test.
struct Other(Child);

impl Other {
    fn start(mut command: Command, deed: &str, address: &Address) -> Other {
        command.args(["--exact", "the_other_process", "--nocapture"]).env(DEED, deed);
        command.env(PLACE, address.to_string()).stdout(Stdio::piped());
        Other(command.spawn().expect("it starts"))
    }

    fn this(deed: &str, address: &Address) -> Other {
        Other::start(Command::new(std::env::current_exe().expect("this program")), deed, address)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn shown(device: &dyn Device, number: usize, readers: Readers) -> MemoryRegion {
    let arena = Arena::for_readers(BYTES, 2 << 20, readers).expect("memory");
    let span = arena.span(0, BYTES);
    span.copy_from(3 * PAGE_BYTES, &mark(number));
    let read = Access { remote_read: true, remote_write: false };
    device.register(span, read).expect("a region")
}

fn accept(end: &mut End, listener: &mut dyn Listener) -> QueuePair {
    wait("connection request", || {
        let incoming = listener.poll_accept()?;
        Some(end.engine.accept(incoming, b"").expect("accepted"))
    })
}

fn uid_of(end: &End, qp: QueuePair) -> u32 {
    let who = end.engine.peer(qp).expect("a peer").credentials;
    who.expect("the system knows").uid
}

fn address(name: &str) -> Address {
    let number = u128::from(std::process::id()) << 32 | name.len() as u128;
    Address::parse(&format!("shm:@{number:032x}")).expect("an address")
}

/// Also whoever becomes somebody else after he has connected, or comes again as another one. Needs root.
#[test]
fn who_connected_as_a_user_maps_what_is_for_that_user_and_nothing_else() {
    if !nix::unistd::geteuid().is_root() {
        return println!("only root can be another user: left out");
    }
    let address = address("look");
    let device = ShmProvider::new().open().expect("a device");
    let mut listener = device.listen(&address).expect("a listener");
    let mut end = End::new(&*device);
    // The first visitors come before there is anything that they may read.
    let mut regions: Vec<MemoryRegion> = Vec::new();
    let _other = Other::this("look", &address);
    for (first, then) in VISITS {
        let qp = accept(&mut end, &mut *listener);
        let who = format!("connected as {first}, admitted as {then}");
        assert_eq!(uid_of(&end, qp), first, "{who}");
        assert_eq!(&end.receive::<5>(), b"admit");
        let lets = |end: &End| READERS.map(|readers| end.engine.lets_read(qp, readers));
        assert_eq!(lets(&end), [first == 0; 4], "{who}: nobody has admitted him");
        end.engine.admit(qp);
        if regions.is_empty() {
            regions.extend((0..4).map(|number| shown(&*device, number, READERS[number])));
        }
        let may = [first == 0, [0, HIM].contains(&first), [0, HER].contains(&first), true];
        assert_eq!(lets(&end), may, "{who}");
        let keys: Vec<u8> = regions.iter().flat_map(|r| r.remote().rkey.0.to_le_bytes()).collect();
        end.send(qp, &keys);
        let found: [u8; 8] = end.receive();
        assert_eq!(found.map(|is| is == 1), [may, may].concat()[..], "{who}");
        end.engine.disconnect(qp);
        end.wait_for("Quiescent", |e| matches!(e, QueuePairEvent::Quiescent { .. }));
    }
}

/// Says of one peer who he is, and what he would read when he was admitted.
fn serve_one(address: &Address) {
    let device = ShmProvider::new().open().expect("a device");
    let mut listener = device.listen(address).expect("a listener");
    let mut end = End::new(&*device);
    let readers = [Readers::User(HIM), Readers::User(NOBODY), Readers::All];
    let before = shown(&*device, 0, readers[0]);
    println!("it listens");
    let qp = accept(&mut end, &mut *listener);
    end.engine.admit(qp);
    let _shown = (before, [1, 2].map(|number| shown(&*device, number, readers[number])));
    let reads = readers.map(|readers| end.engine.lets_read(qp, readers));
    println!("uid {} reads {reads:?}", uid_of(&end, qp));
}

/// A server in a user namespace, where other users than its own have no numbers. Needs root.
#[test]
fn who_has_no_number_where_the_server_is_maps_nothing() {
    if !nix::unistd::geteuid().is_root() {
        return println!("only root can be another user: left out");
    }
    let served = |command: Command, name: &str| {
        use std::io::{BufRead, BufReader};
        let address = address(name);
        let mut server = Other::start(command, "serve", &address);
        let mut lines = BufReader::new(server.0.stdout.take().expect("a pipe")).lines();
        let mut say =
            |what: &str| lines.by_ref().map_while(Result::ok).find(|line| line.contains(what));
        say("it listens")?;
        let _peer = Other::this("connect", &address);
        Some(say(" reads ").expect("what he reads"))
    };
    let this = std::env::current_exe().expect("this program");
    let usual = served(Command::new(&this), "in the usual one").expect("it listens");
    assert!(usual.contains(&format!("uid {HIM} reads [true, false, true]")), "{usual}");
    let mut apart = Command::new("unshare");
    apart.args(["--user", "--map-root-user"]).arg(&this);
    let Some(apart) = served(apart, "in one of its own, without him") else {
        return println!("no user namespaces here: left out");
    };
    assert!(apart.contains(&format!("uid {NOBODY} reads [false, false, false]")), "{apart}");
}
