//! A server on a Unix socket, over a directory of its own.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dafs_fabric_tcp::TcpProvider;
use dafs_server::{Config, Server};

/// Serves until it is dropped.
pub struct Served {
    directory: tempfile::TempDir,
    tree: PathBuf,
    server: Option<Server>,
}

impl Served {
    /// With an empty tree.
    pub fn start() -> Served {
        let directory = tempfile::tempdir().expect("a directory");
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(directory.path(), open).expect("chmod");
        let tree = directory.path().join("tree");
        std::fs::create_dir(&tree).expect("mkdir");
        let mut config = Config::for_directory(&tree);
        config.listen = vec![format!("unix:{}", socket(&directory).display())];
        config.arena_bytes = Some(64 << 20);
        let provider = Arc::new(TcpProvider::new());
        let server = Server::start(&config, provider, &dafs_store_posix::open).expect("a server");
        Served { directory, tree, server: Some(server) }
    }

    /// For clients.
    pub fn url(&self) -> String {
        format!("dafs+unix://{}//", socket(&self.directory).display())
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
