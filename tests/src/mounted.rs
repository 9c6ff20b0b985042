//! Where programs are tried: on a mount of a server of its own, or in a plain directory, which
//! shows what a local file system answers.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{FreshDir, Served, command, machine, patient};

/// How a server ends before it is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// As by Ctrl-C: nothing that was acknowledged is lost.
    Orderly,
    /// kill -9: what was not synced is lost.
    Killed,
}

/// A mounted file system, served by a process of its own (`dafs mount --foreground`). After its
/// time limit that process is killed, so that whoever waits for the mount gets an error.
pub struct Mount {
    dir: PathBuf,
    process: Child,
    watchdog: Option<Sender<()>>,
}

fn signal(process: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(process.id()).expect("a pid"));
    let _ = kill(pid, signal);
}

/// Whether something is mounted right there.
pub fn is_mounted(dir: &Path) -> bool {
    let text = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    text.lines().any(|line| line.split(' ').nth(4) == dir.to_str())
}

impl Mount {
    /// Mounts `url` on `dir`, which is made if it is missing.
    ///
    /// # Errors
    /// That this machine forbids it, what `dafs mount` says, or that nothing is mounted after 20
    /// seconds.
    pub fn start(url: &str, dir: &Path, options: &str, limit: Duration) -> Result<Mount, String> {
        machine::mounts()?;
        fs::create_dir_all(dir).map_err(|error| error.to_string())?;
        let errors = dir.with_extension("errors");
        let file = fs::File::create(&errors).map_err(|error| error.to_string())?;
        let mut mount = command(&["mount", "--foreground", url]);
        mount.arg(dir).stdout(Stdio::null()).stderr(file);
        if !options.is_empty() {
            mount.args(["-o", options]);
        }
        let mut process = mount.spawn().map_err(|error| format!("dafs: {error}"))?;
        let start = Instant::now();
        while !is_mounted(dir) {
            let ended = process.try_wait().map_err(|error| error.to_string())?;
            if ended.is_some() || start.elapsed() > Duration::from_secs(20) {
                let _ = (process.kill(), process.wait());
                let said = fs::read_to_string(&errors).unwrap_or_default();
                return Err(format!("not mounted: {}", said.trim()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let limit = patient(limit);
        let (watchdog, ended) = channel();
        let pid = Pid::from_raw(i32::try_from(process.id()).expect("a pid"));
        let shown = dir.display().to_string();
        std::thread::spawn(move || {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{shown}: no end after {limit:?}, the mount is killed");
                let _ = kill(pid, Signal::SIGKILL);
            }
        });
        Ok(Mount { dir: dir.to_path_buf(), process, watchdog: Some(watchdog) })
    }

    /// Where.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// The process that serves the mount.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// kill -9 of the process that serves the mount. The directory stays mounted, without life.
    pub fn kill(&mut self) {
        self.watchdog = None;
        let _ = (self.process.kill(), self.process.wait());
    }

    /// Unmounts, and waits for the end of the process.
    ///
    /// # Errors
    /// What umount says, or that the process does not end well within 40 seconds.
    pub fn unmount(&mut self) -> Result<(), String> {
        let output = match nix::unistd::geteuid().is_root() {
            true => Command::new("umount").arg(&self.dir).output(),
            false => Command::new("fusermount3").arg("-u").arg(&self.dir).output(),
        };
        let output = output.map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_string());
        }
        let start = Instant::now();
        let status = loop {
            match self.process.try_wait().map_err(|error| error.to_string())? {
                Some(status) => break status,
                None if start.elapsed() > Duration::from_secs(40) => {
                    return Err("the process of the mount does not end".into());
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        self.watchdog = None;
        if status.success() { Ok(()) } else { Err(format!("dafs mount ended with {status}")) }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if is_mounted(&self.dir) && self.unmount().is_err() {
            signal(&self.process, Signal::SIGKILL);
            let _ = Command::new("umount").arg("-l").arg(&self.dir).status();
        }
        let _ = (self.process.kill(), self.process.wait());
    }
}

/// What lies below: the directory that is served.
enum Disk {
    Fresh(FreshDir),
    Plain(PathBuf),
}

/// A directory to try programs in.
pub struct Place {
    mounts: Vec<Mount>,
    server: Option<Served>,
    disk: Disk,
    limit: Duration,
    work: tempfile::TempDir,
}

impl Place {
    /// A mount, with a limit of time for everything that is done with it; where the environment
    /// has `DAFS_TEST_DIR=DIR`, a plain directory below DIR instead.
    ///
    /// # Panics
    /// When it cannot be mounted.
    pub fn new(limit: Duration) -> Place {
        Place::start(None, limit)
    }

    /// As [`new`](Self::new), on a file system of its own.
    ///
    /// # Panics
    /// As `new`.
    pub fn fresh(limit: Duration) -> Place {
        Place::on(FreshDir::new(), limit)
    }

    /// As [`new`](Self::new), on this file system.
    ///
    /// # Panics
    /// As `new`.
    pub fn on(disk: FreshDir, limit: Duration) -> Place {
        Place::start(Some(disk), limit)
    }

    fn start(fresh: Option<FreshDir>, limit: Duration) -> Place {
        let local = std::env::var_os("DAFS_TEST_DIR");
        let base = local.clone().map_or_else(std::env::temp_dir, PathBuf::from);
        let work = tempfile::tempdir_in(base).expect("tempdir");
        // Others than the owner are tried too.
        let open = |path: &Path| fs::set_permissions(path, Permissions::from_mode(0o755));
        open(work.path()).expect("chmod");
        let disk = match fresh {
            Some(fresh) => {
                open(fresh.outer()).expect("chmod");
                Disk::Fresh(fresh)
            }
            None => {
                let plain = work.path().join("exported");
                fs::create_dir(&plain).expect("mkdir");
                Disk::Plain(plain)
            }
        };
        let mut place = Place { mounts: Vec::new(), server: None, disk, limit, work };
        if local.is_none() {
            let state = place.work.path().join("state").display().to_string();
            fs::create_dir(&state).expect("mkdir");
            place.server = Some(Served::start(place.exported(), &["--state", &state]));
            place.mount_again("");
        }
        place
    }

    /// The first mount, or the plain directory.
    pub fn path(&self) -> &Path {
        self.mounts.first().map_or_else(|| self.exported(), Mount::path)
    }

    /// The served directory itself.
    pub fn exported(&self) -> &Path {
        match &self.disk {
            Disk::Fresh(fresh) => fresh.path(),
            Disk::Plain(plain) => plain,
        }
    }

    /// A directory beside, on a local file system.
    pub fn beside(&self) -> &Path {
        self.work.path()
    }

    /// False in a plain directory: nothing can be restarted.
    pub fn is_mount(&self) -> bool {
        self.server.is_some()
    }

    /// One more mount of the same server; where nothing is mounted, the same directory again.
    ///
    /// # Panics
    /// When it cannot be mounted.
    pub fn mount_again(&mut self, options: &str) -> PathBuf {
        let Some(server) = &self.server else { return self.path().to_path_buf() };
        let dir = self.work.path().join(format!("mount-{}", self.mounts.len()));
        let mount = Mount::start(&server.at(""), &dir, options, self.limit);
        self.mounts.push(mount.unwrap_or_else(|error| panic!("{error}")));
        dir
    }

    /// One of the mounts, in the order they were made.
    pub fn mount(&mut self, index: usize) -> Option<&mut Mount> {
        self.mounts.get_mut(index)
    }

    /// The server.
    pub fn server(&mut self) -> Option<&mut Served> {
        self.server.as_mut()
    }

    /// Ends the server and starts it again at once.
    ///
    /// # Panics
    /// When it does not end in order, or does not start.
    pub fn restart(&mut self, ending: Ending) {
        let Some(server) = &mut self.server else { return };
        match ending {
            Ending::Orderly => server.stop(),
            Ending::Killed => server.kill(),
        }
        server.restart();
    }
}
