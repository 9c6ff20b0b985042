//! Leases of sessions that do nothing.

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
    assert!((3..=5).contains(&pings), "{pings} pings in two leases");
}

/// As the keeper sleeps: until what was due when it began to, whatever is due later since then.
#[test]
fn a_sleeper_wakes_once_for_each_renewal() {
    let mut pair = Pair::new(14);
    pair.call(Work::Null).expect("connected");
    let (before, end) = (pings(&pair), pair.net.now() + Duration::from_secs(12));
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
    assert!(pings >= 7 && wakes <= pings + 1, "{wakes} wakes for {pings} pings");
}
