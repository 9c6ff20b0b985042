//! Addresses, attributes, work requests and completions: data only.

use std::fmt;
use std::net::SocketAddr;

use smallvec::SmallVec;

use crate::mem::Span;

/// A scatter/gather list: local memory in the order in which bytes fill it or leave it.
/// Up to two entries cost no allocation.
pub type SgList = SmallVec<[Span; 2]>;

/// The bytes that a list covers.
#[inline(always)]
pub fn sg_bytes(list: &[Span]) -> usize {
    match list {
        // As most are.
        [one] => one.len(),
        _ => list.iter().map(Span::len).sum(),
    }
}

/// Where a peer is: `tcp://HOST:PORT`, `unix:/path`, `sim://node`, or `NAME:@...` at a network of this host
/// ([`Device::same_host`](crate::Device::same_host)).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    /// The transport's name, before the colon.
    pub scheme: String,
    /// What that transport understands, without slashes in front for `tcp` and `sim`.
    pub target: String,
}

impl Address {
    /// The transport that is meant where none is named.
    pub const DEFAULT_SCHEME: &'static str = "tcp";
    /// Sockets of this machine, whose addresses are paths.
    pub const LOCAL_SCHEME: &'static str = "unix";

    /// A socket of this machine.
    pub fn local(path: &std::path::Path) -> Address {
        let target = path.to_string_lossy().into_owned();
        Address { scheme: Address::LOCAL_SCHEME.into(), target }
    }

    /// The target is a path of this machine, not a host. One of [`LOCAL_SCHEME`](Self::LOCAL_SCHEME) is,
    /// whatever it looks like.
    pub fn is_path(&self) -> bool {
        let may_be = self.scheme != Address::DEFAULT_SCHEME && self.target.starts_with('/');
        may_be || self.scheme == Address::LOCAL_SCHEME
    }

    /// A server there may have a socket of its machine beside, by which clients of that machine come:
    /// the provider takes wishes about it behind a `?`.
    pub fn may_have_local_socket(&self) -> bool {
        self.scheme == Address::DEFAULT_SCHEME
    }

    /// Memory may be shared with who is there: the provider looks whose process that is, and takes a wish about it
    /// behind a `?`.
    pub fn takes_trust(&self) -> bool {
        self.is_path() && self.scheme != Address::LOCAL_SCHEME
    }

    /// Takes an address apart at the first `:`; `//` after it is dropped.
    pub fn parse(text: &str) -> Option<Address> {
        let (scheme, rest) = text.split_once(':')?;
        let target = rest.strip_prefix("//").unwrap_or(rest);
        (!scheme.is_empty() && !target.is_empty())
            .then(|| Address { scheme: scheme.into(), target: target.into() })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slashes = if self.is_path() || self.target.starts_with('@') { "" } else { "//" };
        write!(f, "{}:{}{}", self.scheme, slashes, self.target)
    }
}

/// A queue pair of one [`Engine`](crate::Engine). Numbers are not used again within an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueuePair(pub u64);

/// The caller's name of a work request, given back in its completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WrId(pub u64);

/// The key that lets a peer reach a memory region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rkey(pub u64);

/// Matches a tagged send with the buffer pre-posted for it (RDDP-RPC, \[ODAFS\] 2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub u64);

/// A piece of a peer's registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteSpan {
    /// The peer's key.
    pub rkey: Rkey,
    /// The peer's address of the first byte.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
}

/// What a peer may do with a memory region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// RDMA read from it.
    pub remote_read: bool,
    /// RDMA write to it.
    pub remote_write: bool,
}

