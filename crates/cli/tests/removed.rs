//! What programs hold of objects that were removed on the same mount.

mod common;

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use common::{Mounted, Server, path, program};

/// A directory: what every file system answers of it once it is removed.
fn check_directory(dir: &File, at: &Path) {
    let gone = dir.metadata().expect("fstat");
    assert_eq!((gone.nlink(), gone.is_dir()), (0, true), "{at:?}");
    dir.sync_all().expect("fsync");
    dir.set_permissions(Permissions::from_mode(0o705)).expect("fchmod");
    assert_eq!(dir.metadata().expect("fstat").mode() & 0o7777, 0o705);
    assert_eq!(dir.metadata().expect("fstat").ino(), gone.ino());
}

/// `exec 9<dir`, then `script`, then looks by descriptor and as the current directory.
fn shell(dir: &Path, script: &str) {
    let looks = "stat . >&2; test $(stat -c %h .) = 0; test -z \"$(ls -a .)\"; \
        test -z \"$(ls -a /proc/self/fd/9/)\"; stat -f . >&2; ls -lad . >&2";
    let script = format!("set -e; cd {}; mkdir -p d; exec 9<d; cd d; {script}; {looks}", path(dir));
    program("sh", &["-c", &script]).unwrap_or_else(|| panic!("failed: {script}"));
}

fn check(root: &Path) {
    let at = |name: &str| root.join(name);
    for name in ["a", "b", "c"] {
        fs::create_dir(at(name)).expect("mkdir");
    }
    let (b, c) = (File::open(at("b")).expect("open"), File::open(at("c")).expect("open"));
    fs::rename(at("a"), at("b")).expect("it replaces an empty one");
    check_directory(&b, &at("b"));
    fs::remove_dir(at("c")).expect("rmdir");
    check_directory(&c, &at("c"));
    assert_eq!(fs::metadata(at("b")).expect("the new one").nlink(), 2);

    shell(root, "rmdir ../d");
    shell(root, "mkdir ../e; mv -T ../e ../d");

    let path_only = |name| {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(at(name))
    };
    fs::write(at("f"), "four").expect("write");
    fs::hard_link(at("f"), at("g")).expect("link");
    let held = path_only("f").expect("open");
    fs::remove_file(at("f")).expect("unlink");
    assert_eq!(held.metadata().expect("fstat").nlink(), 1, "there is another name");
    fs::remove_file(at("g")).expect("unlink");
    let gone = held.metadata().expect("fstat");
    assert_eq!((gone.nlink(), gone.size()), (0, 4));

    program("mkfifo", &[path(&at("p"))]).expect("mkfifo");
    let pipe = OpenOptions::new().read(true).write(true).open(at("p")).expect("open");
    fs::remove_file(at("p")).expect("unlink");
    pipe.set_permissions(Permissions::from_mode(0o640)).expect("fchmod");
    let gone = pipe.metadata().expect("fstat");
    assert_eq!((gone.nlink(), gone.mode() & 0o7777), (0, 0o640));
}

#[test]
fn what_was_removed_here_is_there_for_who_holds_it() {
    let server = Server::start(&[]);
    let Some(mount) = Mounted::new(&server, &[]) else { return };
    let mounted = mount.join("mounted");
    fs::create_dir(&mounted).expect("mkdir");
    check(&mounted);
    // What a file system of this machine does.
    let itself = server.file("itself");
    fs::create_dir(&itself).expect("mkdir");
    check(&itself);
}

#[test]
fn what_others_removed_is_stale() {
    let server = Server::start(&[]);
    let Some(mount) = Mounted::new(&server, &["-o", "attr_timeout=0"]) else { return };
    fs::create_dir(mount.join("d")).expect("mkdir");
    let dir = File::open(mount.join("d")).expect("open");
    fs::remove_dir(server.file("d")).expect("rmdir");
    let error = dir.metadata().expect_err("stale");
    assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
}
