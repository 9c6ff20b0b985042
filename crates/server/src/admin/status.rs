//! What the admin port tells: counters, sessions, times.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dafs_protocol::ToldReads;
use dafs_unifier::{CacheDomain, DomainId};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::metrics::{CACHED_READS_PER_SAMPLE, Kind, Latency, SessionMeter};
use crate::optimistic::Shown;
use crate::own_reads::together;
use crate::records::digits;
use crate::shared::Shared;

/// Sessions that are listed, those with most requests; all are counted.
const SESSIONS_LISTED_MAX: usize = 256;

/// The answer to `/status`.
pub(super) fn status(shared: &Shared, addresses: &[String], since: Instant) -> serde_json::Value {
    let (cpu_ns, resident) = shared.process.stats();
    let exports: Vec<_> = shared
        .exports
        .iter()
        .map(|e| {
            json!({
                "name": e.name,
                "path": e.path,
                "read_only": e.read_only,
                "share_cache": e.share_cache,
                "optimistic": e.optimistic.name(),
                "policy": e.policy.name(),
                "datapath": e.data_path.name(),
                "disk": e.store.disk(),
            })
        })
        .collect();
    let metrics: serde_json::Map<_, _> =
        values(shared).into_iter().map(|v| (v.name.to_string(), v.value.into())).collect();
    let uptime = since.elapsed();
    let all = shared.metrics.sessions();
    let told = together(all.iter().map(|meter| told_per_second(shared, meter)));
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "addresses": addresses,
        "exports": exports,
        "caches": caches(shared),
        "uptime_seconds": uptime.as_secs(),
        "uptime_ns": u64::try_from(uptime.as_nanos()).unwrap_or(u64::MAX),
        "arena_bytes": shared.process.arena_bytes,
        "poison": dafs_fabric::poison::digits(),
        "cpu_ns": cpu_ns,
        "data_plane_cpu_ns": shared.counters.data_plane_ns(),
        "resident_bytes": resident,
        "counters": metrics,
        "own_reads_per_second": told.hits,
        "own_reads_stale_per_second": told.stale,
        "sessions": sessions(shared, all),
        "latency": latency(shared),
    })
}

/// What each cache domain may take now, and has; of one that clients map, also what they find of it.
fn caches(shared: &Shared) -> Vec<serde_json::Value> {
    let cache = |(number, cache): (usize, &CacheDomain)| {
        let stats = cache.stats();
        let shown = shared.shown(DomainId(number));
        json!({
            "name": cache.name(),
            "bytes": cache.bytes(),
            "cached_bytes": stats.resident_bytes,
            "files": stats.files,
            "evicted_bytes": stats.evicted_bytes,
            "shown_entries_bytes": shown.and_then(Shown::entries_bytes),
        })
    };
    shared.unifier.iter().enumerate().map(cache).collect()
}

static LOST_LOG_LINES: AtomicU64 = AtomicU64::new(0);

/// Counts a line of the process's log that could not be written.
pub fn count_lost_log_line() {
    LOST_LOG_LINES.fetch_add(1, Ordering::Relaxed);
}

/// As a session's client told last: by its silence it says that it is not more. It tells at the latest when it renews
/// its lease, which is twice within half of that.
fn told_per_second(shared: &Shared, meter: &SessionMeter) -> ToldReads {
    let most = Duration::from_secs(u64::from(shared.limits.lease_seconds)) / 2;
    meter.own_reads.per_second(shared.process.now(), most)
}

fn sessions(shared: &Shared, mut metrics: Vec<Arc<SessionMeter>>) -> Vec<serde_json::Value> {
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    metrics.sort_by_key(|meter| std::cmp::Reverse(load(&meter.requests)));
    metrics.truncate(SESSIONS_LISTED_MAX);
    metrics
        .iter()
        .map(|meter| {
            // Who shows a client's name is taken for that client: it stays secret.
            let client = Sha256::digest(meter.client.0);
            json!({
                "number": meter.number,
                "client": digits(client.get(..8).unwrap_or_default()),
                "peer": meter.peer,
                "uid": meter.uid,
                "requests": load(&meter.requests),
                "replays": load(&meter.replays),
                "read_bytes": load(&meter.bytes_read),
                "written_bytes": load(&meter.bytes_written),
                "opens": load(&meter.opens),
                "optimistic": optimistic(shared, meter),
            })
        })
        .collect()
}

