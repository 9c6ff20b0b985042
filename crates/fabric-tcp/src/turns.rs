//! Turns: how much goes through one queue pair before another one has its turn.
//!
//! Large system calls cost least, so turns are long. But somebody who asks for little waits for all
//! that goes before: while there is somebody, turns are short, and a pass over all queue pairs is, too.
//! What follows is left for the next pass, in which the small request is answered.

use dafs_fabric::QueuePair;

/// The most bytes that are cut into frames ahead of the kernel: a request posted later waits for so
/// many.
pub const SEND_BYTES: usize = 1024 * 1024;
/// Bytes of a short turn, and of a frame of bulk. Who asks for little at a time, but for a lot of it,
/// has longer ones: few of its calls are cheaper than its bytes.
const SHORT_BYTES: usize = 64 * 1024;
/// Bytes received in a long turn.
const LONG_RECEIVE_BYTES: usize = 256 * 1024;
/// Bytes each way of a pass with short turns.
const PASS_BYTES: usize = 256 * 1024;
/// Turns are short until so many bytes went since somebody asked for little, or since anybody else did.
const MEMORY_BYTES: usize = 4 * 1024 * 1024;
/// Turns without bulk after which somebody asks for little.
const QUIET_TURNS: u8 = 16;

/// What an engine knows of all its queue pairs.
#[derive(Debug)]
pub struct Turns {
    /// Bytes since somebody asked for little.
    since_small: usize,
    /// Where something came last, and bytes since it was another one.
    last: Option<QueuePair>,
    since_other: usize,
    /// Of this pass.
    received: usize,
    sent: usize,
}

impl Turns {
    /// Nobody asked for anything yet.
    pub fn new() -> Turns {
        let (since_small, since_other) = (MEMORY_BYTES, MEMORY_BYTES);
        Turns { since_small, last: None, since_other, received: 0, sent: 0 }
    }

    /// Somebody asks for little, and somebody else is there.
    pub fn are_short(&self) -> bool {
        self.since_small < MEMORY_BYTES && self.since_other < MEMORY_BYTES
    }

    /// How much to receive in a turn.
    pub fn receive_bytes(&self, load: &Load) -> usize {
        if load.is_bulk() && self.are_short() { SHORT_BYTES } else { LONG_RECEIVE_BYTES }
    }

    /// How much to send in a turn.
    pub fn send_bytes(&self, load: &Load) -> usize {
        match self.are_short() {
            true if load.is_bulk() => SHORT_BYTES,
            true => PASS_BYTES,
            false => SEND_BYTES,
        }
    }

    /// All queue pairs are looked at for what came.
    pub fn begin_to_receive(&mut self) {
        self.received = 0;
    }

    /// All queue pairs are sent what waits.
    pub fn begin_to_send(&mut self) {
        self.sent = 0;
    }

    /// The rest of what came is for the next pass.
    pub fn has_received_enough(&self) -> bool {
        self.received + SHORT_BYTES > PASS_BYTES && self.are_short()
    }

    /// The rest of what waits is for the next pass.
    pub fn has_sent_enough(&self) -> bool {
        self.sent + SHORT_BYTES > PASS_BYTES && self.are_short()
    }

    /// So much came in a turn of a queue pair.
    pub fn received(&mut self, bytes: usize, queue_pair: QueuePair, load: &mut Load) {
        self.received += bytes;
        self.went(bytes);
        load.turn();
        if !load.is_bulk() {
            self.since_small = 0;
        }
        if self.last.replace(queue_pair).is_some_and(|last| last != queue_pair) {
            self.since_other = 0;
        }
    }

    /// So much went in a turn.
    pub fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        self.went(bytes);
    }

    fn went(&mut self, bytes: usize) {
        self.since_small = self.since_small.saturating_add(bytes);
        self.since_other = self.since_other.saturating_add(bytes);
    }
}

/// What a queue pair knows of its user.
#[derive(Debug, Default)]
pub struct Load {
    /// Turns until it counts as one who asks for little.
    until_small: u8,
}

impl Load {
    /// A message, or a frame of one, of so many bytes comes or goes.
    pub fn message(&mut self, bytes: usize) {
        if bytes >= SHORT_BYTES {
            self.until_small = QUIET_TURNS;
        }
    }

    /// Something came.
    fn turn(&mut self) {
        self.until_small = self.until_small.saturating_sub(1);
    }

    /// Not one who asks for little.
    pub fn is_bulk(&self) -> bool {
        self.until_small > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_short_beside_somebody_who_asks_for_little() {
        const SMALL: QueuePair = QueuePair(1);
        const BULK: QueuePair = QueuePair(2);
        let (mut turns, mut small, mut bulk) = (Turns::new(), Load::default(), Load::default());
        turns.received(100, SMALL, &mut small);
        assert_eq!(turns.send_bytes(&bulk), SEND_BYTES, "nobody else is there");
        bulk.message(1 << 20);
        for _ in 1..QUIET_TURNS {
            turns.received(100, BULK, &mut bulk);
            turns.sent(MEMORY_BYTES);
            assert_eq!(
                turns.send_bytes(&bulk),
                SEND_BYTES,
                "a reader of much asks by small messages"
            );
        }
        bulk.message(1 << 20);
        turns.received(100, SMALL, &mut small);
        turns.begin_to_send();
        let mut sent = 0;
        while turns.send_bytes(&bulk) == SHORT_BYTES {
            assert_eq!(turns.has_sent_enough(), sent + SHORT_BYTES > PASS_BYTES);
            turns.sent(SHORT_BYTES);
            turns.received(100, BULK, &mut bulk);
            bulk.message(1 << 20);
            sent += SHORT_BYTES;
        }
        assert!((MEMORY_BYTES / 2..=MEMORY_BYTES).contains(&sent), "{sent}");
        assert!(!turns.has_sent_enough());
    }
}
