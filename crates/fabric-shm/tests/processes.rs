//! Peers in other processes: they are killed, stopped, or not who they should be.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dafs_fabric::{
    Access, Address, Arena, Engine, Listener, MemoryRegion, Provider, QueuePair, QueuePairEvent,
    Readers, RemoteSpan, Rkey, Span, WorkCompletion, WrId,
};
use dafs_fabric_shm::ShmProvider;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{ForkResult, Pid, fork};
use smallvec::smallvec;

const PATIENCE: Duration = Duration::from_secs(60);
const BYTES: usize = 16 << 20;
/// Tells a child what it is to do, and where.
const DEED: &str = "DAFS_SHM_TEST_DEED";
const PLACE: &str = "DAFS_SHM_TEST_PLACE";

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

/// This program again, as one that does a deed; ended with the test, and its children with it.
struct Peer(Child);

impl Peer {
    fn command(deed: &str, address: &Address) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "the_other_process"]).stdout(Stdio::null());
        command.env(DEED, deed).env(PLACE, address.to_string()).process_group(0);
        command
    }

    fn start(deed: &str, address: &Address) -> Peer {
        Peer(Peer::command(deed, address).spawn().expect("it starts"))
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).expect("a pid"));
        kill(pid, signal).expect("it is there");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Ok(group) = i32::try_from(self.0.id()) {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        let _ = self.0.wait();
    }
}

/// A child that has all that its parent has, does nothing, and lives until its group is ended.
fn fork_one_that_keeps_everything() {
    // SAFETY: the child does nothing but sleep.
    if let ForkResult::Child = unsafe { fork() }.expect("a child") {
        loop {
            nix::unistd::pause();
        }
    }
}

/// No test: what the other process does.
#[test]
fn the_other_process() {
    let Ok(deed) = std::env::var(DEED) else { return };
    let address = Address::parse(&std::env::var(PLACE).expect("a place")).expect("an address");
    let device = ShmProvider::new().open().expect("a device");
    if deed.starts_with("listen") {
        let mut listener = device.listen(&address).expect("a listener");
        if deed == "listen-with-child" {
            fork_one_that_keeps_everything();
        }
        // Until it is killed, or its parent is gone.
        let parent = nix::unistd::getppid();
        while nix::unistd::getppid() == parent {
            drop(listener.poll_accept());
            std::thread::yield_now();
        }
        return;
    }
    let mut engine = device.engine().expect("an engine");
    let into = Arena::new(4096).expect("memory").span(0, 24);
    engine.post_recv(WrId(1), smallvec![into.clone()]).expect("posted");
    let qp = engine.connect(&address, b"").expect("begins");
    let mut done = Vec::new();
    while done.is_empty() {
        engine.poll(&mut done, 1);
        while let Some(event) = engine.poll_event() {
            assert!(matches!(event, QueuePairEvent::Connected { .. }), "{event:?}");
        }
    }
    let mut bytes = [0; 24];
    into.copy_to(0, &mut bytes);
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
    let remote = RemoteSpan { rkey: Rkey(word(0)), addr: word(8), len: word(16) as u32 };
    let memory = Arena::new(BYTES).expect("memory").span(0, BYTES);
    for round in (1..=u8::MAX).cycle() {
        memory.copy_from(0, &vec![round; BYTES]);
        let list = &mut smallvec![memory.clone()];
        if engine.post_rdma_write(qp, WrId(2), list, remote, true).is_err() {
            if deed != "stay-with-child" {
                return;
            }
            // Until it is killed.
            loop {
                engine.poll(&mut done, 1);
                std::thread::yield_now();
            }
        }
        done.clear();
        while done.is_empty() {
            engine.poll(&mut done, 1);
        }
        if round == 1 && deed.ends_with("-with-child") {
            fork_one_that_keeps_everything();
        }
    }
}

/// A server whose memory another process writes to.
struct Server {
    engine: Box<dyn Engine>,
    listener: Box<dyn Listener>,
    address: Address,
    memory: Span,
    region: MemoryRegion,
    completions: Vec<WorkCompletion>,
    events: Vec<QueuePairEvent>,
}