/// Reads of a session that were no requests: by a reference, as they were answered and refused here, and of the mapped
/// cache by itself, as its client tells.
fn optimistic(shared: &Shared, meter: &SessionMeter) -> serde_json::Value {
    let (own, now) = (&meter.own_reads, told_per_second(shared, meter));
    let (load, told) = (|counter: &AtomicU64| counter.load(Ordering::Relaxed), own.told());
    json!({
        "references_told": load(&own.references_told),
        "named_reads": load(&own.named_reads),
        "named_refused": load(&own.named_refused),
        "own_reads": told.hits,
        "own_reads_stale": told.stale,
        "own_reads_unknown": told.unknown,
        "own_reads_per_second": now.hits,
        "own_reads_stale_per_second": now.stale,
    })
}

/// Times of requests by kind: how many were timed, their sum, and how many took less than each of
/// the bounds but not less than the one before.
fn latency(shared: &Shared) -> serde_json::Value {
    let kind = |(kind, name): &(Kind, &str)| {
        let (sum, buckets) = shared.metrics.latency.of(*kind);
        let timed: u64 = buckets.iter().sum();
        let value = json!({"timed": timed, "sum_ns": sum, "buckets": buckets});
        (timed > 0).then(|| ((*name).to_owned(), value))
    };
    let kinds: serde_json::Map<_, _> = Kind::ALL.iter().filter_map(kind).collect();
    json!({
        "bounds_ns": Latency::bounds(),
        "requests_per_sample": {"cached_reads": CACHED_READS_PER_SAMPLE},
        "kinds": kinds,
    })
}

struct Value {
    name: &'static str,
    help: &'static str,
    value: u64,
    gauge: bool,
}

#[expect(clippy::too_many_lines, reason = "a table of counters")]
fn values(shared: &Shared) -> Vec<Value> {
    let counters = &shared.counters;
    let cache = shared.unifier.stats();
    let locks = shared.locks.stats();
    let [referenced, lent] = shared.quotas.taken();
    let [named_reads, named_refused] = counters.named_reads();
    let told = counters.told_reads();
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let size = |counter: &std::sync::atomic::AtomicUsize| counter.load(Ordering::Relaxed) as u64;
    let value = |name, help, value| Value { name, help, value, gauge: false };
    let gauge = |name, help, value| Value { name, help, value, gauge: true };
    vec![
        gauge("sessions", "Sessions alive", size(&counters.sessions)),
        gauge("opens", "Open files", size(&counters.opens)),
        value("sessions_created", "Sessions created", load(&counters.sessions_total)),
        value("requests", "Requests received", counters.requests()),
        value(
            "references_told",
            "Places of blocks that clients were told, to read them without asking",
            load(&counters.references_told),
        ),
        value(
            "named_told",
            "References that clients were told, to read open files by",
            load(&counters.named_told),
        ),
        value("named_reads", "Reads by a reference, which are no requests", named_reads),
        value(
            "named_refused",
            "Reads by a reference of what is not cached, or may not be had",
            named_refused,
        ),
        value(
            "own_reads",
            "Reads of the mapped cache by clients themselves, as they tell",
            told.hits,
        ),
        value(
            "own_reads_stale",
            "Such reads of blocks that were elsewhere by then, or changed meanwhile",
            told.stale,
        ),
        value(
            "own_reads_unknown",
            "Such reads of blocks of which the client did not know where they are",
            told.unknown,
        ),
        value("replays", "Requests answered again after a break", load(&counters.replays)),
        value("read_bytes", "Bytes read by clients", counters.bytes_read()),
        value("written_bytes", "Bytes written by clients", load(&counters.bytes_written)),
        value("refused", "Connections and requests refused", load(&counters.refused)),
        value(
            "requests_delayed",
            "Requests that waited for what others of their session or user had under way",
            load(&counters.delayed),
        ),
        value(
            "transfers_given_up",
            "Connections ended since a request's data did not come, or a reply was not taken",
            load(&counters.transfers_given_up),
        ),
        gauge(
            "request_bytes",
            "Memory beside the arena that requests under way may take",
            shared.budgets.used().0.memory as u64,
        ),
        gauge(
            "held_bytes",
            "Memory of the arena that is held until peers send data or take replies",
            shared.budgets.used().0.pages as u64,
        ),
        gauge(
            "referenced_bytes",
            "Memory of the cache that clients read by themselves and have not let go",
            referenced,
        ),
        gauge("lent_bytes", "Memory of the cache that is lent to clients", lent),
        gauge(
            "mapped_bytes",
            "Memory of clients of this host that is mapped, their rings aside",
            dafs_fabric::mem::mapped_of_peers(),
        ),
        value(
            "lost_log_lines",
            "Lines of the log that could not be written",
            LOST_LOG_LINES.load(Ordering::Relaxed),
        ),
        value("peer_faults", "Protocol violations by peers", load(&counters.peer_faults)),
        value(
            "short_transfers",
            "Transfers refused since they filled only a part of their memory",
            load(&counters.short_transfers) + cache.short_writes,
        ),
        value("leases_expired", "Sessions that fell silent", load(&counters.leases_expired)),
        value("system_calls", "System calls of the transport", load(&counters.system_calls)),
        value("copied_bytes", "Payload copied in user space", dafs_fabric::mem::copied_bytes()),
        value("registrations", "Memory registrations", dafs_fabric::mem::registrations()),
        gauge("locks", "Ranges of files that are locked", locks.held),
        gauge("lock_waits", "Waits for locks", locks.waiting),
        value("lock_grants", "Locks granted", locks.grants),
        value("lock_reclaims", "Locks reclaimed after a restart", locks.reclaims),
        value("deadlocks", "Waits for locks refused as deadlocks", locks.deadlocks),
        value("callbacks", "Callbacks sent, again after breaks too", load(&counters.callbacks)),
        gauge("callbacks_outstanding", "Callbacks without an answer", locks.unreported),
        value("cache_hits", "Reads answered from the cache", cache.hits + counters.cache_hits()),
        value("cache_misses", "Reads that went to the store", cache.misses),
        gauge("dirty_bytes", "Bytes written and not yet in the store", cache.dirty_bytes),
        gauge("dirty_bytes_max", "The bound before which writers wait", cache.dirty_bytes_max),
        gauge(
            "decommitted_bytes",
            "Bytes of the cache given back while memory is short",
            cache.decommitted_bytes,
        ),
        value(
            "decommits_refused",
            "Times that the system did not take memory back",
            cache.decommits_refused,
        ),
        value(
            "registrations_refused",
            "Times that the transport did not take memory of the cache",
            cache.registrations_refused,
        ),
        gauge("cached_bytes", "Bytes in the cache", cache.resident_bytes),
        gauge("cached_files", "Files that the cache knows, open or not", cache.files),
        value("evicted_bytes", "Bytes dropped from the cache for others", cache.evicted_bytes),
        value("store_reads", "Reads of the store into the cache", cache.fills),
        value("store_read_bytes", "Bytes read from the store", cache.filled_bytes),
        value("store_writes", "Writes from the cache to the store", cache.write_backs),
        value("store_written_bytes", "Bytes written to the store", cache.written_bytes),
        value("store_write_errors", "Writes to the store that failed", cache.write_errors),
        value("lost_bytes", "Dirty bytes given up after errors", cache.lost_bytes),
    ]
}

