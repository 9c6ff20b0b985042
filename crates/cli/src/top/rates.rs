//! Samples of a server's counters, and rates between two of them.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::text;

/// What `/status` said at a time.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    uptime_ns: u64,
    cpu_ns: u64,
    data_plane_cpu_ns: u64,
    pid: u64,
    version: String,
    arena_bytes: u64,
    resident_bytes: u64,
    counters: BTreeMap<String, u64>,
    /// A second, of the mapped cache, by clients themselves: what needed no request, and what was stale.
    own: [u64; 2],
    sessions: Vec<Session>,
    bounds_ns: Vec<u64>,
    kinds: Vec<Kind>,
}

#[derive(Debug, Clone, Default)]
struct Session {
    number: u64,
    client: String,
    peer: String,
    uid: u64,
    opens: u64,
    /// Requests, bytes read and bytes written.
    done: [u64; 3],
    /// Reads by a reference, answered and refused.
    named: [u64; 2],
    /// As [`Sample::own`].
    own: [u64; 2],
    references_told: u64,
}

#[derive(Debug, Clone, Default)]
struct Kind {
    name: String,
    sum_ns: u64,
    buckets: Vec<u64>,
    /// Requests for each that was timed.
    each: u64,
}

/// What sessions are sorted by, the largest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// Requests per second.
    Requests,
    /// Bytes read per second.
    Read,
    /// Bytes written per second.
    Written,
    /// Open files.
    Opens,
    /// User, the smallest number first.
    User,
}

/// What goes on between two samples; rates are per second.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Rates {
    /// The server.
    pub version: String,
    pub pid: u64,
    pub uptime_seconds: u64,
    /// Between the samples.
    pub interval_seconds: f64,
    pub requests: f64,
    pub read_bytes: f64,
    pub written_bytes: f64,
    /// Reads that the cache answered, of all; none where nothing was read.
    pub hit_ratio: Option<f64>,
    pub store_reads: f64,
    pub store_read_bytes: f64,
    pub store_writes: f64,
    pub store_written_bytes: f64,
    pub evicted_bytes: f64,
    /// Reads that needed no request, those of blocks that were not any more where they had been, and those by a reference
    /// that were refused.
    pub optimistic_hits: f64,
    pub optimistic_stale: f64,
    pub optimistic_refused: f64,
    /// References that clients were told, of all time.
    pub references_told: u64,
    /// Processors that the server keeps busy.
    pub cpu: f64,
    /// What of that goes into answers to reads by a reference, estimated by samples.
    pub data_plane_cpu: f64,
    /// Sizes at the second sample.
    pub resident_bytes: u64,
    pub arena_bytes: u64,
    pub cached_bytes: u64,
    pub dirty_bytes: u64,
    pub dirty_bytes_max: u64,
    pub opens: u64,
    pub session_count: u64,
    pub sessions: Vec<SessionRates>,
    pub latency: Vec<KindRates>,
}

/// Of one session.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SessionRates {
    pub number: u64,
    pub client: String,
    pub peer: String,
    pub uid: u64,
    pub opens: u64,
    pub requests: f64,
    pub read_bytes: f64,
    pub written_bytes: f64,
    pub optimistic_hits: f64,
    pub optimistic_stale: f64,
    pub optimistic_refused: f64,
    pub references_told: u64,
}

/// Of requests of one kind: how many per second, their mean time, and what half and 99 of 100 of
/// them took less than, in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct KindRates {
    pub kind: String,
    pub requests: f64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

fn number(value: &Value, name: &str) -> u64 {
    value.get(name).and_then(Value::as_u64).unwrap_or(0)
}

/// What is told of reads by clients themselves.
fn own(value: &Value) -> [u64; 2] {
    ["own_reads_per_second", "own_reads_stale_per_second"].map(|name| number(value, name))
}

fn words(value: &Value, name: &str) -> String {
    let text = value.get(name).and_then(Value::as_str).unwrap_or("");
    text::escape(text.as_bytes())
}

fn numbers(value: &Value, name: &str) -> Vec<u64> {
    let list = value.get(name).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_u64).collect()
}

