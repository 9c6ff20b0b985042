//! suites: the suites of the other binaries, with every way to configure the server: data paths,
//! policies, ways to the disk, and users.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use dafs_tests::{Served, binary, machine};
use tempfile::TempDir;

use crate::{Line, Mode};

const NOBODY: u32 = 65_534;
/// A file system that is memory, on every Linux.
const MEMORY: &str = "/dev/shm";
/// Setups that are tried at the same time, where there are processors for them.
const AT_ONCE_MAX: usize = 4;
const PROGRAMS: [&str; 2] = ["acceptance", "mount-acceptance"];

/// A way to configure a server, and where it runs.
#[derive(Debug, Clone, Copy)]
struct Setup {
    /// Of `dafs serve`.
    options: &'static str,
    /// Its threads get no io_uring: direct transfers are the pool's.
    no_rings: bool,
    /// All directories are in memory.
    in_memory: bool,
    /// Server, mount and programs are nobody's.
    as_nobody: bool,
}

const fn on_disk(options: &'static str) -> Setup {
    Setup { options, no_rings: false, in_memory: false, as_nobody: false }
}

const fn without_rings(options: &'static str) -> Setup {
    Setup { no_rings: true, ..on_disk(options) }
}

const fn in_memory(options: &'static str) -> Setup {
    Setup { in_memory: true, ..on_disk(options) }
}

/// Each data path, each policy and each way to the disk once.
const FEW: [Setup; 6] = [
    on_disk("--datapath normal"),
    on_disk("--datapath mmap"),
    in_memory("--datapath sendfile"),
    on_disk("--policy lru --disk auto"),
    without_rings("--policy mq --disk auto"),
    Setup { as_nobody: true, ..on_disk("--disk buffered") },
];

/// What makes a difference: policies and ways to the disk are the unifier's.
const ALL: [Setup; 14] = [
    on_disk("--datapath normal"),
    on_disk("--datapath mmap"),
    on_disk("--datapath sendfile"),
    in_memory("--datapath normal"),
    in_memory("--datapath mmap"),
    in_memory("--datapath sendfile"),
    on_disk("--policy lru --disk buffered"),
    on_disk("--policy mq --disk buffered"),
    on_disk("--policy lru --disk auto"),
    on_disk("--policy mq --disk auto"),
    without_rings("--policy lru --disk auto"),
    without_rings("--policy mq --disk auto"),
    in_memory("--policy lru"),
    in_memory("--policy mq"),
];

/// A part of pjdfstest, fsx and programs for some; all suites for all, which takes hours: each
/// ended one is told at once, and `DAFS_TEST_SETUPS` is a part of the names of those to run.
pub(crate) fn all(mode: Mode) -> Vec<Line> {
    let line = Line::new("suites", "the suites with other configurations", "all pass");
    if !nix::unistd::geteuid().is_root() {
        return vec![line.skipped("needs root")];
    }
    let place = match Workplace::new() {
        Ok(place) => place,
        Err(reason) => return vec![line.result(Err(reason))],
    };
    let setups = match mode.long {
        false => FEW.to_vec(),
        true => {
            let nobody = ALL.iter().map(|setup| Setup { as_nobody: true, ..*setup });
            ALL.iter().copied().chain(nobody).collect()
        }
    };
    let wanted = std::env::var("DAFS_TEST_SETUPS").unwrap_or_default();
    let is_wanted = |setup: &Setup| described(*setup).contains(&wanted);
    let mut lines = vec![place.rings()];
    let wanted: Vec<Setup> = setups.into_iter().filter(is_wanted).collect();
    lines.extend(place.tried_side_by_side(mode, &wanted));
    lines
}

/// What the runs share: binaries that everybody can start, and a library.
struct Workplace {
    dir: TempDir,
    no_rings: PathBuf,
}

