//! Transfers that a peer lets wait: the data of requests, and replies.

use std::time::Duration;

use dafs_message::{ConnId, RequestId};
use dafs_unifier::{PinnedPage, PinnedPages};
use rustc_hash::FxHashMap;

use super::Worker;
use super::connections::Connection;
use crate::context::{Grant, Held};
use crate::shared::tick;

/// Bytes a second, below which a transfer is given up after a lease.
const RATE_MIN: u64 = 64 << 10;

/// Each way of a connection; what is under way goes in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Way {
    In,
    Out,
}

/// The transfer whose turn it is: no older one is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Turn {
    order: u64,
    since: Duration,
    /// What it had moved by then.
    bytes: u64,
}

impl Turn {
    /// It has had its turn for longer than a lease, and has been slower than a slow network: who
    /// sends or takes nothing does not hold the server's memory for long.
    fn is_too_slow(&self, now: Duration, lease: Duration, bytes: u64) -> bool {
        let time = now.saturating_sub(self.since);
        let least = RATE_MIN.saturating_mul(time.as_secs());
        time > lease && bytes.saturating_sub(self.bytes) < least
    }
}

/// One of them, for the message layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transfer {
    Fetch(RequestId),
    /// Its token.
    Reply(u64),
}

type Oldest = FxHashMap<(ConnId, Way), (u64, Transfer)>;

/// What a reply holds until it has left.
pub(super) enum ReplyPins {
    /// That of a read of one page that was answered at once.
    Page {
        _page: PinnedPage,
        grant: Option<Grant>,
    },
    /// Those of reads of one page each by a reference.
    Pages {
        _pages: PinnedPages,
        grant: Option<Grant>,
    },
    All(Vec<Held>),
}

/// A reply on its way; its token is the number of its place.
struct Place {
    /// Among all transfers.
    order: u64,
    connection: ConnId,
    /// `None`: the place is free.
    pins: Option<ReplyPins>,
}

/// Replies that have not left, and whose turn it is on each connection.
#[derive(Default)]
pub(super) struct Transfers {
    leaving: Vec<Place>,
    /// Free places there.
    free: Vec<u32>,
    turns: FxHashMap<(ConnId, Way), Turn>,
    /// Used again each time.
    oldest: Oldest,
}

impl Transfers {
    /// A reply begins to leave: its token.
    #[inline(always)]
    pub(super) fn leave(&mut self, order: u64, connection: ConnId, pins: ReplyPins) -> u64 {
        let Some(token) = self.free.pop() else {
            self.leaving.push(Place { order, connection, pins: Some(pins) });
            return self.leaving.len() as u64 - 1;
        };
        let place = &mut self.leaving[token as usize];
        (place.order, place.connection) = (order, connection);
        place.pins = Some(pins);
        u64::from(token)
    }

    /// It has left, or never will: what it held, but for what can be let go now. Each token once.
    #[inline]
    pub(super) fn left(&mut self, token: u64) -> Option<Vec<Held>> {
        let index = u32::try_from(token).ok()?;
        let place = self.leaving.get_mut(index as usize)?;
        let held = match &mut place.pins {
            Some(ReplyPins::All(held)) => Some(std::mem::take(held)),
            Some(ReplyPins::Page { .. } | ReplyPins::Pages { .. }) => None,
            None => return None,
        };
        place.pins = None;
        self.free.push(index);
        held
    }

    /// What its request took is free, whatever else it holds.
    #[cold]
    fn give_back(&mut self, token: u64) {
        let index = usize::try_from(token).unwrap_or(usize::MAX);
        match self.leaving.get_mut(index).and_then(|place| place.pins.as_mut()) {
            Some(ReplyPins::Page { grant, .. } | ReplyPins::Pages { grant, .. }) => *grant = None,
            Some(ReplyPins::All(held)) => held.retain(|held| !matches!(held, Held::Grant(_))),
            None => {}
        }
    }

    /// Begins to look at what is under way.
    fn begin(&mut self) -> Oldest {
        let mut oldest = std::mem::take(&mut self.oldest);
        oldest.clear();
        oldest
    }

    /// The connections that are to end for one that is too slow. `moved`: its bytes so far.
    fn slow(
        &mut self,
        oldest: Oldest,
        (now, lease): (Duration, Duration),
        moved: impl Fn(ConnId, (u64, Transfer)) -> u64,
    ) -> Vec<(ConnId, Way)> {
        // The peer may have to take older replies before it can send.
        let is_behind = |of: ConnId, order| {
            oldest.get(&(of, Way::Out)).is_some_and(|(reply, _)| *reply < order)
        };
        self.turns.retain(|at, turn| {
            let is_same = oldest.get(at).is_some_and(|(order, _)| *order == turn.order);
            is_same && !(at.1 == Way::In && is_behind(at.0, turn.order))
        });
        let mut slow = Vec::new();
        for (at, transfer) in &oldest {
            let order = transfer.0;
            if at.1 == Way::In && is_behind(at.0, order) {
                continue;
            }
            let bytes = moved(at.0, *transfer);
            let turn = self.turns.entry(*at).or_insert(Turn { order, since: now, bytes });
            if turn.is_too_slow(now, lease, bytes) {
                slow.push(*at);
            }
        }
        self.oldest = oldest;
        slow.sort_unstable();
        slow
    }
}

impl Worker {
    /// A reply was handed over. What it lends has a share of its own, and may stay: if it took of the session's as
    /// well, who holds it could wait for that for ever, with the next request.
    #[inline]
    pub(super) fn handed_over(&mut self, connection: ConnId, token: u64) {
        if self.node.is_lent(connection, token) {
            self.transfers.give_back(token);
        }
    }

