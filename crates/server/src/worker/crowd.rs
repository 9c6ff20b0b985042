//! Connections that are being set up: their number is limited, and where there are too many, the
//! oldest of those who have the most makes room. So nobody keeps others out, nor himself for long.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};

use dafs_fabric::PeerInfo;
use rustc_hash::FxHashMap;

use crate::identity::Proof;

/// Whose a connection is, as far as that is known before its set-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    User(u32),
    /// Of IPv6 the network, in which one has all addresses.
    Address(IpAddr),
    /// In a network that has no addresses: all of it is one.
    Elsewhere,
}

impl Origin {
    pub(super) fn of(peer: &PeerInfo, proof: &Proof) -> Origin {
        match (proof, peer) {
            (Proof::Kernel(who), _) => Origin::User(who.uid),
            (_, PeerInfo { credentials: Some(who), .. }) => Origin::User(who.uid),
            (_, PeerInfo { ends: Some(ends), .. }) => Origin::Address(network(ends.peer.ip())),
            _ => Origin::Elsewhere,
        }
    }
}

fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            const HOST: u128 = u64::MAX as u128;
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !HOST))
        }
        v4 => v4,
    }
}

/// The connections of a worker that are being set up, the oldest first.
#[derive(Debug)]
pub(super) struct Crowd<C> {
    list: VecDeque<(C, Origin)>,
    most: usize,
}

impl<C: Copy + PartialEq> Crowd<C> {
    /// Of at most `most`, at least one.
    pub(super) fn new(most: usize) -> Crowd<C> {
        Crowd { list: VecDeque::new(), most: most.max(1) }
    }

    /// Takes one more; who is to end for that.
    pub(super) fn enter(&mut self, connection: C, origin: Origin) -> Option<C> {
        let full = self.list.len() >= self.most;
        let last = if full { self.take_last_of_most(origin) } else { None };
        self.list.push_back((connection, origin));
        last
    }

    /// It is set up, or has ended.
    pub(super) fn leave(&mut self, connection: C) {
        self.list.retain(|(other, _)| *other != connection);
    }

    /// Whose it is.
    pub(super) fn origin(&self, connection: C) -> Option<Origin> {
        self.list.iter().find(|(other, _)| *other == connection).map(|(_, origin)| *origin)
    }

    /// Takes out the oldest of those who have the most, the newcomer counted.
    fn take_last_of_most(&mut self, newcomer: Origin) -> Option<C> {
        let mut counts = FxHashMap::from_iter([(newcomer, 1usize)]);
        for (_, origin) in &self.list {
            *counts.entry(*origin).or_default() += 1;
        }
        let most = counts.values().copied().max()?;
        let is_of_most = |(_, origin): &(C, Origin)| counts.get(origin) == Some(&most);
        // Where the newcomer alone has the most, all have one.
        let place = self.list.iter().position(is_of_most).unwrap_or(0);
        self.list.remove(place).map(|(connection, _)| connection)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use dafs_fabric::Ends;

    use super::*;

    #[test]
    fn the_oldest_of_those_who_have_the_most_makes_room() {
        let (bad, good) = (Origin::User(7), Origin::User(8));
        let mut crowd = Crowd::new(4);
        for connection in 0..3 {
            assert_eq!(crowd.enter(connection, bad), None);
        }
        assert_eq!(crowd.enter(10, good), None);
        assert_eq!(crowd.enter(3, bad), Some(0));
        assert_eq!(crowd.enter(11, good), Some(1), "others have more");
        crowd.leave(2);
        assert_eq!(crowd.enter(12, good), None);
        assert_eq!(crowd.enter(4, bad), Some(10), "now these have the most");
    }

    #[test]
    fn where_all_have_one_the_oldest_makes_room() {
        let mut crowd = Crowd::new(3);
        for uid in 0..3 {
            assert_eq!(crowd.enter(uid, Origin::User(uid)), None);
        }
        assert_eq!(crowd.enter(3, Origin::User(3)), Some(0));
        assert_eq!(crowd.enter(4, Origin::User(4)), Some(1));
    }

    #[test]
    fn one_network_of_ipv6_is_one_origin() {
        let origin = |text: &str| {
            let peer: SocketAddr = text.parse().expect("an address");
            Origin::of(&Ends { local: peer, peer }.into(), &Proof::Key)
        };
        assert_eq!(origin("[2001:db8::1]:5"), origin("[2001:db8::ffff:1:2:3]:6"));
        assert_ne!(origin("[2001:db8::1]:5"), origin("[2001:db8:0:1::1]:5"));
        assert_ne!(origin("[::ffff:192.0.2.1]:5"), origin("[::ffff:192.0.2.2]:5"));
        assert_ne!(origin("192.0.2.1:5"), origin("192.0.2.2:5"));
    }
}
