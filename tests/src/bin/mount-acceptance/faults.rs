//! faults: what programs are told when something is wrong, and that nothing hangs that a signal
//! cannot end.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use dafs_tests::{FreshDir, Place, tree};
use nix::errno::Errno;
use nix::sys::signal::Signal;

use crate::role::{Player, play};
use crate::{Line, Mode};

const MIB: u64 = 1 << 20;

pub(crate) fn all(mode: Mode) -> Vec<Line> {
    let limit = Duration::from_secs(mode.pick(60, 300));
    let cases: [(&str, &str, Case); 6] = [
        ("mount process killed", "ENOTCONN; umount and mount work", mount_killed),
        ("server gone, calls wait, signals end them", "ended; the others resume", server_gone),
        ("unmounted while the server is gone", "within 20 s", unmounted_without_server),
        ("disk full", "ENOSPC, then goes on", disk_full),
        ("another user", "EACCES and EPERM as on ext4", another_user),
        ("directory removed and restored behind it", "ESTALE or ENOENT, new data", stale),
    ];
    cases
        .into_iter()
        .map(|(what, required, case)| {
            let line = Line::new("faults", what, required);
            let disk =
                if what == "disk full" { FreshDir::sized(64 * MIB) } else { FreshDir::new() };
            if what == "disk full" && !disk.is_mounted() {
                return line.skipped("needs root to mount a small disk");
            }
            if what == "another user" && !nix::unistd::geteuid().is_root() {
                return line.skipped("only root can be somebody else");
            }
            let mut place = Place::on(disk, limit);
            match case(&mut place, mode) {
                Some(result) => line.result(result),
                None => line.skipped("no server in a plain directory"),
            }
        })
        .collect()
}

/// `None` where there is nothing to try in a plain directory.
type Case = fn(&mut Place, Mode) -> Option<Result<String, String>>;

fn text(error: std::io::Error) -> String {
    error.to_string()
}

fn errno<T>(result: std::io::Result<T>) -> Errno {
    result.err().and_then(|error| error.raw_os_error()).map_or(Errno::from_raw(0), Errno::from_raw)
}

fn mount_killed(place: &mut Place, _: Mode) -> Option<Result<String, String>> {
    place.is_mount().then(|| {
        let dir = place.path().to_path_buf();
        fs::write(dir.join("synced"), b"synced")
            .and_then(|()| File::open(dir.join("synced"))?.sync_all())
            .map_err(text)?;
        let mut open = File::open(dir.join("synced")).map_err(text)?;
        place.mount(0).expect("mounted").kill();
        let told = [
            errno(fs::metadata(&dir)),
            errno(open.read(&mut [0; 9])),
            errno(File::create(dir.join("new"))),
        ];
        if told != [Errno::ENOTCONN; 3] {
            return Err(format!("told {told:?}"));
        }
        drop(open);
        let output = dafs_tests::command(&["umount"]).arg(&dir).output().map_err(text)?;
        if !output.status.success() {
            return Err(format!("dafs umount: {}", String::from_utf8_lossy(&output.stderr)));
        }
        if dafs_tests::mounted::is_mounted(&dir) {
            return Err("still mounted after dafs umount".into());
        }
        let again = place.mount_again("");
        match fs::read(again.join("synced")) {
            Ok(bytes) if bytes == b"synced" => Ok("ENOTCONN, unmounted, mounted again".into()),
            other => Err(format!("after mounting again: {other:?}")),
        }
    })
}

/// A role: reads a file that nobody has read before.
pub(crate) fn read(dir: &Path, numbers: &[u64]) -> Result<String, String> {
    let &[number] = numbers else { return Err("NUMBER".into()) };
    let bytes = fs::read(dir.join(format!("data-{number}"))).map_err(text)?;
    if bytes == tree::pattern(number, 100_000) {
        Ok("read".into())
    } else {
        Err("wrong data".into())
    }
}

/// A role: writes a file and syncs it.
pub(crate) fn write(dir: &Path, numbers: &[u64]) -> Result<String, String> {
    let &[number] = numbers else { return Err("NUMBER".into()) };
    let mut file = File::create(dir.join(format!("new-{number}"))).map_err(text)?;
    file.write_all(&tree::pattern(number, 100_000)).map_err(text)?;
    file.sync_all().map_err(text)?;
    Ok("written".into())
}

