//! A server that runs: an acceptor, workers, the admin port.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use dafs_fabric::{Address, ConnectError, Domain, Listener, Providers};
use dafs_message::{Node, NodeConfig};
use dafs_protocol::{Dialled, Identity, SameHostToken, WriteVerifier};
use dafs_store::{Disk, OpenStore};

use crate::acceptor::Acceptor;
use crate::admin::Admin;
use crate::cache_memory::{Caches, Layout, arena_bytes, is_near};
use crate::clean_end::{EndMark, first_verifier};
use crate::clients::ClientRecords;
use crate::config::{Config, ConfigError, ExportConfig};
use crate::exports::{Export, Exports};
use crate::host::{fill_random, machine_run, memory_bytes, process_stats, stopwatch, thread_time};
use crate::identity;
use crate::intent_log::LogStore;
use crate::limits::Limits;
use crate::local;
use crate::mailbox::Mailbox;
use crate::memory_pressure::{self, Watch};
use crate::paths::{DataPath, PageCache};
use crate::recorder::Recorder;
use crate::records::{FileRecords, NoRecords};
use crate::same_host;
use crate::scopes::Scopes;
use crate::shared::{Key, Shared, SharedOptions};
use crate::start_error::StartError;
use crate::users::Users;
use crate::worker::Worker;
use crate::worker_loop::{attach_thread, work};

/// How long an end waits for the disk to sync what was written.
const SYNC_PATIENCE: Duration = Duration::from_secs(30);

/// A running server. Dropping it stops it without waiting for the flush; use [`stop`](Self::stop).
pub struct Server {
    addresses: Vec<Address>,
    admin: Admin,
    arena_bytes: usize,
    shared: Arc<Shared>,
    stopping: Arc<AtomicBool>,
    mailboxes: Vec<Arc<Mailbox>>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Starts to serve. Returns when clients can connect.
    ///
    /// # Errors
    /// [`StartError`] names the directory, address or file at fault.
    pub fn start(
        config: &Config,
        providers: impl Into<Providers>,
        open_store: &OpenStore,
    ) -> Result<Server, StartError> {
        let key = check(config)?;
        let addresses = config.addresses()?;
        let domain = Domain::open_all(&providers.into())?;
        for (network, reason) in domain.missing().iter().filter(|_| config.same_host) {
            tracing::warn!(network, reason, "clients of this machine come by another network");
        }
        let layout = Layout::new(config, is_near(config, &addresses, &domain));
        // What is wrong with a directory is said, whoever has the port.
        let exports = open_exports(config, &layout, open_store)?;
        check_data_paths(config, &domain)?;
        let Listeners { public, local, same_host } = listen(&domain, &addresses, config)?;
        let addresses: Vec<_> = public.iter().map(|listener| listener.address()).collect();
        // Dropped in this order: a local socket is gone before the next server can have its port.
        let listeners = local.into_iter().chain(public).collect();
        let trees = Trees { exports, key, same_host, layout };
        let shared = share(config, &addresses, trees, &domain)?;
        let arena_bytes = shared.process.arena_bytes;
        let admin = Admin::start(config.admin.as_deref(), &addresses, shared.clone())?;
        let stopping = Arc::new(AtomicBool::new(false));
        let mut server = Server {
            addresses,
            admin,
            arena_bytes,
            shared: shared.clone(),
            stopping: stopping.clone(),
            mailboxes: Vec::new(),
            threads: Vec::new(),
        };
        let count = config.workers.unwrap_or_else(default_workers);
        for number in 0..count {
            server.start_worker(number, &domain)?;
        }
        let acceptor = Acceptor {
            listeners,
            mailboxes: server.mailboxes.clone(),
            next: 0,
            anonymous: config.insecure.then(|| Identity {
                uid: config.anon_uid,
                gid: config.anon_gid,
                groups: Vec::new(),
            }),
            squash: squash(config),
            users: Users::new(|uid| identity::with_groups(uid).map_err(|error| error.to_string())),
            stopping,
            shared,
        };
        server.spawn("dafs-accept", move || acceptor.run())?;
        server.watch_memory()?;
        server.prefault_memory()?;
        Ok(server)
    }

