//! How a session behaves, from code and from URLs.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use dafs_fabric::{Address, units};
use dafs_protocol::{DATA_BYTES_MAX, WaitMode};

use crate::error::Error;
use crate::url::Url;

/// Told, in words for people, that the session lost its server, tries again, or has it back.
pub type OnRetry = Arc<dyn Fn(&str) + Send + Sync>;

/// Whose servers on this host's loopback are trusted: any user may listen on a port that is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServerUid {
    /// Root's and one's own.
    #[default]
    Usual,
    /// This user's, too.
    User(u32),
    /// Everybody's.
    Any,
}

/// Whether a server on this host's loopback is reached by its local socket, where it has one: the kernel
/// then tells each end who the other one is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LocalSocket {
    /// By root's, or one's own.
    #[default]
    Usual,
    /// By TCP.
    Off,
    /// By one in this directory, an absolute path.
    In(PathBuf),
}

impl LocalSocket {
    fn parse(text: &str) -> Option<LocalSocket> {
        match parse_switch(text) {
            Some(true) => Some(LocalSocket::Usual),
            Some(false) => Some(LocalSocket::Off),
            None if text.starts_with('/') => Some(LocalSocket::In(text.into())),
            None => None,
        }
    }
}

impl ServerUid {
    fn parse(text: &str) -> Option<ServerUid> {
        match text {
            "any" => Some(ServerUid::Any),
            uid => uid.parse().ok().map(ServerUid::User),
        }
    }
}

/// How a session behaves. Start from `SessionOptions::default()`.
#[derive(Clone)]
pub struct SessionOptions {
    /// The pre-shared key. With a key the server must prove that it has the same one.
    pub key: Option<Vec<u8>>,
    /// For how long a lost server is looked for before calls fail. The first connection is
    /// tried once.
    pub retry: Duration,
    /// How calls wait for their replies.
    pub wait: WaitMode,
    /// Requests under way, 1 to 1024.
    pub slots: u16,
    /// Bytes of data in one request, each way; larger blocking calls are cut.
    pub data_bytes_max: u32,
    /// 1, or 2: then requests with much data use a connection of their own.
    pub connections: u8,
    /// Whether [`File::reader`](crate::File::reader) reads ahead, and the server for the files
    /// of this session.
    pub read_ahead: bool,
    /// False: no data goes by tags, but by RDMA, or in pieces.
    pub tags: bool,
    /// False: the server must not fetch data by RDMA read. Without tags it is sent in pieces.
    pub rdma_read: bool,
    /// False: what the server's cache has is read by nobody but the server, also where this process may, and is
    /// copied twice into memory that the server does not reach. For measurements.
    pub in_place: bool,
    /// False: no read does without the server, also where it tells where blocks are in a cache that this process
    /// maps.
    pub optimistic: bool,
    /// The export to use, by name; empty: the only one, or a root that has all as directories.
    pub export: Vec<u8>,
    /// Whose servers on this host's loopback are trusted.
    pub server_uid: ServerUid,
    /// How a server on this host's loopback is reached.
    pub local: LocalSocket,
    /// By which network the session is to go, by the name of its addresses: that of the server's address, a
    /// local socket, or a network of this host alone. Where it cannot, it fails. `None`: by the nearest.
    pub transport: Option<String>,
    /// Further addresses of the same server, at most 7. They are tried in turn where the one before does not
    /// answer, also for each connection that breaks; so a session goes on by another network.
    pub also: Vec<Address>,
    /// See [`OnRetry`].
    pub on_retry: Option<OnRetry>,
    /// When this becomes true (in a signal handler, say) calls end with
    /// [`Error::Interrupted`] within 100 ms.
    pub cancel: Option<Arc<AtomicBool>>,
}

impl Default for SessionOptions {
    fn default() -> Self {
        SessionOptions {
            key: None,
            retry: Duration::from_secs(60),
            wait: WaitMode::Adaptive,
            slots: 64,
            data_bytes_max: DATA_BYTES_MAX as u32,
            connections: 2,
            read_ahead: true,
            tags: true,
            rdma_read: true,
            in_place: true,
            optimistic: true,
            export: Vec::new(),
            server_uid: ServerUid::default(),
            local: LocalSocket::default(),
            transport: None,
            also: Vec::new(),
            on_retry: None,
            cancel: None,
        }
    }
}

impl std::fmt::Debug for SessionOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the key.
        f.debug_struct("SessionOptions")
            .field("retry", &self.retry)
            .field("wait", &self.wait)
            .field("slots", &self.slots)
            .field("data_bytes_max", &self.data_bytes_max)
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}

