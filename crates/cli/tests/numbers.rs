//! Inode numbers in a mount that shows several file systems.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

use common::{FileSystem, Mounted, Server, Temporary, path, program, unmount_when_let_go};

/// File systems in memory, below one directory; gone at the end.
struct Memory(Vec<PathBuf>);

impl Memory {
    /// In each a file of two names, which has the same inode number in all. `None`, and says so,
    /// where there cannot be any.
    fn below(directory: &Path, names: &[&str]) -> Option<Memory> {
        let mut memory = Memory(Vec::new());
        for name in names {
            let at = directory.join(name);
            fs::create_dir_all(&at).expect("directory");
            if program("mount", &["-t", "tmpfs", "-o", "mode=755", "none", path(&at)]).is_none() {
                println!("skipped: file systems cannot be mounted");
                return None;
            }
            fs::write(at.join("file"), name).expect("write");
            fs::hard_link(at.join("file"), at.join("link")).expect("link");
            fs::create_dir(at.join("dir")).expect("directory");
            fs::write(at.join("dir/inner"), name).expect("write");
            memory.0.push(at);
        }
        let inode = |at: &PathBuf| fs::metadata(at.join("file")).expect("stat").ino();
        assert!(memory.0.iter().all(|at| inode(at) == inode(&memory.0[0])), "as it always is");
        Some(memory)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for at in &self.0 {
            program("umount", &["-l", path(at)]);
        }
    }
}

/// All that is below a directory: its paths and the numbers that lists tell and those that objects
/// tell, which are the same.
fn numbers(root: &Path) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).expect("list") {
            let entry = entry.expect("entry");
            let meta = fs::symlink_metadata(entry.path()).expect("stat");
            assert_eq!(entry.ino(), meta.ino(), "{:?}", entry.path());
            assert_eq!(meta.dev(), fs::metadata(root).expect("stat").dev());
            found.insert(entry.path().strip_prefix(root).expect("below").to_owned(), meta.ino());
            if meta.is_dir() {
                left.push(entry.path());
            }
        }
    }
    found
}

/// What `ls` says of a directory and the one above it, by READDIR without attributes.
fn dots(dir: &Path) -> Option<String> {
    let script = "import os, sys, ctypes\n\
        c = ctypes.CDLL(None); c.opendir.restype = c.readdir.restype = ctypes.c_void_p\n\
        d = ctypes.c_void_p(c.opendir(sys.argv[1].encode()))\n\
        while e := c.readdir(d):\n\
        \x20   name = ctypes.string_at(e + 19).decode()\n\
        \x20   if name in ('.', '..'): print(name, ctypes.c_uint64.from_address(e).value)";
    let said = program("python3", &["-c", script, path(dir)]);
    said.is_none().then(|| println!("skipped: no python3"));
    said
}

fn check(server: &Server, mount: &Path) -> BTreeMap<PathBuf, u64> {
    let all = numbers(mount);
    let (file, link) = (Path::new("one/file"), Path::new("one/link"));
    assert_eq!(all[file], all[link]);
    let mut seen = BTreeMap::new();
    for (at, number) in all.iter().filter(|(at, _)| !at.ends_with("link")) {
        assert_eq!(seen.insert(number, at), None, "{at:?} has the number of another");
    }
    let number = |at: &str| fs::metadata(mount.join(at)).expect("stat").ino();
    let said = format!(". {}\n.. {}\n", number("one"), number(""));
    assert_eq!(dots(&mount.join("one")).unwrap_or_else(|| said.clone()), said);
    let copies = server.directory.with_file_name("copies");
    fs::create_dir(&copies).expect("directory");
    let script = format!(
        "set -e; cd {}; mkdir {to}/tar; tar c one two | tar x -C {to}/tar; cp -a one two {to}",
        path(mount),
        to = path(&copies)
    );
    program("sh", &["-c", &script]).expect("they copy");
    for copy in [copies.join("tar"), copies.clone()] {
        for name in ["one", "two"] {
            for file in ["file", "link", "dir/inner"] {
                let bytes = fs::read_to_string(copy.join(name).join(file)).expect("copied");
                assert_eq!(bytes, name, "{name}/{file} of {copy:?}");
            }
        }
    }
    fs::remove_dir_all(&copies).expect("remove");
    all
}

