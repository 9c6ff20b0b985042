//! The library for C: random operations against a model, while its server comes and goes.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use dafs_tests::Served;

use super::{Line, Mode};

/// The library, as it was built last for anything; `DAFS_TEST_LIBRARY` names another one.
fn library() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("DAFS_TEST_LIBRARY") {
        return Ok(path.into());
    }
    let mut target = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    target.pop();
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(target.join("target"), Into::into);
    let places =
        ["release", "debug", "debug/deps"].map(|place| target.join(place).join("libdafs.so"));
    let built = |path: &PathBuf| path.metadata().and_then(|metadata| metadata.modified()).ok();
    let found = places.into_iter().filter(|path| path.exists()).max_by_key(built);
    found.ok_or_else(|| "no libdafs.so: cargo build -p dafs-capi".into())
}

/// Compiles the program into a directory, beside its library.
fn compile(directory: &Path) -> Result<PathBuf, String> {
    let capi = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/capi");
    let (program, shared) = (directory.join("fsx"), directory.join("libdafs.so.0"));
    std::os::unix::fs::symlink(library()?, &shared).map_err(|error| error.to_string())?;
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-I"]).arg(capi.join("include"));
    cc.arg(capi.join("tests/c/fsx.c")).arg(&shared).arg("-o").arg(&program);
    let output = cc.output().map_err(|error| format!("cc: {error}"))?;
    if !output.status.success() {
        return Err(format!("cc: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(program)
}

/// `DAFS_TEST_SEED`, or another one each time.
fn seed() -> u64 {
    let given = std::env::var("DAFS_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let time = std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64);
    given.unwrap_or(time % 1_000_000_007)
}

/// The program, ended when dropped.
struct Fsx {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Fsx {
    fn start(directory: &Path, url: &str, operations: u64, events: &[&str]) -> Result<Fsx, String> {
        let seed = seed().to_string();
        let mut command = Command::new(compile(directory)?);
        command.args([url, "file", &operations.to_string(), &seed]).args(events);
        command.env("LD_LIBRARY_PATH", directory).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("fsx: {error}"))?;
        let stdin = child.stdin.take().expect("piped");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        eprintln!("c-fsx: seed {seed}");
        Ok(Fsx { child, stdin, lines })
    }

    /// What it says when it is done; until then what it asks for is done.
    fn run(mut self, server: &mut Served) -> Result<String, String> {
        loop {
            let Some(Ok(line)) = self.lines.next() else {
                let status = self.child.wait().map_err(|error| error.to_string())?;
                return Err(format!("fsx ended with {status}: its words are above"));
            };
            match line.as_str() {
                "restart" => server.stop(),
                "kill" => server.kill(),
                _ => return Ok(line),
            }
            server.restart();
            writeln!(self.stdin, "done").map_err(|error| format!("fsx: {error}"))?;
        }
    }
}

impl Drop for Fsx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The file in the served directory is what the program made of it.
fn check_file(path: &Path, bytes: u64, sum: u64) -> Result<(), String> {
    let found = std::fs::read(path).map_err(|error| error.to_string())?;
    let start = 14_695_981_039_346_656_037_u64;
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(1_099_511_628_211);
    if found.len() as u64 != bytes || found.iter().fold(start, step) != sum {
        return Err("the file on disk is not that of the model".into());
    }
    Ok(())
}

fn tried(operations: u64, events: &[&str]) -> Result<String, String> {
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let tree = directory.path().join("tree");
    std::fs::create_dir(&tree).map_err(|error| error.to_string())?;
    let mut server = Served::start(&tree, &[]);
    let fsx = Fsx::start(directory.path(), &server.url, operations, events)?;
    let told = fsx.run(&mut server)?;
    let numbers: Vec<u64> = told.split(' ').skip(1).filter_map(|word| word.parse().ok()).collect();
    let [done, losses, unknown, different, rewritten, bytes, sum] = numbers[..] else {
        return Err(format!("fsx said '{told}'"));
    };
    check_file(&tree.join("file"), bytes, sum)?;
    if done != operations {
        return Err(format!("{done} operations"));
    }
    Ok(format!(
        "{done}: {losses} losses told, {unknown} unknown, {different} seen first, {rewritten} blocks again"
    ))
}

pub(crate) fn fsx(mode: Mode) -> Vec<Line> {
    let (operations, each) = mode.pick((10_000, 1), (1_000_000, 10));
    let events: Vec<&str> = ["restart", "kill"].into_iter().cycle().take(2 * each).collect();
    let what = format!("operations through the C interface, {each} restarts, {each} kills");
    let required = format!("{operations}, no difference");
    vec![Line::new("c-fsx", &what, &required).result(tried(operations, &events))]
}
