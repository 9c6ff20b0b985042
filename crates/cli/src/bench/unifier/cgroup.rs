//! Limits of memory, by cgroups of version 2 or 1.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

const V2: &str = "/sys/fs/cgroup";
const V1: &str = "/sys/fs/cgroup/memory";

/// A cgroup with a limit of memory, page cache included. Removed when dropped.
pub struct Cgroup {
    directory: PathBuf,
}

impl Cgroup {
    /// Makes one.
    ///
    /// # Errors
    /// There are no cgroups with memory here, or no rights to make one.
    pub fn new(name: &str, bytes: u64) -> io::Result<Cgroup> {
        let name = format!("dafs-bench-{}-{name}", std::process::id());
        let v2 = std::fs::read_to_string(Path::new(V2).join("cgroup.controllers"));
        if v2.is_ok_and(|text| text.split_whitespace().any(|word| word == "memory")) {
            std::fs::write(Path::new(V2).join("cgroup.subtree_control"), "+memory")?;
            let cgroup = Cgroup::make(Path::new(V2).join(name))?;
            cgroup.set("memory.max", bytes)?;
            // Where there is swap, none of it.
            let _ = cgroup.set("memory.swap.max", 0);
            return Ok(cgroup);
        }
        let cgroup = Cgroup::make(Path::new(V1).join(name))?;
        cgroup.set("memory.limit_in_bytes", bytes)?;
        let _ = cgroup.set("memory.swappiness", 0);
        Ok(cgroup)
    }

    fn make(directory: PathBuf) -> io::Result<Cgroup> {
        std::fs::create_dir(&directory)?;
        Ok(Cgroup { directory })
    }

    fn set(&self, name: &str, value: u64) -> io::Result<()> {
        std::fs::write(self.directory.join(name), value.to_string())
    }

    /// The file that takes process ids.
    pub fn processes(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The last process may still be on its way out.
        for _ in 0..50 {
            if std::fs::remove_dir(&self.directory).is_ok() || !self.directory.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
