//! What a server is told: programmatically, or by a TOML file.

use std::net::SocketAddr;
use std::path::PathBuf;

use dafs_fabric::Address;
use dafs_store::Disk;
use dafs_unifier::Policy;
use serde::{Deserialize, Deserializer};

use crate::config_keys::{self, ARENA_BYTES_MIN};
use crate::limits::Limits;
pub use crate::optimistic::{Optimistic, OptimisticScope};
use crate::paths::DataPath;
use crate::values;

/// A directory to serve.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportConfig {
    /// First component of its URLs; not used while there is only one export.
    #[serde(default)]
    pub name: String,
    /// The directory.
    pub path: PathBuf,
    /// Refuse all changes.
    #[serde(default)]
    pub read_only: bool,
    /// Its files have a cache of their own, which peers of any user may map to read, where a network shares
    /// memory.
    #[serde(default)]
    pub share_cache: bool,
    /// How clients read what is cached of it without asking; `None`: as the server's.
    #[serde(default, deserialize_with = "some_optimistic")]
    pub optimistic: Option<Optimistic>,
    /// The cache's replacement policy for its files, `lru` or `mq`; `None`: the server's.
    #[serde(default, deserialize_with = "policy")]
    pub policy: Option<Policy>,
    /// How data of its files goes between the store and the network.
    #[serde(default, rename = "datapath")]
    pub data_path: DataPath,
}

/// Where a server on loopback TCP has its local sockets, by which clients of its host come.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LocalSocket {
    /// Where clients look for them: `/run/dafs` for root, otherwise `$XDG_RUNTIME_DIR/dafs`. Only of
    /// ports that were named.
    #[default]
    Auto,
    /// Nowhere.
    Off,
    /// In this directory, which only the server's user may write.
    In(PathBuf),
}

impl std::str::FromStr for LocalSocket {
    type Err = String;
    fn from_str(text: &str) -> Result<LocalSocket, String> {
        match text {
            "auto" => Ok(LocalSocket::Auto),
            "none" => Ok(LocalSocket::Off),
            path if path.starts_with('/') => Ok(LocalSocket::In(path.into())),
            _ => Err("expected auto, none or the absolute path of a directory".into()),
        }
    }
}

/// Everything a server can be told. Unknown keys in a file are errors.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// What is served, at least one.
    #[serde(rename = "export")]
    pub exports: Vec<ExportConfig>,
    /// Addresses, as `tcp://HOST:PORT` or `unix:/path`.
    pub listen: Vec<String>,
    /// `auto`, `none`, or a directory.
    #[serde(deserialize_with = "local_socket")]
    pub local_socket: LocalSocket,
    /// Whether clients of its host may come by networks of this host alone, as shared memory is one, where
    /// there are such.
    pub same_host: bool,
    /// Whether the cache is memory that clients of the server's own user and of root may read by themselves,
    /// where a network shares memory.
    pub shared_cache: bool,
    /// How they read it without asking.
    #[serde(deserialize_with = "optimistic")]
    pub optimistic: Optimistic,
    /// Whose programs map which parts of the cache: `owner`, `export` or `root`.
    #[serde(deserialize_with = "optimistic_scope")]
    pub optimistic_scope: OptimisticScope,
    /// Bytes of the cache; `None`: a quarter of memory.
    #[serde(deserialize_with = "values::some_bytes")]
    pub arena_bytes: Option<u64>,
    /// The cache's replacement policy, `lru` or `mq`; `None`: `mq`.
    #[serde(deserialize_with = "policy")]
    pub policy: Option<Policy>,
    /// Writes what is read and written into this file, for a simulation of the cache.
    pub record_trace: Option<PathBuf>,
    /// How file data gets from the disk to the cache and back: `auto`, `direct` or `buffered`.
    #[serde(deserialize_with = "disk")]
    pub disk: Disk,
    /// Threads that serve; `None`: one per four processors, at most 8.
    pub workers: Option<usize>,
    /// A pre-shared key: allows addresses other than loopback.
    pub key_file: Option<PathBuf>,
    /// Addresses by which holders of the key reach the server through proxies or address translation.
    /// Other than these, and those at which it is reached in fact, are taken for somebody who passes
    /// the proof on.
    pub known_as: Vec<SocketAddr>,
    /// Allow other addresses without a key: every caller is then `anon_uid`.
    pub insecure: bool,
    /// Who callers without proof are.
    pub anon_uid: u32,
    /// Their group.
    pub anon_gid: u32,
    /// Peers that are proved to be root, by the kernel or by root's key file, are nobody (65534).
    pub squash_root: bool,
    /// Whether the server may fetch data by RDMA read.
    pub rdma_read: bool,
    /// Address of the admin port (counters); `None`: a free port of 127.0.0.1.
    pub admin: Option<String>,
    /// Where it keeps which clients may have locks, and what became of changes; `None`: `/var/lib/dafs` for root, otherwise
    /// `dafs` in `$XDG_STATE_HOME` or `~/.local/state`.
    pub state: Option<PathBuf>,
    /// Limits.
    pub limits: Limits,
}