impl Workplace {
    fn new() -> Result<Workplace, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let open = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).map_err(|e| e.to_string())
        };
        open(dir.path(), 0o755)?;
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let programs = PROGRAMS.map(|name| (own.with_file_name(name), name));
        for (from, name) in programs.into_iter().chain([(binary(), "dafs")]) {
            let to = dir.path().join(name);
            fs::copy(&from, &to).map_err(|error| format!("{}: {error}", from.display()))?;
            open(&to, 0o755)?;
        }
        // What the runs read of this tree: it may lie where only its owner comes.
        for part in ["tests/suites", "target/tools/bin"] {
            let to = dir.path().join(part);
            fs::create_dir_all(&to).map_err(|error| error.to_string())?;
            for made in to.ancestors().take(part.split('/').count()) {
                open(made, 0o755)?;
            }
            // Without what setup.sh installs the runs say what they lack.
            for entry in fs::read_dir(root().join(part)).into_iter().flatten().flatten() {
                let (from, to) = (entry.path(), to.join(entry.file_name()));
                fs::copy(&from, &to).map_err(|error| format!("{}: {error}", from.display()))?;
                open(&to, 0o755)?;
            }
        }
        let no_rings = dir.path().join("no-rings.so");
        let source = root().join("tests/interpose/no-rings.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&no_rings).arg(source);
        match compiler.status() {
            Ok(status) if status.success() => Ok(Workplace { dir, no_rings }),
            _ => Err("no C compiler".into()),
        }
    }

    /// That the setups without rings are what they say.
    fn rings(&self) -> Line {
        let line = Line::new("suites", "rings of a server, and of one without", "some, none");
        let dir = tempfile::tempdir().expect("tempdir");
        let count = |env: &[(&str, &Path)]| {
            let server = Served::start_with_env(dir.path(), &["--disk", "auto"], env);
            let files = fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("it runs");
            let names = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
            names.filter(|name| name.to_string_lossy().contains("[io_uring]")).count()
        };
        let (with, without) = (count(&[]), count(&[("LD_PRELOAD", &self.no_rings)]));
        if let Err(reason) = machine::rings() {
            return line.result(Err(reason));
        }
        if with == 0 {
            return line.skipped("no direct I/O here: --disk auto is buffered");
        }
        line.measured(format!("{with}, {without}"), without == 0)
    }

    /// The suites wait much: for limits of time, and for each other's answers.
    fn tried_side_by_side(&self, mode: Mode, setups: &[Setup]) -> Vec<Line> {
        let next = AtomicUsize::new(0);
        let lines = Mutex::new(Vec::new());
        let at_once = thread::available_parallelism().map_or(1, usize::from).min(AT_ONCE_MAX);
        thread::scope(|scope| {
            for _ in 0..at_once {
                scope.spawn(|| {
                    while let index = next.fetch_add(1, Ordering::Relaxed)
                        && let Some(setup) = setups.get(index)
                    {
                        let of_setup = self.tried(mode, *setup);
                        lines.lock().expect("no panic").push((index, of_setup));
                    }
                });
            }
        });
        let mut lines = lines.into_inner().expect("no panic");
        lines.sort_by_key(|(index, _)| *index);
        lines.into_iter().flat_map(|(_, of_setup)| of_setup).collect()
    }

    fn tried(&self, mode: Mode, setup: Setup) -> Vec<Line> {
        // What `trees` says of memory is the unifier's. `programs` needs a Rust tool chain and users of its
        // own.
        let paged = setup.options.contains("--datapath");
        let bars = if paged { "faults,variants" } else { "trees,faults,variants" };
        let of_nobody = "pjdfstest,integrity,locks,faults,history";
        let of_mounts = match setup.as_nobody {
            true => of_nobody.to_owned(),
            false => format!("programs,{of_nobody}"),
        };
        let runs: &[(&str, &[&str])] = match mode.long {
            false => &[("mount-acceptance", &["--sample"])],
            true => {
                &[("acceptance", &["--only", bars]), ("mount-acceptance", &["--only", &of_mounts])]
            }
        };
        let mut lines: Vec<_> =
            runs.iter().map(|(name, args)| self.run(setup, name, args).told()).collect();
        if mode.long && !setup.as_nobody && !setup.no_rings {
            lines.push(in_process(setup).told());
        }
        lines
    }

    fn run(&self, setup: Setup, name: &str, args: &[&str]) -> Line {
        let line = Line::new("suites", &format!("{}: {name}", described(setup)), "all pass");
        let allowed = machine::mounts();
        let allowed = if setup.as_nobody { allowed.and(machine::namespaces()) } else { allowed };
        if let Err(reason) = allowed {
            return line.result(Err(reason));
        }
        let base = if setup.in_memory { MEMORY.into() } else { std::env::temp_dir() };
        let temporary = tempfile::tempdir_in(base).expect("tempdir");
        let mode = Permissions::from_mode(0o755);
        fs::set_permissions(temporary.path(), mode).expect("chmod");
        let program = self.dir.path().join(name);
        let mut command = match setup.as_nobody {
            false => Command::new(program),
            true => {
                let nodes = self.dir.path().join("nodes");
                fs::create_dir_all(&nodes).expect("mkdir");
                chown(temporary.path(), Some(NOBODY), Some(NOBODY)).expect("chown");
                let mut command = Command::new("bash");
                command.arg(root().join("tests/suites/as-nobody.sh")).arg(nodes).arg(program);
                command.env("HOME", temporary.path()).env_remove("XDG_STATE_HOME");
                command.env("DAFS_TEST_TREE", self.dir.path());
                command
            }
        };
        command.args(args).current_dir("/").env("TMPDIR", temporary.path());
        command.env("DAFS_BIN", self.dir.path().join("dafs"));
        command.env("DAFS_TEST_SERVE", setup.options);
        // What some setups lack (nobody is not root) is no shortcoming of the machine.
        command.env_remove("CI");
        if std::env::var_os("DAFS_TEST_PATIENCE").is_none() {
            command.env("DAFS_TEST_PATIENCE", "4");
        }
        if setup.no_rings {
            command.env("DAFS_TEST_SERVE_PRELOAD", &self.no_rings);
        }
        let output = command.output().expect("it can be run");
        line.result(summary(output.status.success(), &output.stdout, &output.stderr))
    }
}

