//! Who says much keeps nobody waiting, whether short messages are left where they came or not.

use dafs_fabric::ShortMessage;

use super::*;

/// More than come in a turn.
const MANY: usize = 450;
/// Of others, before somebody has a turn.
const BEFORE_MAX: usize = 130;

/// A server that leaves short messages, and two connections, the first of which is looked at first.
struct Two {
    server: Server,
    busy: (QueuePair, QueuePair),
    other: (QueuePair, QueuePair),
    short: ShortMessage,
}

impl Two {
    fn new() -> Two {
        let mut server = Server::new();
        let busy = server.pair.expect("connected");
        server.connect_honest();
        let other = server.pair.expect("connected");
        assert!(server.engine.leave_short());
        Two { server, busy, other, short: ShortMessage::default() }
    }

    fn say(&mut self, near: QueuePair, text: &[u8]) {
        let none = &mut smallvec![];
        self.server.honest.post_send(near, WrId(2), text, none, false).expect("posted");
    }

    /// Who said what is taken next; `None`: it is to be polled first.
    fn take(&mut self) -> Option<QueuePair> {
        self.server.engine.take_short(&mut self.short).then_some(self.short.queue_pair)
    }
}

#[test]
fn who_has_said_much_waits_for_others() {
    let mut two = Two::new();
    (0..MANY).for_each(|_| two.say(two.busy.0, &[7; 100]));
    two.say(two.other.0, b"a word");
    let (mut taken, mut before) = (0, None);
    wait("short messages", || {
        two.server.poll();
        while let Some(whose) = two.take() {
            taken += 1;
            before = before.or((whose == two.other.1).then_some(taken - 1));
        }
        (taken == MANY + 1).then_some(())
    });
    let before = before.expect("taken");
    assert!(before <= BEFORE_MAX, "behind {before} messages of another one");
}

/// Also where each is answered by work that has ended by then, of which a completion tells.
#[test]
fn who_is_answered_at_once_keeps_nobody_waiting() {
    let mut two = Two::new();
    (0..2).for_each(|_| two.say(two.busy.0, b"again and again"));
    two.say(two.other.0, b"a word");
    let mut answered = 0;
    wait("turn of the other one", || {
        two.server.poll();
        while let Some(whose) = two.take() {
            if whose == two.other.1 {
                return Some(());
            }
            answered += 1;
            assert!(answered <= BEFORE_MAX, "behind {answered} messages of another one");
            let none = &mut smallvec![];
            two.server.engine.post_send(two.busy.1, WrId(3), b"yes", none, true).expect("posted");
            two.say(two.busy.0, b"again and again");
        }
        None
    });
}

/// A word of somebody comes, though another one has said more than is polled each time, and goes on.
fn is_heard(leaves_short: bool, word: &[u8]) {
    const RECEIVES: u64 = 90;
    let mut two = Two::new();
    if !leaves_short {
        // As it was before, for all that is long.
        two.server.engine = two.server.device.engine().expect("an engine");
        two.server.connect_honest();
        two.busy = two.server.pair.expect("connected");
        two.server.connect_honest();
        two.other = two.server.pair.expect("connected");
    }
    let target = two.server.target.clone();
    for number in 0..RECEIVES {
        two.server.engine.post_recv(WrId(100 + number), smallvec![target.clone()]).expect("posted");
    }
    let (mut turns, mut done) = (0, Vec::new());
    (0..3 * RECEIVES).for_each(|_| two.say(two.busy.0, &[7; 200]));
    two.say(two.other.0, word);
    wait("word of the other one", || {
        turns += 1;
        assert!(turns < 20, "it is not heard");
        // What has had no room goes on.
        two.server.honest.poll(&mut Vec::new(), 1);
        // As many as never leave nothing behind.
        two.server.engine.poll(&mut done, 40);
        for message in done.drain(..) {
            if message.queue_pair == two.other.1 {
                return Some(());
            }
            two.server.engine.post_recv(message.wr_id, smallvec![target.clone()]).expect("posted");
            two.say(two.busy.0, &[7; 200]);
        }
        let other = two.other.1;
        std::iter::from_fn(|| two.take()).find(|whose| *whose == other).map(drop)
    });
}

#[test]
fn who_has_long_messages_keeps_no_short_one_waiting() {
    is_heard(true, b"a word");
}

#[test]
fn who_has_many_messages_leaves_receives_to_others() {
    is_heard(true, &[8; 200]);
    is_heard(false, b"a word");
}

#[test]
fn what_leaves_at_once_overtakes_nothing() {
    let mut two = Two::new();
    let (near, honest) = (two.busy.0, &mut two.server.honest);
    let (mut sent, mut waiting) = (0u32, 0);
    // Until the ring is full, and then some.
    while waiting < 3 {
        let text = [&sent.to_le_bytes()[..], &[0; 60]].concat();
        if !honest.send_at_once(near, &text) {
            honest.post_send(near, WrId(2), &text, &mut smallvec![], false).expect("posted");
            waiting += 1;
        } else {
            assert_eq!(waiting, 0, "message {sent} overtook others");
        }
        sent += 1;
    }
    let mut taken = 0u32;
    wait("all messages", || {
        two.server.honest.poll(&mut Vec::new(), 1);
        two.server.poll();
        while two.take().is_some() {
            assert_eq!(two.short.bytes[..4], taken.to_le_bytes());
            taken += 1;
        }
        (taken == sent).then_some(())
    });
}
