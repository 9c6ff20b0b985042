//! Connections are made, refused and rejected.

use super::Harness;
use super::pair::Pair;
use crate::error::ConnectError;
use crate::types::{Address, PRIVATE_DATA_BYTES_MAX, QueuePairEvent};

pub(super) fn connect_and_accept_carry_private_data(h: &mut Harness<'_>) {
    let mut p = h.nodes();
    let qa = p.a.connect(&p.listener.address(), b"who I am");
    let mut qb = None;
    h.wait(&mut p, "connection request", |p| {
        let Some(incoming) = p.listener.poll_accept() else { return false };
        assert_eq!(incoming.private_data, b"who I am");
        qb = Some(p.b.engine.accept(incoming, b"welcome").expect("accepted"));
        true
    });
    let mut data = None;
    h.wait(&mut p, "Connected", |p| {
        data = p.a.events.pop_front();
        data.is_some()
    });
    let expected = QueuePairEvent::Connected { queue_pair: qa, private_data: b"welcome".to_vec() };
    assert_eq!(data, Some(expected));
    (p.qa, p.qb) = (qa, qb.expect("accepted"));
    h.ping(&mut p);
    assert!(p.b.events.is_empty(), "accept makes no event: {:?}", p.b.events);
}

pub(super) fn private_data_has_a_limit(h: &mut Harness<'_>) {
    let mut p = h.nodes();
    let bytes_max = p.a.attr().private_data_bytes_max;
    assert!(bytes_max <= PRIVATE_DATA_BYTES_MAX, "more than any peer takes");
    let (most, too_much) = (vec![7; bytes_max], vec![7; bytes_max + 1]);
    let is_refused = |error| matches!(error, ConnectError::PrivateData { .. });
    let refused = p.a.engine.connect(&p.listener.address(), &too_much).expect_err("too much data");
    assert!(is_refused(refused), "connect tells what is too much");
    p.a.connect(&p.listener.address(), &most);
    h.wait(&mut p, "connection request", |p| {
        let Some(incoming) = p.listener.poll_accept() else { return false };
        assert_eq!(incoming.private_data, most);
        p.b.engine.accept(incoming, &most).expect("accepted");
        true
    });
    h.wait(&mut p, "Connected", |p| {
        p.a.take_event(
            |e| matches!(e, QueuePairEvent::Connected { private_data, .. } if *private_data == most),
        )
        .is_some()
    });
    p.a.connect(&p.listener.address(), b"");
    h.wait(&mut p, "connection request", |p| {
        let Some(incoming) = p.listener.poll_accept() else { return false };
        let refused = p.b.engine.accept(incoming, &too_much).expect_err("too much data");
        assert!(is_refused(refused), "accept tells what is too much");
        true
    });
}

/// The `Refused` event at `a`: whether nobody listened, and the reason.
fn refused(h: &mut Harness<'_>, p: &mut Pair) -> (bool, String) {
    let mut found = None;
    h.wait(p, "Refused", |p| {
        found = p.a.events.pop_front();
        found.is_some()
    });
    match found {
        Some(QueuePairEvent::Refused { refused, reason, .. }) => (refused, reason),
        other => panic!("{other:?} where Refused is expected"),
    }
}

pub(super) fn reject_tells_the_reason(h: &mut Harness<'_>) {
    let mut p = h.nodes();
    let qa = p.a.connect(&p.listener.address(), b"");
    h.wait(&mut p, "connection request", |p| {
        let incoming = p.listener.poll_accept();
        incoming.map(|i| p.b.engine.reject(i, "server is full")).is_some()
    });
    let (refused, reason) = refused(h, &mut p);
    assert!(!refused && reason.contains("server is full"), "{refused} {reason}");
    h.settle(&mut p);
    assert!(p.a.events.is_empty() && !p.a.is_gone(qa), "no Quiescent follows Refused");
}

pub(super) fn a_dropped_request_is_refused(h: &mut Harness<'_>) {
    let mut p = h.nodes();
    p.a.connect(&p.listener.address(), b"");
    h.wait(&mut p, "connection request", |p| p.listener.poll_accept().is_some());
    refused(h, &mut p);
}

