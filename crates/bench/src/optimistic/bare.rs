//! Table 2: what the network does without a file system: round trips of a byte, and bandwidth; and what a request
//! without work takes here.

use std::io;

use dafs_client::{Call, Group};

use super::row::{Row, Seen};
use super::stretch::{Did, Time, stretch};
use super::{Bare, Bench};
use crate::raw::shm::{ShmOp, ShmOptions};
use crate::raw::{RawOp, RawOptions};
use crate::slice::Slice;
use crate::wait::Wait;

/// Pieces by which bandwidth is measured.
const PIECE: usize = 1 << 20;
/// Under way.
const DEPTH: usize = 8;

impl Bare {
    /// All that it is asked for.
    pub fn shm_rows() -> Vec<ShmOptions> {
        [Wait::Polled, Wait::Sleeping].into_iter().flat_map(shm_pair).collect()
    }

    /// A round trip, and bandwidth.
    fn measure(&mut self, wait: Wait, time: Time<'_>) -> io::Result<[Slice; 2]> {
        match self {
            Bare::Sockets(raw) => {
                let mut run = |op, size, depth| {
                    let footprint = 8 * PIECE;
                    let row = RawOptions {
                        op,
                        size,
                        depth,
                        wait,
                        random: false,
                        footprint,
                        peer_cpu: None,
                    };
                    raw.run(&row, time.time, time.stop)
                };
                Ok([run(RawOp::Read, 1, 1)?, run(RawOp::Stream, 128 << 10, 1)?])
            }
            Bare::Shm(shm) => {
                let [trip, copy] = shm_pair(wait);
                Ok([shm.run(&trip, time.time, time.stop)?, shm.run(&copy, time.time, time.stop)?])
            }
        }
    }
}

fn shm_pair(wait: Wait) -> [ShmOptions; 2] {
    let row =
        |op, size, depth| ShmOptions { op, size, depth, piece: 1, wait, random: false, cpus: None };
    [row(ShmOp::Ping, 64, 1), row(ShmOp::Copy, PIECE, DEPTH)]
}

fn null_request(group: &Group) -> io::Result<Did> {
    group.submit(0, Call::Ping).map_err(|_| io::Error::other("no room for a request"))?;
    group.wait(1, None).into_iter().try_for_each(|done| done.result.map(drop))?;
    Ok(Did { bytes: 0, remote: true })
}

pub(super) fn run(
    bench: &Bench<'_>,
    bare: Option<&mut Bare>,
    put: &mut dyn FnMut(Row) -> io::Result<()>,
) -> io::Result<()> {
    let mut bare = bare;
    for wait in [Wait::Polled, Wait::Sleeping] {
        bench.say(&format!("table 2: {}", wait.name()));
        let time = bench.time(2);
        let base = Row { wait: Some(wait), server_wait: Some(wait), ..bench.row("table-2") };
        if let Some(bare) = &mut bare {
            let [trips, bytes] = bare.measure(wait, time)?;
            let of = |slice| [Seen { slice, ..Seen::default() }];
            let trip =
                Row { path: "bare", to: Some("round-trip"), ..base.clone() }.with(&of(trips));
            let rate = Row { path: "bare", to: Some("bandwidth"), ..base.clone() }.with(&of(bytes));
            [trip, rate]
                .into_iter()
                .try_for_each(|row| put(Row { client_hit_ratio: None, ..row }))?;
        }
        let session = bench.place.session(wait, false)?;
        let group = session.group();
        let seen = stretch(&session, time, || null_request(&group))?;
        let null = Row { path: "null-request", to: Some("round-trip"), ..base.clone() };
        put(Row { client_hit_ratio: None, ..null.with(&[seen]) })?;
        if bench.is_over() {
            return Ok(());
        }
    }
    Ok(())
}