    /// The cache takes less while memory is short.
    fn watch_memory(&mut self) -> std::io::Result<()> {
        let (unifier, stopping) = (self.shared.unifier.clone(), self.stopping.clone());
        let mut watch = Watch::new(self.arena_bytes as u64);
        if let Some(room) = watch.at_start() {
            watch.resized(unifier.resize(room));
        }
        self.spawn("dafs-memory", move || {
            let mut refused = (0, 0);
            while !stopping.load(Ordering::SeqCst) {
                std::thread::park_timeout(memory_pressure::INTERVAL);
                if let Some(size) = watch.look().or_else(|| unifier.shrinks_to()) {
                    let now = unifier.resize(size);
                    tracing::debug!("memory: the cache is to take {size} bytes, and takes {now}");
                    watch.resized(now);
                }
                unifier.balance();
                unifier.give_back_again();
                let stats = unifier.stats();
                let before = refused;
                refused = (stats.decommits_refused, stats.registrations_refused);
                if before.0 == 0 && refused.0 > 0 {
                    tracing::warn!("memory: the system does not take back what the cache gives");
                }
                if before.1 == 0 && refused.1 > 0 {
                    tracing::warn!(
                        "memory: the transport does not take all of the cache, and the rest is copied: \
                         raise the limit of locked memory (ulimit -l)"
                    );
                }
            }
        })
    }

    /// The cache has memory before a worker needs it.
    fn prefault_memory(&mut self) -> std::io::Result<()> {
        let (unifier, stopping) = (self.shared.unifier.clone(), self.stopping.clone());
        self.spawn("dafs-pages", move || {
            let goes_on = || !stopping.load(Ordering::SeqCst);
            while goes_on() {
                unifier.prefault(&std::thread::current(), goes_on);
                std::thread::park();
            }
        })
    }

    fn start_worker(&mut self, number: usize, domain: &Arc<Domain>) -> Result<(), StartError> {
        let node = Node::new(domain.clone(), node_config(&self.shared.limits))
            .map_err(|error| StartError::Node(error.to_string()))?;
        let shared = self.shared.clone();
        let stopping = self.stopping.clone();
        let (sender, receiver) = std::sync::mpsc::channel();
        self.spawn(&format!("dafs-worker-{number}"), move || {
            let number = u16::try_from(number).unwrap_or(0);
            let store_io = attach_thread(&shared);
            let worker = Worker::new(number, node, shared);
            if sender.send(worker.mailbox()).is_ok() {
                work(worker, store_io, &stopping);
            }
        })?;
        let lost = || std::io::Error::other("a worker thread ended early");
        self.mailboxes.push(receiver.recv().map_err(|_| lost())?);
        Ok(())
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(run)?;
        self.threads.push(thread);
        Ok(())
    }

    /// Where it listens, with the ports that were chosen.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Where the counters are.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin.address()
    }

    /// Bytes of the cache.
    pub fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }

    /// What it shares with its workers: exports, counters.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Ends all sessions, flushes everything to the file system and returns when that is done: how
    /// many open files had data that could not be written. The log names them.
    pub fn stop(mut self) -> u64 {
        self.signal_stop();
        let mut in_order = true;
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a server thread panicked");
                in_order = false;
            }
        }
        if in_order {
            self.conclude();
        }
        if let Some(recorder) = &self.shared.recorder {
            recorder.finish();
        }
        self.shared.sessions.ended.unflushed()
    }

    /// Tells the next server that all is safe, if it is. A disk that does not answer does not hold up
    /// the end.
    fn conclude(&self) {
        let (shared, (done, ended)) = (self.shared.clone(), std::sync::mpsc::channel());
        let run = move || {
            let _ = done.send(shared.conclude());
        };
        let thread = std::thread::Builder::new().name("dafs-end".into()).spawn(run);
        if thread.is_ok() && ended.recv_timeout(SYNC_PATIENCE).is_err() {
            tracing::error!("gave up syncing: the disk does not answer");
        }
    }

    fn signal_stop(&self) {
        // Before another server can have the port.
        self.shared.shown.end();
        self.stopping.store(true, Ordering::SeqCst);
        for mailbox in &self.mailboxes {
            mailbox.ready.wake_worker();
        }
        for thread in &self.threads {
            thread.thread().unpark();
        }
        self.admin.stop();
    }
}

