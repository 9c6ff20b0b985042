//! Under whose rights a call runs.

use std::sync::Once;

use dafs_client::Session;
use dafs_protocol::{GROUPS_MAX, Identity};

use super::DafsFs;
use crate::kernel::Caller;

impl DafsFs {
    /// The session, acting as the caller where the mount serves all users.
    pub(super) fn as_caller(&self, caller: &Caller) -> Session {
        let (uid, gid) = (caller.uid, caller.gid);
        if !self.options.all_users || (uid, gid) == (0, 0) {
            return self.session.clone();
        }
        // The groups of root decide nothing.
        let groups = if uid == 0 { Vec::new() } else { groups_of(caller.pid) };
        self.session.as_user(&Identity { uid, gid, groups })
    }
}

/// Supplementary groups of a thread of this machine, as it has them now; none where it is gone or
/// cannot be looked at.
fn groups_of(pid: u32) -> Vec<u32> {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else {
        return Vec::new();
    };
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or("");
    let mut groups: Vec<u32> =
        line.split_ascii_whitespace().filter_map(|id| id.parse().ok()).collect();
    if groups.len() > GROUPS_MAX {
        static TOLD: Once = Once::new();
        let has = groups.len();
        TOLD.call_once(|| {
            tracing::warn!(pid, has, "more than {GROUPS_MAX} groups: the rest does not count");
        });
        groups.truncate(GROUPS_MAX);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::groups_of;

    #[test]
    fn groups_are_those_of_the_process() {
        let out = std::process::Command::new("id").arg("-G").output().expect("id");
        let text = String::from_utf8(out.stdout).expect("numbers");
        let all: Vec<u32> = text.split_whitespace().map(|id| id.parse().expect("id")).collect();
        let ours = groups_of(std::process::id());
        assert!(ours.iter().all(|group| all.contains(group)), "{ours:?} of {all:?}");
        assert_eq!(groups_of(0), []);
    }
}
