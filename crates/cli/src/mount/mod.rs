//! `dafs mount`: a server's tree as a directory of this machine.

mod list;
mod options;

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use dafs_client::Url;
use dafs_fuse::kernel::{self, Channel, FileSystem, Mount, MountOptions, ServeOptions};
use dafs_fuse::null::NullFs;

use self::options::{Options, is_foreground, words};
use crate::connect::ConnectArgs;
use crate::failure::Failure;
use crate::{interrupt, log, progress, sys};
use dafs_fabric::units::size;

/// What the process in the background writes when the mount is there, before the place of its log.
const READY: &str = "ready ";

/// How the program that mounts is called in logs.
const NAME: &str = "dafs-mount";

const AFTER: &str = "\
Examples:
  dafs mount dafs://server/ /mnt/data
  dafs mount -o ro,soft,timeo=30 dafs://server/music /mnt/music
  dafs mount                                      what is mounted on this machine
  dafs umount /mnt/data

It returns when the server has answered and the mount is there; a process in the background
serves it until it is unmounted. That process logs to the file of --log-file, otherwise to the
system's log (syslog or journal), or, where there is none, to a file; it is told which.
In /etc/fstab, with the program as /sbin/mount.fuse.dafs or in the path of mount.fuse3:
  dafs://server/ /mnt/data fuse.dafs _netdev,allow_other 0 0

";

/// Mount a server's tree on a directory; alone: list what is mounted.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{AFTER}{}", options::help()))]
pub struct Args {
    /// Options, separated by commas; they are listed below.
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Serve the mount in this process, until Ctrl-C.
    #[arg(long)]
    foreground: bool,
    /// The process in the background.
    #[arg(long, hide = true)]
    background: bool,
    /// Mount a file of so many zeros; no server is asked.
    #[arg(long, hide = true, value_name = "SIZE", value_parser = size)]
    null: Option<u64>,
    /// Of the list of mounts: one JSON object per line.
    #[arg(long, conflicts_with = "url")]
    json: bool,
    /// Prove who you are by the key in this file; the server must have the same.
    #[arg(long, value_name = "FILE", env = "DAFS_KEY_FILE")]
    key_file: Option<PathBuf>,
    #[command(flatten)]
    log: log::LogArgs,
    /// Which server and directory.
    #[arg(value_name = "URL", requires = "directory")]
    url: Option<String>,
    /// An existing directory.
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// What is mounted where.
struct What<'a> {
    url: &'a str,
    directory: &'a Path,
}

impl Args {
    /// True when this process serves the mount.
    pub fn serves(&self) -> bool {
        self.foreground || self.background || words(&self.options).any(is_foreground)
    }
}

/// Runs the command.
///
/// # Errors
/// No server, no mount.
pub fn run(args: &Args) -> Result<(), Failure> {
    let (Some(url), Some(directory)) = (&args.url, &args.directory) else {
        return list::print(args.json);
    };
    // What is wrong with them is said by the process that the user started.
    let options = Options::parse(&args.options)?;
    options.uring.check().map_err(|error| Failure::about("-o uring=on", error))?;
    if !args.serves() {
        return start_background();
    }
    let _ = sys::raise_descriptor_limit();
    let place = match args.background {
        true => log::start_unseen(&args.log, NAME, &directory.to_string_lossy())?,
        false => log::start(&args.log).map(|()| String::new())?,
    };
    let what = What { url, directory };
    let told = Told { is_waited_for: args.background, log: place };
    match args.null {
        Some(bytes) => {
            serve(&what, &told, &options, Arc::new(NullFs::new(bytes, options.direct_io)))
        }
        None => serve_url(args, &what, &told, &options),
    }
}

/// Who waits for the mount, and what he is told.
struct Told {
    is_waited_for: bool,
    /// Where the log is.
    log: String,
}

fn serve_url(args: &Args, what: &What<'_>, told: &Told, options: &Options) -> Result<(), Failure> {
    let mut url = Url::parse(what.url).map_err(|error| Failure::about("", error))?;
    url.options.extend(options.url.iter().cloned());
    let key_file = options.key_file.clone().or_else(|| args.key_file.clone());
    let connect = ConnectArgs { retry: options.retry(), key_file };
    let session = connect.options(&url)?;
    let session = connect.session(&url, session).map_err(|error| Failure::about(&url, error))?;
    let how = options.file_system(sys::is_root());
    let fs = dafs_fuse::fs::DafsFs::new(session, &url.path, how)
        .map_err(|error| Failure::about(&url, error))?;
    serve(what, told, options, fs)
}