fn local_socket<'de, D: Deserializer<'de>>(from: D) -> Result<LocalSocket, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}

fn optimistic<'de, D: Deserializer<'de>>(from: D) -> Result<Optimistic, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}

fn optimistic_scope<'de, D: Deserializer<'de>>(from: D) -> Result<OptimisticScope, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}

fn some_optimistic<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Optimistic>, D::Error> {
    optimistic(from).map(Some)
}

fn disk<'de, D: Deserializer<'de>>(from: D) -> Result<Disk, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}

/// Each takes memory to describe its part of the cache.
const SHARED_CACHES_MAX: usize = 8;

/// The port a URL without one means.
pub const DEFAULT_PORT: u16 = 20490;

impl Default for Config {
    fn default() -> Config {
        Config {
            exports: Vec::new(),
            listen: vec![
                format!("{}://127.0.0.1:{DEFAULT_PORT}", Address::DEFAULT_SCHEME),
                format!("{}://[::1]:{DEFAULT_PORT}", Address::DEFAULT_SCHEME),
            ],
            local_socket: LocalSocket::Auto,
            same_host: true,
            shared_cache: true,
            optimistic: Optimistic::Trusted,
            optimistic_scope: OptimisticScope::Owner,
            arena_bytes: None,
            policy: None,
            record_trace: None,
            disk: Disk::default(),
            workers: None,
            key_file: None,
            known_as: Vec::new(),
            insecure: false,
            anon_uid: 65_534,
            anon_gid: 65_534,
            squash_root: false,
            rdma_read: true,
            admin: None,
            state: None,
            limits: Limits::default(),
        }
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Nothing to serve.
    #[error("nothing to serve: name a directory")]
    NoExport,
    /// Two exports of one name, or one without a name among several.
    #[error("export '{0}': with several exports each needs a name of its own, without '/'")]
    ExportName(String),
    /// Not an address.
    #[error(
        "listen address '{0}': expected {network}://HOST:PORT or {local}:/path, \
         or of another network NAME://HOST:PORT or NAME:/path",
        network = Address::DEFAULT_SCHEME,
        local = Address::LOCAL_SCHEME
    )]
    Address(String),
    /// Reachable from elsewhere, and nothing to prove who calls.
    #[error(
        "listen address '{0}' can be reached from other machines: give --key-file FILE, \
         or --insecure to treat every caller as nobody"
    )]
    NotLoopback(String),
    /// The key file.
    #[error("key file {path} (--key-file, key_file): {reason}")]
    KeyFile {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The admin port answers whoever asks.
    #[error("admin port {0}: expected a loopback address with a port, as 127.0.0.1:9100")]
    Admin(String),
    /// A number that is out of its range.
    #[error("'{name}' is {value}: expected {range}")]
    Range {
        /// Of the key.
        name: &'static str,
        /// What was given.
        value: u64,
        /// What it may be.
        range: &'static str,
    },
    /// A cache that is smaller than any, in bytes.
    #[error("a cache of {0} bytes (--arena, arena_bytes): the least is 16m")]
    ArenaTooSmall(u64),
    /// An export that is to share a cache that there is not.
    #[error("export '{export}': share_cache (--share-cache) {reason}")]
    ShareCache {
        /// Its directory.
        export: String,
        /// What is against it.
        reason: &'static str,
    },
    /// Less than each of several caches needs, in bytes.
    #[error(
        "a cache of {bytes} bytes (--arena, arena_bytes) for {domains} caches, of the exports with share_cache \
         and of the others: the least is 16m for each"
    )]
    ArenaOfDomains {
        /// All together.
        bytes: u64,
        /// How many.
        domains: usize,
    },
    /// More for the cache than the machine has.
    #[error(
        "a cache of {asked} (--arena, arena_bytes), and this machine has {has} of memory: \
         --arena {fits} leaves room for others"
    )]
    ArenaTooLarge {
        /// What was given.
        asked: String,
        /// Memory.
        has: String,
        /// What would do.
        fits: String,
    },
}