impl Sample {
    /// `None` where this is no status.
    pub fn new(status: &Value) -> Option<Sample> {
        let counters = status.get("counters")?.as_object()?;
        let latency = status.get("latency")?;
        let optimistic = |value: &Value| value.get("optimistic").cloned().unwrap_or_default();
        let session = |value: &Value| Session {
            named: ["named_reads", "named_refused"].map(|name| number(&optimistic(value), name)),
            own: own(&optimistic(value)),
            references_told: number(&optimistic(value), "references_told"),
            number: number(value, "number"),
            client: words(value, "client"),
            peer: words(value, "peer"),
            uid: number(value, "uid"),
            opens: number(value, "opens"),
            done: ["requests", "read_bytes", "written_bytes"].map(|name| number(value, name)),
        };
        let each = latency.get("requests_per_sample");
        let kind = |(name, value): (&String, &Value)| Kind {
            name: text::escape(name.as_bytes()),
            sum_ns: number(value, "sum_ns"),
            buckets: numbers(value, "buckets"),
            each: each.map_or(1, |each| number(each, name)).max(1),
        };
        let counter = |(name, value): (&String, &Value)| Some((name.clone(), value.as_u64()?));
        Some(Sample {
            uptime_ns: number(status, "uptime_ns"),
            cpu_ns: number(status, "cpu_ns"),
            data_plane_cpu_ns: number(status, "data_plane_cpu_ns"),
            pid: number(status, "pid"),
            version: words(status, "version"),
            arena_bytes: number(status, "arena_bytes"),
            resident_bytes: number(status, "resident_bytes"),
            counters: counters.iter().filter_map(counter).collect(),
            own: own(status),
            sessions: status.get("sessions")?.as_array()?.iter().map(session).collect(),
            bounds_ns: numbers(latency, "bounds_ns"),
            kinds: latency.get("kinds")?.as_object()?.iter().map(kind).collect(),
        })
    }

    fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }
}

impl Rates {
    /// Rates over the time between the samples; since the start where the server was started anew.
    pub fn between(before: &Sample, after: &Sample, sort: Sort) -> Rates {
        let nothing = Sample::default();
        let is_same = before.pid == after.pid && before.uptime_ns <= after.uptime_ns;
        let before = if is_same { before } else { &nothing };
        let seconds = (after.uptime_ns - before.uptime_ns) as f64 / 1e9;
        let per_second = |more: u64| if seconds > 0.0 { more as f64 / seconds } else { 0.0 };
        let more = |name: &str| after.counter(name).saturating_sub(before.counter(name));
        let rate = |name: &str| per_second(more(name));
        let (hits, misses) = (more("cache_hits"), more("cache_misses"));
        let hit_ratio = (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64);
        let session = |session: &Session| {
            let old = before.sessions.iter().find(|old| old.number == session.number);
            let (old, named) = old.map_or(([0; 3], [0; 2]), |old| (old.done, old.named));
            let rate = |index: usize| per_second(session.done[index].saturating_sub(old[index]));
            let named = |at: usize| per_second(session.named[at].saturating_sub(named[at]));
            SessionRates {
                number: session.number,
                client: session.client.clone(),
                peer: session.peer.clone(),
                uid: session.uid,
                opens: session.opens,
                requests: rate(0),
                read_bytes: rate(1),
                written_bytes: rate(2),
                optimistic_hits: named(0) + session.own[0] as f64,
                optimistic_stale: session.own[1] as f64,
                optimistic_refused: named(1),
                references_told: session.references_told,
            }
        };
        let mut rates = Rates {
            version: after.version.clone(),
            pid: after.pid,
            uptime_seconds: after.uptime_ns / 1_000_000_000,
            interval_seconds: seconds,
            requests: rate("requests"),
            read_bytes: rate("read_bytes"),
            written_bytes: rate("written_bytes"),
            hit_ratio,
            store_reads: rate("store_reads"),
            store_read_bytes: rate("store_read_bytes"),
            store_writes: rate("store_writes"),
            store_written_bytes: rate("store_written_bytes"),
            evicted_bytes: rate("evicted_bytes"),
            optimistic_hits: rate("named_reads") + after.own[0] as f64,
            optimistic_stale: after.own[1] as f64,
            optimistic_refused: rate("named_refused"),
            references_told: after
                .counter("references_told")
                .saturating_add(after.counter("named_told")),
            cpu: per_second(after.cpu_ns.saturating_sub(before.cpu_ns)) / 1e9,
            data_plane_cpu: per_second(
                after.data_plane_cpu_ns.saturating_sub(before.data_plane_cpu_ns),
            ) / 1e9,
            resident_bytes: after.resident_bytes,
            arena_bytes: after.arena_bytes,
            cached_bytes: after.counter("cached_bytes"),
            dirty_bytes: after.counter("dirty_bytes"),
            dirty_bytes_max: after.counter("dirty_bytes_max"),
            opens: after.counter("opens"),
            session_count: after.counter("sessions"),
            sessions: after.sessions.iter().map(session).collect(),
            latency: latency(before, after, seconds),
        };
        rates.sort(sort);
        rates
    }

