//! How a connection is made: handshakes of clients, and listeners.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dafs_fabric::accept::{
    BACKLOG, HalfOpen, ListeningSocket, SocketFile, SocketListener, Step, cut_reason,
};
use dafs_fabric::descriptors;
use dafs_fabric::local::{PeerProcess, Trust};
use dafs_fabric::{Address, Arena, ConnectError, PRIVATE_DATA_BYTES_MAX, PeerInfo, Pending, local};

use crate::memory_region::Table;
use crate::peer::SEGMENTS_MAX;
use crate::peer_socket::PeerSocket;
use crate::ring::{MEMORY_BYTES, Memory};
use crate::sys::{self, Received};
use crate::target::{Place, Target, place};
use crate::wire::{self, Limits, MESSAGE_BYTES_MAX, Message, Nonce, Side, Token};

/// What a server has for its answer.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// What a client lets a server share with it, which it trusts: its cache may be large, and costs the client
/// addresses alone.
pub const CLIENT_LIMITS: Limits = Limits { segments: SEGMENTS_MAX, bytes: 1 << 44 };

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

/// # Errors
/// `ConnectionRefused`: the process that listened has ended, and a child of it has the socket, who listens to
/// nobody.
fn check_alive(socket: &impl AsFd) -> io::Result<()> {
    match PeerProcess::of(socket.as_fd()).has_ended() {
        true => Err(io::Error::new(ErrorKind::ConnectionRefused, "the server there has ended")),
        false => Ok(()),
    }
}

/// What a handshake came to.
pub enum Progress {
    /// Nothing yet.
    Pending,
    /// The peer accepted.
    Connected {
        socket: PeerSocket,
        memory: Arc<Memory>,
        limits: Limits,
        private_data: Vec<u8>,
        /// By which the peer is rung.
        bell: Option<OwnedFd>,
    },
    /// It failed; true where nobody listens.
    Failed(bool, String),
}

/// How far a client is.
enum Stage {
    Start,
    Hello(PeerSocket, Nonce),
    Offered(PeerSocket, Arc<Memory>),
}

/// The connecting side of a handshake.
pub struct Handshake {
    target: Target,
    private_data: Vec<u8>,
    /// Of which the server will be told.
    table: Arc<Table>,
    stage: Stage,
    deadline: Instant,
    /// Epoll watches the socket.
    pub watched: bool,
}

impl Handshake {
    /// # Errors
    /// A bad address, or too much private data.
    pub fn start(
        address: &Address,
        private_data: &[u8],
        table: &Arc<Table>,
    ) -> Result<Handshake, ConnectError> {
        check_private_data(private_data)?;
        Ok(Handshake {
            target: Target::of(address)?,
            private_data: private_data.to_vec(),
            table: table.clone(),
            stage: Stage::Start,
            deadline: Instant::now() + ANSWER_TIME,
            watched: false,
        })
    }

    /// The socket, if there is one.
    pub fn socket(&self) -> Option<&PeerSocket> {
        match &self.stage {
            Stage::Start => None,
            Stage::Hello(socket, _) | Stage::Offered(socket, _) => Some(socket),
        }
    }

    /// Goes on without waiting.
    pub fn step(&mut self) -> Progress {
        match self.advance() {
            Ok(Progress::Pending) if Instant::now() >= self.deadline => {
                Progress::Failed(false, "no answer in time".into())
            }
            Ok(step) => step,
            Err(error) if sys::is_temporary(&error) => Progress::Pending,
            Err(error) => {
                let kind = error.kind();
                let refused = matches!(kind, ErrorKind::ConnectionRefused | ErrorKind::NotFound);
                Progress::Failed(refused, descriptors::tell(&error))
            }
        }
    }