impl Config {
    /// A server of one directory with all defaults.
    pub fn for_directory(path: impl Into<PathBuf>) -> Config {
        let export = ExportConfig {
            name: String::new(),
            path: path.into(),
            read_only: false,
            share_cache: false,
            optimistic: None,
            policy: None,
            data_path: DataPath::default(),
        };
        Config { exports: vec![export], ..Config::default() }
    }

    /// Checks everything that can be known without the system.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.exports.is_empty() {
            return Err(ConfigError::NoExport);
        }
        if self.exports.len() > 1 {
            for (i, export) in self.exports.iter().enumerate() {
                let name = &export.name;
                let twice = self.exports.iter().skip(i + 1).any(|other| other.name == *name);
                if name.is_empty() || name.contains('/') || twice || self.exports.len() > 200 {
                    return Err(ConfigError::ExportName(name.clone()));
                }
            }
        }
        if let Some(admin) = self.admin.as_ref().filter(|admin| !is_loopback_with_port(admin)) {
            return Err(ConfigError::Admin(admin.clone()));
        }
        if let Some(bytes) = self.arena_bytes.filter(|bytes| *bytes < ARENA_BYTES_MIN) {
            return Err(ConfigError::ArenaTooSmall(bytes));
        }
        self.check_domains()?;
        self.numbers().into_iter().try_for_each(|(name, value)| in_range(name, value))
    }

    /// Exports that share their caches have one each.
    fn check_domains(&self) -> Result<(), ConfigError> {
        let sharing = self.exports.iter().filter(|export| self.shares(export));
        for (place, export) in sharing.enumerate() {
            let reason = match export.data_path {
                DataPath::Unifier if !self.shared_cache => {
                    "and shared_cache = false exclude each other"
                }
                // Its memory is of root, by whose number such a peer opens it anew for writing.
                DataPath::Unifier if self.squash_root => {
                    "and squash_root exclude each other: root, of a container say, could write to what all read"
                }
                DataPath::Unifier if place < SHARED_CACHES_MAX => continue,
                DataPath::Unifier => {
                    "is for 8 exports at most, each of which has a cache of its own"
                }
                _ => "is for the data path unifier",
            };
            let export = export.path.display().to_string();
            return Err(ConfigError::ShareCache { export, reason });
        }
        let domains = self.cache_domains();
        match self.arena_bytes.filter(|bytes| *bytes < ARENA_BYTES_MIN * domains as u64) {
            Some(bytes) => Err(ConfigError::ArenaOfDomains { bytes, domains }),
            None => Ok(()),
        }
    }

    /// Whoever is let in may map the cache of this export.
    pub fn shares(&self, export: &ExportConfig) -> bool {
        export.share_cache || self.optimistic_scope == OptimisticScope::Export
    }

    /// How many caches there are when it starts: one of each export that shares it, one of all others.
    pub(crate) fn cache_domains(&self) -> usize {
        let sharing = self.exports.iter().filter(|export| self.shares(export)).count();
        sharing + usize::from(sharing < self.exports.len())
    }

    /// Those of which a range is checked.
    fn numbers(&self) -> Vec<(&'static str, u64)> {
        let limits = &self.limits;
        let workers = self.workers.map(|number| ("workers", number as u64));
        let of_limits = [
            ("sessions", limits.sessions as u64),
            ("opens_per_session", limits.opens_per_session as u64),
            ("slots", u64::from(limits.slots)),
            ("data_bytes", u64::from(limits.data_bytes)),
            ("push_bytes", u64::from(limits.push_bytes)),
            ("request_bytes", limits.request_bytes as u64),
            ("lease_seconds", u64::from(limits.lease_seconds)),
            ("setup_seconds", u64::from(limits.setup_seconds)),
        ];
        workers.into_iter().chain(of_limits).collect()
    }

    /// Checks that the cache fits into the memory of a machine.
    ///
    /// # Errors
    /// [`ConfigError::ArenaTooLarge`].
    pub(crate) fn check_arena(&self, memory_bytes: usize) -> Result<(), ConfigError> {
        let memory = memory_bytes as u64;
        match self.arena_bytes.filter(|bytes| *bytes > memory) {
            Some(bytes) => Err(ConfigError::ArenaTooLarge {
                asked: mebibytes(bytes),
                has: mebibytes(memory),
                fits: mebibytes(memory / 4 * 3),
            }),
            None => Ok(()),
        }
    }

    /// The addresses, taken apart; those that other machines reach are refused without proof.
    ///
    /// # Errors
    /// [`ConfigError::Address`], [`ConfigError::NotLoopback`].
    pub fn addresses(&self) -> Result<Vec<Address>, ConfigError> {
        self.listen.iter().map(|text| self.address(text)).collect()
    }

    fn address(&self, text: &str) -> Result<Address, ConfigError> {
        let bad = || ConfigError::Address(text.to_string());
        let mut address = parse_address(text).ok_or_else(bad)?;
        if address.is_path() {
            // What clients are told must be a path for them, too.
            let path = std::path::absolute(&address.target).map_err(|_| bad())?;
            return Ok(Address { target: path.to_string_lossy().into_owned(), ..address });
        }
        if address.scheme != Address::DEFAULT_SCHEME && !text.contains("://") {
            return Err(bad());
        }
        let (host, port) = host_and_port(&address.target).ok_or_else(bad)?;
        let proven = self.key_file.is_some() || self.insecure;
        if !is_loopback(host) && !proven {
            return Err(ConfigError::NotLoopback(text.to_string()));
        }
        address.target = format!("{host}:{port}");
        Ok(address)
    }
}