#[test]
fn objects_of_several_file_systems_have_numbers_of_their_own() {
    let temporary = Temporary::new();
    let served = temporary.join("served");
    let Some(_memory) = Memory::below(&served, &["one", "two"]) else { return };
    let mut server = Server::start_in(Temporary::new(), served, &[]);
    let Some(mount) = Mounted::new(&server, &[]) else { return };
    let inode = |of: &Path| fs::metadata(of).expect("stat").ino();
    assert_eq!(inode(mount.path()), inode(&server.directory), "in the root's its own");
    let first = check(&server, mount.path());
    drop(mount);
    let mount = Mounted::new(&server, &[]).expect("again");
    // Others first.
    inode(&mount.join("two/dir/inner"));
    assert_eq!(check(&server, mount.path()), first);
    server.crash_and_restart();
    inode(&mount.join("two/dir/inner"));
    assert_eq!(check(&server, mount.path()), first, "of the same mount");
}

#[test]
fn the_directory_of_several_exports_has_no_extended_attributes() {
    let temporary = Temporary::new();
    let served = temporary.join("served");
    fs::create_dir_all(served.join("one")).expect("directory");
    let [one, two] = ["one", "two"].map(|name| format!("{name}={}", path(&served.join("one"))));
    let server = Server::start_in(Temporary::new(), served, &["--export", &one, "--export", &two]);
    let Some(mount) = Mounted::new(&server, &[]) else { return };
    if program("python3", &["-c", ""]).is_none() {
        return println!("skipped: no python3");
    }
    let script = "import os, sys\n\
        assert os.listxattr(sys.argv[1]) == []\n\
        try: os.getxattr(sys.argv[1], 'user.x')\n\
        except OSError as e: print(e.errno)\n";
    let said = program("python3", &["-c", script, path(mount.path())]).expect("it lists");
    assert_eq!(said.trim(), libc::ENODATA.to_string());
}

#[test]
fn objects_of_subvolumes_have_numbers_of_their_own() {
    let Some(system) = FileSystem::image("btrfs") else { return };
    let served = system.path().join("served");
    let [one, two] = ["one", "two"].map(|name| served.join(name));
    fs::create_dir(&served).expect("directory");
    program("btrfs", &["-q", "subvolume", "create", path(&one)]).expect("a subvolume");
    fs::write(one.join("file"), "one").expect("write");
    fs::hard_link(one.join("file"), one.join("link")).expect("link");
    fs::create_dir(one.join("dir")).expect("directory");
    fs::write(one.join("dir/inner"), "one").expect("write");
    // A copy of it has the same inodes.
    program("btrfs", &["-q", "subvolume", "snapshot", path(&one), path(&two)]).expect("a snapshot");
    for file in ["file", "dir/inner"] {
        fs::write(two.join(file), "two").expect("write");
    }
    let inode = |of: &Path| fs::metadata(of).expect("stat").ino();
    assert_eq!(inode(&one.join("file")), inode(&two.join("file")));
    let mut server = Server::start_in(Temporary::new(), served, &[]);
    let Some(mount) = Mounted::new(&server, &[]) else { return };
    assert_eq!(inode(mount.path()), inode(&server.directory), "in the root's its own");
    let first = check(&server, mount.path());
    server.crash_and_restart();
    inode(&mount.join("two/dir/inner"));
    assert_eq!(check(&server, mount.path()), first, "of the same mount");
}

#[test]
fn objects_of_several_exports_have_numbers_of_their_own() {
    let temporary = Temporary::new();
    let served = temporary.join("served");
    let Some(_memory) = Memory::below(&served, &["one", "two"]) else { return };
    let [one, two] = ["one", "two"].map(|name| format!("{name}={}", path(&served.join(name))));
    let server = Server::start_in(Temporary::new(), served, &["--export", &one, "--export", &two]);
    let Some(mount) = Mounted::new(&server, &[]) else { return };
    let first = check(&server, mount.path());
    drop(mount);
    let mount = Mounted::new(&server, &[]).expect("again");
    assert_eq!(check(&server, mount.path()), first);
}

/// A file system in an image, on loop devices; gone at the end.
struct Disk {
    _temporary: Temporary,
    image: PathBuf,
    at: PathBuf,
    other: Option<String>,
}

impl Disk {
    /// `None`, and says so, where there cannot be one.
    fn new(at: PathBuf) -> Option<Disk> {
        let temporary = Temporary::new();
        let (image, other) = (temporary.join("image"), temporary.join("other"));
        for file in [&image, &other] {
            fs::File::create(file).and_then(|file| file.set_len(64 << 20)).expect("a sparse file");
        }
        fs::create_dir_all(&at).expect("directory");
        let disk = Disk { _temporary: temporary, image, at, other: None };
        let made = program("mkfs.ext4", &["-q", path(&disk.image)]).and_then(|_| disk.mount());
        if made.is_none() {
            println!("skipped: needs root, loop devices and mkfs.ext4");
            return None;
        }
        Some(disk)
    }

    fn mount(&self) -> Option<String> {
        program("mount", &["-o", "loop", path(&self.image), path(&self.at)])
    }

