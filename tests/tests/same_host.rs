//! Clients find the server by a network of its host alone, which is Unix sockets of the TCP provider here.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dafs_client::{OpenOptions, Session, SessionInfo, SessionOptions};
use dafs_fabric::{
    Access, Address, ConnectError, Device, DeviceAttr, Engine, Listener, MemoryRegion, OpenError,
    Provider, RegisterError, Span,
};
use dafs_fabric_tcp::TcpProvider;
use dafs_server::{Config, LocalSocket, Server};

/// The TCP provider, with a network of this host alone beside it.
#[derive(Clone)]
struct Near(PathBuf);

impl Provider for Near {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn open(&self) -> Result<Arc<dyn Device>, OpenError> {
        Ok(Arc::new(NearDevice { inner: TcpProvider::new().open()?, directory: self.0.clone() }))
    }
}

struct NearDevice {
    inner: Arc<dyn Device>,
    directory: PathBuf,
}

impl Device for NearDevice {
    fn attr(&self) -> &DeviceAttr {
        self.inner.attr()
    }

    fn register(&self, span: Span, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.inner.register(span, access)
    }

    fn engine(&self) -> Result<Box<dyn Engine>, OpenError> {
        self.inner.engine()
    }

    fn listen(&self, address: &Address) -> Result<Box<dyn Listener>, ConnectError> {
        self.inner.listen(address)
    }

    fn same_host(&self, token: [u8; 16]) -> Option<Address> {
        // One name for all tokens, so that a test can be there first.
        let name = if self.directory.ends_with("fixed") { 0 } else { u128::from_le_bytes(token) };
        Some(Address::local(&self.directory.join(format!("{name:x}"))))
    }

    fn local_address(&self, directory: &Path) -> Option<Address> {
        Some(Address::local(&directory.join("near.sock")))
    }
}

/// A server, and places for sockets.
struct Scene {
    directory: tempfile::TempDir,
    config: Config,
    server: Option<Server>,
}

impl Scene {
    fn new(change: impl FnOnce(&mut Config, &Path)) -> Scene {
        let directory = tempfile::tempdir().expect("a directory");
        let at = directory.path();
        for name in ["served", "near", "empty", "fixed", "sockets"] {
            std::fs::create_dir(at.join(name)).expect("a directory");
            // Whatever the umask, which another thread changes while it listens.
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(at.join(name), mode).expect("mode");
        }
        let mut config = Config::for_directory(at.join("served"));
        config.listen = vec!["tcp://127.0.0.1:0".into()];
        config.arena_bytes = Some(64 << 20);
        config.state = Some(at.join("state"));
        change(&mut config, at);
        let mut scene = Scene { directory, config, server: None };
        scene.start();
        scene.config.listen = vec![scene.address().to_string()];
        scene
    }

    fn near(&self, name: &str) -> Arc<Near> {
        Arc::new(Near(self.directory.path().join(name)))
    }

    fn start(&mut self) {
        let near = self.near("near");
        let server = Server::start(&self.config, near, &dafs_store_posix::open);
        self.server = Some(server.expect("a server"));
    }

    fn address(&self) -> Address {
        self.server.as_ref().expect("a server").addresses()[0].clone()
    }

    fn connect(&self, near: &str, options: SessionOptions) -> Session {
        Session::connect(self.near(near), &self.address(), options).expect("connects")
    }

    fn info(&self, near: &str, options: SessionOptions) -> SessionInfo {
        self.connect(near, options).info()
    }
}

/// The nearest that answers in 100 ms, which a busy machine may not do at once.
fn nearest(scene: &Scene) -> Session {
    let connect = || scene.connect("near", SessionOptions::default());
    let is_near = |session: &Session| session.info().transport == "unix";
    std::iter::repeat_with(connect).take(50).find(is_near).expect("it answers")
}

fn why(info: &SessionInfo) -> &str {
    assert_eq!(info.transport, "tcp", "{info:?}");
    info.same_host_error.as_deref().expect("a reason")
}