fn in_range(name: &'static str, value: u64) -> Result<(), ConfigError> {
    match config_keys::bounds(name) {
        Some((range, least, most)) if !(least..=most).contains(&value) => {
            Err(ConfigError::Range { name, value, range })
        }
        _ => Ok(()),
    }
}

/// As an option takes it.
fn mebibytes(bytes: u64) -> String {
    format!("{}m", bytes >> 20)
}

/// With or without a scheme: `HOST:PORT` is meant for the usual network, `/path` for this machine.
fn parse_address(text: &str) -> Option<Address> {
    let is_host = |name: &str| name.contains(['.', '[']) || name == "localhost";
    match text.split_once(':') {
        _ if text.starts_with('/') => Some(Address::local(std::path::Path::new(text))),
        Some((host, rest)) if is_host(host) && !rest.starts_with("//") => {
            Address::parse(&format!("{}://{text}", Address::DEFAULT_SCHEME))
        }
        _ => Address::parse(text),
    }
}

fn policy<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Policy>, D::Error> {
    let name = String::deserialize(deserializer)?;
    let unknown = || serde::de::Error::custom(format!("policy '{name}': expected lru or mq"));
    Policy::named(&name).map(Some).ok_or_else(unknown)
}

fn host_and_port(target: &str) -> Option<(&str, u16)> {
    let default = |host| Some((host, DEFAULT_PORT));
    if target.ends_with(']') {
        return default(target);
    }
    match target.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() => Some((host, port.parse().ok()?)),
        Some(_) => None,
        None => default(target),
    }
}

