//! Memory that peers may read: they map it, and cannot write it.

use dafs_fabric::mem::PAGE_BYTES;
use dafs_fabric::{RegisterError, RemoteSpan};

use super::*;

const READ: Access = Access { remote_read: true, remote_write: false };
/// More than a client may share with a server.
const CACHE_BYTES: usize = 3 << 30;

impl Server {
    /// The honest client reads or writes what it was told of.
    fn one_sided(&mut self, local: &Span, remote: RemoteSpan, write: bool) -> Status {
        let (near, _) = self.pair.expect("connected");
        let (id, list) = (WrId(9), &mut smallvec![local.clone()]);
        match write {
            true => self.honest.post_rdma_write(near, id, list, remote, true),
            false => self.honest.post_rdma_read(near, id, list, remote, false),
        }
        .expect("posted");
        wait("completion", || {
            let mut done = Vec::new();
            self.honest.poll(&mut done, 1);
            done.pop()
        })
        .status
    }
}

#[test]
fn peers_read_what_they_may_and_write_none_of_it() {
    let mut server = Server::new();
    let (_, early) = server.pair.expect("connected");
    assert!(server.engine.lets_read(early), "there is nothing to be told");
    let arena = Arena::for_readers(CACHE_BYTES, 64 << 20).expect("memory");
    let cache = arena.span(0, CACHE_BYTES);
    cache.copy_from(CACHE_BYTES - PAGE_BYTES, b"cached");
    let region = server.device.register(cache.clone(), READ).expect("registered");
    let both = Access { remote_read: true, remote_write: true };
    let refused = server.device.register(cache, both);
    assert!(matches!(refused, Err(RegisterError::Refused(_))), "{refused:?}");
    // One that was connected before, and one that comes.
    for again in [false, true] {
        if again {
            server.connect_honest();
        }
        server.ping();
        let (_, far) = server.pair.expect("connected");
        assert!(server.engine.lets_read(far));
        let remote = region.part(CACHE_BYTES - PAGE_BYTES, 6);
        let local = Arena::new(PAGE_BYTES).expect("memory").span(0, 6);
        assert_eq!(server.one_sided(&local, remote, false), Status::Success);
        let mut seen = [0; 6];
        local.copy_to(0, &mut seen);
        assert_eq!(&seen, b"cached");
        assert_eq!(server.one_sided(&local, remote, true), Status::RemoteAccess);
        server.ping();
    }
    drop(region);
    let local = Arena::new(PAGE_BYTES).expect("memory").span(0, 6);
    let gone = RemoteSpan { rkey: dafs_fabric::Rkey(1), addr: 0, len: 6 };
    assert_eq!(server.one_sided(&local, gone, false), Status::RemoteAccess);
}

#[test]
fn a_table_does_not_make_writable_what_is_for_reading() {
    use crate::memory_region::{READ, TABLE_BYTES, WRITE};
    use crate::peer_memory::PeerMemory;

    let arena = Arena::for_readers(4 << 20, 2 << 20).expect("memory");
    let file = arena.span(0, 1).shared().expect("shared").file;
    let table = Arena::shared(TABLE_BYTES).expect("memory");
    let lies = table.span(0, TABLE_BYTES);
    let table = lies.shared().expect("shared").file;
    for (word, value) in [(0, 1 << 16), (1, 5), (2, 0), (3, 0), (4, 4 << 20), (5, READ | WRITE)] {
        lies.write_message(8 * word, &u64::to_le_bytes(value));
    }
    let mut memory = PeerMemory::new(CLIENT_LIMITS, None);
    let table = table.read_only().expect("/proc");
    memory.take(&Message::Table, vec![table]).expect("taken");
    let file = file.for_peers().try_clone_to_owned().expect("a descriptor");
    memory.take(&Message::Segment(5), vec![file]).expect("taken");
    let remote = RemoteSpan { rkey: dafs_fabric::Rkey(1 << 16), addr: 0, len: 100 };
    assert!(memory.find(remote, false).is_ok());
    assert!(memory.find(remote, true).is_err());
}
