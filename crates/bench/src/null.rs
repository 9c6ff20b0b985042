//! The raw mechanism of a mount: a FUSE file system without files, mounted by another process
//! (`dafs mount --null`). What is left is what each call through the kernel costs.

use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::slice::Slice;
use crate::target::{Local, Op, Target, Work};

/// How long a mount, and its end, may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A mounted null file system, with one file of zeros.
#[derive(Debug)]
pub struct NullMount {
    directory: PathBuf,
    process: Child,
    local: Local,
}

impl NullMount {
    /// Starts this program again as `program mount --null`, which mounts a file of `file_bytes`
    /// on a temporary directory. `direct`: past the kernel's cache.
    ///
    /// # Errors
    /// It does not mount: no `/dev/fuse`, no right to.
    pub fn spawn(file_bytes: u64, direct: bool) -> io::Result<NullMount> {
        let name = format!("dafs-bench-null-{}", std::process::id());
        let directory = fs::canonicalize(std::env::temp_dir())?.join(name);
        fs::create_dir(&directory)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["mount", "--foreground", "--null", &file_bytes.to_string()]);
        if direct {
            command.args(["-o", "direct_io"]);
        }
        command.arg("null").arg(&directory);
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let process = match process.spawn() {
            Ok(process) => process,
            Err(error) => {
                let _ = fs::remove_dir(&directory);
                return Err(error);
            }
        };
        let local = Local::on_file(&directory, file_bytes, direct);
        let mut mount = NullMount { directory, process, local };
        mount.wait_until_mounted()?;
        Ok(mount)
    }

    fn wait_until_mounted(&mut self) -> io::Result<()> {
        let start = Instant::now();
        while !is_on_mount(&self.directory)? {
            if self.process.try_wait()?.is_some() {
                let mut said = String::new();
                if let Some(errors) = &mut self.process.stderr {
                    errors.read_to_string(&mut said)?;
                }
                return Err(io::Error::other(said.trim_end().to_owned()));
            }
            if start.elapsed() > PATIENCE {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the null mount is not there"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// True for what can be measured on it.
    pub fn does(op: Op) -> bool {
        op.uses_file()
    }

    /// Measures operations on its file.
    ///
    /// # Errors
    /// The system's; an operation that it does not [`do`](Self::does).
    pub fn measure(&mut self, work: &Work<'_>) -> io::Result<Slice> {
        self.local.measure(work)
    }
}

impl Drop for NullMount {
    fn drop(&mut self) {
        if let Ok(program) = std::env::current_exe() {
            let mut unmount = Command::new(program);
            let _ = unmount.args(["umount", "--lazy"]).arg(&self.directory).output();
        }
        let start = Instant::now();
        while matches!(self.process.try_wait(), Ok(None)) && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = (self.process.kill(), self.process.wait());
        let _ = fs::remove_dir(&self.directory);
    }
}

/// True where `path` lies on a mount of DAFS, by the table of mounts: nothing on the way is asked.
///
/// # Errors
/// The table cannot be read; the path is relative and the working directory gone.
pub fn is_on_mount(path: &Path) -> io::Result<bool> {
    let table = fs::read("/proc/self/mountinfo")?;
    Ok(lies_on(&table, &std::path::absolute(path)?))
}

/// The innermost mount above `path`, and the last of those at one place, counts.
fn lies_on(table: &[u8], path: &Path) -> bool {
    let mounts = table.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let place = unescape(fields.nth(4)?);
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        let place = Path::new(std::ffi::OsStr::from_bytes(&place)).to_path_buf();
        path.starts_with(&place).then(|| (place.as_os_str().len(), kind == b"fuse.dafs"))
    });
    mounts.max_by_key(|(len, _)| *len).is_some_and(|(_, ours)| ours)
}

/// Blanks and such are written as `\` and three octal digits.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| *first == b'\\');
        let code = code.and_then(|digits| std::str::from_utf8(digits).ok());
        let code = code.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        out.push(code.unwrap_or(*first));
        rest = if code.is_some() { after.get(3..).unwrap_or_default() } else { after };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_mount_of_a_path_counts() {
        let table = b"22 1 8:1 / / rw - ext4 /dev/sda rw\n\
            30 22 0:51 / /mnt/a\\040b rw shared:1 - fuse.dafs dafs://h/ rw\n\
            31 30 0:52 / /mnt/a\\040b/c rw - tmpfs none rw\n\
            32 22 0:53 / /mnt/d rw - fuse.dafs dafs://h/ rw\n\
            33 32 0:54 / /mnt/d rw - tmpfs none rw\n";
        let ours = |path: &str| lies_on(table, Path::new(path));
        assert!(ours("/mnt/a b") && ours("/mnt/a b/x/y"));
        assert!(!ours("/mnt/a") && !ours("/mnt/a bc") && !ours("/mnt/a b/c/x") && !ours("/mnt/d"));
    }
}
