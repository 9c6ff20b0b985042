//! Making connections: the listener, and the connecting side of the handshake.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use dafs_fabric::accept::{
    self, BACKLOG, HalfOpen, ListeningSocket, SocketFile, SocketListener, cut_reason,
};
use dafs_fabric::{Address, ConnectError, Ends, PRIVATE_DATA_BYTES_MAX, PeerInfo, Pending};
use dafs_fabric::{descriptors, epoll};

use crate::frame::{self, FRAME_HEADER_BYTES, FrameHeader, Kind};
use crate::owner;
use crate::sys::{self, Started};
use crate::target::{Target, bad, resolve};

/// How long a peer has to answer a hello.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// How long a silent host counts as alive.
const DEAD_TIME: Duration = Duration::from_secs(15);
/// Socket buffers of Unix sockets, which do not grow by themselves.
const UNIX_BUFFER_BYTES: usize = 1024 * 1024;

/// Settings of a socket that carries a queue pair.
fn tune(fd: RawFd, peer_is_tcp: bool) -> io::Result<()> {
    if peer_is_tcp {
        sys::tune_tcp(fd, DEAD_TIME)
    } else {
        sys::refuse_descriptors(fd);
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
        Step::Failed(refused, descriptors::tell(error))
    }

    /// An error where what has answered is not to be trusted.
    fn check_server(&mut self) -> io::Result<()> {
        let (Some(socket), Some(target)) = (&self.socket, self.targets.front()) else {
            return Ok(());
        };
        target.check_answered(socket).inspect_err(|error| {
            self.untrusted.get_or_insert(descriptors::tell(error));
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
                Err(error) => return self.rejection(fd).map(Some).ok_or(error),
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
            Ok(Some((Kind::Reject, reason))) => Ok(Some(rejected(&reason))),
            Ok(Some(_)) => failed("peer violated the protocol: answer to no hello".into()),
            Err(reason) => failed(format!("not accepted: {reason}")),
        }
    }

    /// Why a server has ended a connection before it took our hello, where it has said so.
    fn rejection(&mut self, fd: RawFd) -> Option<Step> {
        match self.answer.read(fd) {
            Ok(Some((Kind::Reject, reason))) => Some(rejected(&reason)),
            _ => None,
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
                    let told = descriptors::tell(&error);
                    io::Error::new(error.kind(), format!("{}: {told}", path.display()))
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

fn rejected(reason: &[u8]) -> Step {
    Step::Failed(false, format!("rejected by the peer: {}", String::from_utf8_lossy(reason)))
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
    let bytes = frame::hello(Kind::Reject, cut_reason(reason).as_bytes());
    if let Err(error) = sys::send(accepted.socket.as_raw_fd(), &bytes) {
        tracing::debug!(%error, "a rejected peer was not told");
    }
}

/// A peer that has not said hello.
#[derive(Debug)]
pub struct Silent {
    accepted: Accepted,
    hello: FirstFrame,
}

impl AsFd for Silent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.accepted.socket.as_fd()
    }
}

impl HalfOpen for Silent {
    fn step(&mut self) -> accept::Step {
        match self.hello.read(self.accepted.socket.as_raw_fd()) {
            Ok(None) => accept::Step::Pending,
            Ok(Some((Kind::Hello, private_data))) => accept::Step::Done(private_data),
            other => {
                tracing::debug!(?other, "not a hello");
                accept::Step::Wrong("not a hello of this version".into())
            }
        }
    }

    fn refuse(&self, reason: &str) {
        reject(&self.accepted, reason);
    }

    fn into_pending(self) -> Option<Box<dyn Pending>> {
        Some(Box::new(self.accepted))
    }
}

/// A socket that listens.
#[derive(Debug)]
pub enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(listener) => listener.as_fd(),
            Socket::Unix(listener) => listener.as_fd(),
        }
    }
}

impl ListeningSocket for Socket {
    type Peer = Silent;

    fn accept(&self) -> io::Result<(Silent, PeerInfo)> {
        let (socket, peer) = match self {
            Socket::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                stream.set_nonblocking(true)?;
                tune(stream.as_raw_fd(), true)?;
                let local = stream.local_addr()?;
                (stream.into(), Ends { local, peer }.into())
            }
            Socket::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                tune(stream.as_raw_fd(), false)?;
                let peer = owner::peer_info(stream.as_fd())?;
                (stream.into(), peer)
            }
        };
        Ok((Silent { accepted: Accepted { socket }, hello: FirstFrame::new() }, peer))
    }
}

/// Listens at `address`.
pub fn listen(address: &Address) -> Result<SocketListener<Socket>, ConnectError> {
    let (socket, address, file) = match address.scheme.as_str() {
        "unix" => {
            let path = Path::new(&address.target);
            let connect = || sys::connect_unix(path).map(drop);
            // Before others than its owner may connect.
            let bind = || {
                let listener = UnixListener::bind(path)?;
                sys::refuse_descriptors(listener.as_raw_fd());
                Ok(listener)
            };
            let (listener, file) = SocketFile::make(path, connect, bind)?;
            listener.set_nonblocking(true)?;
            (Socket::Unix(listener), address.clone(), Some(file))
        }
        "tcp" => {
            let found = dafs_names::addresses(&address.target);
            let found = found.map_err(|error| bad(address, error))?;
            let listener = TcpListener::bind(found.as_slice())?;
            listener.set_nonblocking(true)?;
            let target = listener.local_addr()?.to_string();
            (Socket::Tcp(listener), Address { scheme: "tcp".into(), target }, None)
        }
        _ => return Err(bad(address, "neither tcp nor unix")),
    };
    sys::set_backlog(socket.as_fd().as_raw_fd(), BACKLOG)?;
    Ok(SocketListener::new(socket, address, file)?)
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