    fn device(&self) -> u64 {
        fs::metadata(&self.at).expect("stat").dev()
    }

    /// The same file system by another device.
    fn move_to_another_device(&mut self) {
        let before = self.device();
        unmount_when_let_go(&self.at);
        // Nobody gets that one now, unless somebody has it already.
        let (loop_device, other) =
            (format!("/dev/loop{}", libc::minor(before)), self.image.with_file_name("other"));
        self.other = program("losetup", &[&loop_device, path(&other)]).map(|_| loop_device);
        self.mount().expect("again");
        assert_ne!(self.device(), before);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        program("umount", &["-l", path(&self.at)]);
        if let Some(other) = &self.other {
            program("losetup", &["-d", other]);
        }
    }
}

/// The number of a device that is unmounted is the next one's.
#[test]
fn a_file_system_on_the_device_of_another_has_numbers_of_its_own() {
    let temporary = Temporary::new();
    let served = temporary.join("served");
    let Some(memory) = Memory::below(&served, &["one"]) else { return };
    let server = Server::start_in(Temporary::new(), served, &[]);
    let Some(mount) = Mounted::new(&server, &[]) else { return };
    let stat = |of: &Path| fs::metadata(of).expect("stat");
    let local = |name: &str| stat(&server.directory.join(name).join("file"));
    let (device, inode) = (local("one").dev(), local("one").ino());
    let before = stat(&mount.join("one/file")).ino();
    unmount_when_let_go(&memory.0[0]);
    // Other tests may be faster than one of them.
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let others = Memory::below(&server.directory, &names).expect("they could be mounted");
    let same = names.iter().find(|name| local(name).dev() == device);
    let Some(same) = same else { return println!("the device is somebody else's") };
    assert_eq!(local(same).ino(), inode, "as it always is");
    let file = Path::new(same).join("file");
    let after = stat(&mount.path().join(&file)).ino();
    assert_ne!(after, before);
    assert_eq!(numbers(mount.path())[&file], after);
    drop((mount, others));
}

#[test]
fn a_file_system_keeps_its_numbers_on_another_device() {
    let temporary = Temporary::new();
    let served = temporary.join("served");
    let Some(mut disk) = Disk::new(served.join("one")) else { return };
    fs::write(disk.at.join("file"), "kept").expect("write");
    let server = Server::start_in(Temporary::new(), served, &[]);
    let Some(mount) = Mounted::new(&server, &[]) else { return };
    let number = || fs::metadata(mount.join("one/file")).expect("stat").ino();
    let before = number();
    disk.move_to_another_device();
    assert_eq!(number(), before);
    drop((mount, server));
}

/// As after a reboot.
#[test]
fn a_mount_comes_back_when_the_device_has_another_number() {
    let temporary = Temporary::new();
    let served = temporary.join("served");
    let Some(mut disk) = Disk::new(served.clone()) else { return };
    let mut server = Server::start_in(Temporary::new(), served, &[]);
    let Some(mount) = Mounted::new(&server, &[]) else { return };
    fs::create_dir(mount.join("dir")).expect("mkdir");
    fs::write(mount.join("dir/file"), "kept").expect("write");
    let (open, before) =
        (fs::File::open(mount.join("dir/file")).expect("open"), numbers(mount.path()));
    let dir = fs::File::open(mount.join("dir")).expect("open");
    program("sync", &["-f", path(&server.directory)]).expect("sync");
    server.child.kill().expect("kill");
    server.child.wait().expect("ends");
    disk.move_to_another_device();
    server.crash_and_restart();
    assert_eq!(numbers(mount.path()), before);
    assert_eq!(dir.metadata().expect("fstat").ino(), before[Path::new("dir")]);
    assert_eq!(std::io::read_to_string(&open).expect("read"), "kept");
    fs::write(mount.join("dir/new"), "new").expect("write");
    drop((open, dir));
    drop((mount, server));
}

/// As from a backup.
#[test]
fn a_mount_shows_what_is_in_the_place_of_its_root() {
    let mut server = Server::start(&[]);
    let Some(mount) = Mounted::new(&server, &[]) else { return };
    fs::write(mount.join("file"), "kept").expect("write");
    server.child.kill().expect("kill");
    server.child.wait().expect("ends");
    let script =
        format!("set -e; cd {}; mv served old; cp -r old served", path(&server.file("..")));
    program("sh", &["-c", &script]).expect("copied");
    server.crash_and_restart();
    assert_eq!(fs::read_dir(mount.path()).expect("list").count(), 1);
    assert_eq!(fs::read(mount.join("file")).expect("read"), b"kept");
    fs::write(mount.join("new"), "new").expect("write");
    assert_eq!(fs::read(server.file("new")).expect("read"), b"new");
}
