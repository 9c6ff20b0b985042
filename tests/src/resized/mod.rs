//! A server whose cache shrinks by half and grows again, over and over, while clients read and
//! write; all of them on devices that [pin](crate::pinning), of which the server has two.

mod load;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dafs_fabric::Provider;
use dafs_server::{Config, Limits, Server};
use dafs_unifier::CacheDomains;

use crate::pinning::{Pinning, locked_bytes_of_process};
use load::{Load, WAYS};

/// The cache, and what it registers at a time.
const ARENA: u64 = 64 << 20;
const SEGMENT: u64 = ARENA / 16;
/// Of each load's file; all together are more than the cache.
const FILE_BYTES: usize = 24 << 20;
/// Looks at a cache that is to shrink, operations between two of them, and the least operations of
/// each load meanwhile.
const LOOKS_MAX: u32 = 5000;
const BETWEEN_LOOKS: u32 = 4;
const OPERATIONS_MIN: u32 = 40;
/// Looks at what is registered until it must be right.
const SETTLING_MAX: u32 = 200;
/// Beside the cache a server has bounce buffers and regions of replies.
const BESIDE_MAX: u64 = 48 << 20;

type Outcome<T = ()> = Result<T, String>;

/// What is to be done.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// How often the cache shrinks and grows.
    pub rounds: u32,
    /// Segments of the cache that each device of the server takes, of 16; the clients' takes nothing once
    /// they are connected.
    pub limit: Option<u64>,
}

/// What came out.
#[derive(Debug, Default)]
pub struct Report {
    /// Operations, each with its answer looked at.
    pub operations: u64,
    /// Looks until the cache was small, all rounds together.
    pub looks: u64,
    /// Regions that the server's devices made, and how often they refused one.
    pub registrations: (u64, u64),
    /// What the cache says of the latter.
    pub registrations_refused: u64,
    /// The most bytes that were locked for a device of the server.
    pub locked_max: u64,
    /// The most that were besides the cache.
    pub beside_max: u64,
    /// The most that were while the cache was small.
    pub locked_small_max: u64,
    /// Payload bytes that were copied.
    pub copied: u64,
    /// Blocks that the cache had, and that it had not.
    pub hits: (u64, u64),
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        let (regions, refused) = self.registrations;
        write!(
            f,
            "{} operations, {} looks, {regions} regions, {refused} refused, {} hits, {} misses, \
             {} MiB locked, {} while small, {} beside, {} copied",
            self.operations,
            self.looks,
            self.hits.0,
            self.hits.1,
            mib(self.locked_max),
            mib(self.locked_small_max),
            mib(self.beside_max),
            mib(self.copied)
        )
    }
}

/// Runs it.
///
/// # Errors
/// What went wrong: other bytes, a violation, a leak, memory that was not given back, a cache that
/// does not shrink.
pub fn run(plan: Plan) -> Outcome<Report> {
    crate::served::marks();
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    for number in 0..WAYS.len() {
        load::make_file(dir.path(), number, FILE_BYTES)?;
    }
    let copied = dafs_fabric::mem::copied_bytes();
    let networks = Networks::new();
    let went = World::new(dir.path(), plan, networks.clone()).and_then(World::run);
    // What went wrong may have begun with these.
    for provider in networks.all() {
        if let [first, ..] = provider.violations().as_slice() {
            return Err(format!("violation: {first}; {:?}", went.err()));
        }
    }
    let (mut report, models) = went?;
    report.copied = dafs_fabric::mem::copied_bytes() - copied;
    models.iter().try_for_each(|model| model.compare(dir.path()))?;
    for provider in networks.all() {
        match (provider.regions().len(), provider.locked_bytes()) {
            (0, 0) => {}
            (regions, bytes) => return Err(format!("{regions} regions, {bytes} bytes are left")),
        }
    }
    Ok(report)
}

/// The devices of the server, and that of all clients.
#[derive(Clone)]
struct Networks {
    server: [Pinning; 2],
    clients: Pinning,
}