    /// Sorts the sessions.
    pub fn sort(&mut self, sort: Sort) {
        self.sessions.sort_by(|a, b| {
            let order = match sort {
                Sort::Requests => b.requests.total_cmp(&a.requests),
                Sort::Read => b.read_bytes.total_cmp(&a.read_bytes),
                Sort::Written => b.written_bytes.total_cmp(&a.written_bytes),
                Sort::Opens => b.opens.cmp(&a.opens),
                Sort::User => a.uid.cmp(&b.uid),
            };
            order.then(a.number.cmp(&b.number))
        });
    }

    /// For `--once`.
    pub fn lines(&self) -> Vec<String> {
        let bytes = |rate: f64| format!("{}/s", text::human(rate as u64));
        let mut lines = vec![
            format!(
                "dafs {} process {}, up {} s, {} sessions, {} open files",
                self.version, self.pid, self.uptime_seconds, self.session_count, self.opens
            ),
            format!(
                "requests {:.0}/s  read {}  written {}  cpu {:.2}",
                self.requests,
                bytes(self.read_bytes),
                bytes(self.written_bytes),
                self.cpu
            ),
            format!(
                "cache {} of {}  hits {}  dirty {} of {}",
                text::human(self.cached_bytes),
                text::human(self.arena_bytes),
                percent(self.hit_ratio),
                text::human(self.dirty_bytes),
                text::human(self.dirty_bytes_max)
            ),
            format!(
                "store reads {:.0}/s {}  writes {:.0}/s {}",
                self.store_reads,
                bytes(self.store_read_bytes),
                self.store_writes,
                bytes(self.store_written_bytes)
            ),
        ];
        lines.extend(self.optimistic().map(|text| format!("without a request: {text}")));
        for kind in &self.latency {
            let KindRates { kind, requests, mean_us, p50_us, p99_us } = kind;
            lines.push(format!(
                "latency {kind:<12} {requests:>8.0}/s  mean {mean_us:.0} us  half < {p50_us:.0} us  \
                 99% < {p99_us:.0} us"
            ));
        }
        for session in &self.sessions {
            let mut line = format!(
                "session {} {} uid {}  {:.0}/s  read {}  written {}  {} open",
                session.number,
                session.peer,
                session.uid,
                session.requests,
                bytes(session.read_bytes),
                bytes(session.written_bytes),
                session.opens
            );
            if session.is_told() {
                line.push_str(&format!(
                    "  without a request {:.0}/s stale {:.0}/s refused {:.0}/s",
                    session.optimistic_hits, session.optimistic_stale, session.optimistic_refused
                ));
            }
            lines.push(line);
        }
        lines
    }
}

impl Rates {
    /// How reads go that need no request, where clients were told by what.
    pub fn optimistic(&self) -> Option<String> {
        (self.references_told > 0).then(|| {
            format!(
                "hits {:.0}/s  stale {:.0}/s  refused {:.0}/s  references told {}  data plane cpu {:.2}",
                self.optimistic_hits,
                self.optimistic_stale,
                self.optimistic_refused,
                self.references_told,
                self.data_plane_cpu
            )
        })
    }
}

