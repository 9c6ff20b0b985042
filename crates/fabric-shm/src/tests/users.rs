//! Memory that peers of one user may read: which descriptors come to whom, and when.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::sync::Mutex;

use dafs_fabric::mem::PAGE_BYTES;
use dafs_fabric::{ArenaError, Readers};

use super::*;
use crate::peer::Peer;
use crate::peer_socket::PeerSocket;
use crate::wire::Limits;

const READ: Access = Access { remote_read: true, remote_write: false };
const BYTES: usize = 1 << 20;
const HIM: u32 = 54_321;
const HER: u32 = 54_322;

/// A file, wherever its descriptor is.
type FileId = (u64, u64);

fn id(fd: BorrowedFd<'_>) -> FileId {
    let file = std::fs::File::from(fd.try_clone_to_owned().expect("a descriptor"));
    let meta = file.metadata().expect("its attributes");
    (meta.dev(), meta.ino())
}

/// Memory that is registered to be read.
struct Shown {
    span: Span,
    region: MemoryRegion,
}

impl Shown {
    fn new(device: &dyn Device, readers: Readers) -> Shown {
        let arena = Arena::for_readers(BYTES, BYTES, readers).expect("memory");
        let span = arena.span(0, BYTES);
        let region = device.register(span.clone(), READ).expect("registered");
        Shown { span, region }
    }

    fn id(&self) -> FileId {
        id(self.span.shared().expect("shared").file.as_fd())
    }
}

/// What a peer has in his hands.
#[derive(Debug, Default, PartialEq, Eq)]
struct Hands {
    tables: Vec<FileId>,
    /// By their numbers, as they came.
    segments: Vec<(u64, FileId)>,
}

impl Hands {
    /// Takes all that has come.
    fn take(&mut self, socket: BorrowedFd<'_>) {
        while self.take_one(socket) {}
    }

    fn take_one(&mut self, socket: BorrowedFd<'_>) -> bool {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let Ok(received) = sys::receive(socket, &mut bytes, Take::Message) else { return false };
        let ids: Vec<_> = received.descriptors.iter().map(|fd| id(fd.as_fd())).collect();
        match (Message::decode(&bytes[..received.len]), ids.as_slice()) {
            (Some(Message::Table), [table]) => self.tables.push(*table),
            (Some(Message::Segment(number)), [segment]) => {
                assert!(self.segments.iter().all(|known| known.0 != number), "told twice");
                self.segments.push((number, *segment));
            }
            (Some(Message::Forget(number)), []) => {
                let at = self.segments.iter().position(|known| known.0 == number);
                self.segments.remove(at.expect("he was told of it"));
            }
            (Some(Message::Bell), []) => {}
            (other, ids) => panic!("{} descriptors with {other:?}", ids.len()),
        }
        true
    }

    fn files(&self) -> Vec<FileId> {
        self.segments.iter().map(|(_, file)| *file).collect()
    }
}

/// A peer of any user, as the device believes the system, by a pair of sockets.
struct Of {
    peer: Arc<Peer>,
    socket: UnixDatagram,
    hands: Hands,
}

impl Of {
    fn new(shared: &Shared, uid: u32) -> Of {
        Of::with_limits(shared, (uid, uid == 0), CLIENT_LIMITS)
    }

    fn with_limits(shared: &Shared, (uid, shares): (u32, bool), limits: Limits) -> Of {
        let (near, socket) = UnixDatagram::pair().expect("sockets");
        socket.set_nonblocking(true).expect("a flag");
        let peer = Peer::new(PeerSocket::of(near.into(), uid), shares, limits);
        shared.table.add(&peer);
        Of { peer, socket, hands: Hands::default() }
    }

    fn admitted(shared: &Shared, uid: u32) -> Of {
        let of = Of::new(shared, uid);
        shared.admit(&of.peer);
        of
    }

    /// What he was told of until now.
    fn files(&mut self) -> Vec<FileId> {
        self.hands.take(self.socket.as_fd());
        let one_table = usize::from(!self.hands.segments.is_empty());
        assert!(self.hands.tables.len() <= 1 && self.hands.tables.len() >= one_table);
        self.hands.files()
    }

