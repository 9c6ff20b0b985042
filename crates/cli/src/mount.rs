//! `dafs mount`: a server's tree as a directory of this machine.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use dafs_client::Url;
use dafs_fuse::kernel::{self, Channel, FileSystem, Mount, MountOptions, ServeOptions};
use dafs_fuse::null::NullFs;

use crate::connect::ConnectArgs;
use crate::failure::Failure;
use crate::mount_options::{Options, is_foreground, words};
use crate::{interrupt, progress, sys};
use dafs_fabric::units::size;

/// What the process in the background writes when the mount is there.
const READY: &str = "ready";

/// Mount a server's tree on a directory.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs mount dafs://server/ /mnt/data\n  \
    dafs mount -o ro,soft,timeo=30 dafs://server/music /mnt/music\n  \
    dafs umount /mnt/data\n\n\
    It returns when the server has answered and the mount is there; a process in the background\n\
    serves it until it is unmounted. In /etc/fstab, with the program as /sbin/mount.fuse.dafs\n\
    or in the path of mount.fuse3:\n  \
    dafs://server/ /mnt/data fuse.dafs _netdev,allow_other 0 0")]
pub struct Args {
    /// Comma separated: ro, soft, timeo=SECONDS, sync, direct_io, attr_timeout=SECONDS,
    /// entry_timeout=SECONDS, allow_other, foreground, key_file=FILE, options of URLs, words of
    /// mount(8).
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
    /// Prove who you are by the key in this file; the server must have the same.
    #[arg(long, value_name = "FILE", env = "DAFS_KEY_FILE")]
    key_file: Option<PathBuf>,
    /// Which server and directory.
    #[arg(value_name = "URL")]
    url: String,
    /// An existing directory.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
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
    if !args.serves() {
        return start_background();
    }
    let options = Options::parse(&args.options)?;
    let _ = sys::raise_descriptor_limit();
    match args.null {
        Some(bytes) => serve(args, &options, Arc::new(NullFs::new(bytes, options.direct_io))),
        None => serve_url(args, &options),
    }
}

fn serve_url(args: &Args, options: &Options) -> Result<(), Failure> {
    let mut url = Url::parse(&args.url).map_err(|error| Failure::about("", error))?;
    url.options.extend(options.url.iter().cloned());
    let key_file = options.key_file.clone().or_else(|| args.key_file.clone());
    let connect = ConnectArgs { retry: options.retry(), key_file };
    let session = connect.options(&url)?;
    let session = connect.session(&url, session).map_err(|error| Failure::about(&url, error))?;
    let how = options.file_system(sys::is_root());
    let fs = dafs_fuse::fs::DafsFs::new(session, &url.path, how)
        .map_err(|error| Failure::about(&url, error))?;
    serve(args, options, fs)
}

fn serve<F: FileSystem>(args: &Args, options: &Options, fs: Arc<F>) -> Result<(), Failure> {
    let failure = |error: String| Failure::about(args.directory.display(), error);
    let how = MountOptions {
        source: args.url.clone(),
        allow_other: options.allow_other.unwrap_or_else(sys::is_root),
        words: options.words.clone(),
    };
    let mounted = Mount::new(&args.directory, &how).map_err(|error| failure(error.to_string()))?;
    let (mount, channel): (Mount, Channel) = mounted;
    let mount = Arc::new(mount);
    let of_signals = mount.clone();
    std::thread::spawn(move || {
        interrupt::wait();
        if !of_signals.end().unwrap_or(false) {
            progress::message("dafs mount: in use, detached; it ends with the last user");
        }
    });
    if args.background {
        // Nobody waits for an answer if this fails.
        let _ = writeln!(std::io::stdout(), "{READY}");
        let _ = std::env::set_current_dir("/");
        sys::detach()?;
    }
    let served = kernel::serve(&channel, fs, &ServeOptions::default());
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
    if line.trim_end() == READY {
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
