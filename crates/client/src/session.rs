//! Sessions: connecting, and blocking calls on names.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dafs_fabric::{Address, Domain, ProtectionDomain, Providers, Span};
use dafs_message::{Node, NodeConfig};
use dafs_protocol::{
    AccessMask, Attr, Features, FileKind, FsAttr, Identity, SessionAttr, SessionStats, SetAttr,
    Status, WriteVerifier,
};

use crate::answer::{attr_of, bytes_of, unexpected};
use crate::call::{Call, Done};
use crate::callback::Callbacks;
use crate::core::{Core, CoreConfig, FileKey, Memory, OpenOptions, Output, Place, Work, is_usual};
use crate::dir::ReadDir;
use crate::error::{Error, Result, SessionError};
use crate::file::File;
use crate::future::CallFuture;
use crate::group::Group;
use crate::handle::Handle;
use crate::leader::Inner;
use crate::optimistic::OptimisticStats;
use crate::options::SessionOptions;
use crate::url::Url;

/// A session with a server. Clones are the same session; threads may share it. It ends when
/// the last clone, file, group and future of it is gone, or with [`close`](Self::close).
#[derive(Clone)]
pub struct Session {
    pub(crate) handle: Arc<Handle>,
    /// For whom its calls act; `None`: its own user.
    pub(crate) user: Option<Arc<Identity>>,
    callbacks: Arc<Callbacks>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

/// What a session is like, and what it did so far. Counters only grow.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SessionInfo {
    /// What was granted.
    pub attr: SessionAttr,
    /// The version of the protocol that both ends speak.
    pub protocol_version: u32,
    /// What both ends have beyond that version.
    pub features: Features,
    /// Where the server says that it listens.
    pub server_addresses: Vec<String>,
    /// Under which user the session acts on the server.
    pub uid: u32,
    /// Changes when the server restarts.
    pub verifier: WriteVerifier,
    /// `tcp`, for example; `unix` where the session goes by a Unix socket.
    pub transport: &'static str,
    /// Why it does not go by a network of this host alone, in words, where this program has one and was not
    /// told otherwise.
    pub same_host_error: Option<String>,
    /// As in [`SessionOptions`].
    pub export: Vec<u8>,
    /// Connections made again after a break.
    pub reconnects: u64,
    /// Sessions made again after the server forgot one.
    pub new_sessions: u64,
    /// Requests sent, also those sent again.
    pub round_trips: u64,
    /// Reads that needed no server, and those that nearly did not.
    pub optimistic: OptimisticStats,
    /// Payload bytes that this process copied in user space.
    pub copied_bytes: u64,
    /// Memory registrations of this process.
    pub registrations: u64,
    /// System calls of the session's transport.
    pub system_calls: u64,
}

fn nonce_source() -> crate::core::NonceSource {
    Box::new(|nonce| getrandom::fill(nonce).expect("the system has random numbers"))
}

/// What this machine refuses.
fn local(error: impl std::fmt::Display) -> Error {
    Error::Local(dafs_fabric::descriptors::tell(&error))
}

/// That the transport which is asked for can be had at all.
fn check_transport(domain: &Domain, address: &Address, options: &SessionOptions) -> Result<()> {
    let Some(name) = options.transport.as_deref() else { return Ok(()) };
    let wrong = |text: String| Err(Error::Config(format!("transport={name}: {text}")));
    if let Some((_, why)) = domain.missing().iter().find(|(missing, _)| *missing == name) {
        return wrong(why.clone());
    }
    let all = || domain.parts().iter().flat_map(|part| part.attr().schemes.iter().copied());
    if !all().any(|known| known == name) {
        let known: Vec<&str> = all().collect();
        return wrong(format!("no network of this program (known: {})", known.join(", ")));
    }
    let has = |part: &Arc<ProtectionDomain>| {
        let found = part.device().same_host([0; 16]);
        found.is_some_and(|address| address.scheme == name)
    };
    if is_usual(name, address) || domain.parts().iter().any(has) {
        return Ok(());
    }
    wrong(format!("{address} does not lead there"))
}

/// Connections of a session, those that have broken and are not quiescent among them.
const CONNECTIONS_MAX: usize = 4;
/// Receives of each beside those for replies: for callbacks, pieces of data, control.
const RECEIVES_BESIDE: usize = 32;

