//! One stretch of measuring, of one way.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dafs_client::Session;

use super::row::Seen;
use crate::target::Costs;

/// How long, and what ends it early.
#[derive(Clone, Copy)]
pub(super) struct Time<'a> {
    pub time: Duration,
    pub stop: &'a AtomicBool,
}

/// What one operation did.
#[derive(Clone, Copy)]
pub(super) struct Did {
    /// Payload that the application got.
    pub bytes: u64,
    /// The client's cache lacked it.
    pub remote: bool,
}

/// Does operations of `session` until the time is over.
pub(super) fn stretch(
    session: &Session,
    time: Time<'_>,
    mut work: impl FnMut() -> io::Result<Did>,
) -> io::Result<Seen> {
    let (mut seen, had) = (Seen::default(), session.info().optimistic.hits);
    let costs = Costs::begin(session)?;
    let started = Instant::now();
    let mut now = started;
    while now - started < time.time && !time.stop.load(Ordering::Relaxed) {
        let did = work()?;
        let before = std::mem::replace(&mut now, Instant::now());
        seen.slice.latency.record(now - before);
        seen.slice.ops += 1;
        seen.slice.bytes += did.bytes;
        seen.remote += u64::from(did.remote);
    }
    seen.slice.seconds = (now - started).as_secs_f64();
    // Before the counters are asked for: that is a request.
    seen.optimistic = session.info().optimistic.hits - had;
    let trips = session.info().round_trips;
    costs.end(session, &mut seen.slice)?;
    let asking = session.info().round_trips - trips;
    seen.slice.round_trips = seen.slice.round_trips.map(|all| all.saturating_sub(asking));
    Ok(seen)
}
