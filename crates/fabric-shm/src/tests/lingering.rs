//! TCP sockets that wait, where the last who has them closes them, until their peer takes what they have not sent.

use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{setsockopt, sockopt};

use super::*;
use crate::peer::SEGMENTS_MAX;
use crate::refused::CLOSING;

/// Whoever closes such a socket is held up so long.
const LINGER_SECONDS: i32 = 120;
const PROMPT: Duration = Duration::from_secs(60);

/// What a peer sends, and the other ends, which take nothing.
struct Hostile {
    sockets: Vec<TcpStream>,
    others: Vec<TcpStream>,
}

impl Hostile {
    fn new(count: usize) -> Hostile {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        setsockopt(&listener, sockopt::RcvBuf, &4096).expect("set");
        let (mut sockets, mut others) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let socket = TcpStream::connect(listener.local_addr().expect("address"));
            let mut socket = socket.expect("connect");
            others.push(listener.accept().expect("accept").0);
            let linger = libc::linger { l_onoff: 1, l_linger: LINGER_SECONDS };
            setsockopt(&socket, sockopt::Linger, &linger).expect("set");
            setsockopt(&socket, sockopt::SndBuf, &4096).expect("set");
            socket.set_nonblocking(true).expect("set");
            let mut full = 0;
            // What is on its way may yet find room at the other end.
            while full < 2 {
                match socket.write(&[0; 1 << 16]) {
                    Ok(sent) if sent > 0 => full = 0,
                    Ok(_) => panic!("nothing was sent"),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock);
                        full += 1;
                        std::thread::yield_now();
                    }
                }
            }
            sockets.push(socket);
        }
        Hostile { sockets, others }
    }

    /// Only the message has the sockets from now on.
    fn send(&mut self, socket: &OwnedFd, message: &Message<'_>) {
        let files: Vec<_> = self.sockets.iter().map(AsFd::as_fd).collect();
        send_all(socket, message, &files);
        self.sockets.clear();
    }

    /// One in the queue of a Unix socket, so that to have the TCP socket end at once helps nobody.
    fn wrapped(mut self) -> (OwnedFd, Vec<TcpStream>) {
        let (near, far) = UnixStream::pair().expect("a pair");
        self.send(&near.into(), &Message::Bell);
        (far.into(), self.others)
    }

    /// All are closed, by whomever.
    fn are_closed(&mut self) {
        for other in &mut self.others {
            let mut bytes = vec![0; 1 << 20];
            other.set_read_timeout(Some(PATIENCE)).expect("set");
            while let Ok(1..) = other.read(&mut bytes) {}
        }
    }
}

/// Does it, and goes on for others, in less time than one such socket takes.
fn is_prompt(server: &mut Server, act: impl FnOnce(&mut Server)) {
    let start = Instant::now();
    act(server);
    server.ping();
    assert!(start.elapsed() < PROMPT, "held up for {:?}", start.elapsed());
}

#[test]
fn behind_a_message_that_is_no_handshake() {
    let mut server = Server::of_strangers();
    let mut hostile = Hostile::new(1);
    let socket = server.socket();
    send_all(&socket, &Message::Bell, &[]);
    hostile.send(&socket, &Message::Bell);
    is_prompt(&mut server, |server| {
        let answer = server.hear(&socket);
        assert!(matches!(Message::decode(&answer), Some(Message::Reject(_))), "{answer:?}");
    });
    hostile.are_closed();
}

#[test]
fn more_than_any_message_has() {
    let mut server = Server::of_strangers();
    let mut hostile = Hostile::new(20);
    let rude = server.rude();
    hostile.send(&rude.socket, &Message::Segment(1));
    is_prompt(&mut server, |server| {
        let reason = server.ended(rude.queue_pair);
        assert!(reason.contains("descriptors that are too many"), "{reason}");
    });
    hostile.are_closed();
}

/// The second is in the queue of a connection that ends for the first; an empty message is no end.
#[test]
fn left_in_the_queue_of_a_connection_that_ends() {
    let mut server = Server::of_strangers();
    for first in [&[][..], &[6]] {
        let mut hostile = Hostile::new(2);
        let mut second = Hostile { sockets: hostile.sockets.split_off(1), others: Vec::new() };
        let rude = server.rude();
        let queue_pair = rude.queue_pair;
        let bell = Message::Bell;
        // Not looked at before it ends.
        hostile.send(&rude.socket, &bell);
        sys::send(rude.socket.as_raw_fd(), first).expect("sent");
        second.send(&rude.socket, &bell);
        is_prompt(&mut server, |server| server.engine.disconnect(queue_pair));
        drop(rude);
        hostile.are_closed();
    }
}

