//! What this machine allows. Containers forbid some of what tests need: these then skip, and say
//! why.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use nix::sys::statfs::{OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC, statfs};

/// How an error, or a panic, begins that is a skipped test.
pub const SKIPPED: &str = "skipped: ";

type Allowed = Result<(), String>;

/// Mounts, by this user.
///
/// # Errors
/// Why not, after [`SKIPPED`].
pub fn mounts() -> Allowed {
    static KNOWN: OnceLock<Allowed> = OnceLock::new();
    KNOWN
        .get_or_init(|| {
            let node = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
            node.map_err(|error| format!("{SKIPPED}no /dev/fuse here: {error}"))?;
            // Others mount by fusermount3, which says what it lacks.
            if nix::unistd::geteuid().is_root() { mounts_memory() } else { Ok(()) }
        })
        .clone()
}

/// Direct I/O of the file system's own in this directory: in memory and in layers an open says so, too.
///
/// # Errors
/// Why not, after [`SKIPPED`].
pub fn direct_io(dir: &Path) -> Allowed {
    let kind = statfs(dir).map_err(|error| error.to_string())?.filesystem_type();
    if [TMPFS_MAGIC, OVERLAYFS_SUPER_MAGIC].contains(&kind) {
        return Err(format!("{SKIPPED}no disk of its own below {}", dir.display()));
    }
    let mut options = File::options();
    options.write(true).create_new(true).custom_flags(libc::O_DIRECT);
    let tried = options.open(dir.join("try")).and_then(|_| fs::remove_file(dir.join("try")));
    tried.map_err(|error| format!("{SKIPPED}no O_DIRECT in {}: {error}", dir.display()))
}

fn mounts_memory() -> Allowed {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mount = ["-t", "tmpfs", "-o", "size=64k", "tmpfs"];
    allowed("no mounts here", "mount", &mount, &[dir.path()])?;
    allowed("no mounts here", "umount", &[], &[dir.path()])
}

/// Images behind loop devices.
///
/// # Errors
/// Why not, after [`SKIPPED`].
pub fn loop_devices() -> Allowed {
    static KNOWN: OnceLock<Allowed> = OnceLock::new();
    KNOWN
        .get_or_init(|| {
            let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
            let (image, at) = (dir.path().join("image"), dir.path().join("mount"));
            let file = std::fs::File::create(&image).and_then(|file| file.set_len(1 << 20));
            let made = file.and_then(|()| std::fs::create_dir(&at));
            made.map_err(|error| error.to_string())?;
            allowed("no mkfs.ext4 here", "mkfs.ext4", &["-q", "-F"], &[&image])?;
            allowed("no loop devices here", "mount", &["-o", "loop"], &[&image, &at])?;
            allowed("no loop devices here", "umount", &[], &[&at])
        })
        .clone()
}

/// Mount namespaces whose mounts nobody else sees.
///
/// # Errors
/// Why not, after [`SKIPPED`].
pub fn namespaces() -> Allowed {
    static KNOWN: OnceLock<Allowed> = OnceLock::new();
    let known = || allowed("no mount namespaces here", "unshare", &["--mount", "true"], &[]);
    KNOWN.get_or_init(known).clone()
}

/// Rings of the kernel (io_uring).
///
/// # Errors
/// Why not, after [`SKIPPED`].
pub fn rings() -> Allowed {
    static KNOWN: OnceLock<Allowed> = OnceLock::new();
    KNOWN
        .get_or_init(|| {
            let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
            let directory = format!("--directory={}", dir.path().display());
            let job = ["--name=try", "--ioengine=io_uring", "--rw=write", "--size=4k", &directory];
            allowed("no io_uring here", "fio", &job, &[])
        })
        .clone()
}

/// So many bytes locked in memory, beside what is.
///
/// # Errors
/// Why not, after [`SKIPPED`].
pub fn locked_memory(bytes: usize) -> Allowed {
    let arena = dafs_fabric::Arena::new(bytes).map_err(|error| error.to_string())?;
    let span = arena.span(0, bytes);
    let pages = span.addr()..span.addr() + bytes as u64;
    let locked = crate::sys::lock(&pages);
    // Unlocked with the mapping.
    locked.map_err(|error| format!("{SKIPPED}{bytes} bytes cannot be locked here: {error}"))
}

/// That a program ends well; else `lacking`, and what it said first.
fn allowed(lacking: &str, program: &str, args: &[&str], paths: &[&Path]) -> Allowed {
    let output = Command::new(program).args(args).args(paths).output();
    let output = output.map_err(|error| format!("{SKIPPED}{lacking}: {program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let first = said.lines().find(|line| !line.trim().is_empty()).unwrap_or(program);
    Err(format!("{SKIPPED}{lacking}: {}", first.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_told_with_what_the_program_said() {
        let script = ["-c", "echo >&2; echo not permitted >&2; echo more >&2; exit 1"];
        let refused = allowed("no shells here", "sh", &script, &[]);
        assert_eq!(refused, Err("skipped: no shells here: not permitted".into()));
        assert_eq!(allowed("no shells here", "sh", &["-c", "exit 0"], &[]), Ok(()));
        let missing = allowed("no such thing", "/nonexistent/program", &[], &[]);
        assert!(missing.is_err_and(|text| text.starts_with("skipped: no such thing: ")));
    }
}