fn server_gone(place: &mut Place, mode: Mode) -> Option<Result<String, String>> {
    place.is_mount().then(|| {
        // Each in a directory of its own: who makes a file holds the lock of the directory, behind
        // which the kernel lets nobody be signalled.
        let root = place.path().to_path_buf();
        let dir = |number: u64| root.join(number.to_string());
        for number in 0..8 {
            fs::create_dir(dir(number)).map_err(text)?;
            let data = place.exported().join(format!("{number}/data-{number}"));
            fs::write(data, tree::pattern(number, 100_000)).map_err(text)?;
        }
        place.server().expect("a server").kill();
        let role = |number: u64| if number.is_multiple_of(2) { "read" } else { "write" };
        let mut players: Vec<Player> = (0..8).map(|n| play(role(n), &dir(n), &[n])).collect();
        std::thread::sleep(Duration::from_secs(mode.pick(3, 60)));
        for (number, player) in players.iter_mut().enumerate() {
            if let Some(status) = player.ended(Duration::ZERO) {
                return Err(format!("{} {number} did not wait: {status}", role(number as u64)));
            }
        }
        // The first four are ended by signals, of which two can be caught.
        for (player, signal) in players.iter_mut().zip([
            Signal::SIGINT,
            Signal::SIGTERM,
            Signal::SIGKILL,
            Signal::SIGKILL,
        ]) {
            player.signal(signal);
            if player.ended(Duration::from_secs(5)).is_none() {
                let place = player.waits_in();
                return Err(format!("{signal} does not end a call within 5 s, in {place}"));
            }
        }
        place.server().expect("a server").restart();
        for player in &mut players[4..] {
            player
                .end(Duration::from_secs(20))
                .map_err(|error| format!("after the restart: {error}"))?;
        }
        for number in [5u64, 7] {
            let bytes = fs::read(dir(number).join(format!("new-{number}"))).map_err(text)?;
            if bytes != tree::pattern(number, 100_000) {
                return Err(format!("new-{number} is not what was written"));
            }
        }
        Ok("4 ended, 4 resumed".into())
    })
}

fn unmounted_without_server(place: &mut Place, _: Mode) -> Option<Result<String, String>> {
    place.is_mount().then(|| {
        let dir = place.path().to_path_buf();
        fs::write(dir.join("file"), b"data").map_err(text)?;
        place.server().expect("a server").kill();
        let mut umount = Command::new("timeout");
        umount.args(["-k", "1", "20"]).arg(dafs_tests::binary()).arg("umount").arg(&dir);
        let output = umount.output().map_err(text)?;
        if !output.status.success() {
            return Err(format!(
                "dafs umount: {} {}",
                output.status,
                String::from_utf8_lossy(&output.stderr)
            ));
        }
        if dafs_tests::mounted::is_mounted(&dir) {
            Err("still mounted".into())
        } else {
            Ok("unmounted".into())
        }
    })
}

/// Writes until an error comes; which call told it.
fn fill(path: &Path) -> Result<&'static str, String> {
    let piece = tree::pattern(1, MIB as usize);
    let full = |result: std::io::Result<()>, call: &'static str| match result {
        Ok(()) => Ok(None),
        Err(error) if error.kind() == ErrorKind::StorageFull => Ok(Some(call)),
        Err(error) => Err(format!("{call}: {error}")),
    };
    let mut file = File::create(path).map_err(text)?;
    for _ in 0..200 {
        if let Some(call) = full(file.write_all(&piece), "write")? {
            return Ok(call);
        }
    }
    if let Some(call) = full(file.sync_all(), "fsync")? {
        return Ok(call);
    }
    let closed = nix::unistd::close(file).map_err(std::io::Error::from);
    full(closed, "close")?.ok_or("200 MiB fit into 64 MiB".into())
}

