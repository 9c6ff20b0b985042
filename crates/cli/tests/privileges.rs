//! What becomes of setuid, setgid, capabilities and lists of rights on a mount: each step also in
//! a directory of the disk below it.

mod common;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Mounted, Server, path, program};

const STRANGER: u32 = 12_345;
const FILE_BYTES: usize = 192 << 10;

fn mode(file: &Path) -> u32 {
    fs::metadata(file).expect("stat").mode() & 0o7777
}

/// A shell of the stranger in `dir`; false where it fails.
fn as_stranger(dir: &Path, script: &str, stdout: Stdio) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).current_dir(dir).uid(STRANGER).gid(STRANGER);
    shell.stdout(stdout).stderr(Stdio::null()).status().expect("sh").success()
}

/// A file of root that the stranger may write, of which the kernel knows attributes and data.
fn made(dir: &Path, of_mode: u32) -> std::path::PathBuf {
    let file = dir.join("k");
    let _ = fs::remove_file(&file);
    fs::write(&file, vec![1; FILE_BYTES]).expect("write");
    fs::set_permissions(&file, Permissions::from_mode(of_mode)).expect("chmod");
    assert!(as_stranger(dir, "cat k", Stdio::null()));
    assert_eq!(mode(&file), of_mode);
    file
}

/// A mount, its server, and a directory on each side.
fn both() -> Option<(Server, Mounted, [std::path::PathBuf; 2])> {
    let server = Server::start(&[]);
    let mount = Mounted::new(&server, &[])?;
    for dir in ["mounted", "disk"] {
        fs::create_dir(server.file(dir)).expect("mkdir");
        fs::set_permissions(server.file(dir), Permissions::from_mode(0o777)).expect("chmod");
    }
    fs::set_permissions(mount.path(), Permissions::from_mode(0o777)).expect("chmod");
    let dirs = [mount.join("mounted"), server.file("disk")];
    Some((server, mount, dirs))
}

/// Where the disk keeps a bit, ending it is allowed.
#[test]
fn setuid_ends_with_each_change_by_a_stranger() {
    let Some((_server, _mount, [mounted, disk])) = both() else { return };
    let changes = [
        "printf strange 1<>k",
        "printf strange >>k",
        "dd if=/dev/zero of=k bs=4096 count=4 oflag=direct conv=notrunc",
        "dd if=/dev/zero of=k bs=4096 count=4 oflag=direct,append conv=notrunc",
        "truncate -s 5000 k",
        "xfs_io -c 'falloc 64k 64k' k",
        "xfs_io -c 'falloc 192k 64k' k",
        "xfs_io -c 'fpunch 64k 64k' k",
        "xfs_io -c 'fzero 64k 64k' k",
        "xfs_io -c 'copy_range -s 0 -d 8192 -l 4096 k' k",
        "cp k other && xfs_io -c 'copy_range -s 0 -d 8192 -l 4096 other' k; rm -f other",
        "xfs_io -c 'mmap -rw 0 4096' -c 'mwrite 0 10' -c 'msync -s' k",
    ];
    for of_mode in [0o6777, 0o4777, 0o2767] {
        for change in changes {
            let [here, there] = [&mounted, &disk].map(|dir| {
                let file = made(dir, of_mode);
                let done = as_stranger(dir, change, Stdio::null());
                (done, mode(&file), fs::metadata(&file).expect("stat").len())
            });
            assert_eq!((here.0, here.2), (there.0, there.2), "{change} on {of_mode:o}");
            let kept = here.1 & !there.1;
            assert_eq!(kept, 0, "{change}: {of_mode:o} is {:o}, on a disk {:o}", here.1, there.1);
        }
    }
}

/// Change the file of `fd`, which root opened.
const BY_DESCRIPTOR: &[(&str, &str)] = &[
    ("a write", "os.write(fd, b'strange')"),
    ("a cut", "os.ftruncate(fd, 5000)"),
    ("space within", "os.posix_fallocate(fd, 0, 4096)"),
    ("space at the end", "os.posix_fallocate(fd, 192 << 10, 4096)"),
    ("a copy", "os.copy_file_range(os.open('other', os.O_RDONLY), fd, 4096, 0, 0)"),
    (
        "a direct write",
        "fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT); os.pwrite(fd, mmap.mmap(-1, 4096), 0)",
    ),
    ("a write past the cache", "os.pwrite(direct, mmap.mmap(-1, 4096), 0)"),
];

