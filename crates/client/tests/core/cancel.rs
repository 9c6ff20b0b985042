//! Calls that their caller gives up.

use super::*;

#[test]
fn a_close_that_has_not_left_goes_on_when_its_caller_gives_up() {
    for given_up in [true, false] {
        let mut pair = Pair::new(26);
        pair.fake.put(b"f", b"");
        let file = pair.open(b"f", read_write());
        pair.fake.script.stall = true;
        // They have all slots.
        let others: Vec<u64> = (0..8).map(|_| pair.submit(Work::Null, Memory::None)).collect();
        pair.core.submit(Owner(1), 1, Work::Close { file }, Memory::None);
        assert!(!pair.core.cancel_queued(Owner(1), 1), "no other call closes it");
        if given_up {
            pair.core.abandon_owner(Owner(1));
        }
        pair.fake.script.stall = false;
        for tag in others {
            pair.wait(tag).result.expect("done");
        }
        pair.run_until("settled", |pair| pair.fake.open_count() == 0);
        pair.run_until("an answer", |pair| given_up || pair.done.iter().any(|done| done.tag == 1));
    }
}
