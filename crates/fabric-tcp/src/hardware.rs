//! The network interfaces of this machine, as `/sys` tells them.

use std::fs;
use std::path::Path;

use dafs_fabric::Hardware;

const INTERFACES: &str = "/sys/class/net";

/// Those of this network namespace, by name.
pub fn interfaces() -> Vec<Hardware> {
    interfaces_in(Path::new(INTERFACES))
}

fn interfaces_in(directory: &Path) -> Vec<Hardware> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut all: Vec<Hardware> = entries
        // Beside interfaces there may be files of their drivers.
        .filter(|entry| entry.path().join("operstate").exists())
        .map(|entry| interface(entry.file_name().to_string_lossy().into_owned(), &entry.path()))
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

fn interface(name: String, at: &Path) -> Hardware {
    let word = |file| fs::read_to_string(at.join(file)).ok().map(|text| text.trim().to_owned());
    let state = word("operstate");
    // Loopback, and what has no carrier to look for, is "unknown" while it works.
    let is_up = matches!(state.as_deref(), Some("up" | "unknown"));
    // Megabits; -1, or an error, where there is no such thing.
    let speed = word("speed").and_then(|text| text.parse::<u64>().ok());
    let mtu = word("mtu").and_then(|text| text.parse().ok());
    Hardware { name, is_up, speed: speed.and_then(|m| m.checked_mul(1_000_000)), mtu }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_told_with_what_the_system_knows_of_them() {
        let directory = tempfile::tempdir().expect("a directory");
        let make = |name: &str, files: &[(&str, &str)]| {
            let at = directory.path().join(name);
            fs::create_dir(&at).expect("a directory");
            for (file, text) in files {
                fs::write(at.join(file), text).expect("a file");
            }
        };
        make("lo", &[("operstate", "unknown\n"), ("mtu", "65536\n")]);
        make("eth1", &[("operstate", "up\n"), ("speed", "25000\n"), ("mtu", "9000\n")]);
        make("eth0", &[("operstate", "down\n"), ("speed", "-1\n"), ("mtu", "?\n")]);
        fs::write(directory.path().join("bonding_masters"), "").expect("a file");
        let found = interfaces_in(directory.path());
        let names: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["eth0", "eth1", "lo"]);
        let told: Vec<_> = found.iter().map(|one| (one.is_up, one.speed, one.mtu)).collect();
        assert_eq!(
            told,
            [
                (false, None, None),
                (true, Some(25_000_000_000), Some(9000)),
                (true, None, Some(65_536))
            ]
        );
        assert_eq!(interfaces_in(&directory.path().join("none")), []);
    }

    #[test]
    fn this_machine_has_loopback() {
        assert!(interfaces().iter().any(|one| one.name == "lo"));
    }
}