    fn advance(&mut self) -> io::Result<Progress> {
        if matches!(self.stage, Stage::Start) {
            let Some(socket) = sys::connect(self.target.place.name())? else {
                return Ok(Progress::Pending);
            };
            let socket = PeerSocket::new(socket);
            self.target.check(&socket)?;
            check_alive(&socket)?;
            let nonce = nonce()?;
            match sys::send(socket.as_fd().as_raw_fd(), &Message::Hello(nonce).encode()) {
                // Why it has ended, it may have said.
                Err(error) if !sys::is_hung_up(&error) => return Err(error),
                _ => {}
            }
            self.stage = Stage::Hello(socket, nonce);
        }
        let Some(socket) = self.socket() else { return Ok(Progress::Pending) };
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let received = match self.stage {
            Stage::Offered(..) => socket.receive_with_bell(&mut bytes),
            _ => socket.receive_carefully(&mut bytes).map(|received| (received, None)),
        };
        let (received, bell) = match received {
            Ok((received, Some(bell))) if self.target.trust == Trust::Anybody => {
                // Who has it as well could fill it: who writes to it then waits.
                socket.refuse(bell);
                (received, None)
            }
            Ok(received) => received,
            Err(error) if sys::is_temporary(&error) => return Ok(Progress::Pending),
            Err(error) => return Ok(Progress::Failed(false, format!("not accepted: {error}"))),
        };
        if received.len == 0 {
            return Ok(Progress::Failed(false, "not accepted: closed by the peer".into()));
        }
        if received.lost {
            let limit = descriptors::OF_PROCESS;
            return Ok(Progress::Failed(false, format!("what the server passes: {limit}")));
        }
        self.answer(&received, bytes.get(..received.len).unwrap_or(&[]), bell)
    }

    fn answer(
        &mut self,
        received: &Received,
        bytes: &[u8],
        bell: Option<OwnedFd>,
    ) -> io::Result<Progress> {
        let failed = |reason: String| Ok(Progress::Failed(false, reason));
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
                let bytes = self.table.bytes();
                let offer = Message::Offer(proof, CLIENT_LIMITS, bytes, &self.private_data);
                let offer = offer.encode();
                sys::send_with(socket.as_fd().as_raw_fd(), &offer, &[file.as_fd()])?;
                self.stage = Stage::Offered(socket, Memory::new(&arena));
                Ok(Progress::Pending)
            }
            (Stage::Offered(socket, memory), Some(Message::Accept(limits, data))) => {
                let private_data = data.to_vec();
                Ok(Progress::Connected { socket, memory, limits, private_data, bell })
            }
            _ => failed("peer violated the protocol: no answer to what was asked".into()),
        }
    }
}

/// The state of an [`Incoming`].
pub struct Accepted {
    pub socket: PeerSocket,
    pub memory: Arc<Memory>,
    /// Of what it takes.
    pub limits: Limits,
    /// Bytes that it will share at once.
    pub shares: u64,
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
    let bytes = Message::Reject(cut_reason(reason).as_bytes()).encode();
    if let Err(error) = sys::send(socket.as_raw_fd(), &bytes) {
        tracing::debug!(%error, "a rejected peer was not told");
    }
}

/// A peer that has not made its offer.
pub struct Offering {
    socket: PeerSocket,
    /// What it is to prove that it knows.
    token: Option<Token>,
    /// Its nonce and ours.
    nonces: Option<(Nonce, Nonce)>,
    /// What it offered.
    offer: Option<(Arc<Memory>, Limits, u64)>,
}

