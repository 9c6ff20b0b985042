//! `dafs serve`: serves directories until it is told to stop.

mod configure;
mod urls;

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

use dafs_fabric::units::size;
use dafs_server::{
    Config, DataPath, ExportConfig, LocalSocket, Optimistic, OptimisticScope, Policy, Server,
};
use dafs_store::Disk;

use self::configure::configure;
use crate::failure::{Failure, PANICKED};
use crate::provider::providers;
use crate::runtime::{Note, Posted};
use crate::{interrupt, log, progress, service, sys, text};

const DATA_PATHS: &str = "How file data goes between disk and network:\n  \
    unifier   through the server's own cache, whose memory is the network's too (default)\n  \
    normal    read(2) and write(2): the kernel's page cache, and a copy of every byte\n  \
    mmap      reads leave from mappings of the files; writes as normal\n  \
    sendfile  reads leave by sendfile(2); writes as normal\n\
    The last three acknowledge a write when the page cache has it; local programs see it at\n\
    once. They are there for comparison, and for directories that local programs use at the\n\
    same time. In a configuration file: datapath = \"normal\" of an export.";

/// Serve directories of this machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs serve /srv/data\n  \
    dafs serve --listen tcp://127.0.0.1:0 --arena 2g /srv/data      any free port\n  \
    dafs serve --export music=/srv/music --export docs=/srv/docs    two directories\n  \
    dafs serve --key-file /etc/dafs.key --listen tcp://0.0.0.0:20490 /srv/data\n  \
    dafs serve --config /etc/dafs/data.toml             made by dafs config new\n  \
    dafs serve --config /etc/dafs/data.toml --check-config\n\n\
    The URL is printed alone on the first line of standard output. Without --listen it serves\n\
    on loopback only, port 20490. Other addresses need --key-file (the same key at the\n\
    clients), or --insecure: then every caller is nobody. Ctrl-C flushes and ends; a second one\n\
    ends at once.\n\n\
    --disk says what is between the cache and the disk of files above 64 KiB:\n  \
    buffered  the kernel's page cache: file data is in memory twice, and copied\n  \
    direct    nothing (io_uring and O_DIRECT); an error where the system cannot\n  \
    auto      direct where the system can, otherwise buffered: the default\n\
    /status and dafs status tell which it is. Smaller files, and the last part of a block at\n\
    the end of a file, always go through the page cache.\n\n\
    Keys of the file, with units, defaults and ranges: dafs config reference.")]
pub struct Args {
    /// The directory to serve.
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Serve this directory under a name; may be repeated.
    #[arg(long, value_name = "NAME=DIR")]
    export: Vec<String>,
    /// Where to listen: HOST:PORT, tcp://HOST:PORT (port 0: any free one), unix:/path or shm:/path; may
    /// be repeated.
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<String>,
    /// Where clients of this machine find Unix sockets beside the TCP addresses of loopback (auto, none or a
    /// directory). auto: /run/dafs for root, otherwise $XDG_RUNTIME_DIR/dafs, for ports that are named.
    #[arg(long, value_name = "DIR", value_parser = local_socket)]
    local_socket: Option<LocalSocket>,
    /// Offer no shared memory to clients of this machine, which use it by themselves.
    #[arg(long)]
    no_shm: bool,
    /// Bytes of the cache (512m, 4g), from 16m to the memory of the machine; a quarter of it if not given.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    arena: Option<u64>,
    /// Which cached data goes when space is needed: mq (multi-queue, the default: what is used often
    /// stays, a scan does not displace it), or lru (least recently used). Programs may wish
    /// otherwise for single files.
    #[arg(long, value_name = "mq|lru", value_parser = policy)]
    policy: Option<Policy>,
    /// Write down what is read and written, to simulate other caches (format: docs/caching.md).
    /// Slows the server; ends at 1 GiB.
    #[arg(long, value_name = "FILE")]
    record_trace: Option<PathBuf>,
    /// How file data gets from the disk to the cache: auto, direct or buffered.
    #[arg(long, value_name = "HOW")]
    disk: Option<Disk>,
    /// Read everything else from this TOML file; options given here win.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Say what is wrong with the configuration, or what the server would do, and end.
    #[arg(long)]
    check_config: bool,
    /// Callers must prove that they have the key in this file.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// An address by which holders of the key reach this server, where a proxy or address translation is
    /// between; may be repeated.
    #[arg(long, value_name = "IP:PORT")]
    known_as: Vec<SocketAddr>,
    /// Let callers in without proof; all of them act as --anon-uid.
    #[arg(long)]
    insecure: bool,
    /// The user that callers without proof act as.
    #[arg(long, value_name = "UID")]
    anon_uid: Option<u32>,
    /// The group that callers without proof act as.
    #[arg(long, value_name = "GID")]
    anon_gid: Option<u32>,
    /// Root of clients is nobody (65534) here, by loopback and by a key that root owns.
    #[arg(long)]
    squash_root: bool,
    /// Take no changes.
    #[arg(long)]
    read_only: bool,
    /// Let programs of all users who are let in map what is cached of the directory (of the first one that is
    /// given), to read it by themselves: faster, and file modes protect nothing of what is cached.
    #[arg(long)]
    share_cache: bool,
    /// Whether what is cached of open files is read without requests: trusted (the default), by programs that may map
    /// the cache, which are told where blocks are in it; checked, over TCP, by references that the server checks at each
    /// read; both; or off.
    #[arg(long, value_name = "trusted|checked|both|off", value_parser = optimistic)]
    optimistic: Option<Optimistic>,
    /// Whose programs map which parts of the cache, by shared memory: owner (the default), those of each user what
    /// everybody may open and the user's own files; export, those of every user all that is cached; root, those of
    /// root alone.
    #[arg(long, value_name = "owner|export|root", value_parser = optimistic_scope)]
    optimistic_scope: Option<OptimisticScope>,
    /// How file data goes between disk and network: unifier, normal, mmap or sendfile.
    #[arg(long, value_name = "PATH", long_help = DATA_PATHS)]
    datapath: Option<DataPath>,
    /// Threads that serve, 1 to 64; one for four processors if not given, 8 at most.
    #[arg(long, value_name = "NUMBER")]
    workers: Option<usize>,
    /// Where to keep which clients have locks and what became of changes, for the next server of the
    /// same directories; /var/lib/dafs for root, otherwise ~/.local/state/dafs, if not given.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    #[command(flatten)]
    log: log::LogArgs,
    /// Address for counters; a free port of 127.0.0.1 if not given.
    #[arg(long, value_name = "HOST:PORT")]
    admin: Option<String>,
}