pub(super) fn nobody_listens_is_refused(h: &mut Harness<'_>) {
    let Pair { mut a, listener, .. } = h.nodes();
    let address = listener.address();
    drop(listener);
    a.connect(&address, b"");
    for _ in 0..h.rounds_max {
        a.poll();
        match a.events.pop_front() {
            Some(QueuePairEvent::Refused { refused, .. }) => {
                return assert!(refused, "nobody listens there");
            }
            Some(other) => panic!("{other:?} where Refused is expected"),
            None => (h.progress)(),
        }
    }
    panic!("{}: no Refused", h.case);
}

pub(super) fn foreign_addresses_are_errors(h: &mut Harness<'_>) {
    let mut p = h.nodes();
    let nonsense = Address { scheme: "no-such-network".into(), target: "somewhere".into() };
    assert!(p.a.engine.connect(&nonsense, b"").is_err());
    assert!(p.a.device.listen(&nonsense).is_err());
    let empty = Address { scheme: h.address.scheme.clone(), target: String::new() };
    assert!(p.a.engine.connect(&empty, b"").is_err());
    let (attr, at) = (p.a.device.attr().clone(), p.listener.address());
    assert!(attr.takes(&at) && !attr.takes(&nonsense));
    // Somebody may listen there or not: it is an address. A path is none of other networks.
    for scheme in attr.schemes.iter().filter(|scheme| !at.is_path() || **scheme == at.scheme) {
        let address = Address { scheme: (*scheme).into(), target: at.target.clone() };
        let taken = p.a.engine.connect(&address, b"");
        assert!(!matches!(taken, Err(ConnectError::Address { .. })), "{address}: {taken:?}");
    }
}

pub(super) fn messages_follow_connected(h: &mut Harness<'_>) {
    for _ in 0..4 {
        let mut p = h.nodes();
        let buffer = p.a.buffer(64);
        let recv = p.a.recv(&[buffer.span().clone()]).expect("posted");
        p.qa = p.a.connect(&p.listener.address(), b"");
        // `Node::poll` fails on a completion before `Connected`.
        h.wait(&mut p, "connection request", |p| {
            let Some(incoming) = p.listener.poll_accept() else { return false };
            let qb = p.b.engine.accept(incoming, b"").expect("accepted");
            p.b.send(qb, b"early", &[], false).expect("connected at once");
            p.b.engine.ring();
            true
        });
        // Both are there when `a` looks again.
        for _ in 0..h.settle_rounds {
            p.b.poll();
            (h.progress)();
        }
        h.finish_a(&mut p, recv);
    }
}

pub(super) fn a_connection_attempt_can_be_given_up(h: &mut Harness<'_>) {
    let mut p = h.nodes();
    let qa = p.a.connect(&p.listener.address(), b"");
    p.a.engine.disconnect(qa);
    h.wait(&mut p, "end of the attempt", |p| {
        drop(p.listener.poll_accept());
        let ended = |e: &QueuePairEvent| {
            matches!(e, QueuePairEvent::Refused { .. } | QueuePairEvent::Quiescent { .. })
        };
        p.a.take_event(ended).is_some()
    });
    // The next one works.
    (p.qa, p.qb) = loop_connect(h, &mut p);
    h.ping(&mut p);
}

/// Connects while requests of given-up attempts may still come in: the last one counts.
fn loop_connect(h: &mut Harness<'_>, p: &mut Pair) -> (crate::QueuePair, crate::QueuePair) {
    let qa = p.a.connect(&p.listener.address(), b"second");
    let mut qb = None;
    h.wait(p, "second connection request", |p| {
        let Some(incoming) = p.listener.poll_accept() else { return false };
        if incoming.private_data == b"second" {
            qb = Some(p.b.engine.accept(incoming, b"").expect("accepted"));
        }
        qb.is_some()
    });
    h.wait(p, "Connected", |p| {
        p.a.take_event(
            |e| matches!(e, QueuePairEvent::Connected { queue_pair, .. } if *queue_pair == qa),
        )
        .is_some()
    });
    (qa, qb.expect("accepted"))
}

pub(super) fn queue_pair_numbers_are_not_used_again(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let mut seen = vec![(p.qa, p.qb)];
    for _ in 0..5 {
        let (qa, qb) = (p.qa, p.qb);
        p.a.engine.disconnect(qa);
        h.wait(&mut p, "Quiescent", |p| p.a.is_gone(qa) && p.b.is_gone(qb));
        (p.qa, p.qb) = h.connect(&mut p);
        assert!(!seen.iter().any(|s| s.0 == p.qa || s.1 == p.qb), "a number is used again");
        seen.push((p.qa, p.qb));
    }
    h.ping(&mut p);
}
