//! The raw mechanism of a mount: a FUSE file system without files, mounted by another process
//! (`dafs mount --null`). What is left is what each call through the kernel costs.

use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dafs_fuse::kernel::is_on_mount;

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
