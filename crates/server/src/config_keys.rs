//! Every key of a configuration file, with its meaning: the template of new files, the reference and the
//! checks of ranges are made of this.

use Section::{Export, Limits, Server};

/// Where in the file a key stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// At the beginning, of the whole server.
    Server,
    /// In a table `[[export]]` of each directory.
    Export,
    /// In the table `[limits]`.
    Limits,
}

/// A key.
#[derive(Debug, Clone, Copy)]
pub struct ConfigKey {
    /// Where it stands.
    pub section: Section,
    /// Its name.
    pub name: &'static str,
    /// The default as it would be written; an example where the default cannot be written.
    pub value: &'static str,
    /// What holds when it is not there, in words; empty: `value`.
    pub default: &'static str,
    /// What it may be, in words.
    pub range: &'static str,
    /// The least and the most, where that is checked as a number.
    pub bounds: Option<(u64, u64)>,
    /// What it is for.
    pub meaning: &'static str,
}

const fn key(
    section: Section,
    name: &'static str,
    [value, default]: [&'static str; 2],
    range: &'static str,
    meaning: &'static str,
) -> ConfigKey {
    ConfigKey { section, name, value, default, range, bounds: None, meaning }
}

/// A number of the section `[limits]`.
const fn limit(
    name: &'static str,
    value: &'static str,
    (range, least, most): (&'static str, u64, u64),
    meaning: &'static str,
) -> ConfigKey {
    ConfigKey { bounds: Some((least, most)), ..key(Limits, name, [value, ""], range, meaning) }
}

const ANY: (&str, u64, u64) = ("a number", 0, u64::MAX);
const POSITIVE: (&str, u64, u64) = ("a number, at least 1", 1, u64::MAX);
const SIZE: (&str, u64, u64) = ("a size", 0, u32::MAX as u64);
const SECONDS: (&str, u64, u64) = ("whole seconds, at least 1s", 1, u32::MAX as u64);

/// The least of a cache.
pub(crate) const ARENA_BYTES_MIN: u64 = 16 << 20;

/// All keys, in the order in which they are shown.
pub const KEYS: &[ConfigKey] = &[
    key(
        Server,
        "listen",
        [r#"["127.0.0.1:20490", "[::1]:20490"]"#, "loopback, port 20490"],
        "a list of HOST:PORT, tcp://HOST:PORT or unix:/path",
        "Where clients connect. Port 0 takes any free one. Other addresses than loopback need key_file, or \
         insecure.",
    ),
    key(
        Server,
        "local_socket",
        [r#""auto""#, ""],
        "auto, none, or the absolute path of a directory",
        "Where clients of this machine find Unix sockets beside TCP addresses of loopback. auto: /run/dafs \
         for root, otherwise $XDG_RUNTIME_DIR/dafs, for ports that are named.",
    ),
    key(
        Server,
        "same_host",
        ["true", ""],
        "true or false",
        "Whether clients of this machine may come by networks of this machine alone, where it has one: by \
         shared memory. They find it by themselves.",
    ),
    key(
        Server,
        "shared_cache",
        ["true", ""],
        "true or false",
        "Whether the cache is memory that programs may map to read, where they come by shared memory: those of the \
         server's own user and of root all of it, which they could read anyway; others what `optimistic_scope` \
         says. With `squash_root` it is never: root may then be one who could not.",
    ),
    key(
        Server,
        "optimistic",
        [r#""trusted""#, ""],
        "trusted, checked, both or off",
        "Whether what is cached of open files is read without requests: trusted, by shared memory, by programs that \
         may map the cache (see shared_cache, optimistic_scope) and are told where blocks are in it; checked, over TCP, by \
         references that the server checks at each read.",
    ),
    key(
        Server,
        "optimistic_scope",
        [r#""owner""#, ""],
        "owner, export or root",
        "Whose programs map which parts of the cache, where they come by shared memory and the server runs as root:          owner, those of each user what everybody may open, and the user's own files; export, those of every user all          that is cached, whoever may open it (as share_cache of each export); root, only those of root.",
    ),
    ConfigKey {
        bounds: Some((ARENA_BYTES_MIN, u64::MAX)),
        ..key(
            Server,
            "arena_bytes",
            [r#""1g""#, "a quarter of memory"],
            "a size from 16m to the memory of the machine",
            "The cache: memory for file data, and for what is on its way.",
        )
    },
    key(
        Server,
        "policy",
        [r#""mq""#, ""],
        "mq or lru",
        "Which cached data goes when space is needed: mq (multi-queue) keeps what is used often, lru what \
         was used last.",
    ),
    key(
        Server,
        "disk",
        [r#""auto""#, ""],
        "auto, direct or buffered",
        "What is between the cache and the disk of files above 64 KiB: nothing (direct), or the kernel's \
         page cache (buffered). auto: direct where the system can.",
    ),
    ConfigKey {
        bounds: Some((1, 64)),
        ..key(
            Server,
            "workers",
            ["1", "one for four processors, 1 to 8"],
            "a number from 1 to 64",
            "Threads that serve. More help with many clients, not with one.",
        )
    },
    key(
        Server,
        "key_file",
        [r#""/etc/dafs/key""#, "no key"],
        "a path",
        "Callers prove that they have the key in this file, of 16 bytes or more that only its owner may \
         read; they act as its owner. Allows other addresses than loopback.",
    ),
    key(
        Server,
        "known_as",
        [r#"["192.0.2.1:20490"]"#, "none"],
        "a list of IP:PORT",
        "Addresses by which holders of the key reach this server through proxies or address translation.",
    ),
    key(
        Server,
        "insecure",
        ["false", ""],
        "true or false",
        "Let callers in without proof, also from other machines; all of them act as anon_uid and anon_gid.",
    ),
    key(
        Server,
        "anon_uid",
        ["65534", ""],
        "the number of a user",
        "The user that callers without proof act as.",
    ),
    key(
        Server,
        "anon_gid",
        ["65534", ""],
        "the number of a group",
        "The group that callers without proof act as.",
    ),
    key(
        Server,
        "squash_root",
        ["false", ""],
        "true or false",
        "Root of clients is nobody (65534) here, by loopback and by a key that root owns.",
    ),
    key(
        Server,
        "rdma_read",
        ["true", ""],
        "true or false",
        "Whether this server may fetch data by RDMA read, in all sessions.",
    ),
    key(
        Server,
        "admin",
        [r#""127.0.0.1:9100""#, "a free port of 127.0.0.1"],
        "HOST:PORT, a loopback address",
        "Where counters are: a page for browsers, /metrics and /status.",
    ),
    key(
        Server,
        "state",
        [r#""/var/lib/dafs""#, "/var/lib/dafs for root, otherwise ~/.local/state/dafs"],
        "a path",
        "Where to keep which clients have locks and what became of changes, for the next server of the same \
         directories.",
    ),
    key(
        Server,
        "record_trace",
        [r#""/var/tmp/dafs.trace""#, "no trace"],
        "a path",
        "Write down what is read and written, to simulate other caches. Slows the server; ends at 1 GiB.",
    ),
    key(
        Export,
        "name",
        [r#""data""#, "none"],
        "text without '/'",
        "The first component of its URLs where there are several exports; each needs one then.",
    ),
    key(Export, "path", [r#""/srv/data""#, "must be given"], "a path", "The directory."),
    key(Export, "read_only", ["false", ""], "true or false", "Take no changes."),
    key(
        Export,
        "share_cache",
        ["false", ""],
        "true or false",
        "Whether its files have a cache of their own, which programs of any user who is let in may map to read, \
         where they come by shared memory: faster for them, and whatever of the export is cached they can read, \
         whoever owns it and whatever its mode is. Not with `squash_root`: root could write to it.",
    ),
    key(
        Export,
        "optimistic",
        [r#""trusted""#, "that of the server"],
        "trusted, checked, both or off",
        "As the server's key optimistic, for files of this export.",
    ),
    key(
        Export,
        "policy",
        [r#""mq""#, "that of the server"],
        "mq or lru",
        "As the server's key policy, for files of this export.",
    ),
    key(
        Export,
        "datapath",
        [r#""unifier""#, ""],
        "unifier, normal, mmap or sendfile",
        "How file data goes between disk and network: through the server's own cache (unifier), or the \
         kernel's.",
    ),
    limit("sessions", "4096", POSITIVE, "Sessions at a time."),
    limit(
        "sessions_per_user",
        "1024",
        ANY,
        "Sessions of one user, root excepted; never more than a quarter of sessions.",
    ),
    limit(
        "connections_unproven",
        "256",
        ANY,
        "Connections that are not part of a session yet, per worker; for one more the oldest of the user or \
         address with the most ends.",
    ),
    limit("opens", "262144", ANY, "Open files of the server."),
    limit("opens_per_session", "65536", POSITIVE, "Open files of one session."),
    limit("locks_per_session", "16384", ANY, "Locked ranges of one session."),
    limit(
        "lock_waits_per_session",
        "1024",
        ANY,
        "Waits for locks of one session, with those whose end it did not confirm.",
    ),
    limit("lock_waits_per_file", "512", ANY, "Waits for locks of one file."),
    limit("lock_files", "65536", ANY, "Files with locks; byte ranges and whole files count apart."),
    limit(
        "lock_clients",
        "4096",
        ANY,
        "Clients that are recorded, over restarts, as having locks.",
    ),
    limit(
        "slots",
        "64",
        ("a number from 1 to 65535", 1, 65_535),
        "Requests under way per session.",
    ),
    limit(
        "logged_sessions",
        "8192",
        ANY,
        "Sessions, alive or ended, of which is noted what became of changes: 65 KiB each of a sparse file \
         in the state directory.",
    ),
    limit(
        "data_bytes",
        r#""1m""#,
        ("a size from 64k to 4m", 65_536, dafs_protocol::DATA_BYTES_MAX as u64),
        "Bytes of data of one request.",
    ),
    limit(
        "push_bytes",
        r#""16m""#,
        SIZE,
        "Bytes that a connection may send before the server asked for them.",
    ),
    limit("request_bytes", r#""24m""#, SIZE, "Memory beside the cache of all requests under way."),
    limit("credentials", "1024", ANY, "Credentials that a root peer registered, per session."),
    key(
        Limits,
        "polled",
        ["false", ""],
        "true or false",
        "Whether any user may have a worker poll without sleep (?wait=polled); otherwise only root and the \
         server's user.",
    ),
    limit("lease_seconds", r#""30s""#, SECONDS, "How long a session may be silent."),
    limit(
        "setup_seconds",
        r#""5s""#,
        SECONDS,
        "How long a connection may take to become part of a session.",
    ),
];

impl Section {
    /// The line of the file under which its keys stand; none for those at the beginning.
    pub fn heading(self) -> Option<&'static str> {
        match self {
            Server => None,
            Export => Some("[[export]]"),
            Limits => Some("[limits]"),
        }
    }
}

/// The range of a number, in words, and its ends.
pub(crate) fn bounds(name: &str) -> Option<(&'static str, u64, u64)> {
    let key = KEYS.iter().find(|key| key.name == name)?;
    key.bounds.map(|(least, most)| (key.range, least, most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// The keys that a section takes, as its parser says.
    fn known(section: Section) -> Vec<String> {
        let head = section.heading().unwrap_or("");
        let path = if section == Export { "path = \"/\"\n" } else { "" };
        let said = toml::from_str::<Config>(&format!("{head}\n{path}no_key = 1\n"));
        let said = said.expect_err("unknown").to_string();
        let list = said.split("expected one of ").nth(1).expect("a list");
        list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn each_key_is_in_the_table_and_no_other() {
        for section in [Server, Export, Limits] {
            let mut listed: Vec<&str> =
                KEYS.iter().filter(|key| key.section == section).map(|key| key.name).collect();
            if section == Server {
                listed.extend(["export", "limits"]);
            }
            let mut known = known(section);
            known.sort();
            listed.sort_unstable();
            assert_eq!(listed, known);
        }
    }

    fn text(of: impl Fn(&ConfigKey) -> bool) -> String {
        let mut text = String::new();
        for section in [Server, Export, Limits] {
            let head = section.heading().unwrap_or("");
            text.push_str(&format!("{head}\n"));
            for key in KEYS.iter().filter(|key| key.section == section && of(key)) {
                text.push_str(&format!("{} = {}\n", key.name, key.value));
            }
        }
        text
    }

    #[test]
    fn what_is_said_to_be_the_default_is() {
        let written = text(|key| key.default.is_empty() || key.name == "path");
        let written: Config = toml::from_str(&written).expect("valid");
        // The same, but for `None`, which nobody can write.
        let policy = Some(crate::Policy::default());
        let default = Config { policy, ..Config::for_directory("/srv/data") };
        assert_eq!(format!("{written:?}"), format!("{default:?}"));
        toml::from_str::<Config>(&text(|_| true))
            .expect("the others are valid")
            .check()
            .expect("good");
    }

    #[test]
    fn what_is_out_of_its_range_is_refused() {
        for key in KEYS {
            let Some((least, most)) = key.bounds else { continue };
            for (value, is_good) in
                [(Some(least), true), (least.checked_sub(1), false), (most.checked_add(1), false)]
            {
                let Some(value) = value.filter(|value| i64::try_from(*value).is_ok()) else {
                    continue;
                };
                let export = "[[export]]\npath = \"/\"\n";
                let line = format!("{} = {value}\n", key.name);
                let file = match key.section {
                    Server => format!("{line}{export}"),
                    Export => format!("{export}{line}"),
                    Limits => format!("{export}[limits]\n{line}"),
                };
                let read = toml::from_str::<Config>(&file);
                let is_taken = read.is_ok_and(|config| config.check().is_ok());
                assert_eq!(is_taken, is_good, "{line}");
            }
        }
    }
}