    /// Ends connections whose peer neither sends the data of a request nor takes a reply.
    pub(super) fn end_slow_transfers(&mut self, lease: Duration) {
        let mut oldest = self.transfers.begin();
        let mut under_way = |connection, way, order, transfer| {
            let first = oldest.entry((connection, way)).or_insert((order, transfer));
            if order < first.0 {
                *first = (order, transfer);
            }
        };
        for (id, fetch) in self.context.fetches.borrow().iter() {
            under_way(id.conn(), Way::In, fetch.order, Transfer::Fetch(*id));
        }
        for (token, place) in (0..).zip(&self.transfers.leaving) {
            // What is lent may stay.
            if place.pins.is_some() && !self.node.is_lent(place.connection, token) {
                under_way(place.connection, Way::Out, place.order, Transfer::Reply(token));
            }
        }
        let node = &self.node;
        let moved = |connection, (_, transfer): (u64, Transfer)| match transfer {
            Transfer::Fetch(id) => node.fetched_bytes(id),
            Transfer::Reply(token) => node.replied_bytes(connection, token),
        };
        let mut slow = self.transfers.slow(oldest, (self.clock.now(), lease), moved);
        slow.retain(|one| matches!(self.connections.get(one.0), Some(Connection::Bound(_))));
        slow.dedup_by_key(|one| one.0);
        for (connection, way) in slow {
            let reason = match way {
                Way::In => "the data of a request does not come",
                Way::Out => "a reply is not taken",
            };
            tick(&self.shared.counters.transfers_given_up);
            tracing::info!(?connection, reason, "connection ended");
            self.node.disconnect(connection, reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> (Duration, Duration) {
        (Duration::from_secs(seconds), LEASE)
    }

    fn connection() -> ConnId {
        ConnId::default()
    }

    /// What is under way on a connection, and how many bytes of each have moved.
    fn is_slow(
        transfers: &mut Transfers,
        seconds: u64,
        fetches: &[(u64, u64)],
        replies: &[(u64, u64)],
    ) -> bool {
        let mut oldest = transfers.begin();
        let mut add = |way, list: &[(u64, u64)]| {
            if let Some(first) = list.iter().map(|(order, _)| *order).min() {
                oldest.insert((connection(), way), (first, Transfer::Reply(first)));
            }
        };
        add(Way::In, fetches);
        add(Way::Out, replies);
        let moved = |_, (order, _)| {
            let all = fetches.iter().chain(replies);
            all.filter(|(other, _)| *other == order).map(|(_, bytes)| *bytes).sum()
        };
        !transfers.slow(oldest, at(seconds), moved).is_empty()
    }

    #[test]
    fn a_transfer_is_too_slow_after_a_lease_below_64_kib_a_second() {
        for bytes in [0, 31 * RATE_MIN - 1] {
            let mut transfers = Transfers::default();
            assert!(!is_slow(&mut transfers, 5, &[(1, 1000)], &[]));
            assert!(!is_slow(&mut transfers, 35, &[(1, 1000)], &[]), "a lease has not passed");
            assert!(is_slow(&mut transfers, 36, &[(1, 1000 + bytes)], &[]));
            assert!(!is_slow(&mut transfers, 36, &[(1, 1000 + 31 * RATE_MIN)], &[]));
            assert!(!is_slow(&mut transfers, 0, &[(1, 1000)], &[]), "a clock that stood still");
        }
    }

    #[test]
    fn bytes_of_others_do_not_count() {
        let mut transfers = Transfers::default();
        for second in 0..=30 {
            // Others come and go beside it, as fast as can be.
            let fetches = [(1, 0), (2 + second, 1 << 30)];
            assert!(!is_slow(&mut transfers, second, &fetches, &[]), "{second}");
        }
        assert!(is_slow(&mut transfers, 31, &[(1, 0), (99, 1 << 30)], &[]));
    }

    #[test]
    fn large_ones_of_a_slow_network_end_one_after_the_other() {
        // Four of 4 MiB at 100 KiB/s: the last begins after two minutes.
        let (each, rate) = (4u64 << 20, 100 << 10);
        let mut transfers = Transfers::default();
        for second in 0..4 * each / rate {
            let all = second * rate;
            let left = (0..4).map(|n| (n + 1, all.saturating_sub(n * each).min(each)));
            let left: Vec<_> = left.filter(|(_, bytes)| *bytes < each).collect();
            assert!(!is_slow(&mut transfers, second, &left, &[]), "{second}");
            assert!(!is_slow(&mut Transfers::default(), second, &[], &left), "{second}");
        }
    }

    #[test]
    fn data_may_wait_for_older_replies_only() {
        let mut transfers = Transfers::default();
        for second in 0..100 {
            let reply = (1, second * 2 * RATE_MIN);
            assert!(!is_slow(&mut transfers, second, &[(2, 0)], &[reply]), "{second}");
        }
        assert!(!is_slow(&mut transfers, 100, &[(2, 0)], &[(3, 0)]), "its turn begins");
        assert!(is_slow(&mut transfers, 131, &[(2, 0)], &[(4, 0)]));
    }

    #[test]
    fn replies_without_data_are_to_be_taken_too() {
        let mut transfers = Transfers::default();
        assert!(!is_slow(&mut transfers, 0, &[], &[(1, 0), (2, 0)]));
        assert!(!is_slow(&mut transfers, 29, &[], &[(2, 0)]), "the first left");
        assert!(!is_slow(&mut transfers, 59, &[], &[(2, 0)]));
        assert!(is_slow(&mut transfers, 60, &[], &[(2, 0)]));
    }
}
