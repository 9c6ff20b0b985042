//! Who a peer is, by the kernel's word: SO_PEERCRED on a Unix socket, sock_diag on loopback TCP.
//!
//! Sockets of this host are asked for by their four numbers. A socket that is not established
//! any more, or has no inode, has no owner to trust (the kernel reports uid 0 for those).
//!
//! The four numbers are those of our peer only while our end is established: a peer that resets
//! leaves its bytes to be read here, and its port to anybody. So our end is looked at *after* the
//! question: established then, it was so while the kernel answered, and as long as it is, nobody
//! else can be connected from that port to this one.

use dafs_fabric::{PeerInfo, descriptors, local};
use dafs_protocol::{GROUPS_MAX, Identity};

/// The number of users and groups that are nobody.
pub(crate) const NOBODY: u32 = 65_534;

/// What is known of a peer when its connection is accepted.
#[derive(Debug, Clone)]
pub enum Proof {
    /// The kernel says so.
    Kernel(Identity),
    /// It must prove that it holds the key.
    Key,
    /// Nothing; it acts as this.
    Anonymous(Identity),
    /// It is not wanted; it is told why when it asks.
    Refused(String),
}

/// What the system says of a peer.
#[derive(Debug)]
pub(crate) enum Word {
    /// This, and nothing else needs to be asked.
    Proof(Proof),
    /// It is this user; its groups are those of the database, which may be slow.
    User(u32),
}

fn nobody() -> Identity {
    Identity { uid: NOBODY, gid: NOBODY, groups: Vec::new() }
}

/// The same peer where root is not wanted.
pub(crate) fn squash(who: Identity) -> Identity {
    if who.uid == 0 { nobody() } else { who }
}

/// Why nobody can tell who a peer is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The kernel does not know the socket (any more), or it is not on this host.
    #[error("no established socket of this host has the peer's address {0}")]
    Unknown(String),
    /// A user of another user namespace: one of many with this number.
    #[error("the peer's user has no number in the server's user namespace (uid {0})")]
    Unmapped(u32),
    /// The same of a group.
    #[error("the peer's group has no number in the server's user namespace (gid {0})")]
    UnmappedGroup(u32),
    /// Not a loopback connection, and no key is configured.
    #[error("peer {0} is not on this host and no key is configured")]
    Remote(String),
    /// The user database.
    #[error("the server: groups of uid {uid}: {}", descriptors::tell(source))]
    Groups {
        /// Whose.
        uid: u32,
        /// Why.
        source: std::io::Error,
    },
    /// sock_diag.
    #[error("the server: sock_diag: {}", descriptors::tell(.0))]
    Io(#[from] std::io::Error),
}

/// Proves a peer, given who the system says owns its socket (asked at once, see
/// [`Pending`](dafs_fabric::Pending)), whether a key is configured, and who callers without proof are.
///
/// # Errors
/// [`IdentityError`].
pub(crate) fn prove(
    peer: &PeerInfo,
    owner: impl Fn() -> std::io::Result<Option<u32>>,
    is_established: impl Fn() -> bool,
    has_key: bool,
    anonymous: Option<&Identity>,
) -> Result<Word, IdentityError> {
    let ambiguous = (local::is_ambiguous, local::ambiguous_group);
    prove_among(ambiguous, peer, (owner, is_established), has_key, anonymous)
}

