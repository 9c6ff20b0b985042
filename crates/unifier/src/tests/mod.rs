//! Tests of the cache against a model.

#![allow(clippy::unwrap_used)]

#[cfg(not(feature = "planted"))]
mod accessed;
#[cfg(not(feature = "planted"))]
mod cost;
mod disk;
#[cfg(not(feature = "planted"))]
mod domains;
mod entries;
mod entry_model;
#[cfg(not(feature = "planted"))]
mod faults;
#[cfg(not(feature = "planted"))]
mod flushes;
mod model;
#[cfg(not(feature = "planted"))]
mod moves;
#[cfg(not(feature = "planted"))]
mod others;
#[cfg(not(feature = "planted"))]
mod page_reads;
#[cfg(not(feature = "planted"))]
mod parts;
#[cfg(not(feature = "planted"))]
mod policies;
#[cfg(not(feature = "planted"))]
mod query;
#[cfg(not(feature = "planted"))]
mod ranges;
#[cfg(not(feature = "planted"))]
mod reads;
#[cfg(not(feature = "planted"))]
mod resize;
// Defects are planted in the whole process: the other tests would meet them.
#[cfg(feature = "planted")]
mod planted;
#[cfg(not(feature = "planted"))]
mod threads;
#[cfg(not(feature = "planted"))]
mod traces;
#[cfg(not(feature = "planted"))]
mod waits;

use std::sync::{Arc, Mutex};

use dafs_fabric::sim::{SimConfig, SimNet};
use dafs_fabric::{Arena, Domain, poison};
use dafs_protocol::{Timestamp, WriteVerifier};

use crate::wait::locked;
use crate::{
    CachedFile, Config, Opening, PageEnd, PageWaiter, PinnedRead, Unifier, WriteReservation,
    Writer, WriterId,
};
use disk::{DiskFile, Handle};

const VERIFIER: WriteVerifier = WriteVerifier([7; 16]);

fn writer(id: u64) -> Writer {
    Writer { id: WriterId(id), clear_privileges: false }
}

fn config(arena_bytes: usize) -> Config {
    let clock = || Timestamp { seconds: 1 << 40, nanoseconds: 0 };
    Config::new(arena_bytes, Arc::new(clock))
}

fn unifier(arena_bytes: usize) -> Arc<Unifier> {
    unifier_with(arena_bytes, config(arena_bytes))
}

/// A device that is to know local memory, and pins it.
fn pinning(seed: u64) -> Arc<Domain> {
    let mut config = SimConfig::new(seed);
    (config.attr.local_registration, config.attr.registration_pins) = (true, true);
    Domain::open(&SimNet::new(config).provider(1)).expect("a device")
}

/// One that gives memory back down to a quarter of its arena.
fn shrinking(arena_bytes: usize) -> Arc<Unifier> {
    unifier_with(arena_bytes, Config { least_bytes: 64 << 10, ..config(arena_bytes) })
}

fn unifier_with(arena_bytes: usize, config: Config) -> Arc<Unifier> {
    let arena = Arena::new(arena_bytes).expect("arena");
    // Whatever lies there is never a file's, and nothing is written where nobody reserved.
    poison::switch_on([0xee; poison::PATTERN_BYTES]);
    poison::fill(&arena.span(0, arena_bytes));
    Unifier::new(arena, config, VERIFIER)
}

fn open(unifier: &Arc<Unifier>, file: &Arc<DiskFile>) -> Arc<CachedFile> {
    let mark = unifier.mark();
    let attr = file.attr_now();
    unifier.open(mark, WriterId(1), Arc::new(Handle(file.clone())), &attr, Opening::Existing)
}

/// The ends of reads of one page that were told.
#[derive(Clone, Default)]
struct Told(Arc<Ends>);

#[derive(Default)]
struct Ends(Mutex<Vec<(usize, PageEnd)>>);

impl PageWaiter for Ends {
    fn ended(&self, number: usize, end: PageEnd) {
        locked(&self.0).push((number, end));
    }
}

impl Told {
    /// Begins one.
    fn read(&self, file: &Arc<CachedFile>, offset: u64, len: usize, number: usize) -> bool {
        let waiter: Arc<dyn PageWaiter> = self.0.clone();
        file.read_page_then((offset, len), &waiter, number)
    }

    /// How the one of this number ended, once.
    fn take(&self, number: usize) -> Option<PageEnd> {
        let ends = &mut *locked(&self.0.0);
        let at = ends.iter().position(|end| end.0 == number)?;
        Some(ends.swap_remove(at).1)
    }

    /// Lets go what nobody took; true if there was something.
    fn drop_all(&self) -> bool {
        let ends = std::mem::take(&mut *locked(&self.0.0));
        !ends.is_empty()
    }
}

/// The writer's bytes come.
fn land(reservation: &mut WriteReservation, bytes: &[u8]) {
    let mut at = 0;
    for span in reservation.spans() {
        span.write_message(0, &bytes[at..at + span.len()]);
        at += span.len();
    }
    assert_eq!(at, bytes.len());
    reservation.landed(at);
}

fn bytes(lease: &PinnedRead) -> Vec<u8> {
    let mut all = Vec::new();
    let mut part = Vec::new();
    for span in lease.spans() {
        span.read_message(span.len(), &mut part);
        all.extend_from_slice(&part);
    }
    assert_eq!(all.len(), lease.len());
    all
}

async fn write(file: &Arc<CachedFile>, offset: u64, data: &[u8], by: u64) {
    let mut reservation = file.reserve(offset, data.len()).await.unwrap();
    land(&mut reservation, data);
    file.commit_write(reservation, writer(by)).await.unwrap();
}

#[cfg_attr(feature = "planted", allow(dead_code))]
async fn read(file: &Arc<CachedFile>, offset: u64, len: usize) -> Vec<u8> {
    bytes(&file.read(offset, len).await.unwrap())
}

/// A write that must not have to wait.
#[cfg(not(feature = "planted"))]
fn fill(file: &Arc<CachedFile>, offset: u64, len: usize, byte: u8) {
    let mut reservation = file.try_reserve(offset, len).expect("room");
    land(&mut reservation, &vec![byte; len]);
    assert!(matches!(file.try_commit_write(reservation, writer(1)), Ok(Ok(()))));
}
