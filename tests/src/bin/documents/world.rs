//! Where the examples of a page run: a temporary directory with what they name, and a server.

use std::fs::create_dir_all;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use dafs_tests::{Served, binary, patient};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, geteuid};

/// What a server says last when it serves.
const LAST: &str = "press Ctrl-C to flush and stop";

/// How long a command, or the start of a server, may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A directory, and a server of what stands there for `/srv/data`. In commands, and in what they are shown to
/// print, these are replaced:
///
/// | as printed | as run |
/// | --- | --- |
/// | `dafs://localhost/`, `URL` | the URL of the server, which has files `db` and `old` |
/// | `dafs://server/` | that which an example has started last; without any, the same |
/// | `/srv/…`, `/mnt/…`, `/etc/dafs/…`, `/etc/dafs.…`, `/tmp/…`, `FILE` | the same below the directory |
/// | `./tree`, `./src`, `~` | small trees, and the home directory, there |
/// | `https://example.org/repository.git` | a small repository there |
/// | `alice` | who runs this |
/// | `make serve DIR=… ARGS=…` | `dafs serve`, of the build that is there |
/// | `dafs serve …` | the same on a free port of loopback, until it serves; it is ended by the next, or the page |
/// | `dafs top` | one look at the server |
/// | `dafs config new` | with `--directory` |
/// | `dafs bench io`, `postmark` | short, with small files |
#[derive(Debug)]
pub(crate) struct World {
    dir: tempfile::TempDir,
    server: Served,
    /// What an example has started last, with its URL.
    other: Option<(Server, String)>,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) success: bool,
    /// On standard output and standard error.
    pub(crate) printed: String,
}

impl World {
    /// # Panics
    /// When the machine lets nobody make a directory or start a server.
    pub(crate) fn new() -> World {
        let dir = tempfile::tempdir().expect("tempdir");
        furnish(dir.path()).expect("files of the examples");
        let state = dir.path().join("state").display().to_string();
        let server =
            Served::start(&dir.path().join("srv/data"), &["--arena", "64m", "--state", &state]);
        World { dir, server, other: None }
    }

    /// A text with what stands for its placeholders.
    pub(crate) fn stand_in(&self, text: &str) -> String {
        let at = |path: &str| self.dir.path().join(path).display().to_string();
        let places = [
            ("dafs://localhost/", self.server.url.clone()),
            (
                "dafs://server/",
                self.other.as_ref().map_or(&self.server.url, |other| &other.1).clone(),
            ),
            ("https://example.org/repository.git", at("repository.git")),
            ("/some/dir", at("srv/data")),
            ("/srv/", at("srv/")),
            ("/mnt/", at("mnt/")),
            ("/etc/dafs/", at("etc/dafs/")),
            ("/etc/dafs.", at("etc/dafs.")),
            ("/tmp/", at("tmp/")),
            ("~/", at("home/")),
            ("alice", user()),
            ("URL", self.server.url.clone()),
            ("FILE", at("trace")),
        ];
        let mut rest = text;
        let mut out = String::new();
        // What was put in has places in it that look like others.
        while let Some(next) = rest.chars().next() {
            let found = places.iter().find(|(from, _)| rest.starts_with(from));
            let (length, put) = match found {
                Some((from, to)) => (from.len(), to.clone()),
                None => (next.len_utf8(), next.to_string()),
            };
            out += &put;
            rest = rest.get(length..).unwrap_or_default();
        }
        out
    }

    /// Runs a command as it is printed.
    pub(crate) fn run(&mut self, command: &str) -> Result<Ran, String> {
        let command = self.stand_in(command);
        if let Some(arguments) = command.strip_prefix("make serve DIR=") {
            let (dir, args) = arguments.split_once(" ARGS=").unwrap_or((arguments, ""));
            return self.serve(&format!("{} {dir}", args.trim_matches('"')));
        }
        // What only checks ends by itself.
        if let Some(arguments) =
            command.strip_prefix("dafs serve ").filter(|args| !args.contains("--check"))
        {
            return self.serve(arguments);
        }
        let output = self.shell(&self.tamed(command)).output();
        let output = output.map_err(|error| error.to_string())?;
        if output.status.code() == Some(124) {
            return Err(format!("was not done in {} s", LIMIT.as_secs()));
        }
        Ok(ended(&output))
    }

    /// As it is to be run: not for long, or for ever, and not beside the directory.
    fn tamed(&self, command: String) -> String {
        if command == "dafs top" {
            format!("dafs top --once {}", self.server.url)
        } else if command.starts_with("dafs top ") {
            format!("{command} {}", self.server.url)
        } else if command.starts_with("dafs config new ") {
            format!("{command} --directory {}", self.dir.path().join("etc/dafs").display())
        } else if command.starts_with("dafs bench io ") {
            command + " --seconds 0.05 --file-size 4m"
        } else if command.starts_with("dafs bench postmark ") {
            command + " --transactions 40 --files 20 --size 4k"
        } else {
            command
        }
    }

