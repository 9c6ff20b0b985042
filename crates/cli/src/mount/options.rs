//! What stands after `-o`.

use std::path::PathBuf;
use std::time::Duration;

use dafs_client::URL_OPTIONS;
use dafs_fabric::units;
use dafs_fuse::fs::FsOptions;
use dafs_fuse::kernel::{Uring, is_mount_word};

use crate::failure::Failure;

/// How long a lost server is looked for where a mount is soft.
pub const SOFT: Duration = Duration::from_secs(60);

/// An option of our own: name, value, default, meaning.
struct Known {
    name: &'static str,
    /// What stands behind `=`; empty: nothing does.
    value: &'static str,
    /// Empty: not given.
    default: &'static str,
    meaning: &'static str,
}

const fn known(
    name: &'static str,
    value: &'static str,
    default: &'static str,
    meaning: &'static str,
) -> Known {
    Known { name, value, default, meaning }
}

/// Help, man page and `docs/mount.md` are made of this.
const KNOWN: [Known; 12] = [
    known("hard", "", "yes", "a lost server is looked for, for ever; calls wait"),
    known("soft", "", "no", "a lost server is looked for as long as timeo says, then calls fail"),
    known("timeo", "TIME", "60s", "how long soft looks; changes nothing without it"),
    known("sync", "", "no", "each write is on the server's disk before it returns"),
    known("direct_io", "", "no", "the kernel keeps no data of files"),
    known("attr_timeout", "TIME", "1s", "how long attributes are believed"),
    known("entry_timeout", "TIME", "1s", "how long names are believed"),
    known("allow_other", "", "where root mounts", "other users may use it"),
    known("noallow_other", "", "where others mount", "nobody else may use it"),
    known(
        "uring",
        "WHEN",
        "off",
        "requests come by io_uring: off; on; auto: where the kernel has it on",
    ),
    known("foreground", "", "no", "as --foreground"),
    known("key_file", "FILE", "$DAFS_KEY_FILE", "the key that proves who you are, as --key-file"),
];

/// All options with their meaning, for `--help` and the man page.
pub fn help() -> String {
    let mut text =
        String::from("Options for -o (times are 1.5, 500ms, 2m; seconds without a unit):\n");
    for option in &KNOWN {
        let value = if option.value.is_empty() { "" } else { "=" };
        let name = format!("{}{value}{}", option.name, option.value);
        text += &format!("  {name:<20} {} ({})\n", option.meaning, option.default);
    }
    for (name, good) in URL_OPTIONS {
        text += &format!("  {:<20} as in a URL: {good}\n", format!("{name}="));
    }
    text += "  ro, rw, nosuid, nodev, noexec, noatime, ...\n                       as for every mount\n";
    text
}

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
    /// Whether requests of the kernel come by io_uring.
    pub uring: Uring,
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
            options.apply(word).ok_or_else(|| refused(&wrong(word)))?;
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
            ("uring", Some(value)) => self.uring = when(value)?,
            ("key_file", Some(value)) => self.key_file = Some(value.into()),
            (name, Some(value)) if is_of_urls(name) => {
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

fn is_of_urls(name: &str) -> bool {
    URL_OPTIONS.iter().any(|(known, _)| *known == name)
}

/// What would be right instead.
fn wrong(word: &str) -> String {
    let (name, value) =
        word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
    let own = KNOWN.iter().find(|option| option.name == name);
    let url = URL_OPTIONS.iter().find(|(known, _)| *known == name);
    match (own, url, value) {
        (Some(option), ..) if option.value.is_empty() => "takes no value".into(),
        (Some(Known { value: "TIME", .. }), _, _) => {
            format!("expected a time, as {name}=30, {name}=500ms or {name}=2m")
        }
        (Some(Known { value: "WHEN", .. }), _, _) => {
            format!("expected {name}=off, {name}=auto or {name}=on")
        }
        (Some(option), ..) => format!("expected {name}={}", option.value),
        (None, Some((_, good)), _) => format!("expected {name}= and {good}"),
        (None, None, Some(_)) if is_mount_word(name) || FOR_OTHERS.contains(&name) => {
            "takes no value".into()
        }
        (None, None, _) => {
            let own: Vec<&str> = KNOWN.iter().map(|option| option.name).collect();
            let url: Vec<&str> = URL_OPTIONS.iter().map(|(name, _)| *name).collect();
            format!(
                "no such option; there are {}, those of URLs ({}), and those of every mount (ro, nosuid, ...)",
                own.join(", "),
                url.join(", ")
            )
        }
    }
}

/// With or without a unit.
fn seconds(text: &str) -> Option<Duration> {
    units::duration(text).ok()
}

fn when(text: &str) -> Option<Uring> {
    match text {
        "off" => Some(Uring::Off),
        "auto" => Some(Uring::Auto),
        "on" => Some(Uring::On),
        _ => None,
    }
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
    fn what_would_be_right_is_said() {
        let said = |text: &str| Options::parse(&[text.into()]).expect_err(text).to_string();
        for (text, words) in [
            ("frob", &["-o frob: no such option", "attr_timeout", "read_ahead", "nosuid"][..]),
            ("timeo=soon", &["expected a time, as timeo=30"]),
            ("timeo", &["expected a time"]),
            ("soft=1", &["takes no value"]),
            ("ro=1", &["takes no value"]),
            ("key_file", &["expected key_file=FILE"]),
            ("uring=yes", &["expected uring=off, uring=auto or uring=on"]),
            ("wait", &["expected wait= and adaptive, polled or sleeping"]),
        ] {
            let said = said(text);
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
        }
    }

    #[test]
    fn the_table_is_what_is_taken_and_documented() {
        let defaults = FsOptions::default();
        assert_eq!(
            (defaults.attr_timeout, defaults.entry_timeout),
            (Duration::from_secs(1), Duration::from_secs(1))
        );
        let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/mount.md");
        let docs = std::fs::read_to_string(docs).expect("docs/mount.md");
        for option in &KNOWN {
            let value = match option.value {
                "" => String::new(),
                "TIME" => "=2m".into(),
                "WHEN" => "=auto".into(),
                _ => "=/x".into(),
            };
            let taken = Options::parse(&[format!("{}{value}", option.name)]);
            assert!(taken.is_ok(), "{}", option.name);
            let value = if option.value.is_empty() { "" } else { "=" };
            let row = format!(
                "| `{}{value}{}` | {} | {} |",
                option.name, option.value, option.default, option.meaning
            );
            assert!(docs.contains(&row), "docs/mount.md lacks: {row}");
        }
        for (name, _) in URL_OPTIONS {
            assert!(docs.contains(&format!("`{name}`")), "docs/mount.md lacks {name}");
        }
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
