//! Sleeping: nobody sleeps while there is work, and everybody can be woken.

use std::time::{Duration, Instant};

use super::Harness;
use crate::types::Status;

/// Longer than any wake-up takes, shorter than the time limits given to `wait`.
const WOKEN_WITHIN: Duration = Duration::from_secs(10);
const SLEEP: Duration = Duration::from_secs(30);

pub(super) fn wake_ends_a_wait(h: &mut Harness<'_>) {
    let mut p = h.pair();
    h.settle(&mut p);
    let waiter = p.a.engine.waiter();
    let begin = Instant::now();
    // Before the wait.
    waiter.wake();
    waiter.wait(Some(SLEEP));
    // During the wait, from another thread.
    let sleeper = {
        let waiter = waiter.clone();
        std::thread::spawn(move || waiter.wait(Some(SLEEP)))
    };
    std::thread::yield_now();
    waiter.wake();
    sleeper.join().expect("the sleeper wakes");
    assert!(begin.elapsed() < WOKEN_WITHIN, "wake did not end the wait");
    // A time limit ends it too.
    waiter.wait(Some(Duration::from_millis(1)));
    h.ping(&mut p);
}

pub(super) fn nobody_sleeps_on_work(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let qa = p.qa;
    let begin = Instant::now();
    let buffers: Vec<_> = (0..8).map(|_| p.b.buffer(64)).collect();
    for buffer in &buffers {
        p.b.recv(&[buffer.span().clone()]).expect("posted");
        p.a.send(qa, b"wake up", &[], true).expect("posted");
    }
    h.wait(&mut p, "send completions", |p| {
        // Only `a` is drained; what comes to `b` stays within its engine.
        p.b.engine.poll(&mut Vec::new(), 0);
        p.a.open() == 0 || !p.b.completions.is_empty()
    });
    let (mut got, mut rounds) = (p.b.completions.len(), 0);
    let mut one = Vec::new();
    while got < buffers.len() {
        rounds += 1;
        assert!(rounds < h.rounds_max, "{}: messages do not come", h.case);
        one.clear();
        let count = p.b.engine.poll(&mut one, 1);
        assert!(count == one.len() && count <= 1);
        assert!(one.iter().all(|c| c.status == Status::Success));
        got += count;
        p.a.poll();
        (h.progress)();
        if count == 0 && p.b.engine.arm() {
            // More is on its way: it must wake us.
            p.b.engine.waiter().wait(Some(SLEEP));
        }
    }
    assert!(begin.elapsed() < WOKEN_WITHIN, "slept while there was work");
}

pub(super) fn arm_does_not_strand_posted_work(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let qa = p.qa;
    let buffer = p.b.buffer(64);
    let recv = p.b.recv(&[buffer.span().clone()]).expect("posted");
    p.a.send(qa, b"go", &[], false).expect("posted");
    let mut rounds = 0;
    while !p.a.engine.arm() {
        rounds += 1;
        assert!(rounds < h.rounds_max, "{}: never safe to sleep", h.case);
        p.a.poll();
        (h.progress)();
    }
    // `a` sleeps now: what it posted has left, or the network takes it without its help.
    for _ in 0..h.rounds_max {
        p.b.poll();
        if p.b.take(recv).is_some() {
            return;
        }
        (h.progress)();
    }
    panic!("{}: the message was stranded", h.case);
}

/// Whoever judges by silence counts rounds: they go on as long as somebody polls, and what had come
/// is in completions two rounds later.
pub(super) fn rounds_go_on(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let qa = p.qa;
    let buffer = p.b.buffer(64);
    let recv = p.b.recv(&[buffer.span().clone()]).expect("posted");
    p.a.send(qa, b"here", &[], false).expect("posted");
    h.settle(&mut p);
    let begin = p.b.engine.rounds();
    for _ in 0..h.rounds_max {
        p.a.poll();
        p.b.poll();
        if p.b.engine.rounds() >= begin + 2 {
            assert!(p.b.take(recv).is_some(), "what had come was not looked at in two rounds");
            return;
        }
        (h.progress)();
    }
    panic!("{}: rounds do not go on", h.case);
}