fn serve<F: FileSystem>(
    what: &What<'_>,
    told: &Told,
    options: &Options,
    fs: Arc<F>,
) -> Result<(), Failure> {
    let failure = |error: String| Failure::about(what.directory.display(), error);
    let how = MountOptions {
        source: what.url.to_owned(),
        allow_other: options.allow_other.unwrap_or_else(sys::is_root),
        words: options.words.clone(),
    };
    let mounted = Mount::new(what.directory, &how).map_err(|error| failure(error.to_string()))?;
    let (mount, channel): (Mount, Channel) = mounted;
    let mount = Arc::new(mount);
    let of_signals = mount.clone();
    std::thread::spawn(move || {
        interrupt::wait();
        if !of_signals.end().unwrap_or(false) {
            progress::message("dafs mount: in use, detached; it ends with the last user");
        }
    });
    if told.is_waited_for {
        // Nobody waits for an answer if this fails.
        let _ = writeln!(std::io::stdout(), "{READY}{}", told.log);
        let _ = std::env::set_current_dir("/");
        log::take_messages();
        sys::detach()?;
    }
    let served = ServeOptions { uring: options.uring, ..ServeOptions::default() };
    let served = kernel::serve(&channel, fs, &served);
    served.map_err(|error| {
        let _ = mount.end();
        failure(error.to_string())
    })
}

/// Starts this program again, which serves, and waits until the mount is there.
fn start_background() -> Result<(), Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    // As parsed, not as given: the name of the program may have meant the command.
    let arguments = arguments(std::env::args_os().collect());
    command.args(arguments.into_iter().skip(1)).arg("--background");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let (Some(out), Some(mut errors)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(Failure::about("", "no pipe to the process in the background"));
    };
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line)?;
    if let Some(log) = line.trim_end().strip_prefix(READY) {
        progress::notice(&format!("dafs mount: mounted; it logs to {log}"));
        return Ok(());
    }
    let mut said = String::new();
    errors.read_to_string(&mut said)?;
    let status = child.wait()?;
    let said = said.trim_end();
    let text = said.strip_prefix("dafs mount: ").unwrap_or(said).to_owned();
    let code = status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code > 0);
    Err(Failure { about: String::new(), text, code: code.unwrap_or(1) })
}

/// The arguments of the command line. `mount(8)` runs this as `mount.fuse.dafs URL DIR [-sfnv]
/// [-o OPTIONS]`, and `mount.fuse3` as `dafs URL DIR [-o OPTIONS]`: that becomes `dafs mount`.
pub fn arguments(given: Vec<OsString>) -> Vec<OsString> {
    let name = given.first().and_then(|name| Path::new(name).file_name()).unwrap_or_default();
    let by_name = name == "mount.fuse.dafs" || name == "mount.dafs";
    let by_url = given.get(1).and_then(|first| first.to_str()).is_some_and(Url::is_url);
    if !by_name && !by_url {
        return given;
    }
    let mut out: Vec<OsString> = vec!["dafs".into(), "mount".into()];
    let mut rest = given.into_iter().skip(1);
    while let Some(argument) = rest.next() {
        match argument.to_str() {
            Some("-o") => {
                out.push(argument);
                out.extend(rest.next());
            }
            // sloppy, fake, no mtab, verbose: nothing to be done differently.
            Some(text) if is_flags(text) => {}
            _ => out.push(argument),
        }
    }
    out
}

fn is_flags(text: &str) -> bool {
    text.strip_prefix('-')
        .is_some_and(|flags| !flags.is_empty() && flags.bytes().all(|flag| b"sfnv".contains(&flag)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments_of(given: &[&str]) -> Vec<String> {
        let out = arguments(given.iter().map(OsString::from).collect());
        out.into_iter().map(|argument| argument.into_string().expect("UTF-8")).collect()
    }

    #[test]
    fn helpers_of_mount_are_the_mount_command() {
        let want = ["dafs", "mount", "dafs://h/", "/mnt", "-o", "rw,_netdev"];
        for name in ["/sbin/mount.fuse.dafs", "mount.dafs"] {
            assert_eq!(
                arguments_of(&[name, "dafs://h/", "/mnt", "-sn", "-v", "-o", "rw,_netdev"]),
                want
            );
        }
        assert_eq!(arguments_of(&["dafs", "dafs://h/", "/mnt", "-o", "rw,_netdev"]), want);
        assert_eq!(arguments_of(&["dafs", "ls", "dafs://h/"]), ["dafs", "ls", "dafs://h/"]);
    }
}