/// Root opens the file, writes through so many opens what is not flushed, and lets a child of the
/// stranger change it through the first: without an exec, which would close descriptors and so
/// flush. What the mode is then.
fn by_descriptor(dir: &Path, unflushed: u32, change: &str) -> Option<String> {
    let script = format!(
        "import fcntl, mmap, os, sys
os.chdir(sys.argv[1])
direct = os.open('k', os.O_WRONLY | os.O_DIRECT)
opens = [os.open('k', os.O_WRONLY) for _ in range(3)]
for fd in opens[:{unflushed}]: os.pwrite(fd, b'2' * 100, 100000)
fd = opens[0]
before = os.stat('k').st_mode & 0o7777
if os.fork() == 0:
    try:
        os.setgid({STRANGER}); os.setuid({STRANGER}); {change}
    except OSError as error:
        os.write(2, str(error).encode()); os._exit(1)
    os._exit(0)
assert os.wait()[1] == 0
print('%o %o' % (before, os.stat('k').st_mode & 0o7777), end='')"
    );
    program("python3", &["-c", &script, path(dir)])
}

/// The rights of who writes count, not of who opened the file.
#[test]
fn setuid_ends_with_a_write_through_the_descriptor_of_another() {
    let Some((server, _mount, [mounted, disk])) = both() else { return };
    let writes = ["printf strange", "dd if=/dev/zero bs=4096 count=1 oflag=append conv=notrunc"];
    for write in writes {
        let [here, there] = [&mounted, &disk].map(|dir| {
            let file = made(dir, 0o4755);
            let open = File::options().write(true).open(&file).expect("root may");
            assert!(as_stranger(dir, write, open.into()), "{write}");
            mode(&file)
        });
        assert_eq!((here, there), (0o755, 0o755), "{write}");
        assert_eq!(mode(&server.file("mounted/k")), 0o755, "{write}: it was closed");
    }
    // Root's own write leaves them, as on a disk.
    let file = made(&mounted, 0o4755);
    fs::write(&file, b"new").expect("write");
    assert_eq!(mode(&file), 0o4755);
}

/// Also where what root wrote through it, or through another one, is not flushed yet.
#[test]
fn setuid_ends_with_each_change_through_the_descriptor_of_another() {
    let Some((server, _mount, [mounted, disk])) = both() else { return };
    if program("python3", &["-c", "import os; os.copy_file_range"]).is_none() {
        return println!("skipped: no python3");
    }
    for (what, change) in BY_DESCRIPTOR {
        for unflushed in 0..3 {
            for dir in [&mounted, &disk] {
                let file = made(dir, 0o4755);
                fs::write(dir.join("other"), [3; 4096]).expect("write");
                let modes = by_descriptor(dir, unflushed, change);
                let at = format!("{what}, {unflushed} unflushed, in {}", dir.display());
                assert_eq!(modes.as_deref(), Some("4755 755"), "{at}");
                assert_eq!(mode(&file), 0o755, "{at}: closed");
            }
            assert_eq!(mode(&server.file("mounted/k")), 0o755, "{what}: at the server");
        }
    }
}

/// Writes that are asked for by a ring, and done by a thread of the kernel.
#[test]
fn setuid_ends_with_writes_of_a_ring() {
    let Some((server, _mount, [mounted, _])) = both() else { return };
    for (engine, direct) in [("io_uring", "0"), ("io_uring", "1"), ("libaio", "1")] {
        let file = made(&mounted, 0o4777);
        let job = format!(
            "fio --name=a --filename=k --rw=write --bs=4k --size=16k --ioengine={engine} \
             --direct={direct} --iodepth=4 --allow_file_create=0 --overwrite=1 --end_fsync=0"
        );
        if !as_stranger(&mounted, &job, Stdio::null()) {
            println!("skipped: no fio with {engine}");
            continue;
        }
        assert_eq!(mode(&file), 0o777, "{engine}, direct: {direct}");
        assert_eq!(mode(&server.file("mounted/k")), 0o777, "{engine}, direct: {direct}");
    }
}