impl Server {
    fn new(name: &str) -> Server {
        let path: PathBuf =
            std::env::temp_dir().join(format!("dafs-shm-{name}-{}", std::process::id()));
        let address = Address::parse(&format!("shm:{}", path.display())).expect("an address");
        let device = ShmProvider::new().open().expect("a device");
        let memory = Arena::shared(BYTES).expect("memory").span(0, BYTES);
        let all = Access { remote_read: true, remote_write: true };
        Server {
            engine: device.engine().expect("an engine"),
            listener: device.listen(&address).expect("a listener"),
            region: device.register(memory.clone(), all).expect("a region"),
            address,
            memory,
            completions: Vec::new(),
            events: Vec::new(),
        }
    }

    fn poll(&mut self) {
        self.engine.poll(&mut self.completions, 64);
        self.events.extend(std::iter::from_fn(|| self.engine.poll_event()));
    }

    fn accept(&mut self) -> QueuePair {
        wait("connection request", || {
            let incoming = self.listener.poll_accept()?;
            Some(self.engine.accept(incoming, b"").expect("accepted"))
        })
    }

    /// Another process, which has begun to write.
    fn writer(&mut self) -> (Peer, QueuePair) {
        self.writer_of("write", 1)
    }

    /// The same, with what it does, when it has written so often.
    fn writer_of(&mut self, deed: &str, rounds: u8) -> (Peer, QueuePair) {
        self.memory.zero();
        let peer = Peer::start(deed, &self.address);
        let qp = self.accept();
        let remote = self.region.remote();
        let words = [remote.rkey.0, remote.addr, u64::from(remote.len)];
        let message: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.engine.post_send(qp, WrId(1), &message, &mut smallvec![], false).expect("posted");
        wait("first byte", || {
            self.poll();
            let mut first = [0];
            self.memory.copy_to(0, &mut first);
            (first[0] >= rounds).then_some(())
        });
        (peer, qp)
    }

    fn has_event(&self, wanted: impl Fn(&QueuePairEvent) -> bool) -> bool {
        self.events.iter().any(wanted)
    }

    fn is_quiescent(&self, qp: QueuePair) -> bool {
        self.has_event(
            |e| matches!(e, QueuePairEvent::Quiescent { queue_pair } if *queue_pair == qp),
        )
    }

    fn contents(&self) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        self.memory.copy_to(0, &mut bytes);
        bytes
    }
}

#[test]
fn a_peer_that_is_killed_in_mid_copy_leaves_our_memory() {
    let mut server = Server::new("killed");
    for _ in 0..8 {
        let (peer, qp) = server.writer();
        peer.signal(Signal::SIGKILL);
        wait("Quiescent", || {
            server.poll();
            server.is_quiescent(qp).then_some(())
        });
        let told = server.has_event(
            |e| matches!(e, QueuePairEvent::Disconnected { queue_pair, .. } if *queue_pair == qp),
        );
        assert!(told, "{:?}", server.events);
        let before = server.contents();
        drop(peer);
        (0..100).for_each(|_| server.poll());
        assert!(server.contents() == before, "written after Quiescent");
        server.events.clear();
    }
}

/// A child has the socket, so that nobody hangs up, and all other descriptors; no mappings of the library.
#[test]
fn a_peer_that_is_killed_has_ended_though_its_child_keeps_everything() {
    let mut server = Server::new("with-child");
    for round in 0..4 {
        // It has a child when it writes for the second time.
        let (peer, qp) = server.writer_of("write-with-child", 2);
        let file = server.memory.shared().expect("shared").file;
        assert_eq!(file.is_retired(), round > 0);
        peer.signal(Signal::SIGKILL);
        wait("Quiescent", || {
            server.poll();
            server.is_quiescent(qp).then_some(())
        });
        let told = server.has_event(|e| {
            matches!(e, QueuePairEvent::Disconnected { queue_pair, reason }
                if *queue_pair == qp && reason == "the peer's process has ended")
        });
        assert!(told, "{:?}", server.events);
        assert!(file.is_retired(), "more is cut from memory that a child may have");
        let before = server.contents();
        (0..100).for_each(|_| server.poll());
        assert!(server.contents() == before, "written after Quiescent");
        server.events.clear();
        drop(peer);
    }
}