/// What a device can do. Flags and limits equal what the engine does: one that lies fails conformance.
/// [`ordered_reads`](Self::ordered_reads), [`write_before_send`](Self::write_before_send) and
/// [`target_cpu_free`](Self::target_cpu_free) are promises: a device may do more than it promises.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeviceAttr {
    /// For messages to people.
    pub provider: &'static str,
    /// The schemes of the addresses to which engines connect, and at which devices listen.
    pub schemes: &'static [&'static str],
    /// Engines take [`Engine::post_rdma_write`](crate::Engine::post_rdma_write).
    pub rdma_write: bool,
    /// Engines take [`Engine::post_rdma_read`](crate::Engine::post_rdma_read).
    pub rdma_read: bool,
    /// Engines take tagged sends and receives.
    pub tag_match: bool,
    /// A remote access fault fails that work request only; the queue pair lives (\[ODAFS\] 4.1).
    pub recoverable_access_fault: bool,
    /// Two RDMA reads of one queue pair are performed in order, also without a fence.
    pub ordered_reads: bool,
    /// An RDMA write is placed before a send posted after it is delivered.
    pub write_before_send: bool,
    /// One-sided access needs no CPU at the target: it is done while nobody polls there.
    pub target_cpu_free: bool,
    /// Registered memory is pinned: pages of it that are given back
    /// ([`Arena::discard`](crate::Arena::discard)) stay with the device, which then writes where
    /// nobody looks. Otherwise it goes where this process sees it.
    pub registration_pins: bool,
    /// Memory in a [`SgList`] (and of the header of a tagged receive) must be registered with the
    /// device, each entry by one region, from before it is posted until it is the caller's again.
    /// What is not is refused ([`PostError::NotRegistered`](crate::PostError::NotRegistered)).
    pub local_registration: bool,
    /// Memory is made reachable for peers by sharing it: only that of an
    /// [`Arena::shared`](crate::Arena::shared) can be registered with a right, other memory is refused
    /// ([`RegisterError::Refused`](crate::RegisterError::Refused)).
    pub shared_memory: bool,
    /// Sends, tagged sends and RDMA writes take spans of mapped files ([`Span::of_file`]), whose
    /// bytes only the kernel reads: a file that is cut meanwhile breaks the queue pair. Without, such
    /// spans are refused ([`PostError::Unsupported`](crate::PostError::Unsupported)).
    pub file_spans: bool,
    /// Engines take [`Engine::post_named_read`](crate::Engine::post_named_read), which names what it wants in
    /// place of an address: the target looks it up, and verifies that it may be had, at each.
    pub verifies_names: bool,
    /// Bytes of `header` that a send takes.
    pub header_bytes_max: usize,
    /// Bytes of a send, header and data together.
    pub send_bytes_max: usize,
    /// Bytes of one tagged send, RDMA read or write.
    pub bulk_bytes_max: usize,
    /// Entries of a [`SgList`], two or more. A header is none of them: a provider that sends it as
    /// one has one less to offer.
    pub sge_max: usize,
    /// Work requests under way per queue pair (sends, reads and writes together).
    pub send_queue_depth: usize,
    /// Receives that may be posted per engine.
    pub receive_queue_depth: usize,
    /// Bytes of private data that a connect or accept carries, at most [`PRIVATE_DATA_BYTES_MAX`].
    pub private_data_bytes_max: usize,
}

impl DeviceAttr {
    /// It takes addresses like this one.
    pub fn takes(&self, address: &Address) -> bool {
        self.schemes.contains(&address.scheme.as_str())
    }

    /// A device that can do nothing; providers fill in what they have.
    pub fn none(provider: &'static str) -> DeviceAttr {
        DeviceAttr {
            provider,
            schemes: &[],
            rdma_write: false,
            rdma_read: false,
            tag_match: false,
            recoverable_access_fault: false,
            ordered_reads: false,
            write_before_send: false,
            target_cpu_free: false,
            registration_pins: false,
            local_registration: false,
            shared_memory: false,
            file_spans: false,
            verifies_names: false,
            header_bytes_max: 0,
            send_bytes_max: 0,
            bulk_bytes_max: 0,
            sge_max: 0,
            send_queue_depth: 0,
            receive_queue_depth: 0,
            private_data_bytes_max: 0,
        }
    }
}

/// Something of this machine by which a network goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hardware {
    /// As the system calls it.
    pub name: String,
    /// It can be used now.
    pub is_up: bool,
    /// Bits per second; `None`: the system does not know.
    pub speed: Option<u64>,
    /// Bytes of the largest packet.
    pub mtu: Option<u64>,
}

/// What a completion is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// A send left its buffers.
    Send,
    /// A message arrived in a posted receive.
    Recv,
    /// An RDMA write left its buffers.
    RdmaWrite,
    /// An RDMA read filled its buffers.
    RdmaRead,
    /// A tagged send left its buffers.
    TaggedSend,
    /// A tagged message arrived in the buffer posted for it.
    TaggedRecv,
    /// A named read filled its buffers, as far as there was something.
    NamedRead,
    /// The answer to a peer's named read left its buffers.
    NamedAnswer,
}

