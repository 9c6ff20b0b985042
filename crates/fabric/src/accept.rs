//! How a provider whose connections are sockets listens: peers that have not finished their handshake.
//!
//! Anybody may connect and say nothing, so such peers are bounded, in all and for each user of this host,
//! and have a time to finish. A peer that is too many takes the place of the oldest.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::descriptors;
use crate::epoll::{self, EpollEvents, Watch};
use crate::{Address, ConnectError, Incoming, Listener, PRIVATE_DATA_BYTES_MAX, PeerInfo, Pending};

/// Peers that have not finished their handshake, at most; and of one user.
pub const HALF_OPEN_MAX: usize = 256;
const HALF_OPEN_OF_USER_MAX: usize = 192;
/// What a peer has for it.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// Connections that wait to be taken from the system.
pub const BACKLOG: i32 = 4096;

const TOKEN_LISTENER: u64 = u64::MAX;
const TOKEN_TIMER: u64 = u64::MAX - 1;

/// How far a handshake has come.
#[derive(Debug)]
pub enum Step {
    /// The peer has not said all.
    Pending,
    /// It has; this is its private data.
    Done(Vec<u8>),
    /// It breaks the rules, in this way.
    Wrong(String),
    /// It does not, and cannot be taken: for this reason, which it is told.
    Unable(String),
    /// It has left.
    Gone(io::Error),
}

/// A peer in its handshake. Its descriptor is the socket.
pub trait HalfOpen: AsFd + Send {
    /// Goes on, without waiting.
    fn step(&mut self) -> Step;
    /// Tells it why it is refused, if it can be told without waiting.
    fn refuse(&self, reason: &str);
    /// What the provider accepts later, after [`Step::Done`].
    fn into_pending(self) -> Option<Box<dyn Pending>>;
}

/// A listening socket, which does not block. Its descriptor is the socket.
pub trait ListeningSocket: AsFd + Send {
    /// What comes of a connection.
    type Peer: HalfOpen;
    /// Takes the next connection.
    ///
    /// # Errors
    /// What the system says; `WouldBlock` where there is none.
    fn accept(&self) -> io::Result<(Self::Peer, PeerInfo)>;
    /// Whether another connection may be taken now. Where it may not, it is asked again a moment later.
    fn may_accept(&self) -> bool {
        true
    }
}

/// A peer of which epoll tells. Where it is dropped, another thread may close its socket, and later.
struct Watched<P: HalfOpen> {
    /// Gone when it is done.
    peer: Option<P>,
    epoll: RawFd,
}

impl<P: HalfOpen> Watched<P> {
    /// Has `epoll`, which outlives it, tell of a peer.
    fn new(peer: P, epoll: RawFd, token: u64) -> io::Result<Watched<P>> {
        let fd = peer.as_fd().as_raw_fd();
        epoll::epoll_watch(epoll, fd, token, Watch::Add(epoll::EPOLLIN))?;
        Ok(Watched { peer: Some(peer), epoll })
    }

    /// The peer, of which epoll tells no more.
    fn take(&mut self) -> Option<P> {
        let peer = self.peer.take()?;
        let fd = peer.as_fd().as_raw_fd();
        epoll::epoll_watch(self.epoll, fd, 0, Watch::Remove).ok()?;
        Some(peer)
    }
}

impl<P: HalfOpen> Drop for Watched<P> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

struct Entry<P: HalfOpen> {
    number: u64,
    peer: Watched<P>,
    info: PeerInfo,
    deadline: Instant,
}

impl<P: HalfOpen> Entry<P> {
    /// Of this host, where the system knows it.
    fn uid(&self) -> Option<u32> {
        self.info.credentials.as_ref().map(|credentials| credentials.uid)
    }
}

/// Listens on a socket. Half-open peers are in an epoll object together with it, and with a timer for their
/// deadlines.
pub struct SocketListener<S: ListeningSocket> {
    /// Removed before the socket is closed, so that nobody meets a file without a listener.
    _file: Option<SocketFile>,
    socket: S,
    address: Address,
    /// Dropped before the epoll object that tells of them.
    half_open: VecDeque<Entry<S::Peer>>,
    epoll: OwnedFd,
    timer: OwnedFd,
    next_number: u64,
    handshake_time: Duration,
    /// Given up for a moment where descriptors run out, so that a peer can be turned away.
    reserve: Option<OwnedFd>,
    /// No connection may be taken: epoll does not tell of them.
    is_paused: bool,
    /// The log says that descriptors have run out, and none was there since.
    is_out: bool,
}

