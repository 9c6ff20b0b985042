//! How a connection is made: handshakes of clients, and listeners.

use std::collections::VecDeque;
use std::fs::Permissions;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dafs_fabric::epoll::{self, EpollEvents, Watch};
use dafs_fabric::{
    Address, Arena, ConnectError, Incoming, Listener, PRIVATE_DATA_BYTES_MAX, PeerInfo, Pending,
    local,
};

use crate::peer::{SEGMENT_BYTES_MAX, SEGMENTS_MAX};
use crate::ring::{MEMORY_BYTES, Memory};
use crate::sys::{self, Name, Received};
use crate::target::{Place, Target, place};
use crate::wire::{self, Limits, MESSAGE_BYTES_MAX, Message, Nonce, Side};

/// Peers that have not finished their handshake; of one user.
const HALF_OPEN_MAX: usize = 256;
const HALF_OPEN_OF_USER_MAX: usize = 64;
/// What a peer has for it.
const HELLO_TIME: Duration = Duration::from_secs(5);
/// What a server has for its answer.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// Connections that wait to be taken.
const BACKLOG: i32 = 4096;

const TOKEN_LISTENER: u64 = u64::MAX;
const TOKEN_TIMER: u64 = u64::MAX - 1;

/// What a client lets a server share with it.
pub const CLIENT_LIMITS: Limits = Limits { segments: SEGMENTS_MAX, bytes: SEGMENT_BYTES_MAX };

/// # Errors
/// More than a message has room for.
pub fn check_private_data(private_data: &[u8]) -> Result<(), ConnectError> {
    let (bytes, bytes_max) = (private_data.len(), PRIVATE_DATA_BYTES_MAX);
    if bytes > bytes_max { Err(ConnectError::PrivateData { bytes, bytes_max }) } else { Ok(()) }
}

fn nonce() -> io::Result<Nonce> {
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce).map_err(io::Error::from)?;
    Ok(nonce)
}

/// What a handshake came to.
pub enum Step {
    /// Nothing yet.
    Pending,
    /// The peer accepted.
    Connected { socket: OwnedFd, memory: Arc<Memory>, limits: Limits, private_data: Vec<u8> },
    /// It failed; true where nobody listens.
    Failed(bool, String),
}

/// How far a client is.
enum Stage {
    Start,
    Hello(OwnedFd, Nonce),
    Offered(OwnedFd, Arc<Memory>),
}

/// The connecting side of a handshake.
pub struct Handshake {
    target: Target,
    private_data: Vec<u8>,
    stage: Stage,
    deadline: Instant,
    /// Epoll watches the socket.
    pub watched: bool,
}

impl Handshake {
    /// # Errors
    /// A bad address, or too much private data.
    pub fn start(address: &Address, private_data: &[u8]) -> Result<Handshake, ConnectError> {
        check_private_data(private_data)?;
        Ok(Handshake {
            target: Target::of(address)?,
            private_data: private_data.to_vec(),
            stage: Stage::Start,
            deadline: Instant::now() + ANSWER_TIME,
            watched: false,
        })
    }

    /// The socket, if there is one.
    pub fn socket(&self) -> Option<&OwnedFd> {
        match &self.stage {
            Stage::Start => None,
            Stage::Hello(socket, _) | Stage::Offered(socket, _) => Some(socket),
        }
    }

    /// Goes on without waiting.
    pub fn step(&mut self) -> Step {
        match self.advance() {
            Ok(Step::Pending) if Instant::now() >= self.deadline => {
                Step::Failed(false, "no answer in time".into())
            }
            Ok(step) => step,
            Err(error) if sys::is_temporary(&error) => Step::Pending,
            Err(error) => {
                let kind = error.kind();
                let refused = matches!(kind, ErrorKind::ConnectionRefused | ErrorKind::NotFound);
                Step::Failed(refused, error.to_string())
            }
        }
    }