/// A peer that is refused, and one that nobody has accepted.
#[test]
fn left_by_who_is_not_accepted() {
    let mut server = Server::of_strangers();
    let file = memfd(MFdFlags::empty(), MEMORY_BYTES, BOTH).expect("a file");
    let token = server.token;
    let mut hostile = Hostile::new(1);
    let socket = server.offer(&[file.as_fd()], &token);
    hostile.send(&socket, &Message::Bell);
    is_prompt(&mut server, |server| {
        let incoming = wait("the offer", || server.listener.poll_accept());
        server.engine.reject(incoming, "no");
    });
    hostile.are_closed();
    let mut hostile = Hostile::new(1);
    let socket = server.socket();
    hostile.send(&socket, &Message::Bell);
    is_prompt(&mut server, |server| {
        let mut token = [0; 16];
        getrandom::fill(&mut token).expect("random");
        let address = server.device.same_host(token).expect("a network of one host");
        let other = server.device.listen(&address).expect("a listener");
        drop(std::mem::replace(&mut server.listener, other));
    });
    hostile.are_closed();
}

/// In a process of its own: all tests are one user's.
#[test]
fn who_is_shut_out_holds_up_nobody() {
    alone(is_shut_out);
}

/// All descriptors of a process are one table.
#[test]
fn a_full_table_of_descriptors_holds_up_nobody() {
    alone(has_no_descriptor);
}

/// Runs the test that calls it in a process of its own.
pub(super) fn alone(test: fn()) {
    const ALONE: &str = "DAFS_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return test();
    }
    let this = std::thread::current().name().expect("a test has one").to_owned();
    let program = std::env::current_exe().expect("it runs");
    let done = Command::new(program).args(["--exact", &this]).env(ALONE, "1").output();
    let done = done.expect("it ends");
    let text = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && text.contains("1 passed"), "{text}");
}

fn is_shut_out() {
    let mut server = Server::of_strangers();
    let uid = dafs_fabric::local::effective_uid();
    let (silent, rude) = (server.socket(), server.rude());
    let mut others = Vec::new();
    let start = Instant::now();
    while !CLOSING.is_shut_out(uid) {
        let (file, more) = Hostile::new(1).wrapped();
        others.extend(more);
        let socket = server.socket();
        send_all(&socket, &Message::Bell, &[file.as_fd()]);
        drop(file);
        server.hear(&socket);
    }
    // What they send is not taken, and nobody looks at it again and again.
    let pipe = std::io::pipe().expect("a pipe").0;
    for early in [Some(silent), None] {
        let socket = early.unwrap_or_else(|| server.socket());
        send_all(&socket, &Message::Bell, &[pipe.as_fd()]);
        assert_eq!(server.hear(&socket), b"", "it is read");
    }
    rude.say(&Message::Segment(1), &[pipe.as_fd()]);
    let reason = server.ended(rude.queue_pair);
    assert!(reason.contains("do not close"), "{reason}");
    wait("hang-up", || heard(&rude.socket).filter(Vec::is_empty));
    wait("silence of the listener", || {
        assert!(server.listener.poll_accept().is_none(), "it is let in");
        let events = PollFd::new(server.listener.event_fd()?, PollFlags::POLLIN);
        (poll(&mut [events], PollTimeout::ZERO) == Ok(0)).then_some(())
    });
    // What waits to be closed is bounded: then nobody is let in, whoever has a connection keeps it.
    let connect = |server: &mut Server| {
        let socket = server.socket();
        send_all(&socket, &Message::Bell, &[pipe.as_fd()]);
        assert!(server.listener.poll_accept().is_none(), "it is let in");
    };
    while !CLOSING.is_full() {
        connect(&mut server);
    }
    let before = descriptors();
    (0..20).for_each(|_| connect(&mut server));
    assert_eq!(descriptors(), before);
    server.ping();
    assert!(start.elapsed() < PROMPT, "held up for {:?}", start.elapsed());
    assert!(CLOSING.is_shut_out(uid));
    // When the others have gone, it is a user as any.
    drop(others);
    let last = server.socket();
    send_all(&last, &Message::Bell, &[]);
    server.hear(&last);
    wait("room", || (!CLOSING.is_shut_out(uid)).then_some(()));
    server.connect_honest();
}

/// Of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

fn has_no_descriptor() {
    let mut server = Server::of_strangers();
    let mut hostile = Hostile::new(1);
    let (rude, honest) = (server.rude(), server.rude());
    let file = memfd(MFdFlags::empty(), MEMORY_BYTES, BOTH).expect("a file");
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, 100, hard).expect("less");
    let null = std::fs::File::open("/dev/null").expect("open");
    let fill = |all: &mut Vec<std::fs::File>| {
        while let Ok(more) = null.try_clone() {
            all.push(more)
        }
    };
    let mut all = Vec::new();
    hostile.send(&rude.socket, &Message::Segment(1));
    fill(&mut all);
    is_prompt(&mut server, |server| {
        let reason = server.ended(rude.queue_pair);
        assert!(reason.contains("no descriptor is left"), "{reason}");
    });
    // The thread that closes what the first one sent may have one more for a moment: then it is tried again.
    is_prompt(&mut server, |server| {
        let mut segments = 1..SEGMENTS_MAX;
        let reason = wait("end of the connection", || {
            fill(&mut all);
            if let Some(number) = segments.next() {
                honest.say(&Message::Segment(number.into()), &[file.as_fd()]);
            }
            // Epoll is asked next.
            server.engine.arm();
            server.poll();
            server.end_of(honest.queue_pair)
        });
        assert!(reason.contains("no descriptor is left"), "{reason}");
    });
    drop(all);
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("as before");
    hostile.are_closed();
    server.connect_honest();
}