/// What a server would be, without starting it.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where it would listen.
    pub addresses: Vec<Address>,
    /// Bytes of its cache.
    pub arena_bytes: usize,
    /// Threads that serve.
    pub workers: usize,
    /// True where callers must have a key.
    pub has_key: bool,
}

impl Plan {
    /// Checks all that can be known without listening.
    ///
    /// # Errors
    /// What [`Server::start`] would end with.
    pub fn new(config: &Config) -> Result<Plan, StartError> {
        let key = check(config)?;
        Ok(Plan {
            addresses: config.addresses()?,
            arena_bytes: arena_bytes(config),
            workers: config.workers.unwrap_or_else(default_workers),
            has_key: key.is_some(),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.signal_stop();
    }
}

fn default_workers() -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    (cpus / 4).clamp(1, 8)
}

struct Listeners {
    /// Where clients are told to connect.
    public: Vec<Box<dyn Listener>>,
    /// Where those of this host find it, too.
    local: Vec<Box<dyn Listener>>,
    /// By this, where some of them are networks of this host alone.
    same_host: Option<SameHostToken>,
}

fn listen(
    domain: &Domain,
    addresses: &[Address],
    config: &Config,
) -> Result<Listeners, StartError> {
    let by_default = config.listen == Config::default().listen;
    let (mut public, mut local) = (Vec::new(), Vec::new());
    for address in addresses {
        match domain.listen(address) {
            Ok(listener) => {
                let wanted = &config.local_socket;
                local.extend(local::beside(domain, address, &listener.address(), wanted));
                public.push(listener);
            }
            // A machine without IPv6 still serves by default.
            Err(error) if by_default && !public.is_empty() && has_no_ipv6(&error) => {
                tracing::warn!(%address, %error, "not listening");
            }
            Err(source) => return Err(StartError::Listen { address: address.clone(), source }),
        }
    }
    let mut token = SameHostToken::default();
    fill_random(&mut token);
    let near = match config.same_host {
        true => same_host::listen(domain, token, config),
        false => Vec::new(),
    };
    let same_host = near.iter().any(|near| near.by_token).then_some(token);
    local.extend(near.into_iter().map(|near| near.listener));
    Ok(Listeners { public, local, same_host })
}

fn has_no_ipv6(error: &ConnectError) -> bool {
    use nix::libc::{EADDRNOTAVAIL, EAFNOSUPPORT};
    match error {
        ConnectError::Io(error) => {
            matches!(error.raw_os_error(), Some(EADDRNOTAVAIL | EAFNOSUPPORT))
        }
        _ => false,
    }
}

fn check_data_paths(config: &Config, domain: &Domain) -> Result<(), StartError> {
    let path = config.exports.iter().map(|e| e.data_path).find(|path| path.sends_from_files());
    // A network of this host alone is passed over, unless it is named.
    let named: Vec<_> = config.addresses()?.iter().map(|at| domain.reaches(at)).collect();
    let unfit = domain.parts().iter().enumerate().find(|(number, part)| {
        let is_needed =
            named.contains(&Some(*number)) || part.device().same_host([0; 16]).is_none();
        is_needed && !part.attr().file_spans
    });
    let unfit = unfit.map(|(_, part)| part.attr());
    match (path, unfit) {
        (Some(path), Some(attr)) => Err(StartError::DataPath { path, transport: attr.provider }),
        _ => Ok(()),
    }
}

/// All that can be wrong with a configuration, but what only the use of directories and addresses tells.
fn check(config: &Config) -> Result<Option<Key>, StartError> {
    config.check()?;
    config.addresses()?;
    check_overlap(config)?;
    config.check_arena(memory_bytes())?;
    let own = nix::unistd::geteuid().as_raw();
    if config.insecure && own != 0 && config.anon_uid != own {
        return Err(StartError::AnonymousUid(own));
    }
    Ok(config.key_file.as_deref().map(|path| load_key(config, path)).transpose()?)
}

/// What is served, and to whom.
struct Trees {
    exports: Exports,
    key: Option<Key>,
    same_host: Option<SameHostToken>,
    layout: Layout,
}

fn share(
    config: &Config,
    addresses: &[Address],
    Trees { exports, key, same_host, layout }: Trees,
    domain: &Arc<Domain>,
) -> Result<Arc<Shared>, StartError> {
    let own = nix::unistd::geteuid().as_raw();
    let mut process = [0; 8];
    fill_random(&mut process);
    let Kept { records, intent_log, end_mark, numbers } = state(config);
    let new = WriteVerifier::new(machine_run(), process);
    let verifier = end_mark.as_deref().map_or(new, |mark| first_verifier(mark, new));
    let epoch = u32::from_le_bytes(*process.first_chunk().expect("eight bytes"));
    let epoch = (epoch & dafs_protocol::EPOCH_MAX).max(1);
    let caches = layout.caches(config, (domain, own), (epoch, verifier))?;
    let Caches { unifier, bytes, shown, maker } = caches;
    let is_unified = config.exports.iter().all(|e| e.data_path == DataPath::Unifier);
    let page_cache = match is_unified {
        true => None,
        false => Some(PageCache::new(&config.limits, own, verifier)?),
    };
    let recorder = config.record_trace.as_deref().map(Recorder::create).transpose();
    let recorder = recorder.map_err(|source| StartError::Trace {
        path: config.record_trace.clone().unwrap_or_default(),
        source,
    })?;
    Ok(Shared::new(SharedOptions {
        recorder,
        exports,
        unifier,
        shown,
        scopes: maker.map(|maker| Box::new(Scopes::new(maker))),
        page_cache,
        arena_bytes: bytes,
        limits: Limits { rdma_read: config.rdma_read, ..config.limits.clone() },
        key,
        addresses: addresses.iter().map(Address::to_string).collect(),
        same_host,
        own: Identity { uid: own, gid: nix::unistd::getegid().as_raw(), groups: Vec::new() },
        records,
        intent_log,
        end_mark,
        numbers,
        entropy: Box::new(fill_random),
        process_stats: Box::new(process_stats),
        stopwatch: stopwatch(),
        thread_time: Box::new(thread_time),
    }))
}

/// What is kept over restarts.
struct Kept {
    records: Box<dyn ClientRecords>,
    intent_log: Option<Box<dyn LogStore>>,
    end_mark: Option<Box<dyn EndMark>>,
    numbers: Option<std::fs::File>,
}

/// Where there is no place for it, every start begins with a grace period, and nobody knows what
/// became of changes that were under way.
fn state(config: &Config) -> Kept {
    let open = || {
        let directory = match &config.state {
            Some(directory) => directory.clone(),
            None => state_directory().ok_or_else(|| std::io::Error::other("no home directory"))?,
        };
        let served = config.exports.iter().map(|export| export.path.as_path());
        FileRecords::open(&directory, served).map_err(|error| {
            std::io::Error::new(error.kind(), format!("{}: {error}", directory.display()))
        })
    };
    match open() {
        Ok(records) => {
            let intent_log = records.intent_log();
            if let Err(error) = &intent_log {
                tracing::warn!(%error, "what becomes of changes cannot be noted");
            }
            let numbers = records.numbers();
            if let Err(error) = &numbers {
                tracing::warn!(%error, "numbers of files may be others after a restart");
            }
            let intent_log =
                intent_log.ok().map(|intent_log| Box::new(intent_log) as Box<dyn LogStore>);
            let end_mark: Option<Box<dyn EndMark>> = Some(Box::new(records.end_mark()));
            Kept { records: Box::new(records), intent_log, end_mark, numbers: numbers.ok() }
        }
        Err(error) => {
            let records = Box::new(NoRecords(error.to_string()));
            Kept { records, intent_log: None, end_mark: None, numbers: None }
        }
    }
}

fn state_directory() -> Option<PathBuf> {
    if nix::unistd::geteuid().is_root() {
        return Some("/var/lib/dafs".into());
    }
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let home = || Some(absolute("HOME")?.join(".local/state"));
    Some(absolute("XDG_STATE_HOME").or_else(home)?.join("dafs"))
}

/// A file that two data paths reach would be cached by one behind the back of the other.
fn check_overlap(config: &Config) -> Result<(), StartError> {
    let real = |export: &ExportConfig| export.path.canonicalize().ok();
    for (i, a) in config.exports.iter().enumerate() {
        for b in config.exports.iter().skip(i + 1).filter(|b| b.data_path != a.data_path) {
            let (Some(one), Some(other)) = (real(a), real(b)) else { continue };
            if one.starts_with(&other) || other.starts_with(&one) {
                return Err(StartError::Export {
                    path: a.path.display().to_string(),
                    reason: format!("{} has another data path", b.path.display()),
                });
            }
        }
        if config.shares(a) {
            continue;
        }
        // Its files would be among those that all may read.
        for b in config.exports.iter().filter(|b| config.shares(b)) {
            let (Some(one), Some(other)) = (real(a), real(b)) else { continue };
            if one.starts_with(&other) {
                return Err(StartError::Export {
                    path: a.path.display().to_string(),
                    reason: format!("it lies in {}, which shares its cache", b.path.display()),
                });
            }
        }
    }
    Ok(())
}

fn open_exports(
    config: &Config,
    layout: &Layout,
    open_store: &OpenStore,
) -> Result<Exports, StartError> {
    let open = |(number, export): (usize, &ExportConfig)| {
        let read_only = export.read_only;
        // The other data paths are the page cache's.
        let disk = match export.data_path {
            DataPath::Unifier => config.disk,
            _ => Disk::Buffered,
        };
        let path = export.path.display().to_string();
        match open_store(&export.path, read_only, disk) {
            Ok(store) => Ok(Export {
                name: export.name.clone(),
                store,
                read_only: export.read_only,
                policy: export.policy.or(config.policy).unwrap_or_default(),
                data_path: export.data_path,
                path,
                domain: layout.domain_of(number),
                share_cache: layout.shares(number),
                optimistic: export.optimistic.unwrap_or(config.optimistic),
            }),
            Err(reason) => Err(StartError::Export { path, reason }),
        }
    };
    Ok(Exports::new(config.exports.iter().enumerate().map(open).collect::<Result<_, _>>()?))
}

fn squash(config: &Config) -> fn(Identity) -> Identity {
    if config.squash_root { identity::squash } else { |who| who }
}

/// A key is as good as its file is private: its holders act as the file's owner.
fn load_key(config: &Config, path: &Path) -> Result<Key, ConfigError> {
    let failed = |reason: String| ConfigError::KeyFile { path: path.into(), reason };
    let meta = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?;
    if meta.mode() & 0o077 != 0 {
        return Err(failed("others may read it: chmod 600".into()));
    }
    let bytes = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    let key = bytes.trim_ascii().to_vec();
    if key.len() < 16 {
        return Err(failed("shorter than 16 bytes: try `head -c 32 /dev/urandom | base64`".into()));
    }
    let who = identity::with_groups(meta.uid()).map_err(|e| failed(e.to_string()))?;
    let who = squash(config)(who);
    let known_as = config.known_as.iter().copied().map(Dialled::from).collect();
    Ok(Key { bytes: key, who, known_as })
}

/// Connections of one worker.
const CONNECTIONS_MAX: usize = 65_536;
/// Receives of one worker: 1 GiB of addresses, of which memory is used as messages come.
const RECEIVES_MAX: usize = 1 << 20;

/// Room for all sessions that the limits allow, each with two connections.
fn node_config(limits: &Limits) -> NodeConfig {
    let connections_max = limits
        .sessions
        .saturating_mul(2)
        .saturating_add(limits.connections_unproven)
        .min(CONNECTIONS_MAX);
    let receives = connections_max * (usize::from(limits.slots) + 2);
    NodeConfig {
        stand_in_bytes: limits.data_bytes as usize,
        connections_max,
        receives_max: receives.clamp(4096, RECEIVES_MAX),
        ..NodeConfig::default()
    }
}