fn is_loopback_with_port(text: &str) -> bool {
    let parts = text.rsplit_once(':');
    parts.is_some_and(|(host, port)| is_loopback(host) && port.parse::<u16>().is_ok())
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare == "localhost"
        || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listening(text: &str) -> Config {
        Config { listen: vec![text.into()], ..Config::for_directory("/") }
    }

    #[test]
    fn other_addresses_than_loopback_need_a_proof() {
        assert!(listening("tcp://127.0.0.1:0").addresses().is_ok());
        assert!(listening("tcp://[::1]:0").addresses().is_ok());
        let open = listening("tcp://0.0.0.0:20490");
        assert!(matches!(open.addresses(), Err(ConfigError::NotLoopback(_))));
        for network in ["tcp:///0.0.0.0:7", "mesh://host:7"] {
            let answer = listening(network).addresses();
            assert!(matches!(answer, Err(ConfigError::NotLoopback(_))), "{network}");
        }
        assert!(Config { insecure: true, ..open.clone() }.addresses().is_ok());
        assert!(Config { key_file: Some("/k".into()), ..open }.addresses().is_ok());
    }

    #[test]
    fn who_shares_a_cache_squashes_nobody_who_could_write_to_it() {
        let mut config = Config::for_directory("/");
        config.exports[0].share_cache = true;
        assert!(config.check().is_ok());
        let squashes = Config { squash_root: true, ..config.clone() };
        let said = squashes.check().expect_err("root could write").to_string();
        assert!(said.contains("squash_root"), "{said}");
        let private = Config { shared_cache: false, ..config };
        assert!(matches!(private.check(), Err(ConfigError::ShareCache { .. })));
    }

    #[test]
    fn a_port_is_not_needed() {
        let addresses = listening("tcp://[::1]").addresses().expect("address");
        assert_eq!(addresses[0].target, "[::1]:20490");
        let addresses = listening("tcp://localhost").addresses().expect("address");
        assert_eq!(addresses[0].target, "localhost:20490");
        assert!(listening("tcp://:1").addresses().is_err());
        assert!(listening("rdma://x:1").addresses().is_err());
    }

    #[test]
    fn a_scheme_is_not_needed() {
        for (text, address) in [
            ("127.0.0.1:0", "tcp://127.0.0.1:0"),
            ("localhost:7", "tcp://localhost:7"),
            ("[::1]:7", "tcp://[::1]:7"),
            ("/run/x", "unix:/run/x"),
            ("unix:/run/x", "unix:/run/x"),
            ("mesh:/run/x", "mesh:/run/x"),
        ] {
            let addresses = listening(text).addresses().expect(text);
            assert_eq!(addresses[0].to_string(), address);
        }
        let relative = listening("unix:x").addresses().expect("relative");
        assert!(relative[0].target.starts_with('/') && relative[0].target.ends_with("/x"));
        assert!(listening("nonsense").addresses().is_err());
        let open = listening("192.0.2.1:7").addresses();
        assert!(matches!(open, Err(ConfigError::NotLoopback(_))));
    }

    #[test]
    fn values_have_units() {
        let read = |text: &str| toml::from_str::<Config>(text).map_err(|error| error.to_string());
        let config = read(
            "arena_bytes = \"1.5g\"\n[limits]\ndata_bytes = \"64KiB\"\nlease_seconds = \"2m\"",
        );
        let config = config.expect("good");
        assert_eq!(config.arena_bytes, Some(3 << 29));
        assert_eq!((config.limits.data_bytes, config.limits.lease_seconds), (65_536, 120));
        for (text, said) in [
            ("arena_bytes = \"much\"", "'much': expected a size"),
            ("arena_bytes = -1", "less than nothing"),
            ("arena_bytes = true", "a size such as"),
            ("[limits]\ndata_bytes = \"4g\"", "too much"),
            ("[limits]\nlease_seconds = \"500ms\"", "whole seconds"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(said) && error.contains("line "), "{text}: {error}");
        }
    }

    #[test]
    fn a_cache_fits_into_memory() {
        let of = |bytes| Config { arena_bytes: Some(bytes), ..Config::for_directory("/") };
        assert!(of(1).check().expect_err("small").to_string().contains("least is 16m"));
        assert!(of(16 << 20).check().is_ok());
        let said = of(900 << 30).check_arena(24 << 30).expect_err("large").to_string();
        assert!(said.contains("--arena 18432m"), "{said}");
        assert!(of(24 << 30).check_arena(24 << 30).is_ok());
    }

    #[test]
    fn several_exports_need_names() {
        let mut config = Config::for_directory("/a");
        config.exports.push(ExportConfig { name: "b".into(), ..config.exports[0].clone() });
        assert!(matches!(config.check(), Err(ConfigError::ExportName(name)) if name.is_empty()));
        config.exports[0].name = "a".into();
        assert!(config.check().is_ok());
    }
}
