//! What `docs/guarantees.md` says of programs on the server's own machine, row by row: through a
//! mount and by the library, with data that passes the page cache and data that does not, on each
//! kind of file system.

mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use common::{FileSystem, Mounted, Server, Temporary, path, program, unmount_when_let_go};
use dafs_client::{OpenOptions, Session, SessionOptions, Url};
use dafs_fabric_tcp::TcpProvider;

/// More than a large file: above what always passes the page cache.
const LARGE: usize = 256 << 10;

/// A client's view of the served directory; names are its files'.
trait Client {
    /// Opens, reads all, closes.
    fn read(&self, name: &str) -> Vec<u8>;
    /// As `read`, with no other right.
    fn read_only(&self, name: &str) -> Vec<u8>;
    /// Opens, writes at an offset, and hands over the open file: dropped, it is closed.
    fn write(&self, name: &str, bytes: &[u8], offset: u64) -> Box<dyn Written>;
    /// As `write`, at the end.
    fn append(&self, name: &str, bytes: &[u8]) -> Box<dyn Written>;
    /// Size and mode; `None`: no such name.
    fn stat(&self, name: &str) -> Option<(u64, u32)>;
    /// The error of an open for writing, or for appending.
    fn refused(&self, name: &str, append: bool) -> Option<i32>;
}

trait Written {
    fn commit(&self);
    fn close(self: Box<Self>);
}

struct ByMount(Mounted);

impl Written for File {
    fn commit(&self) {
        self.sync_all().expect("fsync");
    }

    fn close(self: Box<Self>) {}
}

impl Client for ByMount {
    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.0.join(name)).expect("read")
    }

    fn read_only(&self, name: &str) -> Vec<u8> {
        self.read(name)
    }

    fn write(&self, name: &str, bytes: &[u8], offset: u64) -> Box<dyn Written> {
        let mut options = File::options();
        let file = options.write(true).create(true).open(self.0.join(name)).expect("open");
        file.write_all_at(bytes, offset).expect("write");
        Box::new(file)
    }

    fn append(&self, name: &str, bytes: &[u8]) -> Box<dyn Written> {
        let mut file = File::options().append(true).open(self.0.join(name)).expect("open");
        file.write_all(bytes).expect("append");
        Box::new(file)
    }

    fn stat(&self, name: &str) -> Option<(u64, u32)> {
        let found = fs::metadata(self.0.join(name)).ok()?;
        Some((found.len(), found.mode() & 0o777))
    }

    fn refused(&self, name: &str, append: bool) -> Option<i32> {
        let file = File::options().write(true).append(append).open(self.0.join(name));
        file.err().and_then(|error| error.raw_os_error())
    }
}

struct ByLibrary(Session);

impl Written for dafs_client::File {
    fn commit(&self) {
        dafs_client::File::commit(self).expect("commit");
    }

    fn close(self: Box<Self>) {
        dafs_client::File::close(*self).expect("close");
    }
}

fn read_all(file: &dafs_client::File) -> Vec<u8> {
    let mut bytes = vec![0; LARGE * 2];
    let read = file.read_at(&mut bytes, 0).expect("read");
    bytes.truncate(read);
    bytes
}

impl ByLibrary {
    fn open(&self, name: &str) -> dafs_client::File {
        let options = OpenOptions { read: true, write: true, create: true, ..Default::default() };
        self.0.open(name.as_bytes(), options).expect("open")
    }
}

impl Client for ByLibrary {
    fn read(&self, name: &str) -> Vec<u8> {
        read_all(&self.open(name))
    }

    fn read_only(&self, name: &str) -> Vec<u8> {
        read_all(&self.0.open(name.as_bytes(), OpenOptions::read()).expect("open"))
    }

    fn write(&self, name: &str, bytes: &[u8], offset: u64) -> Box<dyn Written> {
        let file = self.open(name);
        assert_eq!(file.write_at(bytes, offset).expect("write"), bytes.len());
        Box::new(file)
    }

    fn append(&self, name: &str, bytes: &[u8]) -> Box<dyn Written> {
        let file = self.open(name);
        file.append(bytes).expect("append");
        Box::new(file)
    }

    fn stat(&self, name: &str) -> Option<(u64, u32)> {
        let found = self.0.stat(name.as_bytes()).ok()?;
        Some((found.size, found.mode & 0o777))
    }

    fn refused(&self, name: &str, append: bool) -> Option<i32> {
        let options = OpenOptions { write: true, append, ..Default::default() };
        self.0.open(name.as_bytes(), options).err().map(|error| error.errno())
    }
}