    fn advance(&mut self) -> io::Result<Step> {
        if matches!(self.stage, Stage::Start) {
            let Some(socket) = sys::connect(self.target.place.name())? else {
                return Ok(Step::Pending);
            };
            self.target.check(&socket)?;
            let nonce = nonce()?;
            sys::send(socket.as_raw_fd(), &Message::Hello(nonce).encode())?;
            self.stage = Stage::Hello(socket, nonce);
        }
        let Some(socket) = self.socket() else { return Ok(Step::Pending) };
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let received = match sys::receive(socket.as_raw_fd(), &mut bytes) {
            Ok(received) => received,
            Err(error) if sys::is_temporary(&error) => return Ok(Step::Pending),
            Err(error) => return Ok(Step::Failed(false, format!("not accepted: {error}"))),
        };
        if received.len == 0 {
            return Ok(Step::Failed(false, "not accepted: closed by the peer".into()));
        }
        self.answer(&received, bytes.get(..received.len).unwrap_or(&[]))
    }

    fn answer(&mut self, received: &Received, bytes: &[u8]) -> io::Result<Step> {
        let failed = |reason: String| Ok(Step::Failed(false, reason));
        let is_plain = !received.is_cut && received.descriptors.is_empty();
        let message = Message::decode(bytes).filter(|_| is_plain);
        match (std::mem::replace(&mut self.stage, Stage::Start), message) {
            (_, Some(Message::Reject(reason))) => {
                failed(format!("rejected by the peer: {}", String::from_utf8_lossy(reason)))
            }
            (Stage::Hello(socket, own), Some(Message::Challenge(theirs, proof))) => {
                let token = self.target.place.token();
                if !wire::is_proved(&proof, token, Side::Server, &own, &theirs) {
                    return failed("who listens there is not the server that was meant".into());
                }
                let arena = Arena::shared(MEMORY_BYTES).map_err(io::Error::other)?;
                arena.populate(0, MEMORY_BYTES);
                let part = arena.span(0, MEMORY_BYTES).shared();
                let file = part.ok_or(ErrorKind::Unsupported)?.file;
                let proof = wire::prove(token, Side::Client, &own, &theirs);
                let offer = Message::Offer(proof, CLIENT_LIMITS, &self.private_data).encode();
                sys::send_with(socket.as_raw_fd(), &offer, &[file.as_fd()])?;
                self.stage = Stage::Offered(socket, Memory::new(&arena));
                Ok(Step::Pending)
            }
            (Stage::Offered(socket, memory), Some(Message::Accept(limits, data))) => {
                Ok(Step::Connected { socket, memory, limits, private_data: data.to_vec() })
            }
            _ => failed("peer violated the protocol: no answer to what was asked".into()),
        }
    }
}

/// The state of an [`Incoming`].
pub struct Accepted {
    pub socket: OwnedFd,
    pub memory: Arc<Memory>,
    /// Of what it takes.
    pub limits: Limits,
    pub uid: u32,
}

impl Pending for Accepted {
    /// Who is at the other end of a Unix socket is certain without.
    fn is_established(&self) -> bool {
        true
    }
}