/// The kernel waits for no answer to the close of a file that was removed: the space comes a moment later.
fn has_space(exported: &Path) -> Result<(), String> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(60) {
        let system = nix::sys::statvfs::statvfs(exported).map_err(|error| text(error.into()))?;
        if system.blocks_available() * system.fragment_size() >= 8 * MIB {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err("the space of a file that was removed does not come back".into())
}

fn disk_full(place: &mut Place, _: Mode) -> Option<Result<String, String>> {
    let dir = place.path().to_path_buf();
    let exported = place.exported().to_path_buf();
    Some((|| {
        fs::write(dir.join("before"), b"before").map_err(text)?;
        let call = fill(&dir.join("big"))?;
        let before = fs::read(dir.join("before")).map_err(text)?;
        fs::remove_file(dir.join("big")).map_err(text)?;
        has_space(&exported)?;
        let mut after = File::create(dir.join("after")).map_err(text)?;
        let data = tree::pattern(2, 4 << 20);
        after
            .write_all(&data)
            .and_then(|()| after.sync_all())
            .map_err(|error| format!("after it: {error}"))?;
        let read = fs::read(dir.join("after")).map_err(text)?;
        if before == b"before" && read == data {
            Ok(format!("ENOSPC at {call}, then space again"))
        } else {
            Err("wrong data".into())
        }
    })())
}

/// What nobody may and may not do to a tree of root, by the words of the shell.
const NOBODY: &[(&str, &str)] = &[
    ("cat public", ""),
    ("cat secret", "Permission denied"),
    ("ls closed", "Permission denied"),
    ("cat closed/file", "Permission denied"),
    ("touch new", "Permission denied"),
    ("mkdir new", "Permission denied"),
    ("rm -f public", "Permission denied"),
    ("mv public moved", "Permission denied"),
    ("sh -c ': >public'", "Permission denied"),
    ("chmod 777 public", "Operation not permitted"),
    ("chown nobody secret", "Operation not permitted"),
    ("touch -d 2001-01-01 public", "Permission denied"),
    ("rm -f sticky/roots", "Operation not permitted"),
    ("touch sticky/mine", ""),
    ("sh -c 'echo data >sticky/mine'", ""),
    ("chmod 600 sticky/mine", ""),
    ("chown root sticky/mine", "Operation not permitted"),
    ("ln sticky/mine sticky/link", ""),
    ("mv sticky/link sticky/moved", ""),
    ("cat group", ""),
    ("sh -c 'echo more >>group'", ""),
];

fn another_user(place: &mut Place, _: Mode) -> Option<Result<String, String>> {
    let dir = place.path().to_path_buf();
    let exported = place.exported().to_path_buf();
    Some((|| {
        let mode = |name: &str, mode| {
            fs::set_permissions(dir.join(name), fs::Permissions::from_mode(mode))
                .map_err(|error| format!("{name}: {error}"))
        };
        for (name, bits) in [("public", 0o644), ("secret", 0o600), ("group", 0o660)] {
            fs::write(dir.join(name), b"data").map_err(text)?;
            mode(name, bits)?;
        }
        for (name, bits) in [("closed", 0o700), ("sticky", 0o1777)] {
            fs::create_dir(dir.join(name)).map_err(text)?;
            mode(name, bits)?;
        }
        fs::write(dir.join("closed/file"), b"data").map_err(text)?;
        fs::write(dir.join("sticky/roots"), b"data").map_err(text)?;
        // Of group 12 (man), in which nobody is for this test.
        std::os::unix::fs::chown(dir.join("group"), Some(0), Some(12)).map_err(text)?;
        mode("", 0o755)?;
        for (command, expected) in NOBODY {
            let output = Command::new("setpriv")
                .args(["--reuid=65534", "--regid=65534", "--groups=12", "sh", "-c", command])
                .env("LC_ALL", "C")
                .current_dir(&dir)
                .output()
                .map_err(text)?;
            let said = String::from_utf8_lossy(&output.stderr);
            let right = if expected.is_empty() {
                output.status.success()
            } else {
                !output.status.success() && said.contains(expected)
            };
            if !right {
                return Err(format!(
                    "{command}: {} {}, expected '{expected}'",
                    output.status,
                    said.trim()
                ));
            }
        }
        use std::os::unix::fs::MetadataExt;
        let mine = fs::metadata(exported.join("sticky/mine")).map_err(text)?;
        if (mine.uid(), mine.gid(), mine.mode() & 0o7777) != (65534, 65534, 0o600) {
            return Err(format!(
                "sticky/mine is of {}:{}, mode {:o}",
                mine.uid(),
                mine.gid(),
                mine.mode()
            ));
        }
        Ok(format!("{} commands as nobody", NOBODY.len()))
    })())
}

fn stale(place: &mut Place, _: Mode) -> Option<Result<String, String>> {
    place.is_mount().then(|| {
        let dir = place.path().to_path_buf();
        let tree = place.exported().join("tree");
        let fill = |data: &str| {
            fs::create_dir(&tree).and_then(|()| fs::write(tree.join("file"), data)).map_err(text)
        };
        fill("old")?;
        let held = File::open(dir.join("tree")).map_err(text)?;
        let mut file = File::open(dir.join("tree/file")).map_err(text)?;
        place.server().expect("a server").stop();
        fs::remove_dir_all(&tree).map_err(text)?;
        // The inodes are not taken again at once.
        for i in 0..100 {
            fs::write(place.exported().join(format!("between-{i}")), b"").map_err(text)?;
        }
        fill("new")?;
        place.server().expect("a server").restart();
        let gone = |what: &str, errno: Errno| match errno {
            Errno::ESTALE | Errno::ENOENT => Ok(()),
            other => Err(format!("{what}: {other}")),
        };
        let below =
            Path::new("/proc/self/fd").join(std::os::fd::AsRawFd::as_raw_fd(&held).to_string());
        gone("a name in the directory held open", errno(File::open(below.join("file"))))?;
        gone("the file held open", errno(file.read(&mut [0; 9])))?;
        // The kernel asks again for names whose handles are stale.
        let read =
            fs::read(dir.join("tree/file")).map_err(|error| format!("by its path: {error}"))?;
        if read != b"new" {
            return Err(format!("by its path: {:?}", String::from_utf8_lossy(&read)));
        }
        fs::write(dir.join("tree/more"), b"more").map_err(text)?;
        drop((held, file));
        let mount = place.mount(0).expect("mounted");
        mount.unmount().map_err(|error| format!("umount: {error}"))?;
        Ok("ESTALE, new data by path, unmounted".into())
    })
}
