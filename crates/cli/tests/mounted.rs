//! What programs see through a mount, beside what they see in the exported directory itself.

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use common::{Mounted, Server, path, program};

fn shell(dir: &Path, script: &str) -> String {
    let script = format!("cd {} && {script}", path(dir));
    program("sh", &["-c", &script]).unwrap_or_else(|| panic!("failed: {script}"))
}

#[test]
fn a_default_list_replaces_the_umask() {
    let server = Server::start(&[]);
    let Some(mount) = Mounted::new(&server, &[]) else { return };
    for dir in ["mounted", "itself"] {
        fs::create_dir(server.file(dir)).expect("mkdir");
    }
    let make = |dir: &Path, umask: &str| {
        let make = "touch f; mkdir d s; chmod g+s s; mkfifo p; touch d/g; mkdir s/t";
        shell(dir, &format!("umask {umask}; {make}"));
        let list = "stat -c '%n %a' f d p d/g s s/t; rm -r f d p s";
        shell(dir, list)
    };
    let both = |umask| {
        let itself = make(&server.file("itself"), umask);
        assert_eq!(make(&mount.join("mounted"), umask), itself);
        itself
    };
    assert!(both("027").contains("f 640\n"));
    assert!(both("0").contains("f 666\n"));
    for dir in ["mounted", "itself"] {
        let list = "u::rwx,g::rwx,o::r-x,m::rwx,u:12345:rwx";
        let set = program("setfacl", &["-d", "-m", list, path(&server.file(dir))]);
        if set.is_none() {
            return println!("skipped: no setfacl, or no lists on this file system");
        }
    }
    assert!(both("077").contains("f 664\n"));
    assert!(both("0").contains("f 664\n"));
    assert_eq!(fs::metadata(mount.path()).expect("stat").mode() & 0o777, 0o755);
}
