//! A server of all networks, over a directory of its own.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dafs_fabric::Provider;
use dafs_fabric_shm::ShmProvider;
use dafs_fabric_tcp::TcpProvider;
use dafs_server::{Config, Optimistic, Server};

/// Serves until it is dropped.
pub struct Served {
    directory: tempfile::TempDir,
    tree: PathBuf,
    server: Option<Server>,
}

impl Served {
    /// With an empty tree.
    pub fn start() -> Served {
        Served::start_with(Optimistic::Trusted)
    }

    /// The same, which lets clients read its cache so.
    pub fn start_with(optimistic: Optimistic) -> Served {
        let directory = tempfile::tempdir().expect("a directory");
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(directory.path(), open).expect("chmod");
        let tree = directory.path().join("tree");
        std::fs::create_dir(&tree).expect("mkdir");
        let mut config = Config::for_directory(&tree);
        config.listen = vec![
            format!("unix:{}", socket(&directory).display()),
            format!("shm:{}", directory.path().join("shm").display()),
            "tcp://127.0.0.1:0".into(),
        ];
        config.optimistic = optimistic;
        config.arena_bytes = Some(64 << 20);
        let all: Vec<Arc<dyn Provider>> =
            vec![Arc::new(TcpProvider::new()), Arc::new(ShmProvider::new())];
        let server = Server::start(&config, all, &dafs_store_posix::open).expect("a server");
        Served { directory, tree, server: Some(server) }
    }

    /// For clients, by shared memory.
    pub fn url(&self) -> String {
        format!("dafs+shm://{}//", self.directory.path().join("shm").display())
    }

    /// By a Unix socket, from where they find shared memory.
    pub fn unix_url(&self) -> String {
        format!("dafs+unix://{}//", socket(&self.directory).display())
    }

    /// By TCP, and nothing else.
    pub fn tcp_url(&self) -> String {
        let addresses = self.server.as_ref().map(Server::addresses).expect("it runs");
        let address = addresses.iter().find(|address| address.scheme == "tcp").expect("listens");
        format!("dafs://{}/?transport=tcp", address.target)
    }

    /// What is served.
    pub fn directory(&self) -> &Path {
        &self.tree
    }

    /// Ends the server, in order.
    pub fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

fn socket(directory: &tempfile::TempDir) -> PathBuf {
    directory.path().join("socket")
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop();
    }
}
