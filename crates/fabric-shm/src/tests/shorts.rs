//! Short messages are left where they came. Who has many of them keeps nobody waiting.

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