/// How the lines of a table of bars ended.
fn summary(ok: bool, printed: &[u8], errors: &[u8]) -> Result<String, String> {
    let text = String::from_utf8_lossy(printed);
    let joined = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let missed: Vec<_> = text.lines().filter(|line| line.ends_with("MISS")).map(joined).collect();
    if !missed.is_empty() {
        return Err(missed.join("; "));
    }
    let passed = text.lines().filter(|line| line.ends_with(" pass")).count();
    if !ok || passed == 0 {
        return Err(String::from_utf8_lossy(errors).lines().last().unwrap_or("no answer").into());
    }
    let reasons: Vec<_> = text.lines().filter_map(|line| line.split_once(" skipped: ")).collect();
    match reasons.first() {
        None => Ok(format!("{passed} pass")),
        Some((_, reason)) => Ok(format!("{passed} pass, {} skipped: {reason}", reasons.len())),
    }
}

/// The tests with servers in the process of the test, or of the command just built.
fn in_process(setup: Setup) -> Line {
    let line = Line::new("suites", &format!("{}: cargo test", described(setup)), "all pass");
    let mut command = Command::new("cargo");
    command.args(["test", "--quiet", "--no-fail-fast", "--tests"]).current_dir(root());
    for package in ["dafs-server", "dafs-client", "dafs-cli", "dafs-tests"] {
        command.args(["--package", package]);
    }
    command.env("DAFS_TEST_SERVE", setup.options);
    if setup.in_memory {
        command.env("TMPDIR", MEMORY);
    }
    let output = command.output().expect("cargo");
    let text = String::from_utf8_lossy(&output.stdout);
    let failed: Vec<_> = text.lines().filter(|line| line.ends_with("FAILED")).collect();
    let groups = text.lines().filter(|line| line.starts_with("test result: ok")).count();
    line.measured(
        format!("{groups} files of tests pass {}", failed.join(" ")),
        output.status.success() && groups > 0,
    )
}

fn described(setup: Setup) -> String {
    let mut text = setup.options.to_owned();
    for (is, what) in [
        (setup.no_rings, ", no rings"),
        (setup.in_memory, ", tmpfs"),
        (setup.as_nobody, ", nobody"),
    ] {
        if is {
            text += what;
        }
    }
    text
}

fn root() -> PathBuf {
    let mut path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    path.pop();
    path
}