    fn shell(&self, command: &str) -> Command {
        let limit = patient(LIMIT).as_secs().to_string();
        let mut shell = Command::new("timeout");
        shell.args([
            "-k",
            "5",
            &limit,
            "bash",
            "-o",
            "pipefail",
            "-c",
            &format!("{{ {command}\n}} 2>&1"),
        ]);
        shell.current_dir(self.dir.path().join("here")).stdin(Stdio::null());
        let path = std::env::var("PATH").unwrap_or_default();
        let programs = binary().parent().map(|dir| dir.display().to_string()).unwrap_or_default();
        shell.env("PATH", format!("{programs}:{path}")).env("HOME", self.dir.path().join("home"));
        // Its messages are about what it clones.
        shell.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_TERMINAL_PROMPT", "0");
        shell
    }

    /// Runs a server until it says that it serves.
    fn serve(&mut self, arguments: &str) -> Result<Ran, String> {
        self.finish()?;
        let state = self.dir.path().join("state-of-another").display().to_string();
        let mut args = vec!["serve".to_owned(), "--state".into(), state];
        let mut words = arguments.split_whitespace();
        let mut listens = false;
        while let Some(word) = words.next() {
            args.push(word.to_owned());
            if word == "--listen" {
                let address = words.next().unwrap_or_default();
                args.push(
                    if address.starts_with("tcp://") { "tcp://127.0.0.1:0" } else { address }
                        .to_owned(),
                );
                listens = true;
            } else if word == "--arena" {
                // Room for tests beside this one.
                words.next();
                args.push("64m".into());
            }
        }
        if !listens {
            args.extend(["--listen".into(), "tcp://127.0.0.1:0".into()]);
        }
        let child = dafs_tests::command(&args)
            .current_dir(self.dir.path().join("here"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut server = Server(child);
        let (told, lines) = channel();
        if let (Some(out), Some(errors)) = (server.0.stdout.take(), server.0.stderr.take()) {
            tell(out, told.clone());
            tell(errors, told);
        }
        let mut printed = String::new();
        while !printed.contains(LAST) {
            match lines.recv_timeout(patient(LIMIT)) {
                Ok(line) => printed = printed + &line + "\n",
                Err(_) => return Err(format!("does not serve: {printed}")),
            }
        }
        let url =
            printed.lines().find(|line| line.starts_with("dafs")).unwrap_or_default().to_owned();
        self.other = Some((server, url));
        Ok(Ran { success: true, printed })
    }

    /// Ends what an example has started.
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        let ended = self.other.take().is_none_or(|(mut server, _)| server.end());
        if ended { Ok(()) } else { Err("a server of an example did not end well".into()) }
    }
}

/// Sends the lines of a stream, in a thread of its own that ends with the stream.
fn tell(stream: impl Read + Send + 'static, to: Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            // Who has seen enough hears no more, but the writer is not to meet a closed pipe.
            let _ = to.send(line);
        }
    });
}

/// A server that is ended, whatever happens.
#[derive(Debug)]
struct Server(Child);

impl Server {
    fn end(&mut self) -> bool {
        let pid = i32::try_from(self.0.id()).map(Pid::from_raw);
        pid.is_ok_and(|pid| kill(pid, Signal::SIGINT).is_ok())
            && self.0.wait().is_ok_and(|status| status.success())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // An example that failed may have left its mount.
        let mounts = std::fs::read_dir(self.dir.path().join("mnt")).into_iter().flatten().flatten();
        for mount in mounts {
            let _ = dafs_tests::run(&[PathBuf::from("umount"), "--force".into(), mount.path()]);
        }
    }
}

fn user() -> String {
    User::from_uid(geteuid()).ok().flatten().map_or_else(|| geteuid().to_string(), |user| user.name)
}

fn ended(output: &Output) -> Ran {
    Ran {
        success: output.status.success(),
        printed: String::from_utf8_lossy(&output.stdout).into_owned(),
    }
}

/// What the examples name.
fn furnish(root: &Path) -> std::io::Result<()> {
    for dir in [
        "srv/data",
        "srv/scratch",
        "srv/shared",
        "srv/music",
        "srv/work",
        "mnt/data",
        "etc/dafs",
        "tmp",
        "home",
    ] {
        create_dir_all(root.join(dir))?;
    }
    create_dir_all(root.join("here/tree/sub"))?;
    create_dir_all(root.join("here/src"))?;
    std::fs::write(root.join("here/src/keep.o"), "an object")?;
    let tree = root.join("here/tree");
    std::fs::write(tree.join("a.txt"), "hello\n")?;
    std::fs::write(tree.join("sub/b.bin"), vec![7; 3_000_000])?;
    symlink("a.txt", tree.join("link"))?;
    std::fs::write(root.join("srv/data/db"), vec![1; 4 << 20])?;
    std::fs::write(root.join("srv/data/old"), vec![2; 1 << 20])?;
    symlink("../etc/dafs.key", root.join("home/dafs.key"))?;
    let git = |args: &[&str]| Command::new("git").arg("-C").arg(root).args(args).output();
    git(&["init", "-q", "--bare", "repository.git"])?;
    Ok(())
}