    fn reads(&self, readers: [Readers; 4]) -> [bool; 4] {
        readers.map(|readers| self.peer.reads(readers))
    }
}

const ALL_READERS: [Readers; 4] =
    [Readers::Own, Readers::User(HIM), Readers::User(HER), Readers::All];

fn device() -> (Arc<Shared>, ShmDevice) {
    let shared = Shared::new(attributes()).expect("memory");
    (shared.clone(), ShmDevice::of(shared))
}

#[test]
fn memory_of_a_user_comes_to_that_user_alone() {
    let (shared, device) = device();
    let mut before = [HIM, HER, 7].map(|uid| Of::admitted(&shared, uid));
    let mut root = Of::new(&shared, 0);
    let mut not_admitted = Of::new(&shared, HIM);
    let ordinary = Arena::shared(BYTES).expect("memory").span(0, BYTES);
    let _ordinary = device.register(ordinary, READ_WRITE).expect("registered");
    assert!(before.iter_mut().all(|of| of.files().is_empty()), "there is nothing for them");
    // Made while they are connected, one after the other.
    let shown = ALL_READERS.map(|readers| Shown::new(&device, readers));
    let [own, his, hers, of_all] = shown.each_ref().map(Shown::id);
    let mut after = [HIM, HER, 7].map(|uid| Of::admitted(&shared, uid));
    let mut later_root = Of::new(&shared, 0);
    for all in [&mut before, &mut after] {
        assert_eq!(all[0].files(), [his, of_all]);
        assert_eq!(all[1].files(), [hers, of_all]);
        assert_eq!(all[2].files(), [of_all]);
        assert_eq!(all[0].reads(ALL_READERS), [false, true, false, true]);
        assert_eq!(all[1].reads(ALL_READERS), [false, false, true, true]);
        assert_eq!(all[2].reads(ALL_READERS), [false, false, false, true]);
        assert!(all[0].hands.tables == all[1].hands.tables && all[0].hands.tables.len() == 1);
    }
    for root in [&mut root, &mut later_root] {
        let files = root.files();
        assert!(files.len() == 5 && [own, his, hers, of_all].iter().all(|id| files.contains(id)));
        assert_eq!(root.reads(ALL_READERS), [true; 4]);
        assert_ne!(root.hands.tables, before[0].hands.tables);
    }
    assert_eq!(not_admitted.files(), []);
    assert_eq!(not_admitted.reads(ALL_READERS), [false; 4]);
    shared.admit(&not_admitted.peer);
    shared.admit(&not_admitted.peer);
    assert_eq!(not_admitted.files(), [his, of_all]);
    // A second part of a file is of the same file: nobody is told again.
    let again = shown[1].span.part(0, PAGE_BYTES);
    let _again = device.register(again, READ).expect("registered");
    assert_eq!(before[0].files(), [his, of_all]);
    // What is no more, they unmap.
    drop((shown, _again));
    shared.table.sweep();
    assert!(before.iter_mut().chain(&mut after).all(|of| of.files().is_empty()));
}

#[test]
fn who_has_no_number_is_told_of_nothing() {
    let (shared, device) = device();
    // As of a socket of which the system did not say whose it is.
    let mut unknown = Of::admitted(&shared, u32::MAX);
    let readers = [Readers::User(u32::MAX), Readers::All];
    let _shown = readers.map(|readers| Shown::new(&device, readers));
    shared.admit(&unknown.peer);
    assert_eq!(unknown.files(), []);
    assert!(!unknown.peer.reads(readers[0]) && !unknown.peer.reads(readers[1]));
}

