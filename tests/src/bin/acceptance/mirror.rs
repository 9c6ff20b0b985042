//! `dafs mirror`: changed trees, killed in the middle, are equal at the end.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use dafs_tests::acceptance::median;
use dafs_tests::tree::{Keep, differences, pattern};
use dafs_tests::{Served, command, run_ok};

use crate::{Line, Mode};

/// Files of a directory.
const PER_DIRECTORY: usize = 100;
/// One of so many is changed, one removed, one renamed.
const CHANGED: usize = 20;
/// For a mirror to come as far as it is to be killed at.
const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) fn kills(mode: Mode) -> Vec<Line> {
    let work = tempfile::tempdir().expect("tempdir");
    let (source, served) = (work.path().join("source"), work.path().join("served"));
    let files = mode.pick(2_000, 100_000);
    make(&source, files);
    fs::create_dir(&served).expect("mkdir");
    let server = Served::start(&served, &[]);
    let (near, far) = (source.display().to_string(), server.at("tree"));
    let at = served.join("tree");
    let copied = try_kills(&near, &far, &at, &source, &names_at(files, file));
    let mut lines = vec![
        Line::new("mirror", &format!("{files} files, killed twice"), "identical").result(copied),
    ];
    change(&source, files);
    let changed = try_kills(&near, &far, &at, &source, &names_at(files, renamed));
    let what = "changed, removed and renamed files, killed twice";
    lines.push(Line::new("mirror", what, "identical").result(changed));
    let back = work.path().join("back");
    let down =
        try_kills(&far, &back.display().to_string(), &back, &source, &names_at(files, renamed));
    lines.push(
        Line::new("mirror", "the same to this machine, killed twice", "identical").result(down),
    );
    lines.extend(second_run(mode, &near, &far));
    lines
}

fn file(i: usize) -> PathBuf {
    PathBuf::from(format!("d{}/f{i}", i / PER_DIRECTORY))
}

fn renamed(i: usize) -> PathBuf {
    PathBuf::from(format!("d{}/renamed{}", i / PER_DIRECTORY, i / CHANGED * CHANGED + 2))
}

/// Names a third and two thirds on the way.
fn names_at(files: usize, name: impl Fn(usize) -> PathBuf) -> [PathBuf; 2] {
    [name(files / 3), name(files * 2 / 3)]
}

fn make(root: &Path, files: usize) {
    for i in 0..files {
        let path = root.join(file(i));
        if i % PER_DIRECTORY == 0 {
            fs::create_dir_all(path.parent().expect("a directory")).expect("mkdir");
        }
        fs::write(&path, pattern(i as u64, i * 37 % 8192)).expect("write");
        match i % 50 {
            7 => fs::hard_link(&path, path.with_extension("link")).expect("link"),
            9 => std::os::unix::fs::symlink("f0", path.with_extension("symlink")).expect("symlink"),
            _ => {}
        }
    }
}

fn change(root: &Path, files: usize) {
    for i in (0..files - CHANGED).step_by(CHANGED) {
        let changed = root.join(file(i));
        fs::write(&changed, pattern(i as u64 + 1, i * 37 % 8192)).expect("write");
        // Within one tick of the clock it would have its old time.
        let later = SystemTime::now() + Duration::from_secs(1);
        File::options()
            .write(true)
            .open(&changed)
            .expect("open")
            .set_modified(later)
            .expect("time");
        fs::remove_file(root.join(file(i + 1))).expect("remove");
        let path = root.join(file(i + 2));
        fs::rename(&path, root.join(renamed(i))).expect("rename");
    }
}

/// Mirrors, killed when each of `marks` is at the target; then to its end. Both are compared.
fn try_kills(
    from: &str,
    to: &str,
    at: &Path,
    source: &Path,
    marks: &[PathBuf],
) -> Result<String, String> {
    let mut hit = 0;
    for mark in marks {
        hit += usize::from(killed_at(from, to, &at.join(mark))?);
    }
    let done = summary(&["mirror", "--json", from, to])?;
    let keep = Keep { owners: nix::unistd::geteuid().is_root(), holes: true };
    let (entries, found) = differences(source, at, keep).map_err(|error| error.to_string())?;
    if let Some(first) = found.first() {
        return Err(format!("{entries} entries, {} differences: {first}", found.len()));
    }
    let left = done["files"].as_u64().unwrap_or(0);
    Ok(format!("{entries} entries, {hit} kills hit, {left} files left for the last run"))
}

/// True: it was killed in the midst of its work.
fn killed_at(from: &str, to: &str, mark: &Path) -> Result<bool, String> {
    let mut child = command(&["mirror", "-q", from, to])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    let start = Instant::now();
    let mut alive = true;
    while alive && mark.symlink_metadata().is_err() {
        if start.elapsed() > dafs_tests::patient(PATIENCE) {
            let _ = child.kill();
            return Err(format!("{} did not come", mark.display()));
        }
        alive = child.try_wait().map_err(|error| error.to_string())?.is_none();
        std::thread::yield_now();
    }
    let alive = alive && child.try_wait().map_err(|error| error.to_string())?.is_none();
    let _ = child.kill();
    child.wait().map_err(|error| error.to_string())?;
    Ok(alive)
}

fn summary(arguments: &[&str]) -> Result<serde_json::Value, String> {
    serde_json::from_str(&run_ok(arguments)).map_err(|error| error.to_string())
}

/// Where both are equal nothing is changed, in little more time than finding all names takes.
fn second_run(mode: Mode, near: &str, far: &str) -> Vec<Line> {
    let done = summary(&["mirror", "--json", near, far]);
    let nothing = done.and_then(|done| {
        let changes = ["files", "made_directories", "removed", "updated", "failed"];
        let made: Vec<String> = changes
            .iter()
            .filter(|name| done[**name] != 0)
            .map(|name| format!("{name}: {}", done[*name]))
            .collect();
        let same = format!("{} unchanged", done["skipped"]);
        if made.is_empty() { Ok(same) } else { Err(made.join(", ")) }
    });
    let rounds = 0..mode.pick(3, 5);
    let seconds = |run: &dyn Fn()| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    let (mut mirror, mut local, mut remote) = (Vec::new(), Vec::new(), Vec::new());
    for _ in rounds {
        mirror.push(seconds(&|| drop(run_ok(&["mirror", "-q", near, far]))));
        // All attributes, as the mirror needs them.
        local.push(seconds(&|| {
            let output = Command::new("find").args([near, "-printf", "%s %T@ %p\\n"]).output();
            assert!(output.expect("find").status.success());
        }));
        remote.push(seconds(&|| drop(run_ok(&["find", far]))));
    }
    let (mirror, local, remote) = (median(mirror), median(local), median(remote));
    let ratio = mirror / (local + remote);
    let measured = format!("{ratio:.2} × ({mirror:.2} s; {local:.2} s, {remote:.2} s)");
    vec![
        Line::new("mirror", "a second run", "changes nothing").result(nothing),
        Line::new("mirror", "its time, beside find here and dafs find there", "≤ 3 × both")
            .timing()
            .measured(measured, ratio <= 3.0),
    ]
}
