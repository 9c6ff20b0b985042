//! The admin port: `/metrics` (Prometheus text) and `/status` (JSON), on loopback, read only.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dafs_fabric::Address;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use serde_json::json;

use crate::server::StartError;
use crate::shared::Shared;

pub(crate) struct Admin {
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
}

impl Admin {
    pub(crate) fn start(
        address: Option<&str>,
        serving: &[Address],
        shared: Arc<Shared>,
    ) -> Result<Admin, StartError> {
        let wanted = address.unwrap_or("127.0.0.1:0");
        let failed = |source| StartError::Admin { address: wanted.to_string(), source };
        let listener = TcpListener::bind(wanted).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        if !address.ip().is_loopback() {
            return Err(failed(std::io::Error::other("must be a loopback address")));
        }
        let stopping = Arc::new(AtomicBool::new(false));
        let page = Pages::new(serving, shared);
        let stop = stopping.clone();
        std::thread::Builder::new().name("dafs-admin".into()).spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok(stream) = stream {
                    // One slow reader delays other readers of this port only.
                    if let Err(error) = page.serve(stream) {
                        tracing::debug!(%error, "admin request failed");
                    }
                }
            }
        })?;
        Ok(Admin { address, stopping })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        // Ends the blocking accept.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_millis(200));
    }
}

struct Pages {
    registry: Registry,
    addresses: Vec<String>,
    shared: Arc<Shared>,
    since: Instant,
}

impl Pages {
    fn new(serving: &[Address], shared: Arc<Shared>) -> Pages {
        let mut registry = Registry::with_prefix("dafs");
        registry.register_collector(Box::new(Metrics(shared.clone())));
        let addresses = serving.iter().map(ToString::to_string).collect();
        Pages { registry, addresses, shared, since: Instant::now() }
    }

    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.set_write_timeout(Some(Duration::from_secs(2)))?;
        let mut line = String::new();
        BufReader::new(&stream).take(4096).read_line(&mut line)?;
        let mut words = line.split_whitespace();
        let (status, kind, body) = match (words.next(), words.next()) {
            (Some("GET"), Some("/metrics")) => {
                let mut text = String::new();
                prometheus_client::encoding::text::encode(&mut text, &self.registry)
                    .map_err(std::io::Error::other)?;
                ("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", text)
            }
            (Some("GET"), Some("/status")) => {
                ("200 OK", "application/json", format!("{}\n", self.status()))
            }
            _ => ("404 Not Found", "text/plain", "try /status or /metrics\n".to_string()),
        };
        let length = body.len();
        write!(
            &stream,
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n{body}"
        )
    }

    fn status(&self) -> serde_json::Value {
        let shared = &self.shared;
        let (cpu_ns, resident) = (shared.process_stats)();
        let exports: Vec<_> = shared
            .exports
            .iter()
            .map(|e| {
                json!({
                    "name": e.name,
                    "path": e.path,
                    "read_only": e.read_only,
                    "policy": e.policy.name(),
                    "datapath": e.data_path.name(),
                    "disk": e.store.disk(),
                })
            })
            .collect();
        let metrics: serde_json::Map<_, _> =
            values(shared).into_iter().map(|v| (v.name.to_string(), v.value.into())).collect();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "addresses": self.addresses,
            "exports": exports,
            "uptime_seconds": self.since.elapsed().as_secs(),
            "arena_bytes": shared.arena_bytes,
            "cpu_ns": cpu_ns,
            "resident_bytes": resident,
            "counters": metrics,
        })
    }
}

struct Value {
    name: &'static str,
    help: &'static str,
    value: u64,
    gauge: bool,
}

fn values(shared: &Shared) -> Vec<Value> {
    let counters = &shared.counters;
    let cache = shared.unifier.stats();
    let locks = shared.locks.stats();
    let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let size = |counter: &std::sync::atomic::AtomicUsize| counter.load(Ordering::Relaxed) as u64;
    let value = |name, help, value| Value { name, help, value, gauge: false };
    let gauge = |name, help, value| Value { name, help, value, gauge: true };
    vec![
        gauge("sessions", "Sessions alive", size(&counters.sessions)),
        gauge("opens", "Open files", size(&counters.opens)),
        value("sessions_created", "Sessions created", load(&counters.sessions_total)),
        value("requests", "Requests received", load(&counters.requests)),
        value("replays", "Requests answered again after a break", load(&counters.replays)),
        value("read_bytes", "Bytes read by clients", load(&counters.bytes_read)),
        value("written_bytes", "Bytes written by clients", load(&counters.bytes_written)),
        value("refused", "Connections and requests refused", load(&counters.refused)),
        value("peer_faults", "Protocol violations by peers", load(&counters.peer_faults)),
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
        gauge("callbacks_outstanding", "Callbacks without an answer", locks.untold),
        value("cache_hits", "Reads answered from the cache", cache.hits),
        value("cache_misses", "Reads that went to the store", cache.misses),
        gauge("dirty_bytes", "Bytes written and not yet in the store", cache.dirty_bytes),
        gauge(
            "away_bytes",
            "Bytes of the cache given back while memory is short",
            cache.away_bytes,
        ),
        gauge("cached_bytes", "Bytes in the cache", cache.resident_bytes),
    ]
}

struct Metrics(Arc<Shared>);

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
        Ok(())
    }
}
