//! Two threads that sleep as often as they can: no wake-up is lost, neither for messages nor for room.

use std::time::{Duration, Instant};

use dafs_fabric::{
    Address, Arena, Engine, Opcode, Provider, QueuePair, QueuePairEvent, ShortMessage, Span,
    WorkCompletion, WrId,
};
use dafs_fabric_shm::ShmProvider;
use smallvec::smallvec;

/// Nobody sleeps so long unless a wake-up is lost.
const LOST: Duration = Duration::from_secs(30);

struct End {
    engine: Box<dyn Engine>,
    queue_pair: QueuePair,
    memory: Span,
    done: Vec<WorkCompletion>,
}

impl End {
    fn new(engine: Box<dyn Engine>, queue_pair: QueuePair) -> End {
        let memory = Arena::new(1 << 16).expect("memory").span(0, 1 << 16);
        End { engine, queue_pair, memory, done: Vec::new() }
    }

    /// Sleeps until so many messages have come, or sends have left.
    fn wait(&mut self, opcode: Opcode, count: usize) {
        let waiter = self.engine.waiter();
        let mut found = 0;
        while found < count {
            self.engine.poll(&mut self.done, 16);
            assert_eq!(self.engine.poll_event(), None);
            found += self.done.iter().filter(|c| c.opcode == opcode).count();
            self.done.retain(|c| c.opcode != opcode);
            if found < count && self.engine.arm() {
                let start = Instant::now();
                waiter.wait(Some(2 * LOST));
                assert!(start.elapsed() < LOST, "slept while there was {opcode:?}");
            }
        }
    }

    fn post_recv(&mut self) {
        self.engine.post_recv(WrId(1), smallvec![self.memory.clone()]).expect("posted");
    }

    fn send(&mut self, len: usize) {
        let data = &mut smallvec![self.memory.part(0, len)];
        self.engine.post_send(self.queue_pair, WrId(2), b"", data, true).expect("posted");
    }
}

fn pair(name: u32) -> (End, End) {
    let name = u128::from(std::process::id()) << 8 | u128::from(name);
    let address = Address::parse(&format!("shm:@{name:032x}")).expect("an address");
    let device = ShmProvider::new().open().expect("a device");
    let mut listener = device.listen(&address).expect("a listener");
    let (mut a, mut b) = (device.engine().expect("engine"), device.engine().expect("engine"));
    let qa = a.connect(&address, b"").expect("begins");
    let (mut qb, mut is_up) = (None, false);
    while !is_up {
        a.poll(&mut Vec::new(), 1);
        is_up = matches!(a.poll_event(), Some(QueuePairEvent::Connected { .. }));
        if let Some(incoming) = listener.poll_accept() {
            qb = Some(b.accept(incoming, b"").expect("accepted"));
        }
    }
    (End::new(a, qa), End::new(b, qb.expect("accepted")))
}

#[test]
fn no_message_is_slept_through() {
    const ROUNDS: usize = 5000;
    let (mut a, mut b) = pair(1);
    let far = std::thread::spawn(move || {
        for _ in 0..ROUNDS {
            b.post_recv();
            b.wait(Opcode::Recv, 1);
            b.send(10);
        }
        b.wait(Opcode::Send, ROUNDS);
        // Stays until the other end has its last message.
        b
    });
    for _ in 0..ROUNDS {
        a.post_recv();
        a.send(10);
        a.wait(Opcode::Recv, 1);
    }
    far.join().expect("the other end");
}

#[test]
fn no_room_is_slept_through() {
    const ROUNDS: usize = 500;
    const BURST: usize = 10;
    let (mut a, mut b) = pair(2);
    let far = std::thread::spawn(move || {
        for _ in 0..ROUNDS * BURST {
            b.post_recv();
            b.wait(Opcode::Recv, 1);
        }
        b
    });
    // Three of them fill a ring.
    for round in 0..ROUNDS {
        (0..BURST).for_each(|_| a.send(20_000 - round));
        a.wait(Opcode::Send, BURST);
    }
    far.join().expect("the other end");
}

/// As threads of one session do it: one sleeps, or is about to wake, and another one that had something to send
/// says anew that the engine sleeps, perhaps in another way.
#[test]
fn a_sleep_that_is_announced_twice_loses_no_message() {
    let (mut a, mut b) = pair(3);
    let waiter = a.engine.waiter();
    let sleep = |a: &mut End| {
        assert!(a.engine.arm(), "nothing is there");
        waiter.wake();
        waiter.wait(None);
    };
    let come = |a: &mut End, b: &mut End, sleeps: bool| {
        a.post_recv();
        assert!(!sleeps || a.engine.arm(), "nothing is there");
        b.send(10);
        b.engine.ring();
        if sleeps {
            waiter.wait(None);
        }
        a.wait(Opcode::Recv, 1);
        b.wait(Opcode::Send, 1);
    };
    // Who is lively sleeps by a word, and in epoll where nothing has come since.
    for lively in 0..12 {
        for _ in 0..lively {
            // The first one ends its sleep, the second finds it awake.
            come(&mut a, &mut b, true);
            come(&mut a, &mut b, false);
        }
        sleep(&mut a);
        sleep(&mut a);
        // Who has slept looks, and finds nothing.
        assert_eq!(a.engine.poll(&mut a.done, 16), 0);
        a.post_recv();
        assert!(a.engine.arm(), "nothing is there");
        b.send(10);
        b.engine.ring();
        let start = Instant::now();
        waiter.wait(Some(2 * LOST));
        assert!(start.elapsed() < LOST, "{lively}: slept while there was a message");
        a.wait(Opcode::Recv, 1);
        b.wait(Opcode::Send, 1);
    }
}

/// As an idle client does: it sleeps until it is to ping, and has the answer before it sleeps again.
#[test]
fn who_sleeps_for_the_time_does_so_in_epoll() {
    const PAUSE: Duration = Duration::from_millis(60);
    let (mut a, mut b) = pair(4);
    assert!(a.engine.leave_short());
    let (waiter, mut pong) = (a.engine.waiter(), ShortMessage::default());
    for round in 0..8 {
        assert!(a.engine.arm(), "nothing is there");
        // By a word it would be a part of that.
        let (start, pause) = (Instant::now(), if round < 6 { PAUSE / 10 } else { PAUSE });
        waiter.wait(Some(pause));
        assert!(start.elapsed() >= pause, "{round}: woken for nothing");
        b.post_recv();
        // It looks at what has come when the ping is on its way.
        a.send(10);
        a.engine.ring();
        a.engine.poll(&mut a.done, 16);
        b.wait(Opcode::Recv, 1);
        let none = &mut smallvec![];
        b.engine.post_send(b.queue_pair, WrId(2), b"pong", none, true).expect("posted");
        b.engine.ring();
        while !a.engine.take_short(&mut pong) {
            a.engine.poll(&mut a.done, 16);
        }
        a.done.clear();
        b.wait(Opcode::Send, 1);
    }
}
