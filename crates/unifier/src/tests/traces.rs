//! The cache and the simulator on the same traces.

use std::collections::HashMap;
use std::sync::Arc;

use super::disk::{Disk, Handle, Rng, run};
use super::{VERIFIER, config, writer};
use crate::simulate::{Simulator, percent};
use crate::trace::{Event, Record, read_trace};
use crate::{CachedFile, Config, Opening, Policy, Unifier, WriterId};

const MIB: u64 = 1 << 20;

/// Runs a trace on a cache over files in memory; hits of its reads, in percent.
fn replay(records: &[Record], policy: Policy, arena_bytes: usize) -> f64 {
    let disk = Disk::new(1, 0);
    let arena = dafs_fabric::Arena::new(arena_bytes).expect("arena");
    let config = Config { policy, ..config(arena_bytes) };
    let unifier = Unifier::new(arena, config, VERIFIER);
    let work = {
        let (disk, unifier) = (disk.clone(), unifier.clone());
        let records = records.to_vec();
        async move {
            let mut files: HashMap<u32, Arc<CachedFile>> = HashMap::new();
            for (at, record) in records.iter().enumerate() {
                let file = files.entry(record.file).or_insert_with(|| {
                    let file = disk.file(at as u64 + 1, Vec::new());
                    let mark = unifier.mark();
                    let attr = file.attr_now();
                    let handle = Arc::new(Handle(file));
                    unifier.open(mark, WriterId(1), handle, &attr, Opening::Existing)
                });
                let file = file.clone();
                match record.event {
                    Event::Read { offset, len } => {
                        file.read(offset, len as usize).await.expect("read");
                    }
                    Event::Write { offset, len } => {
                        // As the simulator does: what a write replaces is gone when it is there.
                        let mut reservation =
                            file.reserve(offset, len as usize).await.expect("room");
                        reservation.landed(len as usize);
                        file.commit_write(reservation, writer(1)).await.expect("write");
                        file.flush().await.expect("flush");
                    }
                    Event::Size(size) => file.truncate(size, false).await.expect("truncate"),
                    Event::Gone => {
                        files.remove(&record.file);
                        file.truncate(0, false).await.expect("truncate");
                        file.close(WriterId(1)).await.expect("close");
                    }
                }
            }
            for file in files.into_values() {
                file.close(WriterId(1)).await.expect("close");
            }
        }
    };
    run(&disk, work);
    let stats = unifier.stats();
    percent(stats.hits, stats.misses)
}

fn simulate(records: &[Record], policy: Policy, arena_bytes: usize) -> f64 {
    let mut simulator = Simulator::new(policy, arena_bytes);
    records.iter().for_each(|record| {
        simulator.step(record);
    });
    simulator.hit_percent()
}

fn agree(name: &str, records: &[Record], arenas: &[u64]) {
    for arena in arenas {
        for policy in Policy::ALL {
            let arena_bytes = (arena * MIB) as usize;
            let real = replay(records, policy, arena_bytes);
            let simulated = simulate(records, policy, arena_bytes);
            println!(
                "{name}, {arena} MiB, {}: {real:.2} % and {simulated:.2} % simulated",
                policy.name()
            );
            assert!(
                (real - simulated).abs() <= 2.0,
                "{name}, {arena} MiB, {}: {real:.2} % and {simulated:.2} % simulated",
                policy.name()
            );
        }
    }
}

fn read(file: u32, offset: u64, len: u64) -> Record {
    Record { file, event: Event::Read { offset, len } }
}

fn size(file: u32, bytes: u64) -> Record {
    Record { file, event: Event::Size(bytes) }
}

/// A file is read from end to end by another while a part of it is read at random.
fn scan_beside_hot_reads(arena: u64, step: u64) -> Vec<Record> {
    let mut rng = Rng::new(5);
    let (data, hot) = (10 * arena, arena / 2);
    let mut records = vec![size(0, data), size(1, hot)];
    for _ in 0..3 * hot / 4096 {
        records.push(read(1, rng.below(hot / 4096) * 4096, 4096));
    }
    for start in (0..data).step_by(step as usize) {
        records.push(read(0, start, step));
        for _ in 0..step.div_ceil(65_536) {
            records.push(read(1, rng.below(hot / 4096) * 4096, 4096));
        }
    }
    records
}

#[test]
fn the_simulator_tells_what_a_scan_does() {
    agree("scan", &scan_beside_hot_reads(4 * MIB, MIB / 2), &[4]);
    agree("scan in small steps", &scan_beside_hot_reads(4 * MIB, 4096), &[4]);
}

#[test]
fn small_reads_of_a_scan_are_one_use() {
    let records = scan_beside_hot_reads(4 * MIB, 4096);
    let hot = |policy| {
        let mut simulator = Simulator::new(policy, 4 * MIB as usize);
        let scan =
            records.iter().position(|record| record.file == 0 && *record != size(0, 40 * MIB));
        let warm = scan.expect("it has a scan");
        let mut hits = (0, 0);
        for (at, record) in records.iter().enumerate() {
            if let Some(hit) = simulator.step(record)
                && at >= warm
                && record.file == 1
            {
                hits.0 += u64::from(hit);
                hits.1 += u64::from(!hit);
            }
        }
        percent(hits.0, hits.1)
    };
    assert!(hot(Policy::MultiQueue) > 95.0, "{}", hot(Policy::MultiQueue));
}

#[test]
fn the_simulator_tells_what_skewed_reads_and_writes_do() {
    let mut rng = Rng::new(6);
    let blocks = 4096;
    let mut records = vec![size(0, blocks * 4096)];
    for _ in 0..30_000 {
        let top = 1 << rng.below(12);
        let offset = (top + rng.below(top)) * 4096;
        let write = rng.chance(20);
        let event = match write {
            true => Event::Write { offset, len: 4096 },
            false => Event::Read { offset, len: 4096 },
        };
        records.push(Record { file: 0, event });
    }
    agree("skewed", &records, &[2, 4, 8]);
}
/// Recorded from real programs on a mount; see the files' list in `tests/traces/README.md`.
#[test]
fn the_simulator_tells_what_real_programs_do() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/traces");
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .expect("the folder of traces")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "trace"))
        .collect();
    names.sort();
    assert!(names.len() >= 4, "some traces");
    for path in names {
        let bytes = std::fs::read(&path).expect("a trace");
        assert!(bytes.len() <= 200 << 10, "{} is too large", path.display());
        let records = read_trace(&bytes).expect("a trace");
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        agree(&name, &records, &[4, 16]);
    }
}
