//! What a server is told: a file, and options, which win.

use std::path::Path;

use dafs_server::{Config, ConfigError, ExportConfig, Plan, StartError};

use super::Args;
use crate::failure::{FAILED, Failure, USAGE};
use crate::output::Output;
use crate::text;

/// Where configurations lie that services are made of.
const SYSTEM: &str = "/etc/dafs";

/// All that the server is told: by the file, and by options, which win.
///
/// # Errors
/// What is wrong with the file, or with an option.
pub fn configure(args: &Args) -> Result<Config, Failure> {
    let mut config = match &args.config {
        Some(file) => {
            let wrong = |text: &str| Failure::usage(format!("{}: {text}", file.display()));
            let text =
                std::fs::read_to_string(file).map_err(|error| wrong(&unread(file, &error)))?;
            toml::from_str(&text).map_err(|e| wrong(e.to_string().trim_end()))?
        }
        None => Config::default(),
    };
    let export = |name, path| ExportConfig {
        name,
        path,
        read_only: args.read_only,
        share_cache: false,
        optimistic: None,
        policy: None,
        data_path: args.datapath.unwrap_or_default(),
    };
    let mut exports = Vec::new();
    if let Some(path) = &args.directory {
        let name = String::new();
        exports.push(export(name, path.clone()));
    }
    for text in &args.export {
        let (name, path) = text
            .split_once('=')
            .filter(|(name, path)| !name.is_empty() && !path.is_empty())
            .ok_or_else(|| Failure::usage(format!("--export {text}: expected NAME=DIR")))?;
        exports.push(export(name.into(), path.into()));
    }
    if !exports.is_empty() {
        config.exports = exports;
    }
    if args.read_only {
        config.exports.iter_mut().for_each(|export| export.read_only = true);
    }
    if args.share_cache {
        config.exports.iter_mut().take(1).for_each(|export| export.share_cache = true);
    }
    if let Some(optimistic) = args.optimistic {
        config.optimistic = optimistic;
        config.exports.iter_mut().for_each(|export| export.optimistic = None);
    }
    config.optimistic_scope = args.optimistic_scope.unwrap_or(config.optimistic_scope);
    if let Some(data_path) = args.datapath {
        config.exports.iter_mut().for_each(|export| export.data_path = data_path);
    }
    if !args.listen.is_empty() {
        config.listen.clone_from(&args.listen);
    }
    config.local_socket = args.local_socket.clone().unwrap_or(config.local_socket);
    config.same_host &= !args.no_shm;
    config.arena_bytes = args.arena.or(config.arena_bytes);
    if args.policy.is_some() {
        config.policy = args.policy;
        config.exports.iter_mut().for_each(|export| export.policy = None);
    }
    config.record_trace = args.record_trace.clone().or(config.record_trace);
    config.disk = args.disk.unwrap_or(config.disk);
    config.workers = args.workers.or(config.workers);
    config.key_file = args.key_file.clone().or(config.key_file);
    config.known_as.extend(&args.known_as);
    config.admin = args.admin.clone().or(config.admin);
    config.state = args.state.clone().or(config.state);
    config.squash_root |= args.squash_root;
    config.insecure |= args.insecure;
    config.anon_uid = args.anon_uid.unwrap_or(config.anon_uid);
    config.anon_gid = args.anon_gid.unwrap_or(config.anon_gid);
    Ok(config)
}

/// Why a file cannot be read, and what makes one where there is none.
fn unread(file: &Path, error: &std::io::Error) -> String {
    let name = file.file_stem().unwrap_or_default().display();
    match (error.kind(), file.parent()) {
        (std::io::ErrorKind::NotFound, Some(directory)) if directory == Path::new(SYSTEM) => {
            format!("no such file: this makes it: dafs config new {name} DIR")
        }
        (std::io::ErrorKind::NotFound, Some(directory)) => {
            let directory = directory.display();
            format!(
                "no such file: this makes it: dafs config new --directory {directory} {name} DIR"
            )
        }
        _ => error.to_string(),
    }
}

/// A server that cannot start. Where the file says what is wrong, its line is named.
pub fn refused(args: &Args, error: &StartError) -> Failure {
    let code = if matches!(error, StartError::Config(_)) { USAGE } else { FAILED };
    let about = args.config.as_ref().and_then(|file| {
        let text = std::fs::read_to_string(file).ok()?;
        Some(format!("{}, line {}", file.display(), line(&text, error)?))
    });
    Failure { about: about.unwrap_or_default(), text: error.to_string(), code }
}