/// Runs the command until a signal comes.
///
/// # Errors
/// The server could not be started, or not write everything at its end.
pub fn run(args: &Args) -> Result<(), Failure> {
    log::start(&args.log)?;
    end_with_any_thread();
    let config = configure(args)?;
    if args.check_config {
        return configure::check(args, &config);
    }
    if let Err(error) = sys::raise_descriptor_limit() {
        tracing::warn!(%error, "cannot raise the limit of open descriptors");
    }
    let server = Server::start(&config, providers(), &dafs_store_posix::open)
        .map_err(|error| configure::refused(args, &error))?;
    let _note = announce(&server, &config)?;
    service::tell(service::READY);
    interrupt::wait();
    service::tell(service::STOPPING);
    // On a thread of its own: what shows the message may be slow, or gone, and the flush comes first.
    // Where there can be no thread, it comes without.
    let _ = std::thread::Builder::new().spawn(|| {
        progress::message("dafs serve: flushing; press Ctrl-C again to end at once");
    });
    match server.stop() {
        0 => Ok(()),
        1 => Err(Failure::about("", "an open file could not be written; the log names it")),
        n => Err(Failure::about(
            "",
            format!("{n} open files could not be written; the log names them"),
        )),
    }
}

/// A thread that panics ends the process at once, as `kill -9` would: what it guarded may be half
/// changed, so nothing is flushed. Clients write again what they keep, or are told of their loss.
fn end_with_any_thread() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        progress::message("dafs serve: a thread panicked; ending without a flush");
        sys::exit_now(PANICKED);
    }));
}

fn local_socket(text: &str) -> Result<LocalSocket, String> {
    text.parse()
}

fn optimistic(text: &str) -> Result<Optimistic, String> {
    text.parse()
}

fn optimistic_scope(text: &str) -> Result<OptimisticScope, String> {
    text.parse()
}

fn policy(name: &str) -> Result<Policy, String> {
    Policy::named(name).ok_or_else(|| "expected lru or mq".to_owned())
}

/// Of an export with `share_cache`.
const SHARED_CACHE: &str = ", cache shared: every local user who may connect can read what is cached of it, \
    whatever the files' modes are";

/// Which directory is served, and how.
fn served(config: &Config, export: &ExportConfig) -> String {
    let name = if config.exports.len() > 1 { export.name.as_str() } else { "" };
    let note = if export.read_only { ", read-only" } else { "" };
    let shared = if config.shares(export) { SHARED_CACHE } else { "" };
    let path = match export.data_path {
        DataPath::Unifier => String::new(),
        other => format!(", data path {other}"),
    };
    format!("{} as /{name}{note}{path}{shared}", export.path.display())
}

fn announce(server: &Server, config: &Config) -> Result<Option<Posted>, Failure> {
    let admin = server.admin_address();
    let posted = Note::new(&urls::known(server.addresses()), admin).post();
    let mut out = std::io::stdout().lock();
    for url in urls::public(server.addresses()) {
        writeln!(out, "{url}")?;
    }
    for export in &config.exports {
        writeln!(out, "serving {}", served(config, export))?;
    }
    let arena = text::human(server.arena_bytes() as u64);
    writeln!(out, "cache: {arena} (--arena); counters: http://{admin}/metrics and /status")?;
    writeln!(out, "press Ctrl-C to flush and stop")?;
    out.flush()?;
    if let Err(error) = &posted {
        tracing::warn!(%error, "dafs status will not find this server");
    }
    Ok(posted.ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_panics_ends_the_process() {
        const CHILD: &str = "DAFS_TEST_CHILD_PANICS";
        if std::env::var_os(CHILD).is_some() {
            end_with_any_thread();
            let thread = std::thread::spawn(|| panic!("on purpose"));
            assert!(thread.join().is_err());
            return; // As if nothing had been.
        }
        let name = "serve::tests::a_thread_that_panics_ends_the_process";
        let child = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, "1")
            .output()
            .expect("runs");
        let said = String::from_utf8_lossy(&child.stderr).into_owned();
        assert_eq!(child.status.code(), Some(PANICKED.into()), "{said}");
        assert!(said.contains("on purpose") && said.contains("a thread panicked"), "{said}");
    }
}
