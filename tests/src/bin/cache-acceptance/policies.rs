//! scan: a scan of ten times the arena leaves what is used often, with multi-queue; and the
//! simulator tells what the server does.

use std::fs::File;
use std::path::Path;

use dafs_client::{OpenOptions, Session};
use dafs_tests::client::session;
use dafs_tests::random::Random;
use dafs_tests::{FreshDir, Served};
use dafs_unifier::Policy;
use dafs_unifier::simulate::{Simulator, percent};
use dafs_unifier::trace::{Event, Record, read_trace};

use crate::{Line, Mode};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// Random reads of hot data for each MiB that is scanned.
const HOT_READS: u64 = 64;

/// Hits of hot reads during the scan, and of all reads, in percent.
struct Ratios {
    hot: f64,
    all: f64,
}

pub(crate) fn scan(mode: Mode) -> Vec<Line> {
    let arena = mode.pick(64, 256) * MIB;
    let dir = FreshDir::new();
    let exported = dir.path().join("exported");
    std::fs::create_dir(&exported).expect("mkdir");
    let make = |name: &str, bytes: u64| {
        File::create(exported.join(name)).and_then(|file| file.set_len(bytes)).expect("a file");
    };
    let (scanned, hot) = (10 * arena, 10 * arena / 20 / BLOCK * BLOCK);
    make("scanned", scanned);
    make("hot", hot);
    let mut lines = Vec::new();
    let mut lru = 100.0;
    for policy in Policy::ALL {
        let trace = dir.path().join(format!("{}.trace", policy.name()));
        let real = measure(&exported, policy, arena, &trace);
        let simulated = simulate(&trace, policy, arena);
        let what = format!("hits of hot 4 KiB reads beside a scan, {}", policy.name());
        let text = format!("{:.1} %", real.hot);
        match policy {
            Policy::Lru => {
                lru = real.hot;
                let line = Line::new("scan", &what, "less than 95 %: the scan is one");
                lines.push(line.measured(text, real.hot < 95.0));
            }
            Policy::MultiQueue => {
                let line = Line::new("scan", &what, "≥ 95 %, and more than lru");
                lines.push(line.measured(text, real.hot >= 95.0 && real.hot > lru));
            }
        }
        let what = format!("the simulator on the server's trace, {}", policy.name());
        let is_near = (real.all - simulated.all).abs() <= 2.0;
        let text = format!(
            "all {:.1} and {:.1} % (hot {:.1} and {:.1} %)",
            real.all, simulated.all, real.hot, simulated.hot
        );
        let line = Line::new("scan", &what, "hits of all reads within 2 points");
        lines.push(line.measured(text, is_near));
    }
    lines
}

fn measure(exported: &Path, policy: Policy, arena: u64, trace: &Path) -> Ratios {
    let (bytes, trace) = (arena.to_string(), trace.display().to_string());
    let args = ["--arena", &bytes, "--policy", policy.name(), "--record-trace", &trace];
    dafs_tests::served::as_in_use(true);
    let mut served = Served::start(exported, &args);
    let ratios = {
        let session = session(&served.url);
        read_all(&session)
    };
    served.stop();
    ratios
}

fn read_all(session: &Session) -> Ratios {
    let open = |name: &[u8]| session.open(name, OpenOptions::read()).expect("open");
    let (hot, scanned) = (open(b"hot"), open(b"scanned"));
    let blocks = hot.opened_attr().size / BLOCK;
    let (mut random, mut small) = (Random::new(1), vec![0; BLOCK as usize]);
    let mut read_hot = |count: u64| {
        for _ in 0..count {
            let read = hot.read_at(&mut small, random.below(blocks) * BLOCK).expect("read");
            assert_eq!(read as u64, BLOCK);
        }
    };
    read_hot(6 * blocks);
    let counters = || {
        let stats = session.stats().expect("stats");
        (stats.cache_hits, stats.cache_misses)
    };
    let before = counters().0;
    let mut large = vec![0; MIB as usize];
    let mut hot_reads = 0;
    for offset in (0..scanned.opened_attr().size).step_by(MIB as usize) {
        scanned.read_at(&mut large, offset).expect("read");
        read_hot(HOT_READS);
        hot_reads += HOT_READS;
    }
    let (hits, misses) = counters();
    // No read of the scan is a hit.
    let hot_hits = hits - before;
    Ratios { hot: percent(hot_hits, hot_reads - hot_hits), all: percent(hits, misses) }
}

fn simulate(trace: &Path, policy: Policy, arena: u64) -> Ratios {
    let bytes = std::fs::read(trace).expect("the trace");
    let records = read_trace(&bytes).expect("a trace");
    let mut simulator = Simulator::new(policy, arena as usize);
    let is_large = |record: &Record| matches!(record.event, Event::Read { len, .. } if len > BLOCK);
    let (mut scans, mut hits, mut misses) = (false, 0, 0);
    for record in &records {
        scans |= is_large(record);
        let hit = simulator.step(record);
        if scans
            && !is_large(record)
            && let Some(hit) = hit
        {
            hits += u64::from(hit);
            misses += u64::from(!hit);
        }
    }
    Ratios { hot: percent(hits, misses), all: simulator.hit_percent() }
}