impl Networks {
    fn new() -> Networks {
        let server = [Pinning::over_tcp().only(&["tcp"]), Pinning::over_tcp().only(&["unix"])];
        Networks { server, clients: Pinning::over_tcp() }
    }

    fn all(&self) -> impl Iterator<Item = &Pinning> {
        self.server.iter().chain([&self.clients])
    }
}

struct World {
    server: Server,
    _state: tempfile::TempDir,
    networks: Networks,
    loads: Vec<Load>,
    /// That of who resizes the cache.
    own: Load,
    plan: Plan,
    report: Report,
}

/// The cache is shared by the workers; each of them has pools of its own.
fn start(dir: &Path, state: &Path, networks: &Networks) -> Outcome<Server> {
    let mut config = Config::for_directory(dir);
    let socket = format!("unix:{}", state.join("socket").display());
    config.listen = vec!["tcp://127.0.0.1:0".into(), socket];
    config.arena_bytes = Some(ARENA);
    config.workers = Some(2);
    config.state = Some(state.to_owned());
    config.limits = Limits { sessions: 24, connections_unproven: 24, ..Limits::default() };
    let providers: Vec<Arc<dyn Provider>> =
        networks.server.iter().map(|one| Arc::new(one.clone()) as _).collect();
    Server::start(&config, providers, &dafs_store_posix::open).map_err(|error| error.to_string())
}

impl World {
    fn new(dir: &Path, plan: Plan, networks: Networks) -> Outcome<World> {
        let state = tempfile::tempdir().map_err(|error| error.to_string())?;
        load::make_file(dir, WAYS.len(), 4 << 20)?;
        let server = start(dir, state.path(), &networks)?;
        if let Some(segments) = plan.limit {
            for device in &networks.server {
                let beside = device.locked_bytes() - segments_of(device) * SEGMENT;
                device.limit_locked_bytes(beside + segments * SEGMENT);
            }
        }
        let new = |number| {
            let bytes = if number < WAYS.len() { FILE_BYTES } else { 4 << 20 };
            let address = &server.addresses()[number / 2 % 2];
            Load::new(Arc::new(networks.clients.clone()), address, number, bytes)
        };
        let loads = (0..WAYS.len()).map(new).collect::<Outcome<Vec<_>>>()?;
        let own = new(WAYS.len())?;
        if plan.limit.is_some() {
            networks.clients.limit_locked_bytes(networks.clients.locked_bytes());
        }
        let report = Report::default();
        Ok(World { server, _state: state, networks, loads, own, plan, report })
    }

    fn run(mut self) -> Outcome<(Report, Vec<load::Model>)> {
        for round in 0..self.plan.rounds {
            self.round().map_err(|error| format!("round {round}: {error}"))?;
        }
        self.end()
    }

    /// Half of the cache goes, and comes back.
    fn round(&mut self) -> Outcome {
        for target in [ARENA / 2, ARENA] {
            self.under_load(target)?;
            self.check(target)?;
        }
        Ok(())
    }