fn capabilities(file: &Path) -> bool {
    program("getcap", &[path(file)]).expect("getcap").contains("cap_net_raw")
}

#[test]
fn capabilities_end_with_a_write_and_with_no_earlier_one() {
    let Some((server, _mount, [mounted, disk])) = both() else { return };
    for dir in [&mounted, &disk] {
        let file = dir.join("k");
        // The first write of a new file is flushed with it, the second one waits for the close: of
        // the shell's descriptor, which `setcap` has too.
        let script =
            "exec 3>k; printf one >&3; printf two >&3; setcap cap_net_raw+ep k && exec 3>&-";
        let done = Command::new("sh").args(["-c", script]).current_dir(dir).status();
        if !done.expect("sh").success() {
            return println!("skipped: no setcap, or no capabilities on this file system");
        }
        assert!(capabilities(&file), "the write came before");
    }
    assert!(capabilities(&server.file("mounted/k")));
    let changes = [
        "printf strange 1<>k",
        "truncate -s 100 k",
        "xfs_io -c 'falloc 0 4096' k",
        "xfs_io -c 'copy_range -s 0 -d 8192 -l 4096 k' k",
        ": > k",
    ];
    for change in changes {
        for dir in [&mounted, &disk] {
            let file = made(dir, 0o777);
            program("setcap", &["cap_net_raw+ep", path(&file)]).expect("setcap");
            assert!(as_stranger(dir, change, Stdio::null()), "{change} in {}", dir.display());
            assert!(!capabilities(&file), "{change} in {}", dir.display());
        }
    }
    // Who may not write a file does not end its capabilities.
    let file = made(&mounted, 0o755);
    program("setcap", &["cap_net_raw+ep", path(&file)]).expect("setcap");
    assert!(!as_stranger(&mounted, "printf strange 1<>k", Stdio::null()));
    assert!(!as_stranger(&mounted, "setcap -r k", Stdio::null()));
    assert!(capabilities(&file));
}

#[test]
fn a_list_of_rights_shows_in_the_mode_at_once() {
    let Some((_server, _mount, [mounted, _])) = both() else { return };
    let list = "setfacl -m u::rwx,g::rwx,o::rwx t";
    let script = format!("touch t; chmod 755 t; stat -c %a t; {list} && stat -c %a t");
    let Some(said) = program("sh", &["-c", &format!("cd {}; {script}", path(&mounted))]) else {
        return println!("skipped: no setfacl, or no lists on this file system");
    };
    assert_eq!(said, "755\n777\n");
}

/// Written by who owns the file, and not flushed when the list is set, which it must not undo.
#[test]
fn a_list_of_rights_outlives_a_write_before_it() {
    let Some((_server, _mount, [mounted, disk])) = both() else { return };
    if program("sh", &["-c", "command -v getfacl setfacl"]).is_none() {
        return println!("skipped: no setfacl");
    }
    for dir in [&mounted, &disk] {
        let script = "rm -f t; exec 3>t; printf one >&3; printf two >&3; chmod 2755 t; \
            printf three >&3; chmod 2755 t; printf four >&3; setfacl -m u:77:rw,m::rwx t; exec 3>&-; \
            test $(stat -c %a:%s t) = 775:15 || test $(stat -c %a:%s t) = 2775:15; \
            getfacl -cpE t | grep -q ^user:77:rw-";
        assert!(as_stranger(dir, &format!("set -e; {script}"), Stdio::null()), "{dir:?}");
    }
}

/// A hole is looked for below 0: as on a disk, where it is nowhere.
#[test]
fn a_negative_place_has_neither_data_nor_hole() {
    let Some((_server, _mount, dirs)) = both() else { return };
    for dir in dirs {
        made(&dir, 0o644);
        for (whence, what) in [(3, "SEEK_DATA"), (4, "SEEK_HOLE")] {
            let seek = format!("open(F, '<', 'k'); sysseek(F, -5, {whence}); print $!+0");
            let said = Command::new("perl").args(["-e", &seek]).current_dir(&dir).output();
            let Ok(said) = said else { return println!("skipped: no perl") };
            assert_eq!(common::text(&said.stdout), "6", "ENXIO, {what} in {}", dir.display());
        }
    }
}