/// `is_ambiguous`: whether a uid stands for all users that this user namespace has no number for; and which gid
/// does so for groups.
fn prove_among(
    (is_ambiguous, ambiguous_group): (impl Fn(u32) -> bool, impl Fn() -> Option<u32>),
    peer: &PeerInfo,
    (owner, is_established): (impl Fn() -> std::io::Result<Option<u32>>, impl Fn() -> bool),
    has_key: bool,
    anonymous: Option<&Identity>,
) -> Result<Word, IdentityError> {
    let known = |uid| if is_ambiguous(uid) { Err(IdentityError::Unmapped(uid)) } else { Ok(uid) };
    let proof = match (&peer.credentials, anonymous) {
        (Some(who), _) => {
            let (uid, unknown) = (known(who.uid)?, ambiguous_group());
            if unknown == Some(who.gid) {
                return Err(IdentityError::UnmappedGroup(who.gid));
            }
            let groups = who.groups.iter().copied().filter(|group| unknown != Some(*group));
            Proof::Kernel(Identity { uid, gid: who.gid, groups: groups.take(GROUPS_MAX).collect() })
        }
        _ if peer.ends.is_some_and(|ends| ends.are_loopback()) => {
            match owner()?.filter(|_| is_established()) {
                Some(uid) => return Ok(Word::User(known(uid)?)),
                None => return Err(IdentityError::Unknown(peer.text.clone())),
            }
        }
        _ if has_key => Proof::Key,
        (None, Some(identity)) => Proof::Anonymous(identity.clone()),
        (None, None) => return Err(IdentityError::Remote(peer.text.clone())),
    };
    Ok(Word::Proof(proof))
}