impl SessionOptions {
    /// The defaults, changed by the options of `url`.
    ///
    /// # Errors
    /// [`Error::Config`] naming an option that is unknown or has a bad value.
    pub fn from_url(url: &Url) -> Result<SessionOptions, Error> {
        let mut options = SessionOptions::default();
        options.apply_url(url)?;
        Ok(options)
    }

    /// Changes what the options of `url` name.
    ///
    /// # Errors
    /// [`Error::Config`] naming an option that is unknown or has a bad value.
    pub fn apply_url(&mut self, url: &Url) -> Result<(), Error> {
        for (name, value) in &url.options {
            self.apply(name, value).ok_or_else(|| {
                Error::Config(match URL_OPTIONS.iter().find(|(known, _)| known == name) {
                    Some((_, good)) => {
                        format!("option '{name}': bad value '{value}': expected {good}")
                    }
                    None => {
                        let known: Vec<&str> =
                            URL_OPTIONS.iter().map(|(known, _)| *known).collect();
                        format!("unknown option '{name}' (known: {})", known.join(", "))
                    }
                })
            })?;
        }
        Ok(())
    }

    fn apply(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "wait" => self.wait = parse_wait(value)?,
            "retry" => self.retry = parse_duration(value)?,
            "slots" => self.slots = value.parse().ok().filter(|n| (1..=1024).contains(n))?,
            "data" => self.data_bytes_max = parse_size(value)?,
            "connections" => {
                self.connections = value.parse().ok().filter(|n| (1..=2).contains(n))?;
            }
            "read_ahead" => self.read_ahead = parse_switch(value)?,
            "tags" => self.tags = parse_switch(value)?,
            "rdma_read" => self.rdma_read = parse_switch(value)?,
            "optimistic" => self.optimistic = parse_switch(value)?,
            "local" => self.local = LocalSocket::parse(value)?,
            "transport" => self.transport = Some(parse_name(value)?),
            "also" if self.also.len() < ALSO_MAX => self.also.push(Address::parse(value)?),
            "server_uid" => self.server_uid = ServerUid::parse(value)?,
            _ => return None,
        }
        Some(())
    }

    /// What the transport is told of `address`: with its own wishes about servers of this host. A
    /// server that proves a key need not be anybody's.
    pub(crate) fn address(&self, address: &Address) -> Address {
        let transport = self.transport.as_deref();
        let only = (transport == Some(Address::LOCAL_SCHEME)).then(|| "tcp=off".into());
        let local = match &self.local {
            _ if transport == Some(Address::DEFAULT_SCHEME) => Some("local=off".into()),
            LocalSocket::Usual => None,
            LocalSocket::Off => Some("local=off".into()),
            LocalSocket::In(directory) => Some(format!("local={}", directory.display())),
        };
        let wishes: Vec<String> = self.trust().into_iter().chain(only).chain(local).collect();
        let mut address = address.clone();
        if address.may_have_local_socket() && !wishes.is_empty() {
            address.target = format!("{}?{}", address.target, wishes.join("&"));
        }
        if let Some(wish) = self.named_trust().filter(|_| address.takes_trust()) {
            address.target = format!("{}?{wish}", address.target);
        }
        address
    }

    /// The wish of an address of this host whose servers are trusted there.
    pub(crate) fn trust(&self) -> Option<String> {
        match self.key {
            Some(_) => Some("server_uid=any".into()),
            None => self.named_trust(),
        }
    }

    /// The same of a place where a key is proved after memory is shared: who proves nothing has that by then.
    pub(crate) fn named_trust(&self) -> Option<String> {
        match self.server_uid {
            ServerUid::Usual => None,
            ServerUid::User(uid) => Some(format!("server_uid={uid}")),
            ServerUid::Any => Some("server_uid=any".into()),
        }
    }

    /// Values outside of the documented ranges are brought inside.
    pub(crate) fn clamp(&mut self) {
        self.slots = self.slots.clamp(1, 1024);
        self.data_bytes_max = self.data_bytes_max.clamp(4096, DATA_BYTES_MAX as u32);
        self.connections = self.connections.clamp(1, 2);
        self.also.truncate(ALSO_MAX);
    }
}

/// Further addresses of a server.
const ALSO_MAX: usize = 7;

/// The options of URLs, each with the values that it takes.
pub const URL_OPTIONS: [(&str, &str); 13] = [
    ("wait", "adaptive, polled or sleeping"),
    ("retry", "a time such as 500ms, 60s or 2m"),
    ("slots", "a number from 1 to 1024"),
    ("data", "a size from 4k to 4m"),
    ("connections", "1 or 2"),
    ("read_ahead", "on or off"),
    ("tags", "on or off"),
    ("rdma_read", "on or off"),
    ("optimistic", "on or off"),
    ("server_uid", "the number of a user, or any"),
    ("local", "on, off, or the absolute path of a directory"),
    ("transport", "the name of a network"),
    ("also", "an address such as SCHEME://HOST:PORT, at most 7 times"),
];