/// How a work request ended (the verbs list, as far as we meet it).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// Done.
    Success,
    /// The queue pair broke or was disconnected before it was done.
    Flushed,
    /// The peer refused the access: key, bounds or rights. Fatal to the queue pair unless
    /// [`DeviceAttr::recoverable_access_fault`].
    RemoteAccess,
    /// The message is longer than the receive posted for it.
    LocalLength,
    /// A posted tagged receive was cancelled.
    Cancelled,
}

/// A finished work request. Its buffers are the caller's again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkCompletion {
    /// As posted.
    pub wr_id: WrId,
    /// The queue pair; for `Recv` the one on which the message arrived.
    pub queue_pair: QueuePair,
    /// What was done.
    pub opcode: Opcode,
    /// How it ended. With anything but `Success` only `wr_id` and `queue_pair` have meaning.
    pub status: Status,
    /// `Recv`: bytes of the message (header and data). `TaggedRecv`: bytes of data.
    /// `RdmaRead`, `NamedRead`: bytes read.
    pub byte_len: u32,
    /// `TaggedRecv`: bytes of header.
    pub header_len: u32,
}

/// Bytes of a message that is short.
pub const SHORT_MESSAGE_BYTES: usize = 120;

/// A short message, which took no receive.
#[derive(Debug, Clone)]
pub struct ShortMessage {
    /// On which it came.
    pub queue_pair: QueuePair,
    /// Its bytes; those behind have no meaning.
    pub len: usize,
    /// Those.
    pub bytes: [u8; SHORT_MESSAGE_BYTES],
}

impl Default for ShortMessage {
    fn default() -> ShortMessage {
        ShortMessage { queue_pair: QueuePair(0), len: 0, bytes: [0; SHORT_MESSAGE_BYTES] }
    }
}

/// Bytes of a name at most.
pub const NAME_BYTES_MAX: usize = 64;
/// Bytes of one named read at most.
pub const NAMED_READ_BYTES_MAX: usize = 64 << 10;

/// A peer's named read, to be answered with what it names, or refused. Nothing in it is to be believed.
#[derive(Debug, Clone)]
pub struct NamedAsk {
    /// On which it came.
    pub queue_pair: QueuePair,
    /// Which of its asks it is, for the answer.
    pub id: u32,
    /// Bytes asked for, at most [`NAMED_READ_BYTES_MAX`].
    pub len: u32,
    /// From which byte on.
    pub offset: u64,
    name: [u8; NAME_BYTES_MAX],
    name_len: u8,
}

impl NamedAsk {
    /// Of these bytes; `None`: the name is too long, or it asks for too many.
    pub fn new(
        (queue_pair, id): (QueuePair, u32),
        name: &[u8],
        (offset, len): (u64, u32),
    ) -> Option<NamedAsk> {
        let mut ask =
            NamedAsk { queue_pair, id, len, offset, name: [0; NAME_BYTES_MAX], name_len: 0 };
        ask.name.get_mut(..name.len())?.copy_from_slice(name); // not payload: a name
        ask.name_len = name.len() as u8;
        (len as usize <= NAMED_READ_BYTES_MAX).then_some(ask)
    }

    /// The same, of a name of so many bytes with which a message begins.
    #[inline(always)]
    pub fn of_message(
        (queue_pair, id): (QueuePair, u32),
        (message, name_len): (&[u8], usize),
        (offset, len): (u64, u32),
    ) -> Option<NamedAsk> {
        match message.first_chunk() {
            // As a whole, which is less work: what follows the name is not told.
            Some(name) if name_len <= NAME_BYTES_MAX && len as usize <= NAMED_READ_BYTES_MAX => {
                let name_len = name_len as u8;
                Some(NamedAsk { queue_pair, id, len, offset, name: *name, name_len })
            }
            _ => NamedAsk::new((queue_pair, id), message.get(..name_len)?, (offset, len)),
        }
    }

    /// What it wants, in whatever way the two ends have agreed on.
    #[inline]
    pub fn name(&self) -> &[u8] {
        &self.name[..usize::from(self.name_len)]
    }
}

/// An answer to a [`NamedAsk`].
#[derive(Debug)]
pub struct NamedAnswer {
    /// Of that.
    pub id: u32,
    /// What it names, as much as it asks for at most.
    pub data: SgList,
}

