//! A mount as the upper layer of an overlay file system, as containers have it.

mod common;

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use common::{Mounted, Server, Temporary, path, program};

/// An overlay, gone at the end.
struct Overlay(PathBuf);

impl Overlay {
    /// `None`, and says so, where the system has none.
    fn new(layers: &Path, upper: &Path) -> Option<Overlay> {
        let merged = layers.join("merged");
        for dir in [&layers.join("lower"), &merged, &upper.join("upper"), &upper.join("work")] {
            fs::create_dir_all(dir).expect("directory");
        }
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            path(&layers.join("lower")),
            path(&upper.join("upper")),
            path(&upper.join("work")),
        );
        program("mount", &["-t", "overlay", "-o", &options, "overlay", path(&merged)])?;
        Some(Overlay(merged))
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        program("umount", &["-l", path(&self.0)]);
    }
}

fn overlay_works_on_memory() -> bool {
    let layers = Temporary::new();
    let upper = layers.join("memory");
    fs::create_dir(&upper).expect("directory");
    if program("mount", &["-t", "tmpfs", "none", path(&upper)]).is_none() {
        return false;
    }
    let works = Overlay::new(&layers.join("layers"), &upper).is_some();
    program("umount", &["-l", path(&upper)]);
    works
}

#[test]
fn a_mount_is_the_upper_layer_of_an_overlay() {
    let server = Server::start(&[]);
    let Some(mount) = Mounted::new(&server, &[]) else { return };
    if !overlay_works_on_memory() {
        return println!("skipped: no overlay file systems here");
    }
    let layers = Temporary::new();
    let lower = layers.join("layers/lower");
    fs::create_dir_all(lower.join("dir")).expect("directory");
    for name in ["removed", "renamed", "changed", "dir/inner"] {
        fs::write(lower.join(name), name).expect("write");
    }
    let overlay = Overlay::new(&layers.join("layers"), mount.path()).expect("an overlay");
    let at = |name: &str| overlay.0.join(name);
    fs::remove_file(at("removed")).expect("unlink");
    fs::rename(at("renamed"), at("new")).expect("rename");
    fs::write(at("changed"), "anew").expect("write");
    fs::remove_dir_all(at("dir")).expect("remove");
    let mut names: Vec<_> =
        fs::read_dir(&overlay.0).expect("list").map(|e| e.expect("entry").file_name()).collect();
    names.sort();
    assert_eq!(names, ["changed", "new"]);
    assert_eq!(fs::read(at("new")).expect("read"), b"renamed");
    assert_eq!(fs::read(at("changed")).expect("read"), b"anew");
    // The layer is at the server.
    for name in ["removed", "renamed", "dir"] {
        let whiteout = fs::symlink_metadata(server.file("upper").join(name)).expect("there");
        assert!(whiteout.file_type().is_char_device() && whiteout.rdev() == 0, "{name}");
    }
}
