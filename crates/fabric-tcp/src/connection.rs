//! Making connections: the listener, and the connecting side of the handshake.

use std::collections::VecDeque;
use std::fs::Permissions;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dafs_fabric::{
    Address, ConnectError, Ends, Incoming, Listener, PRIVATE_DATA_BYTES_MAX, PeerInfo, Pending,
};

use crate::frame::{self, FRAME_HEADER_BYTES, FrameHeader, Kind};
use crate::owner;
use crate::sys::{self, Started};
use crate::target::{Target, bad, resolve};
use dafs_fabric::epoll::EpollEvents;
use dafs_fabric::epoll::{self, Watch};

/// Peers that have connected and not said hello. The oldest goes when another comes.
const HALF_OPEN_MAX: usize = 256;
/// How long a peer has for its hello.
const HELLO_TIME: Duration = Duration::from_secs(5);
/// How long a peer has to answer a hello.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// How long a silent host counts as alive.
const DEAD_TIME: Duration = Duration::from_secs(15);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 4096;
/// Socket buffers of Unix sockets, which do not grow by themselves.
const UNIX_BUFFER_BYTES: usize = 1024 * 1024;

const TOKEN_LISTENER: u64 = u64::MAX;
const TOKEN_TIMER: u64 = u64::MAX - 1;

/// Settings of a socket that carries a queue pair.
fn tune(fd: RawFd, peer_is_tcp: bool) -> io::Result<()> {
    if peer_is_tcp {
        sys::tune_tcp(fd, DEAD_TIME)
    } else {
        sys::set_buffer_bytes(fd, UNIX_BUFFER_BYTES)
    }
}

/// The first frame of a connection, as it comes.
#[derive(Debug)]
struct FirstFrame {
    bytes: [u8; FRAME_HEADER_BYTES + PRIVATE_DATA_BYTES_MAX],
    len: usize,
}

impl FirstFrame {
    fn new() -> FirstFrame {
        FirstFrame { bytes: [0; FRAME_HEADER_BYTES + PRIVATE_DATA_BYTES_MAX], len: 0 }
    }