/// A user with the groups that the user database gives it; one that it does not know has none: a
/// number that happens to be that of a group would give its rights.
pub(crate) fn with_groups(uid: u32) -> Result<Identity, IdentityError> {
    let failed = |source| IdentityError::Groups { uid, source };
    let Some(user) = dafs_names::user_of(uid).map_err(failed)? else {
        return Ok(Identity { uid, ..nobody() });
    };
    let groups = dafs_names::groups(&user).map_err(failed)?;
    Ok(Identity { uid, gid: user.gid, groups: groups.into_iter().take(GROUPS_MAX).collect() })
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr, TcpStream};
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use dafs_fabric::{Address, Credentials, Device, Ends, Incoming, Listener, Provider};
    use dafs_fabric_tcp::TcpProvider;
    use nix::sys::socket::{
        AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket,
        sockopt,
    };

    use super::*;

    /// From `port`, or any; closed, it resets.
    fn connect_to(to: SocketAddr, port: u16) -> nix::Result<(OwnedFd, u16)> {
        let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&fd, sockopt::ReuseAddr, &true)?;
        let at_once = nix::libc::linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&fd, sockopt::Linger, &at_once)?;
        let from = SocketAddr::new(to.ip(), port);
        bind(fd.as_raw_fd(), &SockaddrStorage::from(from))?;
        connect(fd.as_raw_fd(), &SockaddrStorage::from(to))?;
        let stream = TcpStream::from(fd);
        let port = stream.local_addr().expect("address").port();
        Ok((stream.into(), port))
    }

    /// A listener of the provider, and a socket that is connected to it.
    struct Attack {
        listener: Box<dyn Listener>,
        _device: std::sync::Arc<dyn Device>,
        to: SocketAddr,
    }

    impl Attack {
        fn new(ip: &str) -> Attack {
            let device = TcpProvider::new().open().expect("device");
            let address = Address::parse(&format!("tcp://{ip}:0")).expect("address");
            let listener = device.listen(&address).expect("listen");
            let to = listener.address().target.parse().expect("an address");
            Attack { listener, _device: device, to }
        }

        fn connect(&self, port: u16) -> (OwnedFd, u16) {
            connect_to(self.to, port).expect("connect")
        }

        /// One that has said hello, as the acceptor gets it.
        fn hello(&mut self) -> (OwnedFd, u16, Incoming) {
            let (socket, port) = self.connect(0);
            let mut stream = TcpStream::from(socket);
            // A frame of the kind that everybody begins with.
            let mut hello = [0; 32];
            hello[0] = 1;
            hello[8..16].copy_from_slice(b"DAFSnic1");
            hello[28] = 1;
            std::io::Write::write_all(&mut stream, &hello).expect("hello");
            loop {
                if let Some(incoming) = self.listener.poll_accept() {
                    return (stream.into(), port, incoming);
                }
                std::thread::yield_now();
            }
        }
    }

    /// Where the peer resets and another process takes its port.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Moment {
        BeforeQuestion,
        BetweenQuestionAndState,
        AfterState,
    }

    /// What is proved of a peer that resets at `moment`, and whose port somebody else has at once.
    fn attack(ip: &str, moment: Moment) -> Result<Word, IdentityError> {
        let mut attack = Attack::new(ip);
        let (socket, port, incoming) = attack.hello();
        let socket = std::cell::Cell::new(Some(socket));
        let victim = std::cell::Cell::new(None);
        let now = |at| {
            if at == moment {
                drop(socket.take());
                victim.set(Some(attack.connect(port)));
            }
        };
        now(Moment::BeforeQuestion);
        let is_established = || {
            now(Moment::BetweenQuestionAndState);
            incoming.inner.is_established()
        };
        let proof = prove(&incoming.peer, || incoming.inner.owner(), is_established, false, None);
        now(Moment::AfterState);
        assert!(victim.take().is_some(), "the port can be taken");
        // The bytes of a connection that was reset are no reason to serve it.
        proof
    }

    #[test]
    fn nobody_is_taken_for_who_has_his_port_now() {
        for ip in ["127.0.0.1", "[::1]"] {
            for moment in [Moment::BeforeQuestion, Moment::BetweenQuestionAndState] {
                let proof = attack(ip, moment);
                assert!(matches!(proof, Err(IdentityError::Unknown(_))), "{moment:?}: {proof:?}");
            }
            // Then it was he who was asked about.
            let proof = attack(ip, Moment::AfterState);
            let me = nix::unistd::geteuid().as_raw();
            assert!(matches!(proof, Ok(Word::User(uid)) if uid == me));
        }
    }

    /// Resets what it is sent, and has root take the port at once; answers what root has then.
    fn start_thief(to: SocketAddr) -> (Sender<(OwnedFd, u16)>, Receiver<Option<OwnedFd>>) {
        let (orders, ordered) = channel::<(OwnedFd, u16)>();
        let (done, results) = channel();
        std::thread::spawn(move || {
            for (socket, port) in ordered {
                drop(socket);
                if done.send(connect_to(to, port).ok().map(|(root, _)| root)).is_err() {
                    break;
                }
            }
        });
        (orders, results)
    }

    /// How often somebody without rights was taken for root, who had his port next, and how often the
    /// port was had, which is `wanted`; in a race of the thief with the proof. `looks` at its own end after
    /// the question, or else goes on only until he was.
    fn race(wanted: usize, looks: bool) -> (usize, usize) {
        let mut attack = Attack::new("127.0.0.1");
        let (orders, results) = start_thief(attack.to);
        let (mut taken, mut had) = (0, 0);
        // Now and then somebody else is given the port.
        for round in 0..2 * wanted + 100 {
            // Of this thread only; the kernel notes it in the socket.
            nix::unistd::setfsuid(NOBODY.into());
            let (socket, port, incoming) = attack.hello();
            nix::unistd::setfsuid(0.into());
            orders.send((socket, port)).expect("the thief is there");
            // He has more or less of a start.
            for _ in 0..round * 7919 % 200 {
                let _ = std::hint::black_box(incoming.inner.is_established());
            }
            let up = || !looks || incoming.inner.is_established();
            let word = prove(&incoming.peer, || incoming.inner.owner(), up, false, None);
            taken += usize::from(matches!(word, Ok(Word::User(0))));
            had += usize::from(results.recv().expect("the thief is there").is_some());
            if had == wanted || (taken > 0 && !looks) {
                break;
            }
        }
        (taken, had)
    }

    /// With `DAFS_TEST_PORT_REUSES`, so often; and then without the look, until he is taken for root: the
    /// race is there to be won.
    #[test]
    fn nobody_is_taken_for_root_in_a_race() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let wanted = std::env::var("DAFS_TEST_PORT_REUSES").ok();
        let wanted: Option<usize> = wanted.map(|rounds| rounds.parse().expect("a number"));
        let rounds = wanted.unwrap_or(500);
        let (taken, had) = race(rounds, true);
        assert_eq!(had, rounds, "ports that root had next");
        assert_eq!(taken, 0, "of {had} ports that root had next");
        if let Some(rounds) = wanted {
            let (taken, had_then) = race(rounds, false);
            assert!(taken > 0, "of {had_then} ports that root had next");
            println!("{had} ports reused, 0 taken for root; without the look after {had_then}");
        }
    }

    #[test]
    fn a_peer_that_has_closed_is_refused() {
        let mut attack = Attack::new("127.0.0.1");
        let (socket, _, incoming) = attack.hello();
        assert!(incoming.inner.is_established());
        drop(socket);
        assert!(!incoming.inner.is_established());
    }

    #[test]
    fn a_user_without_an_entry_has_no_group() {
        let uid = (54_321..60_000)
            .find(|uid| nix::unistd::User::from_uid((*uid).into()).is_ok_and(|user| user.is_none()))
            .expect("a free number");
        let who = with_groups(uid).expect("nobody in particular");
        assert_eq!((who.uid, who.gid, who.groups), (uid, NOBODY, Vec::new()));
    }

    /// One of this host, in group 7 and these.
    fn process(uid: u32, groups: &[u32]) -> PeerInfo {
        let credentials = Credentials { uid, gid: 7, groups: groups.to_vec() };
        PeerInfo { credentials: Some(credentials), ends: None, text: "process 1".into() }
    }

    /// As in a user namespace that has no number for some users.
    #[test]
    fn nobody_is_let_in_by_a_number_that_stands_for_many() {
        let local: SocketAddr = ([127, 0, 0, 1], 7).into();
        let peers =
            |uid| [(process(uid, &[8]), None), (Ends { local, peer: local }.into(), Some(uid))];
        let word = |(peer, owner): (PeerInfo, Option<u32>)| {
            let asked = (|| Ok(owner), || true);
            prove_among((|uid| uid == NOBODY, || Some(NOBODY)), &peer, asked, true, None)
        };
        for peer in peers(NOBODY) {
            assert!(matches!(word(peer), Err(IdentityError::Unmapped(NOBODY))));
        }
        for peer in peers(5) {
            assert!(matches!(word(peer), Ok(Word::User(5) | Word::Proof(Proof::Kernel(_)))));
        }
    }

    #[test]
    fn nobody_has_the_rights_of_a_group_by_a_number_that_stands_for_many() {
        let word = |peer: PeerInfo| {
            let asked = (|| Ok(None), || true);
            prove_among((|_| false, || Some(NOBODY)), &peer, asked, true, None)
        };
        let expected = Identity { uid: 5, gid: 7, groups: vec![8, 9] };
        let known = word(process(5, &[NOBODY, 8, NOBODY, 9]));
        assert!(matches!(known, Ok(Word::Proof(Proof::Kernel(who))) if who == expected));
        let mut peer = process(5, &[]);
        peer.credentials.iter_mut().for_each(|who| who.gid = NOBODY);
        assert!(matches!(word(peer), Err(IdentityError::UnmappedGroup(NOBODY))));
    }

    /// The groups of the process count, not those of the database.
    #[test]
    fn a_peer_of_a_unix_socket_has_the_groups_of_its_process() {
        let peer = process(0, &[8, 9]);
        let proof = prove(&peer, || Ok(None), || false, false, None);
        let expected = Identity { uid: 0, gid: 7, groups: vec![8, 9] };
        assert!(matches!(proof, Ok(Word::Proof(Proof::Kernel(who))) if who == expected));
    }

    #[test]
    fn nothing_of_root_is_left_where_it_is_not_wanted() {
        let root = Identity { uid: 0, gid: 0, groups: vec![0, 4] };
        assert_eq!(squash(root), nobody());
        let other = Identity { uid: 7, gid: 0, groups: vec![4] };
        assert_eq!(squash(other.clone()), other);
    }

    #[test]
    fn remote_peers_need_a_key() {
        let remote = |last| SocketAddr::new(IpAddr::from([10, 0, 0, last]), last.into());
        let peer = PeerInfo::from(Ends { local: remote(1), peer: remote(2) });
        let (owner, up) = (|| Ok(None), || true);
        assert!(matches!(prove(&peer, owner, up, false, None), Err(IdentityError::Remote(_))));
        assert!(matches!(prove(&peer, owner, up, true, None), Ok(Word::Proof(Proof::Key))));
        let proof = prove(&peer, owner, up, false, Some(&nobody()));
        assert!(matches!(proof, Ok(Word::Proof(Proof::Anonymous(_)))));
    }
}
