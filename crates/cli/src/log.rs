//! Where servers and mounts log: standard error, a file, or the system's log.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::failure::Failure;
use crate::{progress, sys};

/// Where the system takes lines of logs (syslogd, or the journal of systemd).
const SYSTEM_LOG: &str = "/dev/log";
/// For who has no home.
const EVERYBODYS: &str = "/tmp";
/// Where its programs are told apart.
const FACILITY_DAEMON: u8 = 3 << 3;

/// How servers and mounts log.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Log")]
pub struct LogArgs {
    /// Append the log to this file.
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// Lines of text, or a JSON object for each.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: Format,
    /// How much to log: error, warn, info, debug or trace, or a filter such as dafs_server=debug;
    /// warn if not given.
    #[arg(long = "log", value_name = "LEVEL", env = "DAFS_LOG", value_parser = filter)]
    level: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
enum Format {
    #[default]
    Text,
    Json,
}

fn filter(text: &str) -> Result<String, String> {
    EnvFilter::try_new(text)
        .map(|_| text.to_owned())
        .map_err(|error| format!("{error}; expected error, warn, info, debug, trace or a filter"))
}

/// Where lines go.
enum Sink {
    StandardError,
    File(File),
    System { socket: UnixDatagram, name: &'static str },
}

/// Logs to standard error, or to the file of `args`.
///
/// # Errors
/// The file cannot be written.
pub fn start(args: &LogArgs) -> Result<(), Failure> {
    let sink = match &args.log_file {
        Some(file) => Sink::File(open(file)?),
        None => Sink::StandardError,
    };
    install(args, sink);
    Ok(())
}

/// Logs where nobody sees standard error: to the file of `args`, the system's log, or else a file of its own
/// with `name` in it. Where, in words.
///
/// # Errors
/// The file cannot be written.
pub fn start_unseen(args: &LogArgs, program: &'static str, name: &str) -> Result<String, Failure> {
    let (sink, place) = match (&args.log_file, system_log()) {
        (Some(file), _) => (Sink::File(open(file)?), file.display().to_string()),
        (None, Some(socket)) => (
            Sink::System { socket, name: program },
            format!("the system's log (journalctl -t {program})"),
        ),
        (None, None) => {
            let file = own_file(name);
            if let Some(directory) = file.parent() {
                make_own(directory).map_err(|error| Failure::about(directory.display(), error))?;
            }
            (Sink::File(open(&file)?), file.display().to_string())
        }
    };
    install(args, sink);
    Ok(place)
}

/// A pipe that nobody reads is an error, and one that is not read on holds up nobody.
fn open(file: &Path) -> Result<File, Failure> {
    File::options()
        .append(true)
        .create(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(file)
        .map_err(|error| Failure::about(format!("log file {}", file.display()), error))
}

/// Makes the directory of logs. One of another user's in a place where everybody may make some would
/// lead them to any file.
fn make_own(directory: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
    let meta = std::fs::symlink_metadata(directory)?;
    if directory.parent() == Some(Path::new(EVERYBODYS))
        && !(meta.is_dir() && meta.uid() == sys::effective_uid() && meta.mode() & 0o022 == 0)
    {
        return Err(io::Error::other("is another user's, or others can write to it"));
    }
    Ok(())
}

fn system_log() -> Option<UnixDatagram> {
    let socket = UnixDatagram::unbound().ok()?;
    socket.connect(SYSTEM_LOG).ok()?;
    // A log that does not go on must not hold up a mount.
    socket.set_nonblocking(true).ok()?;
    Some(socket)
}

/// For a machine without a system's log.
fn own_file(name: &str) -> PathBuf {
    let directory = if sys::is_root() {
        PathBuf::from("/var/log/dafs")
    } else {
        let home = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let state = home("XDG_STATE_HOME").map(PathBuf::from);
        let state = state.or_else(|| Some(PathBuf::from(home("HOME")?).join(".local/state")));
        state.map_or_else(
            || Path::new(EVERYBODYS).join(format!("dafs-{}", sys::effective_uid())),
            |state| state.join("dafs"),
        )
    };
    let safe = |c: char| if c.is_ascii_alphanumeric() || "._".contains(c) { c } else { '-' };
    let name: String = name.trim_matches('/').chars().map(safe).take(200).collect();
    directory.join(format!("{name}.log"))
}

fn install(args: &LogArgs, sink: Sink) {
    let filter = args.level.as_deref().and_then(|text| EnvFilter::try_new(text).ok());
    let is_terminal = matches!(sink, Sink::StandardError) && io::stderr().is_terminal();
    let has_own_time = matches!(sink, Sink::System { .. });
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|| EnvFilter::new("warn")))
        .with_writer(sink)
        .with_ansi(is_terminal)
        // It would say on standard error that standard error cannot be written, and panic.
        .log_internal_errors(false);
    let _ = match (args.log_format, has_own_time) {
        (Format::Json, _) => builder.json().flatten_event(true).try_init(),
        (Format::Text, true) => builder.without_time().with_level(false).try_init(),
        (Format::Text, false) => builder.try_init(),
    };
}

/// From here on nobody sees standard error: the log gets what stands there otherwise.
pub fn take_messages() {
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    progress::send_to(|text| tracing::warn!(target: "dafs", "{text}"));
}

impl<'a> MakeWriter<'a> for Sink {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { sink: self, severity: 6 }
    }