impl Session {
    /// Connects and makes a session. Blocks; a refused connection fails at once.
    ///
    /// # Errors
    /// [`Error::Connect`], [`Error::Auth`], [`Error::PeerProtocol`], [`Error::Local`];
    /// [`Error::Config`] when an address is one of no network; [`Error::Status`] when there is no such
    /// export.
    pub fn connect(
        providers: impl Into<Providers>,
        address: &Address,
        mut options: SessionOptions,
    ) -> Result<Session, SessionError> {
        options.clamp();
        let domain = Domain::open_all(&providers.into()).map_err(local)?;
        for address in std::iter::once(address).chain(&options.also) {
            if domain.reaches(address).is_none() {
                return Err(Error::Config(domain.unknown_scheme(address).to_string()));
            }
        }
        check_transport(&domain, address, &options)?;
        // All that may be owed: a device that pins is to have no more.
        let receives = CONNECTIONS_MAX * (usize::from(options.slots) + RECEIVES_BESIDE);
        let config = NodeConfig {
            connections_max: CONNECTIONS_MAX,
            receives_max: receives,
            ..NodeConfig::default()
        };
        let node = Node::new(domain, config).map_err(local)?;
        let core = Core::new(node, CoreConfig::new(address, &options), nonce_source());
        let inner = Arc::new(Inner::new(core, &options));
        inner.start_keeper().map_err(local)?;
        let handle = Arc::new(Handle::new(inner, options.read_ahead));
        let session = Session { handle, user: None, callbacks: Arc::default() };
        session.call_for_user(Work::Null)?;
        Ok(session)
    }

    /// Connects to the server of a URL; answers the path in it too, for the calls that follow.
    /// (The root of a server with several exports has them as directories.)
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_url(
        providers: impl Into<Providers>,
        url: &Url,
        options: SessionOptions,
    ) -> Result<(Session, Vec<u8>), SessionError> {
        let session = Session::connect(providers, &url.address(), options)?;
        Ok((session, url.path.clone()))
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.handle.inner
    }

    pub(crate) fn call_for_user(&self, work: Work) -> Result<Output<FileKey>> {
        self.inner().call(self.user.clone(), work, Memory::None)
    }

    /// The same session, with calls that act as another user: their rights hold, and theirs is
    /// what they make. Only where the session itself is root on the server; otherwise its calls
    /// fail with [`NotAuthorized`](dafs_protocol::Status::NotAuthorized). Files that are opened
    /// by it act as that user too. At most [`GROUPS_MAX`](dafs_protocol::GROUPS_MAX) groups;
    /// with more its calls fail with [`Inval`](dafs_protocol::Status::Inval). No message.
    pub fn as_user(&self, who: &Identity) -> Session {
        Session { user: Some(Arc::new(who.clone())), ..self.clone() }
    }

    pub(crate) fn on(
        &self,
        path: &[u8],
        work: impl FnOnce(Place) -> Work,
    ) -> Result<Output<FileKey>> {
        let place = Place::new(path).map_err(|status| Error::from(status).with_path(path))?;
        self.call_for_user(work(place)).map_err(|error| error.with_path(path))
    }

    fn attr_on(&self, path: &[u8], work: impl FnOnce(Place) -> Work) -> Result<Attr> {
        attr_of(self.on(path, work)?)
    }

    /// Attributes; symlinks are followed.
    ///
    /// # Errors
    /// [`Error`], as all calls.
    pub fn stat(&self, path: &[u8]) -> Result<Attr> {
        self.attr_on(path, |place| Work::Stat { place, no_follow: false })
    }