    fn header(&self) -> Result<Option<FrameHeader>, &'static str> {
        if self.len < FRAME_HEADER_BYTES {
            return Ok(None);
        }
        let mut head = [0; FRAME_HEADER_BYTES];
        head.copy_from_slice(&self.bytes[..FRAME_HEADER_BYTES]);
        let header = FrameHeader::decode(&head)?;
        frame::check_hello(&header)?;
        Ok(Some(header))
    }

    /// Reads what there is, and never more than the frame. `Ok(None)`: not all is there.
    fn read(&mut self, fd: RawFd) -> Result<Option<(Kind, Vec<u8>)>, String> {
        loop {
            let header = self.header()?;
            let body = header.map_or(0, |header| header.payload_len as usize);
            let end = FRAME_HEADER_BYTES + body;
            if let Some(header) = header
                && self.len == end
            {
                return Ok(Some((header.kind, self.bytes[FRAME_HEADER_BYTES..end].to_vec())));
            }
            match sys::receive(fd, &mut self.bytes[self.len..end]) {
                Ok(0) => return Err("closed by the peer".into()),
                Ok(got) => self.len += got,
                Err(error) if sys::is_temporary(&error) => return Ok(None),
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

/// What a handshake came to.
#[derive(Debug)]
pub enum Step {
    /// Nothing yet.
    Pending,
    /// The peer accepted.
    Connected(OwnedFd, Vec<u8>),
    /// It failed; true where nobody listens.
    Failed(bool, String),
}

/// The connecting side of a handshake.
#[derive(Debug)]
pub struct Handshake {
    targets: VecDeque<Target>,
    /// Why one that answered was passed over.
    untrusted: Option<String>,
    hello: Vec<u8>,
    socket: Option<OwnedFd>,
    said: usize,
    answer: FirstFrame,
    deadline: Instant,
    /// What epoll watches of the socket.
    pub watched: Option<libc::c_int>,
    /// On the engine's list of those to be watched differently.
    pub stale: bool,
}

/// # Errors
/// More than a hello has room for.
pub fn check_private_data(private_data: &[u8]) -> Result<(), ConnectError> {
    let (bytes, bytes_max) = (private_data.len(), PRIVATE_DATA_BYTES_MAX);
    if bytes > bytes_max { Err(ConnectError::PrivateData { bytes, bytes_max }) } else { Ok(()) }
}

impl Handshake {
    /// Resolves the address and starts.
    pub fn start(address: &Address, private_data: &[u8]) -> Result<Handshake, ConnectError> {
        check_private_data(private_data)?;
        Ok(Handshake {
            targets: resolve(address)?,
            untrusted: None,
            hello: frame::hello(Kind::Hello, private_data),
            socket: None,
            said: 0,
            answer: FirstFrame::new(),
            deadline: Instant::now() + ANSWER_TIME,
            watched: None,
            stale: false,
        })
    }

    /// What to watch: descriptor and events.
    pub fn interest(&self) -> Option<(RawFd, libc::c_int)> {
        let events = if self.said < self.hello.len() { epoll::EPOLLOUT } else { epoll::EPOLLIN };
        self.socket.as_ref().map(|socket| (socket.as_raw_fd(), events))
    }

    /// Goes on without waiting.
    pub fn step(&mut self) -> Step {
        loop {
            match self.advance() {
                Ok(Some(step)) => return step,
                Ok(None) if Instant::now() < self.deadline => return Step::Pending,
                Ok(None) => return Step::Failed(false, "no answer in time".into()),
                Err(error) => {
                    self.pass_over();
                    if self.targets.is_empty() {
                        return self.failed(&error);
                    }
                }
            }
        }
    }

    /// The next address of the name may be better.
    fn pass_over(&mut self) {
        self.socket = None;
        self.watched = None;
        self.said = 0;
        self.answer = FirstFrame::new();
        self.targets.pop_front();
    }

    fn failed(&mut self, error: &io::Error) -> Step {
        if let Some(reason) = self.untrusted.take() {
            return Step::Failed(false, reason);
        }
        let kind = error.kind();
        let refused = matches!(kind, ErrorKind::ConnectionRefused | ErrorKind::NotFound);
        Step::Failed(refused, error.to_string())
    }

    /// An error where what has answered is not to be trusted.
    fn check_server(&mut self) -> io::Result<()> {
        let (Some(socket), Some(target)) = (&self.socket, self.targets.front()) else {
            return Ok(());
        };
        target.check_answered(socket).inspect_err(|error| {
            self.untrusted.get_or_insert(error.to_string());
        })
    }

    /// An error means: not at this address.
    fn advance(&mut self) -> io::Result<Option<Step>> {
        let Some(socket) = &self.socket else { return self.connect() };
        let fd = socket.as_raw_fd();
        while self.said < self.hello.len() {
            match sys::send(fd, &self.hello[self.said..]) {
                Ok(sent) => self.said += sent,
                Err(error) if sys::is_temporary(&error) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let failed = |reason: String| Ok(Some(Step::Failed(false, reason)));
        match self.answer.read(fd) {
            Ok(None) => Ok(None),
            Ok(Some((Kind::HelloAck, private_data))) => {
                self.check_server()?;
                let socket = self.socket.take();
                Ok(socket.map(|socket| Step::Connected(socket, private_data)))
            }
            Ok(Some((Kind::Reject, reason))) => {
                failed(format!("rejected by the peer: {}", String::from_utf8_lossy(&reason)))
            }
            Ok(Some(_)) => failed("peer violated the protocol: answer to no hello".into()),
            Err(reason) => failed(format!("not accepted: {reason}")),
        }
    }

    fn connect(&mut self) -> io::Result<Option<Step>> {
        let Some(target) = self.targets.front() else {
            return Err(ErrorKind::NotFound.into());
        };
        let started = match target {
            Target::Tcp(address, _) => sys::connect_tcp(address)?,
            Target::Local(path, _) | Target::Unix(path) => {
                let about = |error: io::Error| {
                    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
                };
                sys::connect_unix(path).map_err(about)?
            }
        };
        if let Started::Going(socket) = started {
            target.check_connected(&socket)?;
            tune(socket.as_raw_fd(), matches!(target, Target::Tcp(..)))?;
            self.socket = Some(socket);
            return self.advance();
        }
        Ok(None)
    }
}

/// The state of an [`Incoming`].
#[derive(Debug)]
pub struct Accepted {
    /// Its socket, from which the hello was read.
    pub socket: OwnedFd,
}

impl Pending for Accepted {
    /// Of TCP; who is at the other end of a Unix socket is certain without.
    fn is_established(&self) -> bool {
        sys::is_established(self.socket.as_raw_fd())
    }

    fn owner(&self) -> io::Result<Option<u32>> {
        owner::of_peer(self.socket.as_fd())
    }
}

/// Says no.
pub fn reject(accepted: &Accepted, reason: &str) {
    let mut end = reason.len().min(PRIVATE_DATA_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let bytes = frame::hello(Kind::Reject, &reason.as_bytes()[..end]);
    if let Err(error) = sys::send(accepted.socket.as_raw_fd(), &bytes) {
        tracing::debug!(%error, "a rejected peer was not told");
    }
}

/// A peer that has not said hello.
#[derive(Debug)]
struct HalfOpen {
    number: u64,
    socket: OwnedFd,
    peer: PeerInfo,
    hello: FirstFrame,
    deadline: Instant,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Socket {
    fn fd(&self) -> RawFd {
        match self {
            Socket::Tcp(listener) => listener.as_raw_fd(),
            Socket::Unix(listener, _) => listener.as_raw_fd(),
        }
    }

    fn accept(&self) -> io::Result<(OwnedFd, PeerInfo)> {
        match self {
            Socket::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                prepare_tcp(&stream)?;
                let local = stream.local_addr()?;
                Ok((stream.into(), Ends { local, peer }.into()))
            }
            Socket::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                tune(stream.as_raw_fd(), false)?;
                let peer = owner::peer_info(stream.as_fd())?;
                Ok((stream.into(), peer))
            }
        }
    }
}

fn prepare_tcp(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    tune(stream.as_raw_fd(), true)
}

/// Listens on a TCP or Unix socket. Half-open connections are in an epoll object together with
/// the socket, and with a timer for their deadlines.
#[derive(Debug)]
pub struct StreamListener {
    socket: Socket,
    address: Address,
    epoll: OwnedFd,
    timer: OwnedFd,
    half_open: VecDeque<HalfOpen>,
    next_number: u64,
    /// What a peer has for its hello.
    hello_time: Duration,
    /// Given up for a moment where descriptors run out, so that a peer can be turned away.
    reserve: Option<OwnedFd>,
}

impl StreamListener {
    /// Listens at `address`.
    pub fn open(address: &Address) -> Result<StreamListener, ConnectError> {
        let (socket, address) = match address.scheme.as_str() {
            "unix" => {
                let path = PathBuf::from(&address.target);
                remove_stale(&path)?;
                let listener = UnixListener::bind(&path)?;
                // Anybody may connect: the kernel says who it is. The directory says who may try.
                std::fs::set_permissions(&path, Permissions::from_mode(0o666))?;
                listener.set_nonblocking(true)?;
                (Socket::Unix(listener, path), address.clone())
            }
            "tcp" => {
                let found = dafs_names::addresses(&address.target);
                let found = found.map_err(|error| bad(address, error))?;
                let listener = TcpListener::bind(found.as_slice())?;
                listener.set_nonblocking(true)?;
                let target = listener.local_addr()?.to_string();
                (Socket::Tcp(listener), Address { scheme: "tcp".into(), target })
            }
            _ => return Err(bad(address, "neither tcp nor unix")),
        };
        sys::set_backlog(socket.fd(), BACKLOG)?;
        let (epoll, timer) = (epoll::epoll()?, epoll::timerfd()?);
        let watch = Watch::Add(epoll::EPOLLIN);
        epoll::epoll_watch(epoll.as_raw_fd(), socket.fd(), TOKEN_LISTENER, watch)?;
        epoll::epoll_watch(epoll.as_raw_fd(), timer.as_raw_fd(), TOKEN_TIMER, watch)?;
        Ok(StreamListener {
            socket,
            address,
            epoll,
            timer,
            half_open: VecDeque::new(),
            next_number: 0,
            hello_time: HELLO_TIME,
            reserve: reserve(),
        })
    }

    fn accept_all(&mut self) {
        for _ in 0..HALF_OPEN_MAX {
            match self.socket.accept() {
                Ok((socket, peer)) => self.admit(socket, peer),
                Err(error) if sys::is_out_of_descriptors(&error) => {
                    if self.reserve.take().is_none() {
                        break;
                    }
                    tracing::warn!("out of descriptors: a peer was turned away");
                    let _ = self.socket.accept();
                    self.reserve = reserve();
                }
                Err(error) if sys::is_temporary(&error) => break,
                // Of this peer only: it is gone already.
                Err(error) => tracing::debug!(%error, "a peer was not accepted"),
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd, peer: PeerInfo) {
        if self.half_open.len() == HALF_OPEN_MAX {
            self.half_open.pop_front();
        }
        if self.half_open.is_empty() {
            let _ = epoll::timerfd_set(self.timer.as_raw_fd(), Some(self.hello_time / 4));
        }
        let number = self.next_number;
        self.next_number += 1;
        let watch = Watch::Add(epoll::EPOLLIN);
        if epoll::epoll_watch(self.epoll.as_raw_fd(), socket.as_raw_fd(), number, watch).is_err() {
            return;
        }
        let deadline = Instant::now() + self.hello_time;
        let hello = FirstFrame::new();
        self.half_open.push_back(HalfOpen { number, socket, peer, hello, deadline });
    }

    fn drop_silent(&mut self) {
        epoll::counter_clear(self.timer.as_raw_fd());
        let now = Instant::now();
        self.half_open.retain(|peer| peer.deadline > now);
        if self.half_open.is_empty() {
            let _ = epoll::timerfd_set(self.timer.as_raw_fd(), None);
        }
    }

    fn read_hello(&mut self, number: u64) -> Option<Incoming> {
        let index = self.half_open.binary_search_by_key(&number, |peer| peer.number).ok()?;
        let peer = self.half_open.get_mut(index)?;
        let private_data = match peer.hello.read(peer.socket.as_raw_fd()) {
            Ok(None) => return None,
            Ok(Some((Kind::Hello, private_data))) => private_data,
            other => {
                tracing::debug!(?other, "not a hello");
                let refused = self.half_open.remove(index)?;
                let why = "peer violated the protocol: not a hello of this version";
                reject(&Accepted { socket: refused.socket }, why);
                return None;
            }
        };
        let HalfOpen { socket, peer, .. } = self.half_open.remove(index)?;
        let fd = socket.as_raw_fd();
        epoll::epoll_watch(self.epoll.as_raw_fd(), fd, 0, Watch::Remove).ok()?;
        Some(Incoming { private_data, peer, device: 0, inner: Box::new(Accepted { socket }) })
    }
}

fn reserve() -> Option<OwnedFd> {
    std::fs::File::open("/dev/null").ok().map(OwnedFd::from)
}

/// Removes the socket file of a listener that is no more.
fn remove_stale(path: &Path) -> Result<(), ConnectError> {
    use std::os::unix::fs::FileTypeExt;
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if !is_socket {
        // Nothing there, or something that `bind` will complain about.
        return Ok(());
    }
    match sys::connect_unix(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)?;
            Ok(())
        }
        Err(error) => Err(error.into()),
        Ok(_) => Err(io::Error::from(ErrorKind::AddrInUse).into()),
    }
}

impl Listener for StreamListener {
    fn address(&self) -> Address {
        self.address.clone()
    }

    fn poll_accept(&mut self) -> Option<Incoming> {
        let mut events = EpollEvents::new();
        epoll::epoll_wait(self.epoll.as_raw_fd(), &mut events, usize::MAX, Some(Duration::ZERO));
        let mut listener_ready = false;
        for token in events.tokens() {
            match token {
                TOKEN_LISTENER => listener_ready = true,
                TOKEN_TIMER => self.drop_silent(),
                number => {
                    if let Some(incoming) = self.read_hello(number) {
                        return Some(incoming);
                    }
                }
            }
        }
        if !listener_ready {
            return None;
        }
        let first = self.next_number;
        self.accept_all();
        // Most peers say hello at once.
        (first..self.next_number).find_map(|number| self.read_hello(number))
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }
}

impl Drop for StreamListener {
    fn drop(&mut self) {
        if let Socket::Unix(_, path) = &self.socket {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