    /// Resizes the cache while all clients are busy.
    fn under_load(&mut self, target: u64) -> Outcome {
        let (unifier, own) = (self.server.shared().unifier(), &mut self.own);
        let resized = AtomicBool::new(false);
        let busy = |load: &mut Load| -> Outcome<u64> {
            let mut operations = 0;
            while operations < u64::from(OPERATIONS_MIN) || !resized.load(Ordering::Relaxed) {
                load.step()?;
                operations += 1;
            }
            Ok(operations)
        };
        let (looks, operations) = std::thread::scope(|scope| {
            let loads = self.loads.iter_mut();
            let threads: Vec<_> = loads.map(|load| scope.spawn(|| busy(load))).collect();
            let looks = resize(unifier, target, own);
            resized.store(true, Ordering::Relaxed);
            let ended = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err("a client panicked".into())));
            (looks, ended.sum::<Outcome<u64>>())
        });
        self.report.operations += operations?;
        self.report.looks += u64::from(looks?);
        Ok(())
    }

    /// The loads rest: what is registered and locked is what must be.
    fn check(&mut self, target: u64) -> Outcome {
        let (kept, seen) = self.settled()?;
        let report = &mut self.report;
        for Seen { segments, locked } in seen {
            report.beside_max = report.beside_max.max(locked - segments * SEGMENT);
            if kept <= target && target < ARENA {
                report.locked_small_max = report.locked_small_max.max(locked);
            }
        }
        let stats = self.server.shared().unifier().stats();
        if stats.decommits_refused > 0 {
            return Err(format!("{} segments were not given back", stats.decommits_refused));
        }
        let (ours, kernel) = locked_bytes_of_process();
        if ours != kernel {
            return Err(format!("{ours} bytes are to be locked, and {kernel} are"));
        }
        for provider in self.networks.all() {
            if let [first, ..] = provider.violations().as_slice() {
                return Err(format!("violation: {first}"));
            }
        }
        self.report.registrations_refused = stats.registrations_refused;
        self.report.hits = (stats.hits, stats.misses);
        Ok(())
    }

    /// What the cache keeps, and what each device of the server has for it. The server resizes its
    /// cache too: what is seen meanwhile is looked at again.
    fn settled(&mut self) -> Outcome<(u64, [Seen; 2])> {
        let mut last = String::new();
        for _ in 0..SETTLING_MAX {
            let unifier = self.server.shared().unifier();
            let kept = || ARENA - unifier.stats().decommitted_bytes;
            let before = kept();
            let seen = self.networks.server.each_ref().map(Seen::of);
            if before == kept() && seen.iter().all(|seen| seen.is_right(before, self.plan.limit)) {
                return Ok((before, seen));
            }
            last = format!("{before} bytes of cache, {seen:?}");
            self.own.step()?;
        }
        Err(last)
    }

    /// Ends in order.
    fn end(self) -> Outcome<(Report, Vec<load::Model>)> {
        let World { server, networks, loads, own, mut report, .. } = self;
        let ended = loads.into_iter().chain([own]).map(Load::end);
        let models = ended.collect::<Outcome<Vec<_>>>()?;
        match server.stop() {
            0 => {}
            files => return Err(format!("{files} files were not flushed")),
        }
        for device in &networks.server {
            let (made, refused) = device.registrations();
            report.registrations =
                (report.registrations.0 + made, report.registrations.1 + refused);
            report.locked_max = report.locked_max.max(device.locked_bytes_max());
        }
        match report.locked_max <= ARENA + BESIDE_MAX {
            true => Ok((report, models)),
            false => Err(format!("{} bytes were locked", report.locked_max)),
        }
    }
}

/// What a device of the server has.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// Segments of the cache that are registered.
    segments: u64,
    /// Bytes that are locked.
    locked: u64,
}

impl Seen {
    fn of(device: &Pinning) -> Seen {
        Seen { segments: segments_of(device), locked: device.locked_bytes() }
    }

    fn is_right(self, kept: u64, limit: Option<u64>) -> bool {
        let bytes = self.segments * SEGMENT;
        let is_registered = match limit {
            None => bytes == kept,
            Some(limit) => bytes <= kept && self.segments <= limit,
        };
        is_registered && (bytes..=bytes + BESIDE_MAX).contains(&self.locked)
    }
}

/// Segments of the cache that are registered: nothing else is of that size.
fn segments_of(provider: &Pinning) -> u64 {
    let regions = provider.regions();
    regions.iter().filter(|region| region.end - region.start == SEGMENT).count() as u64
}

/// As the server does while memory is short, or is not any more; how many looks it took. Another client
/// works between two looks.
fn resize(unifier: &CacheDomains, target: u64, own: &mut Load) -> Outcome<u32> {
    let is_there = |kept: u64| if target < ARENA { kept <= target } else { kept == target };
    for look in 1..=LOOKS_MAX {
        let kept = unifier.resize(target);
        if is_there(kept) {
            return Ok(look);
        }
        for _ in 0..BETWEEN_LOOKS {
            own.step()?;
        }
    }
    Err(format!("the cache is not of {target} bytes after {LOOKS_MAX} looks"))
}