fn parse_switch(value: &str) -> Option<bool> {
    match value {
        "on" | "yes" | "true" | "1" | "" => Some(true),
        "off" | "no" | "false" | "0" => Some(false),
        _ => None,
    }
}

fn parse_name(value: &str) -> Option<String> {
    let is_name = !value.is_empty() && value.bytes().all(|b| b.is_ascii_alphanumeric());
    is_name.then(|| value.to_owned())
}

/// `polled`, `sleeping` or `adaptive`.
pub fn parse_wait(value: &str) -> Option<WaitMode> {
    match value {
        "adaptive" => Some(WaitMode::Adaptive),
        "polled" => Some(WaitMode::Polled),
        "sleeping" => Some(WaitMode::Sleeping),
        _ => None,
    }
}

/// `60s`, `500ms`, `2m`, or seconds.
pub fn parse_duration(value: &str) -> Option<Duration> {
    units::duration(value).ok()
}

fn parse_size(value: &str) -> Option<u32> {
    let bytes = units::size(value).ok().and_then(|bytes| u32::try_from(bytes).ok())?;
    (4096..=DATA_BYTES_MAX as u32).contains(&bytes).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(query: &str) -> Result<SessionOptions, Error> {
        SessionOptions::from_url(&Url::parse(&format!("dafs://h/?{query}"))?)
    }

    #[test]
    fn urls_change_options() {
        let o = options(
            "wait=sleeping&tags=off&rdma_read=off&retry=500ms&data=64k&connections=1&slots=7\
             &optimistic=off",
        )
        .expect("options");
        assert_eq!(o.wait, WaitMode::Sleeping);
        assert!(!o.tags && !o.rdma_read && !o.optimistic);
        assert_eq!(o.retry, Duration::from_millis(500));
        assert_eq!((o.data_bytes_max, o.connections, o.slots), (65_536, 1, 7));
    }

    #[test]
    fn a_server_may_have_further_addresses() {
        let o = options("also=tcp://10.0.0.1:7&also=unix:/run/x").expect("options");
        let texts: Vec<String> = o.also.iter().map(Address::to_string).collect();
        assert_eq!(texts, ["tcp://10.0.0.1:7", "unix:/run/x"]);
        for bad in ["also=nowhere", "also=", &"also=tcp://h&".repeat(8)] {
            assert!(options(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn wrong_options_are_named() {
        let text = |query| options(query).expect_err("wrong").to_string();
        assert!(text("colour=red").contains("unknown option 'colour'"));
        assert!(text("wait=never").contains("'wait': bad value 'never'"));
        assert!(text("slots=0").contains("'slots'"));
        assert!(text("server_uid=me").contains("'server_uid'"));
        assert!(text("local=there").contains("'local'"));
        assert!(text("data=1").contains("'data'"));
        assert!(text("retry=99999999999999m").contains("'retry'"));
    }

    #[test]
    fn the_transport_is_told_of_servers_of_this_host() {
        let told = |query: &str, key: bool| {
            let options = SessionOptions { key: key.then(|| vec![1]), ..options(query).expect("") };
            options.address(&Address::parse("tcp://h:1").expect("address")).target
        };
        assert_eq!(told("", false), "h:1");
        assert_eq!(told("server_uid=7", false), "h:1?server_uid=7");
        assert_eq!(told("server_uid=any", false), "h:1?server_uid=any");
        assert_eq!(told("", true), "h:1?server_uid=any");
        assert_eq!(told("local=off", false), "h:1?local=off");
        assert_eq!(told("local=/d&server_uid=7", false), "h:1?server_uid=7&local=/d");
        assert_eq!(told("local=on", false), "h:1");
    }

    #[test]
    fn whoever_is_at_a_path_has_memory_before_a_key_is_proved() {
        let told = |address: &str, query: &str, key: bool| {
            let options = SessionOptions { key: key.then(|| vec![1]), ..options(query).expect("") };
            options.address(&Address::parse(address).expect("address")).target
        };
        let query = "server_uid=7&local=/d";
        assert_eq!(told("shm:/s", query, false), "/s?server_uid=7");
        assert_eq!(told("shm:/s", query, true), "/s?server_uid=7");
        assert_eq!(told("shm:/s", "", true), "/s");
        assert_eq!(told("shm:/s", "server_uid=any", false), "/s?server_uid=any");
        assert_eq!(told("unix:/s", query, true), "/s", "its directory says who is there");
    }

    #[test]
    fn the_key_is_not_printed() {
        let options = SessionOptions { key: Some(b"secret".to_vec()), ..Default::default() };
        assert!(!format!("{options:?}").contains("secret"));
    }
}
