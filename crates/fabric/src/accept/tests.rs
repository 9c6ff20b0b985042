use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex};

use super::*;
use crate::local;

#[test]
fn only_a_socket_is_opened_to_all() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    let mode = |name: &str| fs::metadata(at(name)).expect("there").permissions().mode() & 0o777;
    fs::write(at("secret"), "secret").expect("a file");
    fs::set_permissions(at("secret"), Permissions::from_mode(0o600)).expect("chmod");
    std::os::unix::fs::symlink("secret", at("link")).expect("a link");
    for replaced in ["secret", "link"] {
        let error = open_to_all(&at(replaced)).expect_err("no socket");
        assert!(error.to_string().contains("replaced while it was made"), "{error}");
    }
    assert_eq!(mode("secret"), 0o600);
    let _listener = UnixListener::bind(at("socket")).expect("a socket");
    fs::set_permissions(at("socket"), Permissions::from_mode(0o600)).expect("chmod");
    open_to_all(&at("socket")).expect("opened");
    assert_eq!(mode("socket"), 0o666);
}

/// A peer that has to say one byte: what it is to be, done or wrong.
struct OneByte(UnixStream);

impl AsFd for OneByte {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

struct Done;

impl Pending for Done {
    fn is_established(&self) -> bool {
        true
    }
}

impl HalfOpen for OneByte {
    fn step(&mut self) -> Step {
        let mut byte = [0];
        match io::Read::read(&mut self.0, &mut byte) {
            Ok(0) => Step::Gone(ErrorKind::UnexpectedEof.into()),
            Ok(_) if byte == *b"y" => Step::Done(byte.to_vec()),
            Ok(_) => Step::Wrong("not a y".into()),
            Err(_) => Step::Pending,
        }
    }

    fn refuse(&self, reason: &str) {
        io::Write::write_all(&mut &self.0, reason.as_bytes()).expect("room in the socket");
    }