impl Offering {
    fn read(&mut self) -> io::Result<Step> {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let mut received = match self.socket.receive_carefully(&mut bytes) {
            Ok(received) => received,
            Err(error) if sys::is_temporary(&error) => return Ok(Step::Pending),
            Err(error) => return Err(error),
        };
        if received.len == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if received.lost {
            let limit = descriptors::OF_PROCESS;
            return Ok(Step::Unable(format!("the server: memory that is offered: {limit}")));
        }
        let message = Message::decode(bytes.get(..received.len).unwrap_or(&[]));
        let file = received.descriptors.pop();
        if received.is_cut || !received.descriptors.is_empty() {
            return Ok(Step::Wrong("descriptors that are too many, or no memory".into()));
        }
        match (message, self.nonces, file) {
            (Some(Message::Hello(theirs)), None, None) => {
                let own = nonce()?;
                let proof = wire::prove(self.token.as_ref(), Side::Server, &theirs, &own);
                // Its offer has the first descriptor.
                sys::set_takes_descriptors(self.socket.as_fd(), true);
                let answer = Message::Challenge(own, proof).encode();
                sys::send(self.socket.as_fd().as_raw_fd(), &answer)?;
                self.nonces = Some((theirs, own));
                Ok(Step::Pending)
            }
            (
                Some(Message::Offer(proof, limits, shares, data)),
                Some((theirs, own)),
                Some(file),
            ) => {
                if !wire::is_proved(&proof, self.token.as_ref(), Side::Client, &theirs, &own) {
                    return Ok(Step::Wrong("it does not know the token".into()));
                }
                if data.len() > PRIVATE_DATA_BYTES_MAX {
                    return Ok(Step::Wrong("too much private data".into()));
                }
                Ok(match Arena::of_peer(file.as_fd(), MEMORY_BYTES) {
                    Ok(arena) if arena.len() == MEMORY_BYTES => {
                        self.offer = Some((Memory::new(&arena), limits, shares));
                        Step::Done(data.to_vec())
                    }
                    _ => Step::Wrong("memory that cannot be shared".into()),
                })
            }
            _ => Ok(Step::Wrong("not a handshake of this version".into())),
        }
    }
}

impl AsFd for Offering {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl HalfOpen for Offering {
    fn step(&mut self) -> Step {
        self.read().unwrap_or_else(Step::Gone)
    }

    fn refuse(&self, reason: &str) {
        reject(self.socket.as_fd(), reason);
    }

    fn into_pending(self) -> Option<Box<dyn Pending>> {
        let (memory, limits, shares) = self.offer?;
        let uid = self.socket.uid();
        Some(Box::new(Accepted { socket: self.socket, memory, limits, shares, uid }))
    }
}

/// A socket that listens.
pub struct Socket {
    socket: OwnedFd,
    token: Option<Token>,
    /// Nothing that would have to be closed is in the queue of one that has just connected.
    refuses_descriptors: bool,
}

impl Socket {
    fn new(socket: OwnedFd, token: Option<Token>, refuses: bool) -> Socket {
        let refuses_descriptors = refuses && sys::set_takes_descriptors(socket.as_fd(), false);
        Socket { socket, token, refuses_descriptors }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl ListeningSocket for Socket {
    type Peer = Offering;

    /// What comes of a user who is shut out may have to wait to be closed, and that is bounded.
    fn may_accept(&self) -> bool {
        self.refuses_descriptors || !PeerSocket::are_enough()
    }

    fn accept(&self) -> io::Result<(Offering, PeerInfo)> {
        let socket = PeerSocket::new(sys::accept(self.socket.as_raw_fd())?);
        socket.check()?;
        let peer = local::peer_info(socket.as_fd())?;
        Ok((Offering { socket, token: self.token, nonces: None, offer: None }, peer))
    }
}

impl Drop for Socket {
    /// Takes out those who wait to be accepted: the system would close what they have sent.
    fn drop(&mut self) {
        sys::end(self.socket.as_fd());
        while let Ok(socket) = sys::accept(self.socket.as_raw_fd()) {
            drop(PeerSocket::new(socket));
        }
    }
}

/// Listens at `address`. Whether who has just connected is refused descriptors, where the system can.
pub fn listen(
    address: &Address,
    refuses_descriptors: bool,
) -> Result<SocketListener<Socket>, ConnectError> {
    let place = place(address)?;
    let (socket, file) = match &place {
        Place::Path(path) => {
            let connect = || match sys::connect(place.name())? {
                Some(socket) => check_alive(&socket),
                None => Ok(()),
            };
            let (socket, file) =
                SocketFile::make(path, connect, || sys::listen(place.name(), BACKLOG))?;
            (socket, Some(file))
        }
        Place::Token(..) => (sys::listen(place.name(), BACKLOG)?, None),
    };
    let socket = Socket::new(socket, place.token().copied(), refuses_descriptors);
    Ok(SocketListener::new(socket, address.clone(), file)?)
}