impl<S: ListeningSocket> SocketListener<S> {
    /// Listens on `socket`, which peers know as `address`, and which has this file.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new(
        socket: S,
        address: Address,
        file: Option<SocketFile>,
    ) -> io::Result<SocketListener<S>> {
        let (epoll, timer) = (epoll::epoll()?, epoll::timerfd()?);
        let watch = Watch::Add(epoll::EPOLLIN);
        let fd = epoll.as_raw_fd();
        epoll::epoll_watch(fd, socket.as_fd().as_raw_fd(), TOKEN_LISTENER, watch)?;
        epoll::epoll_watch(fd, timer.as_raw_fd(), TOKEN_TIMER, watch)?;
        Ok(SocketListener {
            _file: file,
            socket,
            address,
            epoll,
            timer,
            half_open: VecDeque::new(),
            next_number: 0,
            handshake_time: HANDSHAKE_TIME,
            reserve: reserve(),
            is_paused: false,
            is_out: false,
        })
    }

    /// Gives peers this time for their handshake.
    #[must_use]
    pub fn with_handshake_time(mut self, time: Duration) -> SocketListener<S> {
        self.handshake_time = time;
        self
    }

    /// How many peers are in their handshake.
    pub fn half_open(&self) -> usize {
        self.half_open.len()
    }

    fn accept_all(&mut self) {
        self.reserve = self.reserve.take().or_else(reserve);
        for _ in 0..HALF_OPEN_MAX {
            if !self.socket.may_accept() {
                return self.pause();
            }
            match self.socket.accept() {
                Ok((peer, info)) => {
                    self.is_out = false;
                    if let Err(error) = self.admit(peer, info) {
                        tracing::debug!(%error, "a peer was not admitted");
                    }
                }
                Err(error) if descriptors::limit(&error).is_some() => {
                    if !self.turn_away(&error) {
                        return;
                    }
                }
                // Nobody is accepted before there is some: it would be asked again at once.
                Err(error) if is_out_of_memory(&error) => {
                    tracing::warn!(%error, address = %self.address, "no memory for a connection");
                    return self.pause();
                }
                Err(error) if is_temporary(&error) => break,
                // Of this peer only: it is gone already.
                Err(error) => tracing::debug!(%error, "a peer was not accepted"),
            }
        }
    }

    /// There is no descriptor for a peer: the next one is told so by the one that is kept for that. False: nobody
    /// waits, or those who do are to be left alone, as epoll would tell of them again and again.
    fn turn_away(&mut self, error: &io::Error) -> bool {
        if self.reserve.take().is_none() {
            self.pause();
            return false;
        }
        let accepted = self.socket.accept();
        let is_next = match accepted {
            Ok((mut peer, info)) => {
                let limit = descriptors::limit(error).unwrap_or_default();
                if !std::mem::replace(&mut self.is_out, true) {
                    tracing::warn!(limit, peer = info.text, "peers are turned away");
                }
                // What it has said is taken: what is left there would end it before it has the answer.
                peer.step();
                peer.refuse(&format!("the server: {limit}"));
                true
            }
            Err(error) if descriptors::limit(&error).is_some() => {
                self.pause();
                false
            }
            Err(error) => !is_temporary(&error),
        };
        self.reserve = reserve();
        is_next
    }

    /// Takes no connections until the timer has it look again.
    fn pause(&mut self) {
        let (epoll, socket) = (self.epoll.as_raw_fd(), self.socket.as_fd().as_raw_fd());
        let paused = epoll::timerfd_set(self.timer.as_raw_fd(), Some(self.handshake_time / 4))
            .and_then(|()| epoll::epoll_watch(epoll, socket, TOKEN_LISTENER, Watch::Remove));
        match paused {
            Ok(()) => {
                tracing::warn!(address = %self.address, "no connections are taken for now");
                self.is_paused = true;
            }
            Err(error) => tracing::warn!(%error, address = %self.address, "not paused"),
        }
    }

    fn go_on(&mut self) {
        let (epoll, socket) = (self.epoll.as_raw_fd(), self.socket.as_fd().as_raw_fd());
        if self.is_paused && self.socket.may_accept() {
            let watch = Watch::Add(epoll::EPOLLIN);
            // Where it fails, it is tried again.
            self.is_paused = epoll::epoll_watch(epoll, socket, TOKEN_LISTENER, watch).is_err();
        }
    }

    fn admit(&mut self, peer: S::Peer, info: PeerInfo) -> io::Result<()> {
        let deadline = Instant::now() + self.handshake_time;
        let number = self.next_number;
        self.next_number += 1;
        let peer = Watched::new(peer, self.epoll.as_raw_fd(), number)?;
        let entry = Entry { number, peer, info, deadline };
        self.make_room(entry.uid());
        if self.half_open.is_empty() {
            epoll::timerfd_set(self.timer.as_raw_fd(), Some(self.handshake_time / 4))?;
        }
        self.half_open.push_back(entry);
        Ok(())
    }

    /// For one more of this user: the oldest goes of who has most, or has all that one user may have.
    fn make_room(&mut self, uid: Option<u32>) {
        let count = |of| self.half_open.iter().filter(|entry| entry.uid() == of).count();
        let of = if uid.is_some() && count(uid) >= HALF_OPEN_OF_USER_MAX {
            uid
        } else if self.half_open.len() >= HALF_OPEN_MAX {
            who_has_most(self.half_open.iter().map(Entry::uid), uid)
        } else {
            return;
        };
        let oldest = self.half_open.iter().position(|entry| entry.uid() == of);
        oldest.and_then(|index| self.half_open.remove(index));
    }

    fn drop_silent(&mut self) {
        epoll::counter_clear(self.timer.as_raw_fd());
        let now = Instant::now();
        self.half_open.retain(|entry| entry.deadline > now);
        self.go_on();
        if self.half_open.is_empty() && !self.is_paused {
            let _ = epoll::timerfd_set(self.timer.as_raw_fd(), None);
        }
    }

    fn step(&mut self, number: u64) -> Option<Incoming> {
        let index = self.half_open.binary_search_by_key(&number, |entry| entry.number).ok()?;
        let private_data = match self.half_open.get_mut(index)?.peer.peer.as_mut()?.step() {
            Step::Pending => return None,
            Step::Done(private_data) => private_data,
            Step::Wrong(why) => {
                let mut refused = self.half_open.remove(index)?;
                tracing::debug!(why, peer = refused.info.text, "a peer broke the rules");
                refused.peer.take()?.refuse(&format!("peer violated the protocol: {why}"));
                return None;
            }
            Step::Unable(why) => {
                let mut refused = self.half_open.remove(index)?;
                tracing::warn!(why, peer = refused.info.text, "a peer cannot be taken");
                refused.peer.take()?.refuse(&why);
                return None;
            }
            Step::Gone(error) => {
                tracing::debug!(%error, "a peer left during its handshake");
                self.half_open.remove(index);
                return None;
            }
        };
        let Entry { mut peer, info, .. } = self.half_open.remove(index)?;
        let peer = peer.take()?;
        Some(Incoming { private_data, peer: info, device: 0, inner: peer.into_pending()? })
    }
}

