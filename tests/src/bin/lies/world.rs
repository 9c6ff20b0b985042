//! A server, what it serves, and what may not happen to either.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use dafs_tests::Served;
use dafs_tests::memory::{Bound, Check};

use crate::honest::{Honest, SECRET_BYTES};
use dafs_tests::marks::{Marks, full_of};

/// Bytes of the server's cache.
const ARENA: u64 = 32 << 20;

pub(crate) struct World {
    work: tempfile::TempDir,
    pub marks: Marks,
    pub server: Served,
    pub honest: Option<Honest>,
    /// Connections at a time, at most.
    pub connections: u64,
    /// They go by shared memory.
    has_rings: bool,
}

fn mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn make(dir: &Path, marks: &Marks) -> io::Result<()> {
    for name in ["open", "private"] {
        fs::create_dir_all(dir.join(name))?;
    }
    mode(&dir.join("open"), 0o777)?;
    mode(&dir.join("private"), 0o700)?;
    fs::write(dir.join("data"), vec![1; 1 << 20])?;
    fs::write(dir.join("secret"), full_of(marks.secret, SECRET_BYTES))?;
    mode(&dir.join("secret"), 0o600)?;
    fs::write(dir.join("private/written"), vec![0; 4 << 20])?;
    mode(&dir.join("private/written"), 0o600)?;
    let name = String::from_utf8_lossy(&marks.name).repeat(8);
    (0..50).try_for_each(|number| fs::write(dir.join(format!("private/{name}{number}")), b""))
}

/// Open files have memory of their own beside what is bounded here: a user has a quarter of them.
const LIMITS: &str = "[limits]\nlease_seconds = 8\nopens = 16384\n";

impl World {
    pub(crate) fn start(seed: u64, plant: Option<&str>, has_rings: bool) -> World {
        let work = tempfile::tempdir().expect("tempdir");
        mode(work.path(), 0o755).expect("chmod");
        let (dir, marks) = (work.path().join("served"), Marks::new(seed));
        make(&dir, &marks).expect("files");
        let config = work.path().join("dafs.toml");
        fs::write(&config, LIMITS).expect("write");
        let arena = ARENA.to_string();
        let sockets = work.path().join("sockets");
        fs::create_dir(&sockets).expect("mkdir");
        mode(&sockets, 0o755).expect("chmod");
        let (config, sockets) = (config.display().to_string(), sockets.display().to_string());
        let args = ["--config", &config, "--arena", &arena, "--local-socket", &sockets];
        let poison = PathBuf::from(marks.poison_digits());
        let mut env = vec![(dafs_fabric::poison::VARIABLE, poison.as_path())];
        // Each of them breaks rules by the thousand.
        if std::env::var_os("DAFS_LOG").is_none() {
            env.push(("DAFS_LOG", Path::new("error")));
        }
        env.extend(plant.map(|plant| ("DAFS_PLANT", Path::new(plant))));
        let server = Served::start_with_env(&dir, &args, &env);
        let honest = Some(Honest::start(&server.url, &marks));
        World { work, marks, server, honest, connections: 1, has_rings }
    }

    /// Where the server is found by shared memory.
    pub(crate) fn near(&self) -> String {
        format!("shm:{}", self.work.path().join("sockets/shm.sock").display())
    }

    /// A directory for all users.
    pub(crate) fn work(&self) -> &Path {
        self.work.path()
    }

    /// What is wrong with the server, or was with the honest client.
    pub(crate) fn wrong(&mut self) -> Option<String> {
        if let Some(status) = self.server.ended() {
            return Some(format!("the server ended: {status}"));
        }
        let mut bound = Bound::new(ARENA, self.connections).with_kept_results();
        if self.has_rings {
            bound = bound.with_rings();
        }
        let check = Check::new(&self.server, bound);
        if !check.holds() {
            return Some(format!("{check} ({} MiB now)", self.server.resident_bytes() >> 20));
        }
        self.honest.as_ref().and_then(Honest::wrong).or_else(|| self.on_disk())
    }

    /// Ends everything by the rules.
    pub(crate) fn end(&mut self) -> Option<String> {
        let honest = self.honest.take().and_then(Honest::end);
        let stop = std::panic::AssertUnwindSafe(|| self.server.stop());
        let stopped = std::panic::catch_unwind(stop).err();
        honest.or(stopped.map(|_| "the server does not end well".into())).or_else(|| self.on_disk())
    }

    /// What stands in the liar's files and should not.
    fn on_disk(&self) -> Option<String> {
        let files = fs::read_dir(self.server.dir.join("open")).ok()?;
        files.flatten().find_map(|file| {
            let path = file.path();
            let mut bytes = path.as_os_str().as_encoded_bytes().to_vec();
            match fs::symlink_metadata(&path).ok()? {
                meta if meta.is_file() => bytes.extend(fs::read(&path).ok()?),
                meta if meta.is_symlink() => {
                    bytes.extend(fs::read_link(&path).ok()?.into_os_string().into_encoded_bytes());
                }
                _ => {}
            }
            let found = self.marks.found_in(&bytes)?;
            Some(format!("{found} in the exported file {}", path.display()))
        })
    }
}