/// Says no.
pub fn reject(socket: BorrowedFd<'_>, reason: &str) {
    let mut end = reason.len().min(PRIVATE_DATA_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let bytes = Message::Reject(reason.get(..end).unwrap_or("").as_bytes()).encode();
    if let Err(error) = sys::send(socket.as_raw_fd(), &bytes) {
        tracing::debug!(%error, "a rejected peer was not told");
    }
}

/// A peer that has not made its offer.
struct HalfOpen {
    number: u64,
    socket: OwnedFd,
    peer: PeerInfo,
    uid: u32,
    /// Its nonce and ours.
    nonces: Option<(Nonce, Nonce)>,
    deadline: Instant,
}

/// What a peer has said.
enum Said {
    Nothing,
    Wrong(&'static str),
    All(Vec<u8>, Arc<Memory>, Limits),
}

impl HalfOpen {
    fn read(&mut self, place: &Place) -> io::Result<Said> {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let mut received = match sys::receive(self.socket.as_raw_fd(), &mut bytes) {
            Ok(received) => received,
            Err(error) if sys::is_temporary(&error) => return Ok(Said::Nothing),
            Err(error) => return Err(error),
        };
        if received.len == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let message = Message::decode(bytes.get(..received.len).unwrap_or(&[]));
        let file = received.descriptors.pop();
        if received.is_cut || !received.descriptors.is_empty() {
            return Ok(Said::Wrong("too many descriptors"));
        }
        match (message, self.nonces, file) {
            (Some(Message::Hello(theirs)), None, None) => {
                let own = nonce()?;
                let proof = wire::prove(place.token(), Side::Server, &theirs, &own);
                let answer = Message::Challenge(own, proof).encode();
                sys::send(self.socket.as_raw_fd(), &answer)?;
                self.nonces = Some((theirs, own));
                Ok(Said::Nothing)
            }
            (Some(Message::Offer(proof, limits, data)), Some((theirs, own)), Some(file)) => {
                if !wire::is_proved(&proof, place.token(), Side::Client, &theirs, &own) {
                    return Ok(Said::Wrong("it does not know the token"));
                }
                if data.len() > PRIVATE_DATA_BYTES_MAX {
                    return Ok(Said::Wrong("too much private data"));
                }
                Ok(match Arena::of_peer(file.as_fd(), MEMORY_BYTES) {
                    Ok(arena) if arena.len() == MEMORY_BYTES => {
                        Said::All(data.to_vec(), Memory::new(&arena), limits)
                    }
                    _ => Said::Wrong("memory that cannot be shared"),
                })
            }
            _ => Ok(Said::Wrong("not a handshake of this version")),
        }
    }
}

/// Listens on a socket. Half-open connections are in an epoll object together with it, and with a timer
/// for their deadlines.
pub struct SocketListener {
    socket: OwnedFd,
    place: Place,
    address: Address,
    epoll: OwnedFd,
    timer: OwnedFd,
    half_open: VecDeque<HalfOpen>,
    next_number: u64,
    /// Given up for a moment where descriptors run out, so that a peer can be turned away.
    reserve: Option<OwnedFd>,
}

impl SocketListener {
    /// Listens at `address`.
    pub fn open(address: &Address) -> Result<SocketListener, ConnectError> {
        let place = place(address)?;
        if let Place::Path(path) = &place {
            remove_stale(path)?;
        }
        let socket = sys::listen(place.name(), BACKLOG)?;
        if let Place::Path(path) = &place {
            // Anybody may connect: the kernel says who it is. The directory says who may try.
            std::fs::set_permissions(path, Permissions::from_mode(0o666))?;
        }
        let (epoll, timer) = (epoll::epoll()?, epoll::timerfd()?);
        let watch = Watch::Add(epoll::EPOLLIN);
        let fd = epoll.as_raw_fd();
        epoll::epoll_watch(fd, socket.as_raw_fd(), TOKEN_LISTENER, watch)?;
        epoll::epoll_watch(fd, timer.as_raw_fd(), TOKEN_TIMER, watch)?;
        Ok(SocketListener {
            socket,
            place,
            address: address.clone(),
            epoll,
            timer,
            half_open: VecDeque::new(),
            next_number: 0,
            reserve: reserve(),
        })
    }

    fn accept_all(&mut self) {
        for _ in 0..HALF_OPEN_MAX {
            match sys::accept(self.socket.as_raw_fd()) {
                Ok(socket) => {
                    if let Err(error) = self.admit(socket) {
                        tracing::debug!(%error, "a peer was not admitted");
                    }
                }
                Err(error) if sys::is_out_of_descriptors(&error) => {
                    if self.reserve.take().is_none() {
                        break;
                    }
                    tracing::warn!("out of descriptors: a peer was turned away");
                    let _ = sys::accept(self.socket.as_raw_fd());
                    self.reserve = reserve();
                }
                Err(error) if sys::is_temporary(&error) => break,
                // Of this peer only: it is gone already.
                Err(error) => tracing::debug!(%error, "a peer was not accepted"),
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd) -> io::Result<()> {
        let peer = local::peer_info(socket.as_fd())?;
        let uid = peer.credentials.as_ref().map_or(u32::MAX, |credentials| credentials.uid);
        let of_user = self.half_open.iter().filter(|other| other.uid == uid).count();
        if of_user >= HALF_OPEN_OF_USER_MAX {
            let oldest = self.half_open.iter().position(|other| other.uid == uid);
            oldest.and_then(|at| self.half_open.remove(at));
        } else if self.half_open.len() >= HALF_OPEN_MAX {
            self.half_open.pop_front();
        }
        if self.half_open.is_empty() {
            let _ = epoll::timerfd_set(self.timer.as_raw_fd(), Some(HELLO_TIME / 4));
        }
        let number = self.next_number;
        self.next_number += 1;
        let watch = Watch::Add(epoll::EPOLLIN);
        epoll::epoll_watch(self.epoll.as_raw_fd(), socket.as_raw_fd(), number, watch)?;
        let deadline = Instant::now() + HELLO_TIME;
        self.half_open.push_back(HalfOpen { number, socket, peer, uid, nonces: None, deadline });
        Ok(())
    }

    fn drop_silent(&mut self) {
        epoll::counter_clear(self.timer.as_raw_fd());
        let now = Instant::now();
        self.half_open.retain(|peer| peer.deadline > now);
        if self.half_open.is_empty() {
            let _ = epoll::timerfd_set(self.timer.as_raw_fd(), None);
        }
    }

    fn read(&mut self, number: u64) -> Option<Incoming> {
        let index = self.half_open.binary_search_by_key(&number, |peer| peer.number).ok()?;
        let said = self.half_open.get_mut(index)?.read(&self.place);
        let (private_data, memory, limits) = match said {
            Ok(Said::Nothing) => return None,
            Ok(Said::All(private_data, memory, limits)) => (private_data, memory, limits),
            Ok(Said::Wrong(why)) => {
                let refused = self.half_open.remove(index)?;
                tracing::debug!(why, peer = refused.peer.text, "a peer broke the rules");
                reject(refused.socket.as_fd(), &format!("peer violated the protocol: {why}"));
                return None;
            }
            Err(error) => {
                tracing::debug!(%error, "a peer left during its handshake");
                self.half_open.remove(index);
                return None;
            }
        };
        let HalfOpen { socket, peer, uid, .. } = self.half_open.remove(index)?;
        epoll::epoll_watch(self.epoll.as_raw_fd(), socket.as_raw_fd(), 0, Watch::Remove).ok()?;
        let accepted = Accepted { socket, memory, limits, uid };
        Some(Incoming { private_data, peer, device: 0, inner: Box::new(accepted) })
    }
}

fn reserve() -> Option<OwnedFd> {
    std::fs::File::open("/dev/null").ok().map(OwnedFd::from)
}

/// Removes the socket file of a listener that is no more.
fn remove_stale(path: &Path) -> Result<(), ConnectError> {
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if !is_socket {
        // Nothing there, or something that `bind` will complain about.
        return Ok(());
    }
    match sys::connect(Name::Path(path)) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)?;
            Ok(())
        }
        Err(error) => Err(error.into()),
        Ok(_) => Err(io::Error::from(ErrorKind::AddrInUse).into()),
    }
}

impl Listener for SocketListener {
    fn address(&self) -> Address {
        self.address.clone()
    }

    fn poll_accept(&mut self) -> Option<Incoming> {
        let mut events = EpollEvents::new();
        let fd = self.epoll.as_raw_fd();
        epoll::epoll_wait(fd, &mut events, usize::MAX, Some(Duration::ZERO));
        for token in events.tokens() {
            match token {
                TOKEN_LISTENER => self.accept_all(),
                TOKEN_TIMER => self.drop_silent(),
                number => {
                    if let Some(incoming) = self.read(number) {
                        return Some(incoming);
                    }
                }
            }
        }
        None
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }
}

impl Drop for SocketListener {
    fn drop(&mut self) {
        if let Place::Path(path) = &self.place {
            let _ = std::fs::remove_file(path);
        }
    }
}
