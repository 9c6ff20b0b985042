//! What a server lends is read in place, also after the connection, until it is returned.

use std::sync::atomic::Ordering;

use dafs_fabric::mem::PAGE_BYTES;
use dafs_fabric::{Readers, RemoteSpan, Rkey, Views, Words};

use super::*;

const CACHE_BYTES: usize = 4 << 20;

/// A server that lends, and what it has lent.
struct Lending {
    server: Server,
    region: MemoryRegion,
    near: QueuePair,
    far: QueuePair,
}

impl Lending {
    fn new() -> Lending {
        let mut server = Server::new();
        let arena = Arena::for_readers(CACHE_BYTES, 2 << 20, Readers::Own).expect("memory");
        let cache = arena.span(0, CACHE_BYTES);
        cache.copy_from(PAGE_BYTES, b"lent to be read");
        let read = Access { remote_read: true, remote_write: false };
        let region = server.device.register(cache, read).expect("registered");
        server.ping();
        let (near, far) = server.pair.expect("connected");
        Lending { server, region, near, far }
    }

    fn parts(&self) -> [RemoteSpan; 2] {
        [self.region.part(PAGE_BYTES, 4), self.region.part(PAGE_BYTES + 11, 4)]
    }

    fn views(&mut self) -> Views {
        let parts = self.parts();
        self.server.honest.view(self.near, &parts).expect("memory that it may read")
    }

    fn poll(&mut self) {
        self.server.honest.poll(&mut Vec::new(), 8);
        while self.server.honest.poll_event().is_some() {}
        self.server.poll();
    }

    /// What the server was told of the connection.
    fn told(&self) -> (bool, bool) {
        let (queue_pair, events) = (self.far, &self.server.events);
        let is_told = |event| events.contains(&event);
        let quiescent = is_told(QueuePairEvent::Quiescent { queue_pair });
        (quiescent, is_told(QueuePairEvent::Returned { queue_pair }))
    }

    fn wait_until(&mut self, told: (bool, bool)) {
        wait("event", || {
            self.poll();
            (self.told() == told).then_some(())
        });
    }

    /// Nothing comes any more.
    fn settle(&mut self) {
        for _ in 0..100 {
            self.server.engine.arm();
            self.poll();
        }
    }
}

fn look(views: &Views) {
    assert_eq!(views.iter().collect::<Vec<_>>(), [b"lent", b"read"]);
}

/// Whoever ends the connection.
#[test]
fn views_outlive_the_connection_and_hold_up_nothing_of_it() {
    for by_server in [false, true] {
        let mut lending = Lending::new();
        let (first, second) = (lending.views(), lending.views());
        look(&first);
        match by_server {
            true => lending.server.engine.disconnect(lending.far),
            false => lending.server.honest.disconnect(lending.near),
        }
        lending.wait_until((true, false));
        assert!(lending.server.engine.is_still_read(lending.far, true));
        assert!(lending.server.honest.view(lending.near, &lending.parts()).is_none());
        drop(first);
        lending.settle();
        assert_eq!(lending.told(), (true, false));
        look(&second);
        drop(second);
        lending.wait_until((true, true));
        assert!(!lending.server.engine.is_still_read(lending.far, true));
        lending.server.connect_honest();
        lending.server.ping();
    }
}

#[test]
fn a_server_that_has_lent_nothing_is_done_at_the_end() {
    let mut lending = Lending::new();
    drop(lending.views());
    lending.server.honest.disconnect(lending.near);
    lending.wait_until((true, false));
    assert!(!lending.server.engine.is_still_read(lending.far, true), "it has hung up");
    // One whose loans were never taken: nobody wants to know.
    let mut lending = Lending::new();
    let views = lending.views();
    lending.server.honest.disconnect(lending.near);
    lending.wait_until((true, false));
    assert!(!lending.server.engine.is_still_read(lending.far, false));
    drop(views);
    lending.settle();
    assert_eq!(lending.told(), (true, false));
}

/// Without a word of the connection's owner.
#[test]
fn an_engine_that_goes_leaves_what_is_read() {
    let mut lending = Lending::new();
    let views = lending.views();
    lending.server.honest = lending.server.honest_device.engine().expect("an engine");
    lending.wait_until((true, false));
    assert!(lending.server.engine.is_still_read(lending.far, true));
    look(&views);
    drop(views);
    lending.wait_until((true, true));
}

#[test]
fn what_both_may_write_is_no_view() {
    let mut lending = Lending::new();
    let shared = Arena::shared(PAGE_BYTES).expect("memory");
    let both = Access { remote_read: true, remote_write: true };
    let region = lending.server.device.register(shared.span(0, PAGE_BYTES), both);
    let remote = region.as_ref().expect("registered").part(0, 100);
    assert!(lending.server.honest.view(lending.near, &[remote]).is_none());
    let wrong = RemoteSpan { len: CACHE_BYTES as u32, ..lending.parts()[0] };
    assert!(lending.server.honest.view(lending.near, &[lending.parts()[1], wrong]).is_none());
    lending.server.honest.disconnect(lending.near);
    lending.wait_until((true, false));
    assert!(!lending.server.engine.is_still_read(lending.far, true), "nothing was read");
}

/// Who reads by himself, with words that say what may be believed, needs no connection any more for that.
#[test]
fn a_region_that_may_be_read_is_mapped_as_a_whole_and_stays() {
    let mut lending = Lending::new();
    let rkey = lending.parts()[0].rkey;
    let mapped = lending.server.honest.map(lending.near, rkey).expect("memory that it may read");
    assert!(mapped.len() == CACHE_BYTES && !mapped.is_writable());
    let mut seen = [0; 4];
    mapped.copy_to(PAGE_BYTES, &mut seen);
    assert_eq!(&seen, b"lent");
    let words = Words::of_span(&mapped).expect("whole words");
    lending.region.span().copy_from(0, &7u64.to_le_bytes());
    assert_eq!((words.len(), words.load(0, Ordering::Acquire)), (CACHE_BYTES / 8, 7));
    assert!(lending.server.honest.map(lending.near, Rkey(rkey.0 + (1 << 20))).is_none());

    lending.server.honest.disconnect(lending.near);
    lending.wait_until((true, false));
    lending.region.span().copy_from(0, &8u64.to_le_bytes());
    assert_eq!(words.load(0, Ordering::Acquire), 8);
    assert!(lending.server.honest.map(lending.near, rkey).is_none(), "no connection");
}