/// Of those who are here, when one more comes of whom `uid` says.
fn who_has_most(here: impl Iterator<Item = Option<u32>>, uid: Option<u32>) -> Option<u32> {
    let mut counts = HashMap::new();
    here.for_each(|uid| *counts.entry(uid).or_insert(0) += 1);
    // The first of a user takes no place of theirs.
    counts.entry(uid).and_modify(|count| *count += 1);
    counts.into_iter().max_by_key(|(_, count)| *count).map_or(uid, |(most, _)| most)
}

impl<S: ListeningSocket> Listener for SocketListener<S> {
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
                    if let Some(incoming) = self.step(number) {
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
        // Most peers have said something by now.
        (first..self.next_number).find_map(|number| self.step(number))
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }
}

fn reserve() -> Option<OwnedFd> {
    fs::File::open("/dev/null").ok().map(OwnedFd::from)
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn is_out_of_memory(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::ENOBUFS))
}

/// As much of a reason as private data has room for.
pub fn cut_reason(reason: &str) -> &str {
    let mut end = reason.len().min(PRIVATE_DATA_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason.get(..end).unwrap_or("")
}

/// The file of a listening Unix socket, which goes with the listener. Any user may connect there: the kernel
/// says who it is, and the directory says who may try.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl SocketFile {
    /// Makes one by `bind`, after the removal of one whose listener is no more: `connect`, which tries
    /// it, is refused.
    ///
    /// # Errors
    /// `AddrInUse` where somebody listens, and what `connect` and `bind` say.
    pub fn make<T>(
        path: &Path,
        connect: impl FnOnce() -> io::Result<()>,
        bind: impl FnOnce() -> io::Result<T>,
    ) -> Result<(T, SocketFile), ConnectError> {
        // What is no socket, `bind` complains about.
        if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
            match connect() {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    fs::remove_file(path)?
                }
                Err(error) => return Err(error.into()),
                Ok(()) => return Err(io::Error::from(ErrorKind::AddrInUse).into()),
            }
        }
        let socket = bind()?;
        let file = SocketFile(path.into());
        open_to_all(path)?;
        Ok((socket, file))
    }
}

/// Lets any user connect to the socket file at `path`, and changes nothing else: where others may write to the
/// directory, something else may stand there by now.
fn open_to_all(path: &Path) -> io::Result<()> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let found = fs::File::options().read(true).custom_flags(flags).open(path)?;
    if !found.metadata()?.file_type().is_socket() {
        let text = format!("{}: replaced while it was made", path.display());
        return Err(io::Error::new(ErrorKind::AlreadyExists, text));
    }
    // By no name, and through no link, where the system has a name for that.
    let by_descriptor = PathBuf::from(format!("/proc/self/fd/{}", found.as_raw_fd()));
    let at = if by_descriptor.exists() { by_descriptor.as_path() } else { path };
    fs::set_permissions(at, Permissions::from_mode(0o666))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests;
