//! Limits of memory, by cgroups of version 2 or 1.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

const V2: &str = "/sys/fs/cgroup";
const V1: &str = "/sys/fs/cgroup/memory";

/// A cgroup with a limit of memory, page cache included. Removed when dropped.
pub struct Cgroup {
    directory: PathBuf,
    /// Dropped after the directory is gone.
    _controller: Option<Controller>,
}

/// The name of each begins so.
const PREFIX: &str = "dafs-bench-";

/// The limits of memory of the groups in a directory, of version 2. Where they were not on, they
/// are off again when this is dropped, unless another bench has a group there.
struct Controller {
    directory: PathBuf,
    was_on: bool,
}

impl Controller {
    fn on(directory: &Path) -> io::Result<Controller> {
        let file = directory.join("cgroup.subtree_control");
        let was_on = has_memory(&std::fs::read_to_string(&file)?);
        if !was_on {
            std::fs::write(file, "+memory")?;
        }
        Ok(Controller { directory: directory.into(), was_on })
    }

    fn is_used(&self) -> bool {
        let Ok(entries) = std::fs::read_dir(&self.directory) else { return false };
        let is_ours =
            |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(PREFIX.as_bytes());
        entries.flatten().any(|entry| is_ours(&entry.file_name()))
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        if !self.was_on && !self.is_used() {
            // Whoever began to need it meanwhile keeps it: then this fails.
            let _ = std::fs::write(self.directory.join("cgroup.subtree_control"), "-memory");
        }
    }
}

fn has_memory(controllers: &str) -> bool {
    controllers.split_whitespace().any(|word| word == "memory")
}

impl Cgroup {
    /// Makes one.
    ///
    /// # Errors
    /// There are no cgroups with memory here, or no rights to make one.
    pub fn new(name: &str, bytes: u64) -> io::Result<Cgroup> {
        let name = format!("{PREFIX}{}-{name}", std::process::id());
        let v2 = std::fs::read_to_string(Path::new(V2).join("cgroup.controllers"));
        if v2.is_ok_and(|text| has_memory(&text)) {
            let controller = Controller::on(Path::new(V2))?;
            let cgroup = Cgroup::make(Path::new(V2).join(name), Some(controller))?;
            cgroup.set("memory.max", bytes)?;
            // Where there is swap, none of it.
            let _ = cgroup.set("memory.swap.max", 0);
            return Ok(cgroup);
        }
        let cgroup = Cgroup::make(Path::new(V1).join(name), None)?;
        cgroup.set("memory.limit_in_bytes", bytes)?;
        let _ = cgroup.set("memory.swappiness", 0);
        Ok(cgroup)
    }

    fn make(directory: PathBuf, controller: Option<Controller>) -> io::Result<Cgroup> {
        std::fs::create_dir(&directory)?;
        Ok(Cgroup { directory, _controller: controller })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_memory_are_put_back_as_they_were() {
        let directory = std::env::temp_dir().join(format!("dafs-cgroup-{}", std::process::id()));
        std::fs::create_dir(&directory).expect("a directory");
        let file = directory.join("cgroup.subtree_control");
        let is = || std::fs::read_to_string(&file).expect("what was written");
        for (before, during, after) in
            [("cpu io\n", "+memory", "-memory"), ("cpu memory\n", "cpu memory\n", "cpu memory\n")]
        {
            std::fs::write(&file, before).expect("write");
            let controller = Controller::on(&directory).expect("on");
            assert_eq!(is(), during);
            drop(controller);
            assert_eq!(is(), after);
        }
        std::fs::write(&file, "").expect("write");
        let controller = Controller::on(&directory).expect("on");
        let other = directory.join(format!("{PREFIX}1-other"));
        std::fs::create_dir(&other).expect("a group of somebody else");
        drop(controller);
        assert_eq!(is(), "+memory", "it is in use");
        std::fs::remove_dir_all(&directory).expect("removed");
    }
}