/// Who takes fewer files, or bytes, than there are for him is told of no more, and referred to nothing.
#[test]
fn nobody_is_told_of_more_than_he_takes() {
    let (shared, device) = device();
    let files = Limits { segments: 2, ..CLIENT_LIMITS };
    let bytes = Limits { bytes: 2 * BYTES as u64, ..CLIENT_LIMITS };
    let mut few = [files, bytes].map(|limits| Of::with_limits(&shared, (HIM, false), limits));
    few.iter().for_each(|of| shared.admit(&of.peer));
    let first = Shown::new(&device, Readers::All);
    let second = Shown::new(&device, Readers::User(HIM));
    let _others = [HER, 7].map(|uid| Shown::new(&device, Readers::User(uid)));
    for of in &mut few {
        assert_eq!(of.files(), [first.id(), second.id()], "what is for others does not count");
        assert!(of.peer.reads(Readers::User(HIM)));
    }
    let third = Shown::new(&device, Readers::User(HIM));
    for of in &mut few {
        assert_eq!(of.files(), [first.id(), second.id()]);
        assert_eq!(of.reads(ALL_READERS), [false; 4]);
    }
    // There is room again.
    let first_id = first.id();
    drop(first);
    shared.table.sweep();
    for of in &mut few {
        assert_eq!(of.files(), [second.id(), third.id()]);
        assert!(!of.hands.files().contains(&first_id));
        assert!(of.peer.reads(Readers::User(HIM)));
    }
}

/// Connections for which the server would wait are bounded; the others are told of nothing, also later.
#[test]
fn what_is_made_later_is_told_to_those_who_are_admitted() {
    const MOST: usize = 64;
    let (shared, device) = device();
    let mut his: Vec<_> = (0..MOST + 3).map(|_| Of::admitted(&shared, HIM)).collect();
    let mut hers = Of::admitted(&shared, HER);
    let [of_him, of_her] = [HIM, HER].map(|uid| Shown::new(&device, Readers::User(uid)));
    let told: Vec<_> = his.iter_mut().map(|of| of.files() == [of_him.id()]).collect();
    assert_eq!(told.iter().filter(|told| **told).count(), MOST);
    assert_eq!(told, his.iter().map(|of| of.peer.reads(Readers::User(HIM))).collect::<Vec<_>>());
    assert!(his[MOST..].iter_mut().all(|of| of.files().is_empty()));
    assert_eq!(hers.files(), [of_her.id()]);
    // One goes, one is admitted in its place, and told of all.
    his.swap_remove(0);
    shared.admit(&his[MOST].peer);
    assert_eq!(his[MOST].files(), [of_him.id()]);
}

/// The honest client, of this process's user, as a stranger.
#[test]
fn a_user_reads_what_is_his_through_the_table_and_nothing_else_that_stands_there() {
    let mut server = Server::of_strangers();
    let me = dafs_fabric::local::effective_uid();
    let (_, far) = server.pair.expect("connected");
    // Before there is anything, so that it has no table.
    server.engine.admit(far);
    let mine = Shown::new(&*server.device, Readers::User(me));
    let another = Shown::new(&*server.device, Readers::User(me + 1));
    mine.span.copy_from(PAGE_BYTES, b"mine");
    let reads = |server: &Server, readers| server.engine.lets_read(far, readers);
    assert!(reads(&server, Readers::User(me)) && reads(&server, Readers::All));
    assert!(!reads(&server, Readers::User(me + 1)) && !reads(&server, Readers::Own));
    let local = Arena::new(PAGE_BYTES).expect("memory").span(0, 4);
    let read = |server: &mut Server, shown: &Shown| {
        server.one_sided(&local, shown.region.part(PAGE_BYTES, 4), false)
    };
    assert_eq!(read(&mut server, &mine), Status::Success);
    let mut seen = [0; 4];
    local.copy_to(0, &mut seen);
    assert_eq!(&seen, b"mine");
    let write = server.one_sided(&local, mine.region.part(PAGE_BYTES, 4), true);
    assert_eq!(write, Status::RemoteAccess);
    server.connect_honest();
    let (near, far) = server.pair.expect("connected");
    server.engine.admit(far);
    // Its entry is there for all to see, its memory is not.
    assert!(server.honest.map(near, another.region.remote().rkey).is_none());
    assert!(server.honest.map(near, mine.region.remote().rkey).is_some());
    assert_eq!(read(&mut server, &another), Status::RemoteAccess);
}