/// The child has the socket of the peer, which goes on living: that it has left our memory must be said.
#[test]
fn a_peer_with_a_child_leaves_when_it_is_asked_to() {
    let mut server = Server::new("stays");
    let (peer, qp) = server.writer_of("stay-with-child", 2);
    server.engine.disconnect(qp);
    wait("Quiescent", || {
        server.poll();
        server.is_quiescent(qp).then_some(())
    });
    drop(peer);
}

/// What the server lends is read until the process that reads returns it, whatever a child does with its copy.
#[test]
fn a_child_returns_nothing_that_its_parent_reads() {
    let path = std::env::temp_dir().join(format!("dafs-shm-lends-{}", std::process::id()));
    let address = Address::parse(&format!("shm:{}", path.display())).expect("an address");
    let device = ShmProvider::new().open().expect("a device");
    let (mut engine, mut listener) =
        (device.engine().expect("an engine"), device.listen(&address).expect("a listener"));
    let cache = Arena::for_readers(BYTES, 2 << 20, Readers::Own).expect("memory").span(0, BYTES);
    cache.copy_from(0, b"lent");
    let read = Access { remote_read: true, remote_write: false };
    let region = device.register(cache, read).expect("a region");
    let mut reader = ShmProvider::new().open().expect("a device").engine().expect("an engine");
    let near = reader.connect(&address, b"").expect("begins");
    let far = wait("connection request", || {
        reader.poll(&mut Vec::new(), 1);
        let incoming = listener.poll_accept()?;
        Some(engine.accept(incoming, b"").expect("accepted"))
    });
    wait("Connected", || {
        reader.poll(&mut Vec::new(), 1);
        reader.poll_event()
    });
    let views = reader.view(near, &[region.part(0, 4)]).expect("memory that it may read");
    engine.disconnect(far);
    let mut next_event = || {
        reader.poll(&mut Vec::new(), 1);
        engine.poll(&mut Vec::new(), 1);
        engine.poll_event()
    };
    let is_quiescent = |e: &QueuePairEvent| matches!(e, QueuePairEvent::Quiescent { .. });
    wait("Quiescent", || next_event().filter(is_quiescent));
    // SAFETY: the child lets go of what it has, and ends.
    match unsafe { fork() }.expect("a child") {
        ForkResult::Child => {
            drop(views);
            // SAFETY: it ends.
            unsafe { libc::_exit(0) };
        }
        ForkResult::Parent { child } => {
            let ended = nix::sys::wait::waitpid(child, None).expect("it ends");
            assert!(matches!(ended, nix::sys::wait::WaitStatus::Exited(_, 0)), "{ended:?}");
        }
    }
    assert!((0..100).all(|_| next_event().is_none()), "told that it is read no more");
    assert_eq!(views.iter().collect::<Vec<_>>(), [b"lent"]);
    drop(views);
    let is_returned = |e: &QueuePairEvent| matches!(e, QueuePairEvent::Returned { .. });
    wait("Returned", || next_event().filter(is_returned));
}