impl SessionRates {
    /// Its client was told by what it may read without a request.
    pub fn is_told(&self) -> bool {
        self.references_told > 0
    }
}

/// `97.3%`, or `-` where there is none.
pub fn percent(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.1}%", 100.0 * ratio))
}

fn latency(before: &Sample, after: &Sample, seconds: f64) -> Vec<KindRates> {
    let rates = |kind: &Kind| {
        let old = before.kinds.iter().find(|old| old.name == kind.name);
        let old_buckets = old.map_or(&[][..], |old| &old.buckets);
        let old_bucket = |index: usize| old_buckets.get(index).copied().unwrap_or(0);
        let buckets: Vec<u64> = kind
            .buckets
            .iter()
            .enumerate()
            .map(|(index, count)| count.saturating_sub(old_bucket(index)))
            .collect();
        let timed: u64 = buckets.iter().sum();
        if timed == 0 || seconds <= 0.0 {
            return None;
        }
        let sum_ns = kind.sum_ns.saturating_sub(old.map_or(0, |old| old.sum_ns));
        Some(KindRates {
            kind: kind.name.clone(),
            requests: (timed * kind.each) as f64 / seconds,
            mean_us: sum_ns as f64 / timed as f64 / 1e3,
            p50_us: quantile(&buckets, &after.bounds_ns, 0.5),
            p99_us: quantile(&buckets, &after.bounds_ns, 0.99),
        })
    };
    let mut kinds: Vec<KindRates> = after.kinds.iter().filter_map(rates).collect();
    kinds.sort_by(|a, b| b.requests.total_cmp(&a.requests));
    kinds
}

