//! The way to a network of the server's host alone.
//!
//! A session begins at an address of the user's. Where the server is on this host and tells how it is found
//! at such a network, the first connection is given back before a call goes by it, and made again there, as
//! if it had broken: by a bind. Where that fails, the session goes by the addresses that it has, and why is
//! told. What was found holds for one session: the next one begins at an address of the user's again, since
//! a server that was restarted is found by something else.

use std::path::PathBuf;
use std::time::Duration;

use dafs_fabric::Address;
use dafs_protocol::SameHostToken;

use super::Core;
use super::attempts::Failure;
use crate::error::Error;
use crate::options::{LocalSocket, SessionOptions};

/// For a server to answer at a network that nobody has asked for.
const PATIENCE: Duration = Duration::from_millis(100);

/// A server that tells no token does not say why.
const NOT_OFFERED: &str = "it is told not to (--no-shm, or a data path that sends from files), or it cannot, and then its \
    log says why";

/// By what a session may come nearer.
#[derive(Debug, Clone)]
enum By {
    Nothing,
    /// What the server tells.
    Token,
    /// This directory.
    Directory(PathBuf),
}

/// What the user wishes of such networks.
#[derive(Debug, Clone)]
pub(super) struct Nearer {
    by: By,
    /// The session is to go by this network, or not at all.
    only: Option<String>,
    /// Of the address: whose servers are trusted.
    wish: Option<String>,
}

impl Nearer {
    pub(super) fn of(address: &Address, options: &SessionOptions) -> Nearer {
        let only = options.transport.clone().filter(|name| !is_usual(name, address));
        let stays = options.transport.is_some() && only.is_none();
        let by = match &options.local {
            _ if stays => By::Nothing,
            LocalSocket::In(directory) => By::Directory(directory.clone()),
            LocalSocket::Off if only.is_none() => By::Nothing,
            LocalSocket::Off | LocalSocket::Usual => By::Token,
        };
        // Who knows a token was told it by the server, which has proved its key.
        let wish = match by {
            By::Directory(_) => options.named_trust(),
            By::Nothing | By::Token => options.trust(),
        };
        Nearer { by, only, wish }
    }
}

/// The address itself leads to what is asked for.
pub(crate) fn is_usual(transport: &str, address: &Address) -> bool {
    transport == address.scheme
        || transport == Address::LOCAL_SCHEME && address.may_have_local_socket()
}

/// Where a session is on that way.
#[derive(Debug, Default)]
pub(super) struct SameHost {
    /// The first of the addresses is one of such a network.
    is_target: bool,
    /// It was not reached yet.
    going: bool,
    /// An address that was not reached, and why.
    failed: Option<(Address, String)>,
    /// A connection stood that was to stay.
    settled: bool,
}

impl Core {
    /// Where a connection that is set up should go instead. `token`: as the server tells it.
    ///
    /// # Errors
    /// It is not to stay, but cannot go where it should; in words.
    pub(super) fn nearer(
        &mut self,
        index: usize,
        token: Option<SameHostToken>,
    ) -> Result<Option<Address>, String> {
        if self.is_near(index) {
            self.same_host = SameHost { is_target: true, settled: true, ..SameHost::default() };
            self.session.facts.same_host_error = None;
            return Ok(None);
        }
        let only = self.config.nearer.only.as_deref();
        let Some(network) = self.network(index) else {
            self.same_host.settled = true;
            self.session.facts.same_host_error = self.missing(index);
            return match only {
                Some(only) if self.scheme(index) != Some(only) => {
                    Err(format!("{only} was asked for, and nothing leads there"))
                }
                _ => Ok(None),
            };
        };
        match self.found(index, token, &network) {
            Ok(address) if index == 0 => Ok(Some(address)),
            // It will be made again when the first one is there.
            Ok(_) if only.is_none() => Ok(None),
            Ok(_) => Err(format!("{network} was asked for")),
            Err(why) if only.is_some() => Err(format!("{network} was asked for: {why}")),
            Err(why) => {
                self.same_host.settled = true;
                self.session.facts.same_host_error = Some(format!("{network}: {why}"));
                Ok(None)
            }
        }
    }

    /// Which network there is that is nearer than that of a link.
    fn network(&self, index: usize) -> Option<String> {
        let all = match &self.config.nearer.by {
            By::Nothing => return None,
            By::Token => self.node.same_host(SameHostToken::default()),
            By::Directory(directory) => self.node.local_addresses(directory),
        };
        let only = self.config.nearer.only.as_deref();
        let here = self.scheme(index);
        let mut schemes = all.into_iter().map(|address| address.scheme);
        schemes.find(|name| only.is_none_or(|only| only == name) && here != Some(name.as_str()))
    }

