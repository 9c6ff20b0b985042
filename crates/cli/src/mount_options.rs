//! What stands after `-o`.

use std::path::PathBuf;
use std::time::Duration;

use dafs_fabric::units;
use dafs_fuse::fs::FsOptions;
use dafs_fuse::kernel::is_mount_word;

use crate::failure::Failure;

/// How long a lost server is looked for where a mount is soft.
pub const SOFT: Duration = Duration::from_secs(60);

/// Options of URLs, which may also stand here.
const OF_URLS: [&str; 11] = [
    "wait",
    "retry",
    "slots",
    "data",
    "connections",
    "read_ahead",
    "tags",
    "rdma_read",
    "server_uid",
    "local",
    "also",
];
/// Words of fstab that are for others, or always so.
const FOR_OTHERS: [&str; 14] = [
    "defaults",
    "_netdev",
    "auto",
    "noauto",
    "nofail",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "async",
    "default_permissions",
    "norelatime",
    "loud",
];

/// What a mount cannot do, and nobody should take for done.
const REFUSED: [(&str, &str); 1] =
    [("strictatime", "reading through a mount does not change the time of access")];

/// Options, taken apart.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// A lost server is looked for so long; for ever if not given.
    soft: bool,
    timeo: Option<Duration>,
    sync: bool,
    /// The kernel keeps no data of files.
    pub direct_io: bool,
    attr_timeout: Option<Duration>,
    entry_timeout: Option<Duration>,
    /// Whether other users may use it, where that is said.
    pub allow_other: Option<bool>,
    /// A key to prove who one is.
    pub key_file: Option<PathBuf>,
    /// For the URL.
    pub url: Vec<(String, String)>,
    /// For the kernel.
    pub words: Vec<String>,
}

/// The words of all `-o`.
pub fn words(lists: &[String]) -> impl Iterator<Item = &str> {
    lists.iter().flat_map(|list| list.split(',')).filter(|word| !word.is_empty())
}

/// The process that was started is to serve the mount.
pub fn is_foreground(word: &str) -> bool {
    word == "foreground"
}

impl Options {
    /// Of all `-o`.
    ///
    /// # Errors
    /// One that is unknown, or has a bad value.
    pub fn parse(lists: &[String]) -> Result<Options, Failure> {
        let mut options = Options::default();
        for word in words(lists) {
            let refused = |why: &str| Failure::usage(format!("-o {word}: {why}"));
            if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| *refused == word) {
                return Err(refused(why));
            }
            options.apply(word).ok_or_else(|| refused("no such option, or a bad value"))?;
        }
        Ok(options)
    }

    fn apply(&mut self, word: &str) -> Option<()> {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        match (name, value) {
            ("hard", None) => self.soft = false,
            ("soft", None) => self.soft = true,
            ("timeo", Some(value)) => self.timeo = Some(seconds(value)?),
            ("sync", None) => self.sync = true,
            ("direct_io", None) => self.direct_io = true,
            (word, None) if is_foreground(word) => {}
            ("attr_timeout", Some(value)) => self.attr_timeout = Some(seconds(value)?),
            ("entry_timeout", Some(value)) => self.entry_timeout = Some(seconds(value)?),
            ("allow_other", None) => self.allow_other = Some(true),
            ("noallow_other", None) => self.allow_other = Some(false),
            ("key_file", Some(value)) => self.key_file = Some(value.into()),
            (name, Some(value)) if OF_URLS.contains(&name) => {
                self.url.push((name.into(), value.into()));
            }
            (name, None) if is_mount_word(name) => self.words.push(name.into()),
            (name, None) if FOR_OTHERS.contains(&name) => {}
            (name, _) if name.starts_with("x-") || name.starts_with("comment") => {}
            _ => return None,
        }
        Some(())
    }

    /// How long a lost server is looked for.
    pub fn retry(&self) -> Duration {
        if self.soft { self.timeo.unwrap_or(SOFT) } else { Duration::MAX }
    }

    /// For the file system.
    pub fn file_system(&self, all_users: bool) -> FsOptions {
        let defaults = FsOptions::default();
        FsOptions {
            read_only: self
                .words
                .iter()
                .rfind(|word| ["ro", "rw"].contains(&word.as_str()))
                .is_some_and(|word| word == "ro"),
            sync: self.sync,
            direct_io: self.direct_io,
            attr_timeout: self.attr_timeout.unwrap_or(defaults.attr_timeout),
            entry_timeout: self.entry_timeout.unwrap_or(defaults.entry_timeout),
            all_users,
        }
    }
}

/// With or without a unit.
fn seconds(text: &str) -> Option<Duration> {
    units::duration(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Options {
        Options::parse(&[text.into()]).expect("good")
    }

    #[test]
    fn words_of_fstab_are_taken() {
        let options = parse("defaults,_netdev,noauto,x-systemd.automount,user,rw,nosuid,,noatime");
        assert_eq!(options.words, ["rw", "nosuid", "noatime"]);
        assert!(Options::parse(&["colour".into()]).is_err());
        assert!(Options::parse(&["timeo=soon".into()]).is_err());
        assert!(Options::parse(&["ro=1".into()]).is_err());
        let refused = Options::parse(&["rw,strictatime".into()]).expect_err("not kept");
        assert!(refused.to_string().contains("time of access"), "{refused}");
    }

    #[test]
    fn mounts_are_hard_unless_they_are_soft() {
        assert_eq!(parse("").retry(), Duration::MAX);
        assert_eq!(parse("timeo=5").retry(), Duration::MAX);
        assert_eq!(parse("soft").retry(), SOFT);
        assert_eq!(parse("soft,timeo=0.5").retry(), Duration::from_millis(500));
        assert_eq!(parse("soft,hard").retry(), Duration::MAX);
    }

    #[test]
    fn the_last_of_ro_and_rw_counts() {
        assert!(parse("rw,ro").file_system(true).read_only);
        assert!(!parse("ro,rw").file_system(true).read_only);
        assert_eq!(parse("slots=8").url, [("slots".to_owned(), "8".to_owned())]);
    }
}
