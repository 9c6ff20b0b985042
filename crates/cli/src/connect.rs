//! Sessions for the URLs of a command line.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dafs_client::{Session, SessionOptions, Url};
use dafs_fabric::units::duration;
use dafs_protocol::Status;

use crate::failure::{Cause, Failure};
use crate::place;
use crate::provider::providers;
use crate::{interrupt, progress};

/// What a server cannot know to say of the directory itself.
const GONE: &str = "the served directory is gone or was replaced: the server must be started again";
/// Bytes of a key file.
const KEY_BYTES_MAX: usize = 4096;

/// How to reach servers: options of every command that has a URL.
#[derive(Debug, Clone, clap::Args)]
pub struct ConnectArgs {
    /// How long to look for a server that was lost (a first connection is tried once).
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub retry: Duration,
    /// Prove who you are by the key in this file; the server must have the same.
    #[arg(long, value_name = "FILE", env = "DAFS_KEY_FILE")]
    pub key_file: Option<PathBuf>,
}

impl ConnectArgs {
    /// What a session for `url` is made with. Options of the URL win.
    pub fn options(&self, url: &Url) -> Result<SessionOptions, Failure> {
        let mut options = SessionOptions {
            retry: self.retry,
            key: self.key()?,
            cancel: Some(interrupt::cancel()),
            on_retry: Some(Arc::new(|text: &str| progress::notice(&format!("dafs: {text}")))),
            ..SessionOptions::default()
        };
        options.apply_url(url).map_err(|error| Failure::about(url, error))?;
        Ok(options)
    }

    fn key(&self) -> Result<Option<Vec<u8>>, Failure> {
        let Some(file) = &self.key_file else { return Ok(None) };
        let wrong = |text: &str| {
            let file = file.display();
            Failure::usage(format!(
                "key file {file} (--key-file, -o key_file=, DAFS_KEY_FILE): {text}"
            ))
        };
        let key = std::fs::read(file).map_err(|e| wrong(&Failure::about("", e).text))?;
        let key = key.trim_ascii();
        match key.len() {
            0 => Err(wrong("the key is empty")),
            len if len > KEY_BYTES_MAX => Err(wrong("the key is too long")),
            _ => Ok(Some(key.to_vec())),
        }
    }

    /// A session for `url`.
    ///
    /// # Errors
    /// It could not be made.
    pub fn connect(&self, url: &Url) -> Result<Session, Failure> {
        let options = self.options(url)?;
        self.session(url, options).map_err(|error| match error.status() {
            // A session begins at the root of what is served.
            Some(Status::Stale) => Failure::about(url, GONE),
            _ => Failure::about(url, error),
        })
    }

    /// A session for `url` with options of the caller's.
    ///
    /// # Errors
    /// It could not be made.
    pub fn session(&self, url: &Url, options: SessionOptions) -> dafs_client::Result<Session> {
        let session = Session::connect(providers(), &url.address(), options)?;
        progress::detail(|| {
            let info = session.info();
            let (transport, version) = (info.transport, info.protocol_version);
            format!("dafs: connected to {} by {transport}, protocol {version}", url.with_path(b""))
        });
        Ok(session)
    }

    /// What `url` means, with a session of its own.
    ///
    /// # Errors
    /// It could not be made.
    pub fn remote(&self, url: &Url) -> Result<Remote, Failure> {
        let session = self.connect(url)?;
        let mut plain = url.clone();
        plain.options.clear();
        Ok(Remote { session, path: place::clean(&url.path), url: plain })
    }
}

/// A path on a server, with the session to reach it.
#[derive(Clone)]
pub struct Remote {
    /// Shared by all paths of one server.
    pub session: Session,
    /// Below the root; without slashes around it.
    pub path: Vec<u8>,
    url: Url,
}

impl Remote {
    /// Another path on the same server.
    #[must_use]
    pub fn at(&self, path: &[u8]) -> Remote {
        Remote { path: path.to_vec(), ..self.clone() }
    }

    /// The URL of `path`, for people.
    pub fn name(&self, path: &[u8]) -> String {
        self.url.with_path(path).to_string()
    }

    /// A failure about `path`.
    pub fn failure(&self, path: &[u8], error: impl Into<Cause>) -> Failure {
        Failure::about(self.name(path), error)
    }

    /// True when both are reached by the same session.
    pub fn same_server(&self, other: &Remote) -> bool {
        self.url.address() == other.url.address()
    }

    /// True when the server runs on this machine.
    pub fn is_local_host(&self) -> bool {
        self.url.unix.is_some()
            || self.url.host == "localhost"
            || self.url.host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

/// Sessions that are open: one per server and options.
pub struct Connections {
    args: ConnectArgs,
    open: Mutex<Vec<(Url, Session)>>,
}

impl Connections {
    /// None so far.
    pub fn new(args: &ConnectArgs) -> Connections {
        Connections { args: args.clone(), open: Mutex::new(Vec::new()) }
    }

    /// What `text` means, connected.
    ///
    /// # Errors
    /// It is no URL, or there is no session.
    pub fn remote(&self, text: &str) -> Result<Remote, Failure> {
        let url = Url::parse(text).map_err(|error| Failure::about("", error))?;
        self.remote_url(&url)
    }

    /// As [`remote`](Self::remote).
    ///
    /// # Errors
    /// There is no session.
    pub fn remote_url(&self, url: &Url) -> Result<Remote, Failure> {
        let server = url.with_path(b"");
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let known = open.iter().find(|(url, _)| *url == server).map(|(_, session)| session);
        if let Some(session) = known.cloned() {
            let mut plain = url.clone();
            plain.options.clear();
            return Ok(Remote { session, path: place::clean(&url.path), url: plain });
        }
        let remote = self.args.remote(url)?;
        open.push((server, remote.session.clone()));
        Ok(remote)
    }
}
