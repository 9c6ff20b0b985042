//! Trees with all kinds of things in them, and what a copy is to keep of them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::Hasher;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use super::{is_root, text};

/// Everything about a tree that a copy is to keep.
pub fn snapshot(root: &Path) -> BTreeMap<Vec<u8>, String> {
    let mut found = BTreeMap::new();
    let mut inodes: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(path) = open.pop() {
        let name = path.strip_prefix(root).expect("below").as_os_str().as_bytes().to_vec();
        let meta = fs::symlink_metadata(&path).expect("there");
        let kind = meta.file_type();
        let mut line = format!(
            "{:o} {}:{} {}.{:09}",
            meta.mode(),
            meta.uid(),
            meta.gid(),
            meta.mtime(),
            meta.mtime_nsec()
        );
        if kind.is_dir() {
            let entries = fs::read_dir(&path).expect("readable");
            open.extend(entries.map(|entry| entry.expect("entry").path()));
        } else if kind.is_symlink() {
            line += &format!(" -> {:?}", fs::read_link(&path).expect("link"));
        } else if kind.is_file() {
            let data = fs::read(&path).expect("readable");
            // By the library, which is fast in this build, too.
            let mut sum = std::hash::DefaultHasher::new();
            sum.write(&data);
            let sum = sum.finish();
            let holes = meta.blocks() * 512 < meta.len();
            line += &format!(" {} bytes, sum {sum}, holes {holes}", data.len());
        }
        if !kind.is_dir() && meta.nlink() > 1 {
            // All names of a file lead to its least one.
            let least = inodes.entry(meta.ino()).or_insert_with(|| name.clone());
            if name < *least {
                least.clone_from(&name);
            }
            line += &format!(" inode {}", meta.ino());
        }
        found.insert(name, line);
    }
    for line in found.values_mut() {
        if let Some((start, inode)) = line.split_once(" inode ") {
            let least = &inodes[&inode.parse::<u64>().expect("number")];
            *line = format!("{start} same as {}", text(least));
        }
    }
    found
}

/// Compares two trees, and tells the first differences only.
pub fn assert_same(found: &Path, expected: &Path) {
    let (found, expected) = (snapshot(found), snapshot(expected));
    let names = found.keys().chain(expected.keys());
    let differ = names.filter(|name| found.get(*name) != expected.get(*name));
    let told: Vec<String> = differ
        .take(5)
        .map(|n| format!("{}: {:?}, not {:?}", text(n), found.get(n), expected.get(n)))
        .collect();
    assert!(told.is_empty(), "{}", told.join("\n"));
}

pub fn make_tree(root: &Path) {
    for dir in ["a/b/c", "empty", "odd", "closed"] {
        fs::create_dir_all(root.join(dir)).expect("directory");
    }
    for number in 0..200usize {
        let data: Vec<u8> = (0..number * 97).map(|i| (i * 7 + number) as u8).collect();
        fs::write(root.join(format!("a/f{number}")), data).expect("file");
    }
    let large: Vec<u8> = (0..5_000_001u32).map(|i| (i ^ (i >> 9)) as u8).collect();
    fs::write(root.join("a/large"), &large).expect("file");
    for (name, len, at) in [("a/sparse", 50 << 20, 20_000_003), ("a/hole", 10 << 20, u64::MAX)] {
        let file = File::create(root.join(name)).expect("file");
        file.set_len(len).expect("sparse");
        if at < len {
            file.write_all_at(b"data", at).expect("written");
        }
    }
    fs::hard_link(root.join("a/f1"), root.join("a/b/c/link")).expect("link");
    fs::hard_link(root.join("a/large"), root.join("a/b/large")).expect("link");
    symlink("../f1", root.join("a/b/symlink")).expect("symlink");
    symlink("/nonexistent/\n", root.join("dangling")).expect("symlink");
    fs::hard_link(root.join("dangling"), root.join("dangling-too")).expect("link");
    let long = [b'n'; 255];
    for name in [&b"new\nline"[..], b"bad\xff\xfe", b"%41 ?x=y#", b"-r", b"\\", &long] {
        fs::write(root.join("odd").join(OsStr::from_bytes(name)), name).expect("file");
    }
    let status = Command::new("mkfifo").arg(root.join("fifo")).status().expect("mkfifo");
    assert!(status.success());
    drop(std::os::unix::net::UnixListener::bind(root.join("socket")).expect("socket"));
    let set_mode = |name: &str, mode| {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).expect("mode");
    };
    set_mode("a/f2", 0o4755);
    set_mode("a/f3", 0o400);
    set_mode("empty", 0o1777);
    fs::write(root.join("closed/file"), "x").expect("file");
    set_mode("closed", 0o555);
    if is_root() {
        std::os::unix::fs::lchown(root.join("a/b/symlink"), Some(1234), Some(4321)).expect("own");
        std::os::unix::fs::chown(root.join("a/f4"), Some(1000), Some(1001)).expect("own");
    }
    let before_1970 = SystemTime::UNIX_EPOCH - Duration::new(86_400, 123_456_789);
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 987_654_321);
    for (name, time) in [("a/f5", before_1970), ("a/large", old), ("closed", old), ("a", old)] {
        File::open(root.join(name)).expect("open").set_modified(time).expect("time");
    }
    File::open(root).expect("open").set_modified(old).expect("time");
}

pub fn no_leftovers(root: &Path) {
    for name in snapshot(root).keys() {
        assert!(!text(name).contains(".dafs-tmp-"), "{} stayed", text(name));
    }
}