/// A thread that acts as a user in file systems would make a file of that user's, who could then open it to write.
#[test]
fn nobody_makes_memory_for_readers_as_another_user() {
    if !nix::unistd::geteuid().is_root() {
        return println!("only root can be another user: left out");
    }
    let make = |readers| {
        std::thread::spawn(move || {
            nix::unistd::setfsuid(nix::unistd::Uid::from_raw(HIM));
            Arena::for_readers(BYTES, BYTES, readers).map(drop)
        })
    };
    for readers in [Readers::User(HIM), Readers::All, Readers::Own] {
        let made = make(readers).join().expect("it ends");
        let Err(ArenaError::System { source, .. }) = made else { panic!("{made:?}") };
        assert_eq!(source.kind(), std::io::ErrorKind::PermissionDenied);
    }
}

/// What was told half, for want of room, is not told twice.
#[test]
fn whose_socket_is_full_is_told_once_when_there_is_room() {
    let (shared, device) = device();
    let mut of = Of::admitted(&shared, HIM);
    while sys::send(of.peer.fd(), &Message::Bell.encode()).is_ok() {}
    let shown = [HIM, HER, HIM].map(|uid| Shown::new(&device, Readers::User(uid)));
    let reads = |of: &Of| of.peer.reads(Readers::User(HIM));
    assert!(of.peer.lags() && !reads(&of));
    let mut steps = 0;
    while of.peer.lags() {
        assert!(!reads(&of), "not before he was told of all");
        assert!(of.hands.take_one(of.socket.as_fd()), "something is in his socket");
        shared.table.tell_again(&of.peer);
        steps += 1;
    }
    assert!(steps > 1, "all had room at once");
    shared.table.tell_again(&of.peer);
    shared.admit(&of.peer);
    assert_eq!(of.files(), [shown[0].id(), shown[2].id()]);
    assert!(reads(&of) && of.hands.tables.len() == 1);
}

/// Memory comes and goes while peers do, in threads of their own.
#[test]
fn nobody_is_told_of_what_is_for_others_while_all_come_and_go() {
    const ROUNDS: usize = 60;
    let (shared, device) = device();
    let users = [HIM, HER, 7];
    let of_whom: Mutex<HashMap<FileId, Readers>> = Mutex::default();
    let kept: Mutex<Vec<Shown>> = Mutex::default();
    let known = |file| *of_whom.lock().expect("no panic").get(&file).expect("made here");
    let show = |readers| {
        let arena = Arena::for_readers(BYTES, BYTES, readers).expect("memory");
        let span = arena.span(0, BYTES);
        let file = id(span.shared().expect("shared").file.as_fd());
        of_whom.lock().expect("no panic").insert(file, readers);
        let region = device.register(span.clone(), READ).expect("registered");
        Shown { span, region }
    };
    let look = |of: &mut Of, uid| {
        shared.table.tell_again(&of.peer);
        for file in of.files() {
            let readers = known(file);
            assert!(readers == Readers::All || readers == Readers::User(uid), "{readers:?}");
        }
    };
    let mut last: Vec<_> = users.map(|uid| (uid, Of::admitted(&shared, uid))).into();
    std::thread::scope(|scope| {
        for uid in users {
            let (shared, look) = (&shared, &look);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let mut of = Of::new(shared, uid);
                    look(&mut of, uid);
                    assert_eq!(of.files(), [], "he is not admitted");
                    shared.admit(&of.peer);
                    (0..round % 4).for_each(|_| look(&mut of, uid));
                }
            });
        }
        scope.spawn(|| {
            for round in 0..ROUNDS {
                let readers = [HIM, HER, 7].map(Readers::User);
                let readers = [readers.as_slice(), &[Readers::All, Readers::Own]];
                let shown = show(readers.concat()[round % 5]);
                // Some stay.
                if round % 6 == 0 {
                    kept.lock().expect("no panic").push(shown);
                } else {
                    drop(shown);
                    shared.table.sweep();
                }
            }
        });
    });
    shared.table.sweep();
    let kept = kept.into_inner().expect("no panic");
    assert_eq!(kept.len(), ROUNDS / 6);
    for (uid, of) in &mut last {
        look(of, *uid);
        let his = |s: &&Shown| [Readers::All, Readers::User(*uid)].contains(&known(s.id()));
        let mut expected: Vec<_> = kept.iter().filter(his).map(Shown::id).collect();
        let mut files = of.files();
        expected.sort_unstable();
        files.sort_unstable();
        assert_eq!(files, expected);
        assert!(of.peer.reads(Readers::User(*uid)));
    }
}