    fn into_pending(self) -> Option<Box<dyn Pending>> {
        Some(Box::new(Done))
    }
}

/// What the system says before it accepts.
#[derive(Default)]
struct System {
    may_accept: AtomicBool,
    /// Error numbers, the last first, or one for all.
    errors: Mutex<Vec<i32>>,
    always: AtomicI32,
}

struct Socket(UnixListener, Arc<System>);

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl ListeningSocket for Socket {
    type Peer = OneByte;

    fn may_accept(&self) -> bool {
        self.1.may_accept.load(Ordering::Relaxed)
    }

    fn accept(&self) -> io::Result<(OneByte, PeerInfo)> {
        let always = self.1.always.load(Ordering::Relaxed);
        let error = self.1.errors.lock().expect("no panic").pop();
        if let Some(error) = error.or((always != 0).then_some(always)) {
            return Err(io::Error::from_raw_os_error(error));
        }
        let (stream, _) = self.0.accept()?;
        stream.set_nonblocking(true)?;
        let info = local::peer_info(stream.as_fd())?;
        Ok((OneByte(stream), info))
    }
}

/// The path of a socket that no other test has.
fn path(test: &str) -> PathBuf {
    std::env::temp_dir().join(format!("dafs-accept-{test}-{}", std::process::id()))
}

fn make(path: &Path) -> Result<(UnixListener, SocketFile), ConnectError> {
    let connect = || UnixStream::connect(path).map(drop);
    SocketFile::make(path, connect, || UnixListener::bind(path))
}

fn listener(path: &Path) -> SocketListener<Socket> {
    listener_that(path, &Arc::new(System { may_accept: true.into(), ..System::default() }))
}

fn listener_that(path: &Path, system: &Arc<System>) -> SocketListener<Socket> {
    let (socket, file) = make(path).expect("a new path");
    socket.set_nonblocking(true).expect("nonblocking");
    let address = Address { scheme: "test".into(), target: path.display().to_string() };
    let socket = Socket(socket, system.clone());
    SocketListener::new(socket, address, Some(file)).expect("listener")
}

fn connect(path: &Path, says: &[u8]) -> UnixStream {
    let mut stream = UnixStream::connect(path).expect("connect");
    io::Write::write_all(&mut stream, says).expect("write");
    stream
}

#[test]
fn peers_are_accepted_refused_and_dropped() {
    let path = path("accepted");
    let mut listener = listener(&path);
    let (_good, mut bad, gone) = (connect(&path, b"y"), connect(&path, b"n"), connect(&path, b""));
    drop(gone);
    let incoming = listener.poll_accept().expect("the good one");
    assert_eq!((incoming.private_data.as_slice(), listener.half_open()), (&b"y"[..], 2));
    while listener.half_open() > 0 {
        assert!(listener.poll_accept().is_none());
    }
    let mut reason = String::new();
    io::Read::read_to_string(&mut bad, &mut reason).expect("read");
    assert_eq!(reason, "peer violated the protocol: not a y");
    drop(listener);
    assert!(!path.exists());
}

#[test]
fn silent_peers_of_a_user_are_bounded_and_end() {
    let path = path("silent");
    let mut listener = listener(&path).with_handshake_time(Duration::from_millis(20));
    let silent: Vec<_> = (0..HALF_OPEN_MAX).map(|_| connect(&path, b"")).collect();
    assert!(listener.poll_accept().is_none());
    assert!((1..=HALF_OPEN_OF_USER_MAX).contains(&listener.half_open()));
    let _good = connect(&path, b"y");
    while listener.poll_accept().is_none() {}
    // The descriptor tells when there are peers to drop.
    while listener.half_open() > 0 {
        let mut events = EpollEvents::new();
        epoll::epoll_wait(listener.epoll.as_raw_fd(), &mut events, 1, None);
        assert!(listener.poll_accept().is_none());
    }
    drop(silent);
}

#[test]
fn who_gives_way_has_a_place() {
    for _ in 0..50 {
        let most = who_has_most((0..3).map(Some), Some(7));
        assert!(most < Some(3) && most.is_some(), "nobody gives way: {most:?}");
    }
    assert_eq!(who_has_most([Some(1), Some(2), None].into_iter(), Some(2)), Some(2));
    assert_eq!(who_has_most([Some(1), None, None].into_iter(), Some(2)), None);
}

/// Waits for what the listener's descriptor tells.
fn told(listener: &SocketListener<Socket>) -> Vec<u64> {
    let mut events = EpollEvents::new();
    epoll::epoll_wait(listener.epoll.as_raw_fd(), &mut events, 2, None);
    events.tokens().collect()
}

#[test]
fn who_may_not_be_accepted_yet_waits_and_wakes_nobody() {
    let (path, system) = (path("paused"), Arc::new(System::default()));
    let time = Duration::from_millis(20);
    let mut listener = listener_that(&path, &system).with_handshake_time(time);
    let _early = connect(&path, b"y");
    assert!(listener.poll_accept().is_none());
    for _ in 0..3 {
        assert_eq!(told(&listener), [TOKEN_TIMER], "the connection is told of again");
        assert!(listener.poll_accept().is_none());
    }
    system.may_accept.store(true, Ordering::Relaxed);
    while listener.poll_accept().is_none() {
        told(&listener);
    }
}

#[test]
fn who_finds_no_descriptor_is_told_the_limit() {
    let (path, system) = (path("descriptors"), System::default());
    system.may_accept.store(true, Ordering::Relaxed);
    let system = Arc::new(system);
    let mut listener = listener_that(&path, &system);
    for says in [&b""[..], b"y"] {
        // Then there is the reserve, then nobody waits.
        system.errors.lock().expect("no panic").push(libc::EMFILE);
        let mut turned_away = connect(&path, says);
        assert!(listener.poll_accept().is_none());
        let mut reason = String::new();
        io::Read::read_to_string(&mut turned_away, &mut reason).expect("read");
        assert_eq!(reason, "the server: no descriptor is left (RLIMIT_NOFILE, ulimit -n)");
        assert!(listener.reserve.is_some() && listener.half_open() == 0);
    }
    let _served = connect(&path, b"y");
    assert!(listener.poll_accept().is_some());
}

#[test]
fn who_cannot_even_be_turned_away_waits_and_wakes_nobody() {
    let time = Duration::from_millis(20);
    for error in [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM] {
        let (path, system) = (path("nothing-left"), System::default());
        system.may_accept.store(true, Ordering::Relaxed);
        system.always.store(error, Ordering::Relaxed);
        let system = Arc::new(system);
        let mut listener = listener_that(&path, &system).with_handshake_time(time);
        let _early = connect(&path, b"y");
        assert!(listener.poll_accept().is_none());
        for _ in 0..3 {
            assert_eq!(told(&listener), [TOKEN_TIMER], "{error}: it is told of again at once");
            // The timer: it is looked at once more, and nothing is there yet.
            assert!(listener.poll_accept().is_none());
            if !listener.is_paused {
                assert!(listener.poll_accept().is_none());
            }
        }
        system.always.store(0, Ordering::Relaxed);
        while listener.poll_accept().is_none() {
            told(&listener);
        }
    }
}

#[test]
fn a_file_is_replaced_only_if_nobody_listens() {
    let path = path("replaced");
    let listener = listener(&path);
    let again = make(&path).map(drop);
    assert!(matches!(again, Err(ConnectError::Io(error)) if error.kind() == ErrorKind::AddrInUse));
    drop(listener);
    drop(UnixListener::bind(&path).expect("bind"));
    assert!(path.exists());
    drop(make(&path).expect("a stale file is no obstacle"));
    fs::write(&path, "precious").expect("write");
    assert!(make(&path).is_err());
    assert_eq!(fs::read(&path).expect("read"), b"precious");
    fs::remove_file(&path).expect("remove");
}