    /// Why this machine has none where it might.
    fn missing(&self, index: usize) -> Option<String> {
        let may = !matches!(self.config.nearer.by, By::Nothing) && self.is_of_this_host(index);
        let (network, why) = self.node.missing().first().filter(|_| may)?;
        Some(format!("{network}: {why}"))
    }

    fn scheme(&self, index: usize) -> Option<&str> {
        Some(self.config.targets.get(self.target(index))?.scheme.as_str())
    }

    /// Where the server is at this network, or why it is not there.
    fn found(
        &self,
        index: usize,
        token: Option<SameHostToken>,
        network: &str,
    ) -> Result<Address, String> {
        let server = format!("the server at {}", self.config.address);
        let found = match &self.config.nearer.by {
            By::Directory(directory) => self.node.local_addresses(directory),
            _ if !self.is_of_this_host(index) => {
                return Err(format!("{server} is not on this host"));
            }
            _ => self
                .node
                .same_host(token.ok_or_else(|| format!("{server} offers none: {NOT_OFFERED}"))?),
        };
        let found = found.into_iter().find(|address| address.scheme == network);
        let mut address = found.ok_or_else(|| format!("{server} offers none"))?;
        if let Some(wish) = &self.config.nearer.wish {
            address.target = format!("{}?{wish}", address.target);
        }
        match &self.same_host.failed {
            Some((failed, why)) if *failed == address => Err(why.clone()),
            _ => Ok(address),
        }
    }

    fn is_of_this_host(&self, index: usize) -> bool {
        let peer = self.conn(index).and_then(|conn| self.node.peer(conn));
        peer.is_some_and(|peer| peer.is_of_this_host())
    }

    /// The first link stands, and is to be made again at `address`.
    pub(super) fn go_nearer(&mut self, address: Address) {
        match self.config.targets.first_mut().filter(|_| self.same_host.is_target) {
            Some(first) => *first = address,
            None => {
                self.config.targets.insert(0, address);
                let served_at = &mut self.recovery.served_at;
                *served_at = served_at.map(|at| at + 1);
                self.targets_moved(true);
            }
        }
        (self.same_host.is_target, self.same_host.going) = (true, true);
        self.make_again(0, "the session goes by a network of this host");
    }

    /// A link could not be made where it was to go: by the addresses of the user, then. False: it was
    /// no such attempt.
    pub(super) fn near_failed(&mut self, index: usize, reason: &str) -> bool {
        if !self.same_host.going || !self.is_near(index) || index != 0 {
            return false;
        }
        let address = self.config.targets.first().cloned();
        let reason = match &self.config.nearer.by {
            By::Directory(directory) => format!("{}: {reason}", directory.display()),
            By::Nothing | By::Token => reason.to_owned(),
        };
        self.forget_near();
        self.same_host.failed = address.map(|address| (address, reason));
        self.targets_moved(false);
        self.retry_now(0);
        true
    }

    /// A connection is made that leads elsewhere than the user wishes.
    pub(super) fn far_only(&mut self, index: usize, reason: String) {
        if !self.same_host.settled {
            return self.fail_all(Error::Connect { refused: false, reason });
        }
        // Next time it may be found.
        self.same_host.failed = None;
        self.set_up_failed(index, Failure::of(false, reason));
    }

    /// The addresses are those of the user.
    pub(super) fn forget_near(&mut self) {
        if std::mem::take(&mut self.same_host.is_target) {
            self.config.targets.remove(0);
            let served_at = &mut self.recovery.served_at;
            *served_at = served_at.map(|at| at.saturating_sub(1));
        }
        self.same_host.going = false;
    }

    /// The session is over: the next one may be of another server, who is found where this one was not.
    pub(super) fn look_again(&mut self) {
        self.forget_near();
        self.same_host.failed = None;
    }

    /// A link is made, or stands, by a network of this host.
    pub(super) fn is_near(&self, index: usize) -> bool {
        self.same_host.is_target && self.target(index) == 0
    }

    /// Who is there may be another server, who does not know what becomes of the session.
    pub(super) fn may_be_other(&self, index: usize) -> bool {
        let by_directory = matches!(self.config.nearer.by, By::Directory(_));
        self.is_near(index) && (self.same_host.going || by_directory)
    }

    /// How long an attempt may take that nobody has asked for.
    pub(super) fn near_patience(&self, index: usize) -> Option<Duration> {
        let unasked = self.same_host.going && self.config.nearer.only.is_none();
        (unasked && self.is_near(index)).then_some(PATIENCE)
    }

    /// Addresses of the user.
    pub(super) fn far_addresses(&self) -> usize {
        self.config.targets.len() - usize::from(self.same_host.is_target)
    }
}