    /// Attributes of the name itself.
    ///
    /// # Errors
    /// [`Error`].
    pub fn lstat(&self, path: &[u8]) -> Result<Attr> {
        self.attr_on(path, |place| Work::Stat { place, no_follow: true })
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// [`Error`].
    pub fn mkdir(&self, path: &[u8], mode: u32) -> Result<Attr> {
        self.make(path, FileKind::Directory, mode, 0, Vec::new())
    }

    /// Makes a fifo, socket or device.
    ///
    /// # Errors
    /// [`Error`].
    pub fn mknod(&self, path: &[u8], kind: FileKind, mode: u32, rdev: u64) -> Result<Attr> {
        self.make(path, kind, mode, rdev, Vec::new())
    }

    /// Makes a symbolic link that says `target`.
    ///
    /// # Errors
    /// [`Error`].
    pub fn symlink(&self, target: &[u8], path: &[u8]) -> Result<Attr> {
        self.make(path, FileKind::Symlink, 0o777, 0, target.to_vec())
    }

    fn make(
        &self,
        path: &[u8],
        kind: FileKind,
        mode: u32,
        rdev: u64,
        target: Vec<u8>,
    ) -> Result<Attr> {
        self.attr_on(path, |place| Work::Make { place, kind, mode, rdev, target })
    }

    /// Removes a name that is not a directory.
    ///
    /// # Errors
    /// [`Error`].
    pub fn remove(&self, path: &[u8]) -> Result<()> {
        self.on(path, |place| Work::Remove { place, directory: false }).map(drop)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Error`].
    pub fn remove_dir(&self, path: &[u8]) -> Result<()> {
        self.on(path, |place| Work::Remove { place, directory: true }).map(drop)
    }

    /// Renames; replaces what is there.
    ///
    /// # Errors
    /// [`Error`].
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        self.rename_with(from, to, false, false)
    }

    /// Renames, or fails where `to` exists (`no_replace`), or swaps the two (`exchange`).
    ///
    /// # Errors
    /// [`Error`].
    pub fn rename_with(
        &self,
        from: &[u8],
        to: &[u8],
        no_replace: bool,
        exchange: bool,
    ) -> Result<()> {
        let to = Place::new(to)?;
        self.on(from, |from| Work::Rename {
            from,
            to,
            from_dir: None,
            no_replace,
            exchange,
            whiteout: false,
        })
        .map(drop)
    }

    /// A hard link: `to` is a new name of `from`.
    ///
    /// # Errors
    /// [`Error`].
    pub fn link(&self, from: &[u8], to: &[u8]) -> Result<Attr> {
        let to = Place::new(to)?;
        self.attr_on(from, |from| Work::Link { from, to, from_handle: None })
    }

    /// A symlink's target.
    ///
    /// # Errors
    /// [`Error`].
    pub fn read_link(&self, path: &[u8]) -> Result<Vec<u8>> {
        match self.on(path, |place| Work::ReadLink { place })? {
            Output::Target(target) => Ok(target),
            other => Err(unexpected(&other)),
        }
    }

    /// Changes attributes; answers the new ones.
    ///
    /// # Errors
    /// [`Error`].
    pub fn set_attr(&self, path: &[u8], set: SetAttr, no_follow: bool) -> Result<Attr> {
        self.attr_on(path, |place| Work::SetAttr { place, set, no_follow })
    }

    /// Which of `mask` (read 4, write 2, execute or search 1) the session's user may do.
    ///
    /// # Errors
    /// [`Error`].
    pub fn access(&self, path: &[u8], mask: AccessMask) -> Result<AccessMask> {
        match self.on(path, |place| Work::Access { place, mask })? {
            Output::Access(mask) => Ok(mask),
            other => Err(unexpected(&other)),
        }
    }

    /// Space and limits of the file system at `path`.
    ///
    /// # Errors
    /// [`Error`].
    pub fn statfs(&self, path: &[u8]) -> Result<FsAttr> {
        match self.on(path, |place| Work::StatFs { place })? {
            Output::FileSystem(attr) => Ok(attr),
            other => Err(unexpected(&other)),
        }
    }

    /// Everything that anybody wrote to the export, on disk.
    ///
    /// # Errors
    /// [`WritesLost`](dafs_protocol::Status::WritesLost) when unstable writes of this session
    /// were lost with the server; late errors of writes.
    pub fn sync(&self) -> Result<()> {
        self.call_for_user(Work::Sync).map(drop)
    }

    /// A round trip that does nothing: how long it took.
    ///
    /// # Errors
    /// [`Error`].
    pub fn ping(&self) -> Result<Duration> {
        let start = Instant::now();
        self.call_for_user(Work::Null)?;
        Ok(start.elapsed())
    }

    /// The server's counters.
    ///
    /// # Errors
    /// [`Error`].
    pub fn stats(&self) -> Result<SessionStats> {
        match self.call_for_user(Work::Stats)? {
            Output::Stats(stats) => Ok(*stats),
            other => Err(unexpected(&other)),
        }
    }

    /// Entries of a directory, with attributes.
    ///
    /// # Errors
    /// [`Error`].
    pub fn read_dir(&self, path: &[u8]) -> Result<ReadDir> {
        ReadDir::new(self.handle.clone(), self.user.clone(), path)
            .map_err(|error| error.with_path(path))
    }

    /// An extended attribute's value.
    ///
    /// # Errors
    /// [`Error`]; [`NoData`](dafs_protocol::Status::NoData) where there is none.
    pub fn get_xattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>> {
        let name = name.to_vec();
        bytes_of(self.on(path, |place| Work::GetXattr { place, name, size_only: false })?)
    }

    /// Sets one. `flags`: 0, 1 create only, 2 replace only.
    ///
    /// # Errors
    /// [`Error`].
    pub fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8], flags: u8) -> Result<()> {
        let (name, value) = (name.to_vec(), value.to_vec());
        self.on(path, |place| Work::SetXattr { place, name, value, flags }).map(drop)
    }

    /// Names of extended attributes.
    ///
    /// # Errors
    /// [`Error`].
    pub fn list_xattr(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let names = bytes_of(self.on(path, |place| Work::ListXattr { place, size_only: false })?)?;
        Ok(names.split(|b| *b == 0).filter(|n| !n.is_empty()).map(<[u8]>::to_vec).collect())
    }

    /// Removes one.
    ///
    /// # Errors
    /// [`Error`].
    pub fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Result<()> {
        let name = name.to_vec();
        self.on(path, |place| Work::RemoveXattr { place, name }).map(drop)
    }

    /// Opens a file.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open(&self, path: &[u8], options: OpenOptions) -> Result<File> {
        match self.on(path, |place| Work::Open { place, options })? {
            Output::File(key, opened) => Ok(File::new(self.handle.clone(), key, opened.node)),
            other => Err(unexpected(&other)),
        }
    }

    /// Opens a file, reads its beginning and closes it, in one round trip: its attributes, and how many
    /// bytes are in `into`, at most the session's `data_bytes_max`.
    ///
    /// # Errors
    /// [`Error`].
    pub fn read_file(&self, path: &[u8], into: &mut [u8]) -> Result<(Attr, usize)> {
        let place = Place::new(path).map_err(|status| Error::from(status).with_path(path))?;
        let bytes_max = into.len().min(self.inner().lock().core.data_bytes_max());
        let (into, _) = into.split_at_mut(bytes_max);
        let len = u32::try_from(bytes_max).map_err(|_| Status::TooBig)?;
        let work = Work::Get { place, len };
        let call =
            |span: &Span| self.inner().call(self.user.clone(), work, Memory::Span(span.clone()));
        match self.handle.lend_mut(into, call).map_err(|error| error.with_path(path))? {
            Output::Got { attr, bytes } => Ok((attr, bytes)),
            other => Err(unexpected(&other)),
        }
    }

    /// The owner of memory, all of which is in `memory`, wants it back: it stays registered with the
    /// network no longer than calls under way need it. Otherwise it does, for the next one.
    pub fn let_go(&self, memory: &Span) {
        self.inner().lock().core.let_go(memory);
    }

    /// Bytes of data that one request may move now; no message.
    pub fn data_bytes_max(&self) -> usize {
        self.inner().lock().core.data_bytes_max()
    }

    /// Calls flow; false while a lost server is looked for. Takes no lock. A loss is seen when
    /// something is asked, or at the latest when the lease is renewed.
    pub fn is_connected(&self) -> bool {
        self.inner().is_connected()
    }

    /// A completion group: many calls under way.
    pub fn group(&self) -> Group {
        Group::new(self.handle.clone(), self.user.clone())
    }

    /// Begins a call; its answer comes by the future.
    pub fn call(&self, call: Call) -> CallFuture {
        CallFuture::new(self.handle.clone(), self.user.clone(), call)
    }

    /// Begins a call; `then` gets its answer. Does not block, unless the system has no thread for
    /// callbacks: then it waits, and calls back itself.
    ///
    /// Callbacks run one after the other, in a thread of the session, in the order in which answers
    /// come. They may call the session, also blocking, which keeps other callbacks waiting. A call
    /// keeps the session until it has ended; [`close`](Self::close) ends it with
    /// [`Error::Interrupted`].
    pub fn call_then(&self, call: Call, then: impl FnOnce(Done) + Send + 'static) {
        self.callbacks.add(self.call(call), Box::new(then));
    }

    /// What was granted, and counters.
    pub fn info(&self) -> SessionInfo {
        let state = self.inner().lock();
        let facts = state.core.facts();
        SessionInfo {
            attr: facts.attr,
            protocol_version: facts.version,
            features: facts.features,
            server_addresses: facts.addresses,
            uid: facts.uid,
            verifier: facts.verifier,
            transport: facts.transport,
            same_host_error: facts.same_host_error,
            export: facts.export,
            reconnects: facts.reconnects,
            new_sessions: facts.new_sessions,
            round_trips: facts.requests,
            optimistic: {
                let own = self.inner().optimistic.stats();
                OptimisticStats {
                    hits: own.hits + facts.named.hits,
                    refused: facts.named.refused,
                    asked: own.asked + facts.named.asked,
                    ..own
                }
            },
            copied_bytes: dafs_fabric::mem::copied_bytes(),
            registrations: dafs_fabric::mem::registrations(),
            system_calls: facts.system_calls,
        }
    }

    /// Ends the session for all clones. Files that are open are closed by the server; calls
    /// under way end with [`Error::Interrupted`].
    pub fn close(self) {
        self.inner().optimistic.end();
        self.inner().shut_down();
    }
}

impl File {
    /// Its data is changed for the user of `session`, of the same connection, from now on, also by
    /// what was begun before: where root opened the file for somebody else, whose writes end setuid
    /// and setgid.
    pub fn written_for(&self, session: &Session) {
        if let Some(user) = &session.user {
            self.inner.session.inner.lock().core.written_for(self.inner.key, user.clone());
        }
    }
}
