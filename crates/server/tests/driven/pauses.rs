//! Pauses of a worker, and slow passes.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use dafs_fabric::SgList;
use dafs_message::{ConnId, Event};
use dafs_protocol::*;
use dafs_server::{Limits, Optimistic};

use crate::worker::Driven;

/// Clients of one, with a session each.
struct Clients {
    driven: Driven,
    conns: Vec<ConnId>,
}

impl Deref for Clients {
    type Target = Driven;

    fn deref(&self) -> &Driven {
        &self.driven
    }
}

impl DerefMut for Clients {
    fn deref_mut(&mut self) -> &mut Driven {
        &mut self.driven
    }
}

impl Clients {
    fn new(limits: Limits) -> Clients {
        Clients { driven: Driven::new(limits, Optimistic::default()), conns: Vec::new() }
    }

    fn come(&mut self) {
        let (conn, _) = self.driven.session(Features::OURS);
        self.conns.push(conn);
    }

    /// Every client asks something, and the worker does not run.
    fn all_ask(&mut self) {
        let head = RequestHead { slot: SlotId(0), sequence: 1, cred: CredHandle(0) };
        let mut header = Vec::new();
        encode_request(&head, &[Operation::GetRoot { export: b"" }], &mut header).expect("encode");
        for conn in self.conns.clone() {
            self.send(conn, &header);
        }
    }

    fn sessions(&self) -> usize {
        self.worker.session_count()
    }
}

/// More than one look at the network tells of, three times.
const MANY: usize = 200;

fn with_many() -> Clients {
    let mut driven = Clients::new(Limits { lease_seconds: 2, ..Limits::default() });
    (0..MANY).for_each(|_| driven.come());
    driven
}

#[test]
fn a_pause_ends_no_session() {
    let mut driven = with_many();
    driven.all_ask();
    driven.pass(Duration::from_secs(60));
    assert_eq!(driven.sessions(), MANY);
    // They were heard, or will be in the next passes.
    (0..8).for_each(|_| driven.pass(Duration::from_millis(250)));
    assert_eq!(driven.sessions(), MANY);
}

#[test]
fn what_passes_while_the_worker_does_not_run_is_no_silence() {
    let mut driven = Clients::new(Limits { lease_seconds: 2, ..Limits::default() });
    driven.come();
    driven.pass(Duration::from_secs(60));
    (0..8).for_each(|_| driven.pass(Duration::from_millis(200)));
    assert_eq!(driven.sessions(), 1);
    (0..8).for_each(|_| driven.pass(Duration::from_millis(200)));
    assert_eq!(driven.sessions(), 0);
}

#[test]
fn a_session_whose_request_waits_in_its_socket_is_not_silent() {
    let mut driven = with_many();
    driven.all_ask();
    // Slow, but no pause: leases end while most sockets were not looked at.
    (0..5).for_each(|_| driven.pass(Duration::from_millis(900)));
    assert_eq!(driven.shared.counters.requests(), MANY as u64);
    assert_eq!(driven.sessions(), MANY);
    // Who is silent ends all the same.
    (0..8).for_each(|_| driven.pass(Duration::from_millis(900)));
    assert_eq!(driven.sessions(), 0);
}

#[test]
fn what_was_sent_behind_a_violation_is_no_other_one() {
    let mut driven = Clients::new(Limits::default());
    driven.come();
    let conn = driven.conns[0];
    for tag in 1..6 {
        driven.clients.submit(conn, tag, b"?", SgList::new(), SgList::new()).expect("submit");
    }
    driven.clients.ring();
    (0..9).for_each(|_| driven.pass(Duration::from_millis(1)));
    let violations = &driven.shared.counters.peer_faults;
    assert_eq!(violations.load(std::sync::atomic::Ordering::Relaxed), 1);
}

/// Also by a client that has not said that it tells, and that sends it again and again.
#[test]
fn what_a_client_tells_of_its_reads_is_added_up_and_believed_for_nothing() {
    let mut clients = Clients::new(Limits::default());
    let (conn, _) = clients.session(Features::default());
    let mut tell = |sequence: u32, fields| {
        let head = RequestHead { slot: SlotId(0), sequence, cred: CredHandle(0) };
        let mut header = Vec::new();
        encode_request(&head, &[Operation::Null], &mut header).expect("encode");
        assert!(encode_told_reads(&ToldReads::of_fields(fields), &mut header));
        clients.send(conn, &header);
        let Event::Reply { header, .. } = clients.event() else { panic!("no reply") };
        let results = decode_reply(&header).expect("a reply").results;
        assert_eq!(results.expect("it ran"), [Ok(Outcome::Done)]);
        clients.shared.counters.told_reads().fields()
    };
    assert_eq!(tell(1, [10, 0, 3]), [10, 0, 3]);
    assert_eq!(tell(1, [10, 0, 3]), [10, 0, 3], "sent again");
    assert_eq!(tell(2, [4, 0, 5]), [10, 0, 5]);
    let most = 1 << 40;
    for sequence in 3..20 {
        let times = u64::from(sequence) - 2;
        let expected = [10 + times * most, times * most, 5 + times * most];
        assert_eq!(tell(sequence, [u64::MAX; 3]), expected);
    }
}