/// The same for Prometheus.
pub(super) struct Metrics(pub Arc<Shared>);

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for v in values(&self.0) {
            if v.gauge {
                let metric = ConstGauge::new(i64::try_from(v.value).unwrap_or(i64::MAX));
                let encoder =
                    encoder.encode_descriptor(v.name, v.help, None, metric.metric_type())?;
                metric.encode(encoder)?;
            } else {
                let metric = ConstCounter::new(v.value);
                let encoder =
                    encoder.encode_descriptor(v.name, v.help, None, metric.metric_type())?;
                metric.encode(encoder)?;
            }
        }
        let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
        for (name, help, value) in [
            (
                "cpu_seconds",
                "Time of the processor that the process took",
                self.0.process.stats().0,
            ),
            (
                "data_plane_cpu_seconds",
                "What of it reads by a reference took, estimated by samples",
                self.0.counters.data_plane_ns(),
            ),
        ] {
            let metric = ConstCounter::new(seconds(value));
            let encoder = encoder.encode_descriptor(name, help, None, metric.metric_type())?;
            metric.encode(encoder)?;
        }
        let bytes = |cache: &CacheDomain| cache.bytes();
        let cached = |cache: &CacheDomain| cache.stats().resident_bytes;
        each_cache(
            &self.0,
            &mut encoder,
            ("cache_domain_bytes", "Memory that it may take"),
            bytes,
        )?;
        each_cache(&self.0, &mut encoder, ("cache_domain_cached_bytes", "Bytes in it"), cached)
    }
}

/// A gauge of each cache domain, by its name.
fn each_cache(
    shared: &Shared,
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    of: impl Fn(&CacheDomain) -> u64,
) -> Result<(), fmt::Error> {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for cache in shared.unifier.iter() {
        let metric = ConstGauge::new(i64::try_from(of(cache)).unwrap_or(i64::MAX));
        metric.encode(family.encode_family(&[("cache", cache.name())])?)?;
    }
    Ok(())
}