#[test]
fn a_client_of_this_host_comes_by_the_network_of_this_host() {
    let mut scene = Scene::new(|_, _| {});
    let session = nearest(&scene);
    let info = session.info();
    assert_eq!((info.same_host_error, info.reconnects, info.new_sessions), (None, 0, 0));
    let options = OpenOptions { create: true, read: true, ..OpenOptions::write() };
    let file = session.open(b"file", options).expect("opens");
    let data = vec![7; 3 << 20];
    file.write_at(&data, 0).expect("writes");
    let mut back = vec![0; data.len()];
    assert_eq!(file.read_at(&mut back, 0).expect("reads"), data.len());
    assert_eq!(back, data);
    file.flush().expect("flushes");
    // The next server is found by something else, or by the network again, and the work goes on.
    scene.server.take().map(Server::stop);
    scene.start();
    assert_eq!(file.read_at(&mut back, 0).expect("reads"), data.len());
    let info = session.info();
    assert_eq!(info.new_sessions, 1, "{info:?}");
    assert!(info.transport == "unix" || why(&info).contains("100 ms"), "{info:?}");
    file.close().expect("closes");
}

#[test]
fn why_it_is_not_used_is_told() {
    let scene = Scene::new(|_, _| {});
    // Nobody is there; somebody is there who says nothing.
    let info = scene.info("empty", SessionOptions::default());
    assert!(why(&info).starts_with("unix: "), "{info:?}");
    let squatter = UnixListener::bind(scene.directory.path().join("fixed/0")).expect("a socket");
    let info = scene.info("fixed", SessionOptions::default());
    assert_eq!(why(&info), "unix: no answer in 100 ms");
    assert!(squatter.accept().is_ok(), "it was tried");
    for options in [
        SessionOptions { local: dafs_client::LocalSocket::Off, ..SessionOptions::default() },
        SessionOptions { transport: Some("tcp".into()), ..SessionOptions::default() },
    ] {
        let info = scene.info("near", options);
        assert_eq!((info.transport, info.same_host_error), ("tcp", None));
    }
    let scene = Scene::new(|config, _| config.same_host = false);
    let info = scene.info("near", SessionOptions::default());
    assert!(why(&info).contains(" offers none: it is told not to"), "{info:?}");
}

#[test]
fn a_directory_leads_there_too() {
    let scene = Scene::new(|config, at| {
        config.same_host = true;
        config.local_socket = LocalSocket::In(at.join("sockets"));
    });
    let sockets = scene.directory.path().join("sockets");
    assert!(sockets.join("near.sock").exists());
    // Where another server is, who does not know the session.
    let other = Scene::new(|config, at| config.local_socket = LocalSocket::In(at.join("sockets")));
    let there = other.directory.path().join("sockets");
    let place = there.display().to_string();
    let local = dafs_client::LocalSocket::In(there);
    let info = scene.info("near", SessionOptions { local, ..SessionOptions::default() });
    let said = why(&info);
    assert!(said.contains("no such session") && said.contains(&place), "{info:?}");
    let local = dafs_client::LocalSocket::In(sockets.clone());
    let connect = || {
        let options = SessionOptions { local: local.clone(), ..SessionOptions::default() };
        scene.info("empty", options).transport
    };
    assert!(std::iter::repeat_with(connect).take(50).any(|transport| transport == "unix"));
    scene.server.map(Server::stop);
    assert!(!sockets.join("near.sock").exists());
}

#[test]
fn a_transport_that_cannot_be_had_is_an_error() {
    let scene = Scene::new(|_, _| {});
    let fails = |transport: &str| {
        let options =
            SessionOptions { transport: Some(transport.into()), ..SessionOptions::default() };
        let made = Session::connect(scene.near("near"), &scene.address(), options);
        made.map(drop).expect_err("cannot").to_string()
    };
    let said = fails("mesh");
    assert!(said.contains("no network of this program (known: tcp, unix)"), "{said}");
    // Its port was free by chance: it has no local socket.
    let said = fails("unix");
    assert!(said.contains(".sock"), "{said}");
}
