//! Leases of sessions that do nothing.

use super::replay_log::LEASE;
use super::*;

fn pings(pair: &Pair) -> usize {
    pair.fake.executed["null"]
}

#[test]
fn idle_sessions_renew_their_lease() {
    let mut pair = Pair::new(12);
    pair.call(Work::Null).expect("connected");
    let before = pings(&pair);
    pair.run_for(Duration::from_secs(6));
    let pings = pings(&pair) - before;
    assert!((4..=5).contains(&pings), "{pings} pings in two leases");
}

/// As the keeper sleeps: until what was due when it began to, whatever is due later since then.
#[test]
fn a_sleeper_wakes_once_for_each_renewal() {
    let mut pair = Pair::new(14);
    pair.call(Work::Null).expect("connected");
    let (before, end) = (pings(&pair), pair.net.now() + Duration::from_secs(16));
    let mut wakes = 0;
    while pair.net.now() < end {
        let due = pair.core.next_timeout().expect("a ping");
        // What comes meanwhile is answered, and does not end the sleep.
        while let Some(event) = pair.net.next_event_at().filter(|event| *event < due) {
            pair.net.step();
            pair.core.progress(event);
            pair.fake.progress();
        }
        pair.net.advance_to(due);
        pair.core.progress(due);
        wakes += 1;
    }
    let pings = pings(&pair) - before;
    assert!(pings >= 10 && wakes <= pings + 1, "{wakes} wakes for {pings} pings");
}

/// Of two connections that were heard of at nearly the same time, one is pinged a little early for the other's sake.
#[test]
fn silence_is_noticed_after_a_lease_of_two_connections() {
    for (gap, is_small_first) in [(1, true), (30, false), (30, true), (200, false), (200, true)] {
        let mut pair = Pair::new(15);
        pair.fake.put(b"f", &[1; 1 << 17]);
        let file = pair.open(b"f", read_write());
        let lens = if is_small_first { [8, 1 << 17] } else { [1 << 17, 8] };
        for len in lens {
            pair.read(file, 0, len).expect("read");
            let later = pair.net.now() + Duration::from_millis(gap);
            pair.net.advance_to(later);
            pair.core.progress(later);
        }
        pair.fake.live = false;
        let silent = pair.net.now();
        for len in lens {
            let work = Work::Read { file, offset: 0, len };
            pair.submit(work, room(len as usize));
        }
        pair.run_until("the end of patience", |pair| !pair.notices.is_empty());
        let took = pair.net.now() - silent;
        assert!(took <= LEASE, "{gap} ms, {is_small_first}: {took:?}");
    }
}