/// A local program that has a file mapped.
struct Mapping {
    program: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Mapping {
    fn new(file: &Path) -> Option<Mapping> {
        // Which answers at once though nobody looks at a terminal.
        let mut program = Command::new("stdbuf");
        program.args(["-oL", "xfs_io"]).arg(file).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = program.spawn().ok()?;
        let answers = BufReader::new(program.stdout.take().expect("piped"));
        let mut mapping = Mapping { program, answers };
        mapping.run("mmap -rw 0 4096");
        Some(mapping)
    }

    /// Returns when the command is done.
    fn run(&mut self, command: &str) {
        let stdin = self.program.stdin.as_mut().expect("piped");
        writeln!(stdin, "{command}\nstat").expect("it waits");
        let mut line = String::new();
        while !line.contains("fd.path") {
            line.clear();
            assert_ne!(self.answers.read_line(&mut line).expect("an answer"), 0, "it ended");
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// A local program that holds a lease of a file, and gives it up when it is asked.
struct Lease(Child);

impl Lease {
    /// `None`, and says so, where there cannot be one.
    fn of(file: &Path) -> Option<Lease> {
        // Waiting for a blocked signal, none is missed that comes just before.
        const SCRIPT: &str = "import fcntl, os, signal, sys\n\
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])\n\
            file = os.open(sys.argv[1], os.O_RDWR)\n\
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n\
            print('held', flush=True)\n\
            while True:\n\
            \x20   signal.sigwait([signal.SIGIO])\n\
            \x20   print('asked', flush=True)\n\
            \x20   fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)";
        let mut command = Command::new("python3");
        command.args(["-c", SCRIPT]).arg(file).stdout(Stdio::piped());
        let Ok(program) = command.spawn() else {
            println!("skipped: no python3");
            return None;
        };
        let mut lease = Lease(program);
        assert_eq!(lease.line(), "held\n");
        Some(lease)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let out = self.0.stdout.as_mut().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("it says");
        line
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file that may only grow, while this lives: nobody could remove it.
struct OnlyGrows<'a>(&'a Path);

impl OnlyGrows<'_> {
    /// `None`, and says so, where there cannot be one.
    fn new(file: &Path) -> Option<OnlyGrows<'_>> {
        if program("chattr", &["+a", path(file)]).is_none() {
            println!("skipped: chattr +a needs root, and a file system that has it");
            return None;
        }
        Some(OnlyGrows(file))
    }
}

impl Drop for OnlyGrows<'_> {
    fn drop(&mut self) {
        program("chattr", &["-a", path(self.0)]);
    }
}

/// Programs that keep a file to themselves.
fn kept_rows(client: &dyn Client, local: &dyn Fn(&str) -> PathBuf, what: &str) {
    // A lease is asked for, and the open waits for it.
    fs::write(local("leased"), b"leased").expect("write");
    if let Some(mut lease) = Lease::of(&local("leased")) {
        assert_eq!(client.read("leased"), b"leased", "{what}: a lease");
        assert_eq!(lease.line(), "asked\n", "{what}: a lease");
    }
    // What may only grow is read, not written.
    fs::write(local("log"), b"log").expect("write");
    let log = local("log");
    if let Some(_only) = OnlyGrows::new(&log) {
        for append in [false, true] {
            assert_eq!(client.refused("log", append), Some(libc::EPERM), "{what}: {append}");
        }
        let mut file = File::options().append(true).open(&log).expect("open");
        file.write_all(b"ged").expect("a local program may");
        assert_eq!(client.read_only("log"), b"logged", "{what}: chattr +a");
    }
    fs::remove_file(&log).expect("remove");
    fs::remove_file(local("leased")).expect("remove");
}

fn rows(client: &dyn Client, local: &dyn Fn(&str) -> PathBuf, what: &str) {
    // After CLOSE or COMMIT they see the same bytes and the same length.
    let written = client.write("f", &vec![1; LARGE], 0);
    written.commit();
    assert_eq!(fs::read(local("f")).expect("read"), vec![1; LARGE], "{what}: commit");
    client.write("g", &vec![2; LARGE + 5], 0).close();
    assert_eq!(fs::read(local("g")).expect("read"), vec![2; LARGE + 5], "{what}: close");

    // What they change is seen at the next open, also soon after a commit of a client that goes on
    // having it open.
    assert_eq!(client.read("f"), vec![1; LARGE], "{what}");
    let file = File::options().write(true).open(local("f")).expect("open");
    file.write_all_at(&vec![3; LARGE], 0).expect("write");
    assert_eq!(client.read("f"), vec![3; LARGE], "{what}: a local write");
    let mut file = File::options().append(true).open(local("f")).expect("open");
    file.write_all(b"local").expect("append");
    assert_eq!(client.read("f")[LARGE..], *b"local", "{what}: a local append");
    client.append("f", b"ours").close();
    assert_eq!(client.read("f")[LARGE..], *b"localours", "{what}: an append after it");
    file.set_len(100).expect("cut");
    assert_eq!(client.read("f"), vec![3; 100], "{what}: a local cut");
    fs::write(local("new"), b"replaced").expect("write");
    fs::rename(local("new"), local("f")).expect("rename");
    assert_eq!(client.read("f"), b"replaced", "{what}: a local rename");
    written.close();
    assert_eq!(client.read("f"), b"replaced", "{what}: the old file's last close");

    // Stores by a mapping, also those after the first.
    if let Some(mut mapping) = Mapping::new(&local("g")) {
        for byte in 1..=3 {
            mapping.run(&format!("mwrite -S {byte} 0 4096"));
            assert_eq!(client.read("g")[..4096], vec![byte; 4096], "{what}: a store");
        }
        mapping.run("msync -s");
        mapping.run("mwrite -S 4 0 4096");
        drop(mapping);
        assert_eq!(client.read("g")[..4096], vec![4; 4096], "{what}: a store before the end");
    } else {
        println!("skipped: no stdbuf and xfs_io");
    }

    // Names and attributes are always those of now.
    fs::rename(local("g"), local("h")).expect("rename");
    assert_eq!(
        (client.stat("g"), client.stat("h").map(|found| found.0)),
        (None, Some(LARGE as u64 + 5))
    );
    program("chmod", &["640", path(&local("h"))]).expect("chmod");
    assert_eq!(client.stat("h").map(|found| found.1), Some(0o640), "{what}: chmod");
    fs::remove_file(local("h")).expect("remove");
    assert_eq!(client.stat("h"), None, "{what}: remove");
}

/// Both clients, with this way to the disk; a mount only where there can be one.
fn with_clients(server: &Server, mut rows: impl FnMut(&dyn Client, &str)) {
    let url = Url::parse(&server.url).expect("URL");
    let provider = Arc::new(TcpProvider::default());
    let (session, _) =
        Session::connect_url(provider, &url, SessionOptions::default()).expect("session");
    rows(&ByLibrary(session), "library");
    let now = ["-o", "attr_timeout=0,entry_timeout=0"];
    if let Some(mount) = Mounted::new(server, &now) {
        rows(&ByMount(mount), "mount");
    }
}

/// In a directory of this one, which another file system may hold.
fn on(directory: &Path) {
    for disk in ["auto", "buffered"] {
        let served = directory.join(disk);
        fs::create_dir(&served).expect("directory");
        let server = Server::start_in(Temporary::new(), served, &["--disk", disk]);
        with_clients(&server, |client, which| {
            let (local, what) = (|name: &str| server.file(name), format!("{which}, --disk {disk}"));
            rows(client, &local, &what);
            kept_rows(client, &local, &what);
            fs::remove_file(local("f")).expect("remove");
        });
    }
}

#[test]
fn local_programs_and_clients_see_what_each_other_did() {
    on(&Temporary::new().0);
}

#[test]
fn local_programs_and_clients_see_what_each_other_did_on_xfs() {
    if let Some(system) = FileSystem::image("xfs") {
        on(&system.path());
    }
}

#[test]
fn local_programs_and_clients_see_what_each_other_did_on_btrfs() {
    if let Some(system) = FileSystem::image("btrfs") {
        on(&system.path());
    }
}

#[test]
fn local_programs_and_clients_see_what_each_other_did_in_memory() {
    if let Some(system) = FileSystem::memory() {
        on(&system.path());
    }
}

#[test]
fn a_file_system_below_an_export_can_be_unmounted_after_its_last_use() {
    let server = Server::start(&[]);
    let at = server.file("below");
    fs::create_dir(&at).expect("directory");
    with_clients(&server, |client, which| {
        if program("mount", &["-t", "tmpfs", "-o", "size=1m", "none", path(&at)]).is_none() {
            return println!("skipped: needs root, and the right to mount");
        }
        fs::write(at.join("file"), which).expect("write");
        assert_eq!(client.read("below/file"), which.as_bytes());
        unmount_when_let_go(&at);
        assert_eq!(client.stat("below/file"), None, "{which}");
    });
}
