//! A real server, and commands against it.

#![allow(dead_code, reason = "each test file uses a part")]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dafs_client::{OpenOptions, Session, SessionOptions, Url};
use dafs_fabric::Provider;
use dafs_fabric_shm::ShmProvider;
use dafs_fabric_tcp::TcpProvider;

pub mod cached;
#[path = "../../../../tests/src/marked.rs"]
mod marked;
pub mod tree;

/// A directory of its own for each, removed at the end.
pub struct Temporary(pub PathBuf);

impl Temporary {
    pub fn new() -> Temporary {
        let path = tempfile::Builder::new()
            .prefix("dafs-cli-")
            .permissions(PermissionsExt::from_mode(0o755))
            .tempdir()
            .expect("a new directory")
            .keep();
        Temporary(path)
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = Command::new("chmod").args(["-R", "u+rwx"]).arg(&self.0).output();
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server of a directory of its own.
pub struct Server {
    pub child: Child,
    /// Ends in a slash.
    pub url: String,
    pub directory: PathBuf,
    temporary: Option<Temporary>,
}

impl Server {
    pub fn start(options: &[&str]) -> Server {
        let temporary = Temporary::new();
        let directory = temporary.join("served");
        std::fs::create_dir(&directory).expect("directory");
        Server::start_in(temporary, directory, options)
    }

    /// Served by another user. Only as root.
    pub fn start_as(uid: u32, options: &[&str]) -> Server {
        let temporary = Temporary::new();
        let directory = temporary.join("served");
        std::fs::create_dir(&directory).expect("directory");
        for path in [&temporary.0, &directory] {
            std::os::unix::fs::chown(path, Some(uid), Some(uid)).expect("chown");
        }
        let mut command = binary_for_others(&temporary);
        command.uid(uid).gid(uid).current_dir("/").env_remove("XDG_RUNTIME_DIR");
        Server::start_with(command, temporary, directory, options)
    }

    pub fn start_in(temporary: Temporary, directory: PathBuf, options: &[&str]) -> Server {
        let command = binary();
        Server::start_with(command, temporary, directory, options)
    }

    fn start_with(
        mut command: Command,
        temporary: Temporary,
        directory: PathBuf,
        options: &[&str],
    ) -> Server {
        command.arg("serve").args(options);
        for [option, value] in [["--listen", "tcp://127.0.0.1:0"], ["--arena", "64m"]] {
            if !options.contains(&option) {
                command.args([option, value]);
            }
        }
        // As in `dafs_tests::Served`: options with a value each, for whole suites.
        let wanted = std::env::var("DAFS_TEST_SERVE").unwrap_or_default();
        let wanted: Vec<&str> = wanted.split_whitespace().collect();
        for pair in wanted.chunks(2).filter(|pair| !options.contains(&pair[0])) {
            command.args(pair);
        }
        if !options.contains(&"--state") {
            command.arg("--state").arg(temporary.join("state"));
        }
        if !options.contains(&"--export") {
            command.arg(&directory);
        }
        let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
        let mut url = String::new();
        let out = child.stdout.as_mut().expect("piped");
        BufReader::new(out).read_line(&mut url).expect("the URL is the first line");
        let url = url.trim_end().to_owned();
        assert!(url.starts_with("dafs") && url.ends_with('/'), "{url}");
        Server { child, url, directory, temporary: Some(temporary) }
    }

    /// The URL of a path.
    pub fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    pub fn file(&self, path: &str) -> PathBuf {
        self.directory.join(path)
    }

    /// As a crash, and the same server again.
    pub fn crash_and_restart(&mut self) {
        self.crash_and_restart_with(&[]);
    }

    /// As a crash, and the same server again with these options.
    pub fn crash_and_restart_with(&mut self, options: &[&str]) {
        self.child.kill().expect("kill");
        self.child.wait().expect("ends");
        self.start_again_with(options);
    }

    /// As Ctrl-C, and the same server again.
    ///
    /// # Panics
    /// When it does not end well.
    pub fn restart(&mut self) {
        assert_eq!(self.interrupt(), Some(0));
        self.start_again();
    }

    /// The same server, which has ended, again.
    pub fn start_again(&mut self) {
        self.start_again_with(&[]);
    }

    fn start_again_with(&mut self, options: &[&str]) {
        let address = self.url.trim_start_matches("dafs://").trim_end_matches('/').to_owned();
        let listen = format!("tcp://{address}");
        let temporary = self.temporary.take().expect("one at a time");
        let directory = self.directory.clone();
        let options = [&["--listen", &listen], options].concat();
        *self = Server::start_in(temporary, directory, &options);
    }

    /// As Ctrl-C; the exit code.
    ///
    /// # Panics
    /// When free memory is in the served files.
    pub fn interrupt(&mut self) -> Option<i32> {
        interrupt(&self.child);
        let code = self.child.wait().expect("ends").code();
        self.look();
        code
    }

    /// No served file may hold what nobody filled. (Last blocks are looked at by the bars.)
    fn look(&self) {
        if let Some(found) = marked::found_in(&self.directory, |_, _| Vec::new()) {
            panic!("{found}");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // After a crash it goes on elsewhere.
        if self.temporary.is_some() && !std::thread::panicking() {
            self.look();
        }
    }
}

/// A mount of a server, gone at the end.
pub struct Mounted {
    directory: PathBuf,
    _temporary: Temporary,
}

impl Mounted {
    /// `None`, and says so, where it cannot be.
    pub fn new(server: &Server, options: &[&str]) -> Option<Mounted> {
        let temporary = Temporary::new();
        if !can_mount(&temporary) {
            println!("skipped: needs root, /dev/fuse and the right to mount");
            return None;
        }
        let directory = temporary.join("mounted");
        std::fs::create_dir(&directory).expect("directory");
        let mut command = binary();
        command.arg("mount").args(options).arg(&server.url).arg(&directory);
        let output = command.output().expect("runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        Some(Mounted { directory, _temporary: temporary })
    }

    pub fn path(&self) -> &Path {
        &self.directory
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let output = dafs(&["umount", "--force", path(&self.directory)]);
        let said = text(&output.stderr);
        assert!(output.status.success() || std::thread::panicking(), "{said}");
    }
}

/// Containers have root and the device, and forbid to mount.
fn can_mount(temporary: &Temporary) -> bool {
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let at = path(&temporary.0);
    is_root()
        && device.is_ok()
        && program("mount", &["-t", "tmpfs", "-o", "size=64k", "tmpfs", at]).is_some()
        && program("umount", &[at]).is_some()
}

/// A file system of its own, gone at the end.
pub struct FileSystem(Temporary);

impl FileSystem {
    /// One that can share blocks between files. `None`, and says so, where there cannot be one.
    pub fn sharing_blocks() -> Option<FileSystem> {
        FileSystem::image("xfs")
    }

    /// In an image, of this type. `None`, and says so, where there cannot be one.
    pub fn image(kind: &str) -> Option<FileSystem> {
        let (system, mkfs) = (FileSystem::nowhere(), format!("mkfs.{kind}"));
        let image = system.0.join("image");
        let file = std::fs::File::create(&image).expect("image");
        file.set_len(512 << 20).expect("a sparse file");
        let (image, mount) = (path(&image), system.path());
        let made = program(&mkfs, &["-q", image])
            .and_then(|_| program("mount", &["-o", "loop", image, path(&mount)]));
        if made.is_none() {
            println!("skipped: needs root, loop devices and {mkfs}");
            return None;
        }
        Some(system)
    }

    /// In memory. `None`, and says so, where there cannot be one.
    pub fn memory() -> Option<FileSystem> {
        let system = FileSystem::nowhere();
        let at = system.path();
        if program("mount", &["-t", "tmpfs", "-o", "size=64m", "none", path(&at)]).is_none() {
            println!("skipped: needs root, and the right to mount");
            return None;
        }
        Some(system)
    }

    fn nowhere() -> FileSystem {
        let system = FileSystem(Temporary::new());
        std::fs::create_dir(system.path()).expect("directory");
        system
    }

    pub fn path(&self) -> PathBuf {
        self.0.join("mount")
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        program("umount", &["-l", path(&self.path())]);
    }
}

/// What a program of the system prints; none where it fails.
pub fn program(name: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(name).args(arguments).output().ok()?;
    output.status.success().then(|| text(&output.stdout))
}

/// Unmounts what the server may have open for some seconds yet.
pub fn unmount_when_let_go(at: &Path) {
    let start = Instant::now();
    while program("umount", &[path(at)]).is_none() {
        let busy = start.elapsed() > Duration::from_secs(60);
        if busy {
            program("umount", &["-l", path(at)]);
        }
        assert!(!busy, "the server keeps {}", at.display());
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// As Ctrl-C.
pub fn interrupt(child: &Child) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
}

/// A command of the binary, which marks free memory as this process does, and looks for it.
pub fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dafs"));
    command.env(dafs_fabric::poison::VARIABLE, marked::pattern());
    command
}

/// The same where others reach it: not below a home directory of root's, to which it is copied then.
fn binary_for_others(temporary: &Temporary) -> Command {
    let mut command = binary();
    let built = Path::new(env!("CARGO_BIN_EXE_dafs"));
    let is_open = |dir: &Path| {
        std::fs::metadata(dir).is_ok_and(|meta| meta.permissions().mode() & 0o001 != 0)
    };
    if !built.ancestors().all(is_open) {
        let copy = temporary.join("dafs");
        std::fs::copy(built, &copy).expect("a copy of the program");
        command = Command::new(copy);
        command.env(dafs_fabric::poison::VARIABLE, marked::pattern());
    }
    command
}

/// A session by all networks of the `dafs` command, and the file of a URL, to be read and written.
pub fn open_url(url: &str) -> (Session, dafs_client::File) {
    let url = Url::parse(url).expect("a URL");
    let networks: Vec<Arc<dyn Provider>> =
        vec![Arc::new(TcpProvider::default()), Arc::new(ShmProvider::new())];
    let options = SessionOptions::from_url(&url).expect("options");
    let (session, path) = Session::connect_url(networks, &url, options).expect("a session");
    let options = OpenOptions { write: true, ..OpenOptions::read() };
    let file = session.open(&path, options).expect("a file");
    (session, file)
}

/// Runs the binary.
pub fn dafs<A: AsRef<OsStr>>(arguments: &[A]) -> Output {
    binary().args(arguments).output().expect("runs")
}

/// Runs the binary as another user.
pub fn dafs_as<A: AsRef<OsStr>>(uid: u32, arguments: &[A]) -> Output {
    let temporary = Temporary::new();
    let mut command = binary_for_others(&temporary);
    command.args(arguments).uid(uid).gid(uid).current_dir("/");
    command.output().expect("runs")
}

/// Runs the binary, which must succeed; what it printed.
pub fn good<A: AsRef<OsStr> + std::fmt::Debug>(arguments: &[A]) -> String {
    let output = dafs(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Runs the binary, which must fail with `code`; what it said.
pub fn bad<A: AsRef<OsStr> + std::fmt::Debug>(code: i32, arguments: &[A]) -> String {
    let output = dafs(arguments);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    said
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn json(text: &str) -> Vec<serde_json::Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("an object per line")).collect()
}

pub fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().expect("id");
    text(&output.stdout).trim() == "0"
}

pub fn path(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}