    fn make_writer_for(&'a self, meta: &tracing::Metadata<'_>) -> Line<'a> {
        let severity = match *meta.level() {
            tracing::Level::ERROR => 3,
            tracing::Level::WARN => 4,
            tracing::Level::INFO => 6,
            _ => 7,
        };
        Line { sink: self, severity }
    }
}

/// Takes a line; one that cannot be written is counted, and nothing else comes of it.
struct Line<'a> {
    sink: &'a Sink,
    /// As syslog(3) has it.
    severity: u8,
}

impl Write for Line<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let written = match self.sink {
            Sink::StandardError => io::stderr().write_all(line),
            Sink::File(file) => {
                let mut file = file;
                file.write_all(line)
            }
            Sink::System { socket, name } => {
                let priority = FACILITY_DAEMON | self.severity;
                let mut record =
                    format!("<{priority}>{name}[{}]: ", std::process::id()).into_bytes();
                record.extend_from_slice(line.trim_ascii_end()); // not payload: a line of a log
                socket.send(&record).map(drop)
            }
        };
        if written.is_err() {
            dafs_server::count_lost_log_line();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_filters_are_checked() {
        assert!(filter("debug").is_ok() && filter("warn,dafs_server=trace").is_ok());
        assert!(filter("dafs_server=loud").is_err());
    }

    #[test]
    fn the_system_is_told_program_process_and_severity() {
        let (socket, system) = UnixDatagram::pair().expect("sockets");
        let sink = Sink::System { socket, name: "dafs-mount" };
        let mut line = Line { sink: &sink, severity: 4 };
        assert_eq!(line.write(b"lost tcp://h:1\n").expect("never fails"), 15);
        let mut record = [0; 200];
        let bytes = system.recv(&mut record).expect("a record");
        let expected = format!("<28>dafs-mount[{}]: lost tcp://h:1", std::process::id());
        assert_eq!(String::from_utf8_lossy(&record[..bytes]), expected);
        drop(system);
        assert_eq!(line.write(b"nobody\n").expect("counted, and nothing else"), 7);
    }

    #[test]
    fn where_everybody_makes_directories_only_ones_own_is_used() {
        use std::os::unix::fs::{PermissionsExt, symlink};

        let dir = tempfile::tempdir_in(EVERYBODYS).expect("directory");
        make_own(dir.path()).expect("our own");
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).expect("mode");
        assert!(make_own(dir.path()).is_err());
        let link = Path::new(EVERYBODYS).join(format!("dafs-link-{}", std::process::id()));
        symlink("/var", &link).expect("symlink");
        let refused = make_own(&link).is_err();
        std::fs::remove_file(&link).expect("removed");
        assert!(refused);
    }

    #[test]
    fn a_mount_has_a_file_of_its_own() {
        let file = own_file("/mnt/a b/c");
        assert!(file.ends_with("dafs/mnt-a-b-c.log"), "{}", file.display());
    }
}