/// Where in a file the value stands that the error is about, counted from 1.
fn line(text: &str, error: &StartError) -> Option<usize> {
    let (key, value) = match error {
        StartError::Config(ConfigError::ExportName(name)) => ("name", name.as_str()),
        StartError::Config(ConfigError::Address(text) | ConfigError::NotLoopback(text)) => {
            ("", text.as_str())
        }
        StartError::Config(ConfigError::Admin(_)) => ("admin", ""),
        StartError::Config(ConfigError::KeyFile { .. }) => ("key_file", ""),
        StartError::Config(ConfigError::Range { name, .. }) => (*name, ""),
        StartError::Config(ConfigError::ArenaTooSmall(_) | ConfigError::ArenaTooLarge { .. }) => {
            ("arena_bytes", "")
        }
        StartError::Config(ConfigError::ArenaOfDomains { .. }) => ("arena_bytes", ""),
        StartError::Config(ConfigError::ShareCache { export, .. }) => ("path", export.as_str()),
        StartError::AnonymousUid(_) => ("insecure", ""),
        StartError::Export { path, .. } => ("path", path.as_str()),
        _ => return None,
    };
    let is_it = |line: &str| {
        let line = line.trim_start();
        line.starts_with(key) && line.contains(value) && !line.starts_with('#')
    };
    // The last: the same value may have been good where it stood first.
    text.lines().collect::<Vec<_>>().iter().rposition(|line| is_it(line)).map(|at| at + 1)
}

/// `--check-config`: what is wrong, or what a server would do.
///
/// # Errors
/// What a server would end with.
pub fn check(args: &Args, config: &Config) -> Result<(), Failure> {
    let plan = Plan::new(config).map_err(|error| refused(args, &error))?;
    for export in &config.exports {
        if let Err(error) = std::fs::read_dir(&export.path) {
            let reason = Failure::about("", error).text;
            let path = export.path.display().to_string();
            return Err(refused(args, &StartError::Export { path, reason }));
        }
    }
    let mut out = Output::new();
    let name = args.config.as_ref().map_or("options".to_owned(), |file| file.display().to_string());
    out.line(&format!("{name}: good"))?;
    for address in &plan.addresses {
        out.line(&format!("would listen on {address}"))?;
    }
    for export in &config.exports {
        out.line(&super::served(config, export))?;
    }
    let (arena, workers) = (text::human(plan.arena_bytes as u64), plan.workers);
    out.line(&format!("cache: {arena}; workers: {workers}"))?;
    out.line(match (plan.has_key, config.insecure) {
        (true, _) => "callers from other machines need the key",
        (false, true) => "anybody may call, as nobody (insecure)",
        (false, false) => "callers are users of this machine",
    })?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use dafs_server::Policy;

    use super::*;

    #[test]
    fn the_line_of_what_is_wrong_is_found() {
        let text = "# admin = \"x\"\nlisten = [\n  \"tcp://1.2.3.4:1\",\n]\nadmin = \"0:1\"\n[limits]\nslots = 0";
        let at = |error| line(text, &StartError::Config(error));
        assert_eq!(at(ConfigError::NotLoopback("tcp://1.2.3.4:1".into())), Some(3));
        assert_eq!(at(ConfigError::Admin("0:1".into())), Some(5));
        assert_eq!(at(ConfigError::Range { name: "slots", value: 0, range: "" }), Some(7));
        assert_eq!(at(ConfigError::Range { name: "workers", value: 0, range: "" }), None);
        assert_eq!(at(ConfigError::NoExport), None);
    }

    #[test]
    fn a_file_that_is_not_there_can_be_made() {
        let error = |kind: std::io::ErrorKind| kind.into();
        let said = |path, kind| unread(Path::new(path), &error(kind));
        let missing = std::io::ErrorKind::NotFound;
        assert!(said("/etc/dafs/music.toml", missing).ends_with("dafs config new music DIR"));
        let elsewhere = said("/home/a/b.toml", missing);
        assert!(elsewhere.ends_with("new --directory /home/a b DIR"), "{elsewhere}");
        let refused = said("/etc/dafs/music.toml", std::io::ErrorKind::PermissionDenied);
        assert!(!refused.contains("config new"), "{refused}");
    }

    #[test]
    fn a_policy_is_of_the_server_or_of_an_export() {
        use clap::Parser;
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            args: Args,
        }
        let path = std::env::temp_dir().join(format!("dafs-serve-{}.toml", std::process::id()));
        let text = "policy = \"mq\"\n[[export]]\nname = \"a\"\npath = \"/a\"\n\
                    policy = \"lru\"\n[[export]]\nname = \"b\"\npath = \"/b\"\n";
        std::fs::write(&path, text).expect("write");
        let file = path.display().to_string();
        let policies = |args: &[&str]| {
            let args = [&["serve", "--config", &file], args].concat();
            let config = configure(&Command::try_parse_from(args).expect("arguments").args)?;
            let of = |export: &ExportConfig| export.policy.or(config.policy);
            Ok::<_, Failure>(config.exports.iter().map(of).collect::<Vec<_>>())
        };
        let (lru, mq) = (Some(Policy::Lru), Some(Policy::MultiQueue));
        assert_eq!(policies(&[]).expect("a configuration"), [lru, mq]);
        assert_eq!(policies(&["--policy", "lru"]).expect("a configuration"), [lru, lru]);
        assert!(Command::try_parse_from(["serve", "--policy", "clock", "/"]).is_err());
        std::fs::write(&path, text.replace("mq", "arc")).expect("write");
        let wrong = policies(&[]).expect_err("no such policy").to_string();
        std::fs::remove_file(&path).expect("remove");
        assert!(wrong.contains("expected lru or mq"), "{wrong}");
    }
}
