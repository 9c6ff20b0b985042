use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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

struct Socket(UnixListener, Arc<AtomicBool>);

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl ListeningSocket for Socket {
    type Peer = OneByte;

    fn may_accept(&self) -> bool {
        self.1.load(Ordering::Relaxed)
    }

    fn accept(&self) -> io::Result<(OneByte, PeerInfo)> {
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
    listener_that(path, &Arc::new(AtomicBool::new(true)))
}

fn listener_that(path: &Path, may_accept: &Arc<AtomicBool>) -> SocketListener<Socket> {
    let (socket, file) = make(path).expect("a new path");
    socket.set_nonblocking(true).expect("nonblocking");
    let address = Address { scheme: "test".into(), target: path.display().to_string() };
    let socket = Socket(socket, may_accept.clone());
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

#[test]
fn who_may_not_be_accepted_yet_waits_and_wakes_nobody() {
    let (path, may_accept) = (path("paused"), Arc::new(AtomicBool::new(false)));
    let time = Duration::from_millis(20);
    let mut listener = listener_that(&path, &may_accept).with_handshake_time(time);
    let _early = connect(&path, b"y");
    assert!(listener.poll_accept().is_none());
    let wait = |listener: &SocketListener<Socket>| {
        let mut events = EpollEvents::new();
        epoll::epoll_wait(listener.epoll.as_raw_fd(), &mut events, 2, None);
        events.tokens().collect::<Vec<_>>()
    };
    for _ in 0..3 {
        assert_eq!(wait(&listener), [TOKEN_TIMER], "the connection is told of again");
        assert!(listener.poll_accept().is_none());
    }
    may_accept.store(true, Ordering::Relaxed);
    while listener.poll_accept().is_none() {
        wait(&listener);
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