/// What happens to a queue pair beside completions.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueuePairEvent {
    /// The peer accepted; its private data.
    Connected {
        /// Which.
        queue_pair: QueuePair,
        /// As given to `accept` by the peer.
        private_data: Vec<u8>,
    },
    /// The connection was not made. No `Quiescent` follows.
    Refused {
        /// Which.
        queue_pair: QueuePair,
        /// True where nobody listens (as opposed to rejected, timed out, unreachable).
        refused: bool,
        /// For people.
        reason: String,
    },
    /// The connection is gone. All its work comes back as completions, then `Quiescent`.
    Disconnected {
        /// Which.
        queue_pair: QueuePair,
        /// For people.
        reason: String,
    },
    /// All work is returned and the transport has left the memory of this queue pair, whose
    /// number is now free of meaning.
    Quiescent {
        /// Which.
        queue_pair: QueuePair,
    },
    /// The peer of a queue pair that is quiescent reads nothing any more of what it was lent; where
    /// [`is_still_read`](crate::Engine::is_still_read) asked for it.
    Returned {
        /// Which.
        queue_pair: QueuePair,
    },
    /// Data of a tagged send waits at a tag for which nothing is posted. Receiving on this queue
    /// pair pauses until it is posted, or the queue pair is disconnected. Told once per message.
    UnmatchedTag {
        /// Which.
        queue_pair: QueuePair,
        /// The tag.
        tag: Tag,
    },
}

/// Who is at the other end of a connection, as far as the system knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerInfo {
    /// Whose process it was when it connected, by the kernel's word; `None`: a network that does not
    /// tell.
    pub credentials: Option<Credentials>,
    /// The addresses of the connection, where it has some.
    pub ends: Option<Ends>,
    /// Where it comes from, for people: an address, a process.
    pub text: String,
}

/// As whom a process acts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// User.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// Both ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// Ours.
    pub local: SocketAddr,
    /// Theirs.
    pub peer: SocketAddr,
}

impl Ends {
    /// Both are this host's, by a network that no other host reaches.
    pub fn are_loopback(&self) -> bool {
        self.local.ip().is_loopback() && self.peer.ip().is_loopback()
    }

    /// Both are this host's.
    pub fn are_of_one_host(&self) -> bool {
        self.are_loopback() || self.local.ip().to_canonical() == self.peer.ip().to_canonical()
    }
}

impl PeerInfo {
    /// It is a process of this host: the kernel vouches for it, or both ends have one address.
    pub fn is_of_this_host(&self) -> bool {
        self.credentials.is_some() || self.ends.is_some_and(|ends| ends.are_of_one_host())
    }
}

impl From<Ends> for PeerInfo {
    /// Known by its address alone.
    fn from(ends: Ends) -> PeerInfo {
        PeerInfo { credentials: None, ends: Some(ends), text: ends.peer.to_string() }
    }
}

/// A connection request, to be given to [`Engine::accept`](crate::Engine::accept) of any engine
/// of the same provider, or dropped (which refuses it).
pub struct Incoming {
    /// What the peer gave to `connect`. At most 256 bytes. Not to be believed.
    pub private_data: Vec<u8>,
    /// Who it is, as far as the system knows.
    pub peer: PeerInfo,
    /// Which device of its [`Domain`](crate::Domain) it came by, where it was accepted by one that
    /// [listens](crate::Domain::listen); else 0.
    pub device: usize,
    /// The provider's own state.
    pub inner: Box<dyn Pending>,
}

/// What a provider keeps of a connection request.
pub trait Pending: std::any::Any + Send {
    /// True while the peer has neither closed nor reset the connection, at the moment of the call. As
    /// long as it is so, nobody else's connection has the same addresses.
    fn is_established(&self) -> bool;
    /// The uid of whose socket is at the other end, where that is a TCP socket of this host's loopback,
    /// by the kernel's word; `None` where there is no such socket any more. It is the peer's only if
    /// [`is_established`](Self::is_established) is true afterwards. Does not wait for the network.
    ///
    /// # Errors
    /// The kernel cannot be asked.
    fn owner(&self) -> std::io::Result<Option<u32>> {
        Ok(None)
    }
}

impl Incoming {
    /// The provider's own state, where it is of this type.
    pub fn into_inner<T: Pending>(self) -> Option<Box<T>> {
        (self.inner as Box<dyn std::any::Any>).downcast().ok()
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// The most private data that any device carries with a connect or accept; a device may carry less
/// ([`DeviceAttr::private_data_bytes_max`]).
pub const PRIVATE_DATA_BYTES_MAX: usize = 256;