/// The bound, in microseconds, below which this part of the times is.
fn quantile(buckets: &[u64], bounds_ns: &[u64], part: f64) -> f64 {
    let wanted = (buckets.iter().sum::<u64>() as f64 * part).ceil() as u64;
    let mut seen = 0;
    for (count, bound) in buckets.iter().zip(bounds_ns) {
        seen += count;
        if seen >= wanted {
            return *bound as f64 / 1e3;
        }
    }
    f64::INFINITY
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    pub fn status(seconds: u64, done: u64) -> Value {
        json!({
            "version": "0.1.0", "pid": 7, "uptime_ns": seconds * 1_000_000_000,
            "cpu_ns": done * 1_000_000, "data_plane_cpu_ns": done * 400_000, "arena_bytes": 1 << 30, "resident_bytes": 1 << 20,
            "counters": {
                "requests": done, "read_bytes": done * 4096, "written_bytes": 0,
                "cache_hits": done, "cache_misses": done / 3, "sessions": 2, "opens": 3,
                "dirty_bytes": 4096, "dirty_bytes_max": 1 << 29, "cached_bytes": 1 << 28,
                "store_reads": done / 2, "store_read_bytes": done * 100,
                "named_reads": done * 3, "named_refused": done / 10,
                "references_told": 40, "named_told": 2
            },
            "own_reads_per_second": 5000, "own_reads_stale_per_second": 7,
            "sessions": [
                {"number": 1, "client": "ab", "peer": "127.0.0.1:5", "uid": 0, "opens": 1,
                 "requests": done, "read_bytes": done * 4096, "written_bytes": 0,
                 "optimistic": {"references_told": 41, "named_reads": done * 2, "named_refused": 5,
                    "own_reads_per_second": 4000, "own_reads_stale_per_second": 6}},
                {"number": 2, "client": "cd", "peer": "\u{1b}[2Jx", "uid": 1000, "opens": 2,
                 "requests": done * 2, "read_bytes": 0, "written_bytes": done}
            ],
            "latency": {
                "bounds_ns": [1000, 2000, 4000], "requests_per_sample": {"cached_reads": 64},
                "kinds": {
                    "reads": {"timed": done, "sum_ns": done * 1500, "buckets": [0, done]},
                    "cached_reads": {"timed": done, "sum_ns": done, "buckets": [done]}
                }
            }
        })
    }

    pub fn sample(seconds: u64, done: u64) -> Sample {
        Sample::new(&status(seconds, done)).expect("a status")
    }

    #[test]
    fn rates_are_means_over_the_time_between() {
        let rates = Rates::between(&sample(10, 300), &sample(12, 900), Sort::Requests);
        assert_eq!(rates.interval_seconds, 2.0);
        assert_eq!((rates.requests, rates.read_bytes), (300.0, 300.0 * 4096.0));
        assert_eq!(rates.hit_ratio, Some(0.75));
        assert_eq!((rates.cpu, rates.store_reads), (0.3, 150.0));
        let numbers: Vec<u64> = rates.sessions.iter().map(|session| session.number).collect();
        assert_eq!((numbers, rates.sessions[0].requests), (vec![2, 1], 600.0));
        assert!(!rates.sessions[0].peer.contains('\u{1b}'), "no peer commands the terminal");
        let hits = &rates.latency[0];
        assert_eq!((hits.kind.as_str(), hits.requests), ("cached_reads", 300.0 * 64.0));
        let reads = &rates.latency[1];
        assert_eq!((reads.mean_us, reads.p50_us, reads.p99_us), (1.5, 2.0, 2.0));
        assert!(rates.lines().iter().any(|line| line.contains("hits 75.0%")));
    }

    #[test]
    fn reads_without_a_request_are_shown_where_there_may_be_some() {
        let rates = Rates::between(&sample(10, 300), &sample(12, 900), Sort::Requests);
        let told = [rates.optimistic_hits, rates.optimistic_stale, rates.optimistic_refused];
        assert_eq!((told, rates.references_told), ([5900.0, 7.0, 30.0], 42));
        let line = "without a request: hits 5900/s  stale 7/s  refused 30/s  references told 42  data plane cpu 0.12";
        let lines = rates.lines();
        assert!(lines.iter().any(|shown| shown == line), "{lines:?}");
        let of =
            |number: u64| lines.iter().find(|line| line.starts_with(&format!("session {number} ")));
        let (reader, other) = (of(1).expect("shown"), of(2).expect("shown"));
        assert!(reader.ends_with("without a request 4600/s stale 6/s refused 0/s"), "{reader}");
        assert!(!other.contains("without"), "{other}");
        let mut off = status(12, 900);
        off["counters"]["references_told"] = 0.into();
        off["counters"]["named_told"] = 0.into();
        let off =
            Rates::between(&sample(10, 300), &Sample::new(&off).expect("a status"), Sort::User);
        assert!(!off.lines().iter().any(|line| line.starts_with("without")));
    }

    #[test]
    fn what_no_client_can_have_done_is_shown_all_the_same() {
        let mut most = status(12, 900);
        most["own_reads_per_second"] = u64::MAX.into();
        most["counters"]["references_told"] = u64::MAX.into();
        most["sessions"][0]["optimistic"]["own_reads_per_second"] = u64::MAX.into();
        let most =
            Rates::between(&sample(10, 300), &Sample::new(&most).expect("a status"), Sort::User);
        assert_eq!(most.references_told, u64::MAX);
        assert!(most.lines().len() > 5);
    }

    #[test]
    fn a_server_that_does_nothing_has_no_ratio() {
        let rates = Rates::between(&sample(10, 300), &sample(12, 300), Sort::User);
        assert_eq!((rates.hit_ratio, rates.requests), (None, 0.0));
        assert_eq!(rates.sessions[0].uid, 0);
        assert_eq!(percent(rates.hit_ratio), "-");
        let same = Rates::between(&sample(10, 300), &sample(10, 300), Sort::User);
        assert_eq!(same.requests, 0.0);
    }

    #[test]
    fn a_server_that_was_started_anew_counts_from_its_start() {
        let rates = Rates::between(&sample(100, 3000), &sample(2, 30), Sort::Requests);
        assert_eq!((rates.interval_seconds, rates.requests), (2.0, 15.0));
        assert!(Sample::new(&json!({"counters": {}})).is_none());
    }
}