/// The name is free again, though a child listens there.
#[test]
fn a_server_that_is_killed_has_ended_though_its_child_keeps_everything() {
    let path = std::env::temp_dir().join(format!("dafs-shm-listens-{}", std::process::id()));
    let address = Address::parse(&format!("shm:{}", path.display())).expect("an address");
    let mut engine = ShmProvider::new().open().expect("a device").engine().expect("an engine");
    let mut attempt = || {
        let qp = engine.connect(&address, b"").expect("begins");
        wait("event", || {
            engine.poll(&mut Vec::new(), 1);
            engine.poll_event().filter(|event| {
                matches!(event, QueuePairEvent::Refused { queue_pair, .. } if *queue_pair == qp)
            })
        })
    };
    let mut peer = Peer::start("listen-with-child", &address);
    let reason = wait("answer", || match attempt() {
        QueuePairEvent::Refused { refused: false, reason, .. } => Some(reason),
        _ => None,
    });
    assert!(reason.contains("closed by the peer"), "{reason}");
    peer.signal(Signal::SIGKILL);
    peer.0.wait().expect("ends");
    let after = attempt();
    let QueuePairEvent::Refused { refused, reason, .. } = after else { panic!("{after:?}") };
    assert!(refused && reason.contains("has ended"), "{reason}");
    let device = ShmProvider::new().open().expect("a device");
    drop(device.listen(&address).expect("the name is free"));
}

#[test]
fn a_peer_that_is_stopped_holds_back_only_itself() {
    let mut server = Server::new("stopped");
    let (peer, stopped) = server.writer();
    peer.signal(Signal::SIGSTOP);
    // Another one goes on beside it.
    let device = ShmProvider::new().open().expect("a device");
    let mut other = device.engine().expect("an engine");
    let near = other.connect(&server.address, b"").expect("begins");
    let far = wait("connection request", || {
        other.poll(&mut Vec::new(), 1);
        let incoming = server.listener.poll_accept()?;
        Some(server.engine.accept(incoming, b"").expect("accepted"))
    });
    wait("Connected", || {
        other.poll(&mut Vec::new(), 1);
        other.poll_event()
    });
    let into = Arena::new(4096).expect("memory").span(0, 64);
    let mut ping = |server: &mut Server| {
        server.engine.post_recv(WrId(7), smallvec![into.clone()]).expect("posted");
        other.post_send(near, WrId(8), b"ping", &mut smallvec![], false).expect("posted");
        other.ring();
        let from = wait("message", || {
            server.poll();
            let at = server.completions.iter().position(|c| c.wr_id == WrId(7))?;
            Some(server.completions.swap_remove(at).queue_pair)
        });
        assert_eq!(from, far);
    };
    (0..100).for_each(|_| ping(&mut server));
    assert!(server.events.is_empty(), "a stopped peer shows nothing: {:?}", server.events);
    server.engine.disconnect(stopped);
    (0..100).for_each(|_| ping(&mut server));
    // It may be in the middle of a copy to our memory.
    assert!(!server.is_quiescent(stopped));
    peer.signal(Signal::SIGCONT);
    wait("Quiescent", || {
        server.poll();
        server.is_quiescent(stopped).then_some(())
    });
    ping(&mut server);
}

/// A name that another user has taken. Needs root, to be another user.
#[test]
fn a_server_of_another_user_is_not_trusted() {
    const NOBODY: u32 = 65_534;
    if !nix::unistd::geteuid().is_root() {
        return println!("only root can be another user: left out");
    }
    let address = Address::parse(&format!("shm:@{:032x}", std::process::id())).expect("address");
    let Ok(child) = Peer::command("listen", &address).uid(NOBODY).gid(NOBODY).spawn() else {
        return println!("nobody may not run this program: left out");
    };
    let _peer = Peer(child);
    let mut engine = ShmProvider::new().open().expect("a device").engine().expect("an engine");
    let mut attempt = |address: &Address| {
        wait("answer", || {
            engine.connect(address, b"").expect("begins");
            let event = wait("event", || {
                engine.poll(&mut Vec::new(), 1);
                engine.poll_event()
            });
            match event {
                // Not yet.
                QueuePairEvent::Refused { refused: true, .. } => None,
                QueuePairEvent::Refused { reason, .. } => Some(reason),
                other => panic!("{other:?}"),
            }
        })
    };
    let reason = attempt(&address);
    assert!(reason.contains("is of uid 65534"), "{reason}");
    // Whoever wishes it trusts it: the request is dropped there, no more.
    let wished = Address::parse(&format!("{address}?server_uid={NOBODY}")).expect("address");
    let reason = attempt(&wished);
    assert!(reason.contains("closed by the peer"), "{reason}");
}
