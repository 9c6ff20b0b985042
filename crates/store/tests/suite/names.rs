//! Names: what may be one, and where they lead.

use std::collections::BTreeSet;

use dafs_protocol::{FileKind, Status};

use super::{Fs, MAKE, READ, error};

pub fn hostile_names(fs: &Fs) {
    fs.mkdir("d");
    fs.file("f", b"");
    let f = fs.handle("f");
    let long = [b'x'; 256];
    let cases: [(&[u8], Status); 8] = [
        (b"", Status::Inval),
        (b".", Status::Inval),
        (b"..", Status::Inval),
        (b"a/b", Status::Inval),
        (b"/", Status::Inval),
        (b"../f", Status::Inval),
        (b"a\0b", Status::Inval),
        (&long, Status::NameTooLong),
    ];
    let (caller, root) = (&fs.caller, &fs.root);
    for (name, status) in cases {
        let made = fs.store.create(caller, root, name, FileKind::Directory, 0o755, 0, b"").wait();
        assert_eq!(error(made), status, "create {name:?}");
        assert_eq!(error(fs.store.link(caller, &f, root, name).wait()), status, "link {name:?}");
        assert_eq!(error(fs.store.remove(caller, root, name, false).wait()), status);
        assert_eq!(error(fs.store.remove(caller, root, name, true).wait()), status);
        let from = fs.store.rename(caller, root, name, root, b"to", (false, false, false)).wait();
        assert_eq!(error(from), status);
        let to = fs.store.rename(caller, root, b"f", root, name, (false, false, false)).wait();
        assert_eq!(error(to), status);
    }
    assert_eq!(fs.list("").expect("list"), ["d", "f"]);
}

pub fn hostile_paths(fs: &Fs) {
    fs.mkdir("d");
    fs.file("d/f", b"x");
    let d = fs.handle("d");
    let lookup = |path: &[u8]| fs.store.lookup(&fs.caller, &d, path, false).wait();
    for path in [&b".."[..], b"../d", b"f/../..", b"/", b"/etc/passwd", b"x/../../d/f"] {
        assert_eq!(error(lookup(path)), Status::XDev, "{path:?}");
        let open = fs.store.open(&fs.caller, &d, path, MAKE, 0o644).wait();
        assert_eq!(error(open), Status::XDev, "{path:?}");
    }
    assert_eq!(error(lookup(b"f\0")), Status::Inval);
    assert_eq!(error(lookup(&[b'x'; 256])), Status::NameTooLong);
    assert_eq!(error(lookup(&b"./".repeat(3000))), Status::NameTooLong);
    assert_eq!(error(lookup(&[b'x'; 255])), Status::NoEnt);
    assert_eq!(lookup(&b"./".repeat(300)).expect("itself").handle, d);
    let opened = fs.store.open(&fs.caller, &d, &[b'x'; 255], MAKE, 0o600).wait();
    assert!(opened.expect("the longest name").created);
}

pub fn no_way_out(fs: &Fs) {
    fs.mkdir("d");
    fs.mkdir("d/e");
    fs.file("f", b"inside");
    // Absolute targets begin at the tree's root, and nothing is above it.
    fs.symlink("d/absolute", "/f").expect("symlink");
    fs.symlink("d/up", "../f").expect("symlink");
    fs.symlink("d/e/far-up", "../../../../../../../../f").expect("symlink");
    fs.symlink("d/root", "/").expect("symlink");
    fs.symlink("d/passwd", "/etc/passwd").expect("symlink");
    fs.symlink("d/passwd2", "../../../../../../../../../../etc/passwd").expect("symlink");
    let (f, d) = (fs.handle("f"), fs.handle("d"));
    let from_d = |path: &str| fs.store.lookup(&fs.caller, &d, path.as_bytes(), false).wait();
    for path in ["absolute", "up", "e/far-up", "root/f", "root/d/root/f"] {
        assert_eq!(fs.follow(&format!("d/{path}")).expect(path).handle, f, "{path}");
        assert_eq!(from_d(path).expect(path).handle, f, "from d: {path}");
        let open = fs.store.open(&fs.caller, &d, path.as_bytes(), READ, 0).wait();
        assert_eq!(open.expect(path).handle, f, "open {path}");
    }
    assert_eq!(from_d("root").expect("root").handle, fs.root);
    for path in ["passwd", "passwd2", "root/../../etc/passwd"] {
        let status = error(from_d(path));
        assert!(matches!(status, Status::NoEnt | Status::XDev), "{path}: {status}");
        let status = error(fs.store.open(&fs.caller, &d, path.as_bytes(), READ, 0).wait());
        assert!(matches!(status, Status::NoEnt | Status::XDev), "{path}: {status}");
    }
}

pub fn hard_links(fs: &Fs) {
    fs.mkdir("d");
    let f = fs.file("f", b"x");
    let linked = fs.link("f", "d/g").expect("link");
    assert_eq!((linked.handle, linked.attr.links), (f, 2));
    assert_eq!(fs.attr("d/g").inode, fs.attr("f").inode);
    assert_eq!(error(fs.link("f", "d/g")), Status::Exist);
    assert_eq!(error(fs.link("d", "e")), Status::Perm);
    fs.remove("f", false).expect("remove");
    assert_eq!(fs.store.attr(&fs.caller, &f).wait().expect("attr").links, 1);
    assert_eq!(fs.bytes("d/g"), b"x");
    fs.symlink("l", "d/g").expect("symlink");
    assert_eq!(fs.link("l", "l2").expect("a link to a symlink").attr.kind, FileKind::Symlink);
}

pub fn symlinks(fs: &Fs) {
    fs.mkdir("d");
    fs.file("d/f", b"x");
    let made = fs.symlink("l", "d/f").expect("symlink");
    assert_eq!((made.attr.kind, made.attr.size), (FileKind::Symlink, 3));
    let read = |path: &str| fs.store.read_link(&fs.caller, &fs.handle(path)).wait();
    assert_eq!(read("l"), Ok(b"d/f".to_vec()));
    assert_eq!(read("d"), Err(Status::Inval));
    assert_eq!(fs.find("l").expect("itself").attr.kind, FileKind::Symlink);
    assert_eq!(fs.follow("l").expect("target").handle, fs.handle("d/f"));
    fs.symlink("dl", "d").expect("symlink");
    assert_eq!(fs.find("dl/f").expect("through it").handle, fs.handle("d/f"));
    assert_eq!(fs.find("dl/").expect("a slash follows").handle, fs.handle("d"));
    fs.symlink("loop", "loop").expect("symlink");
    assert_eq!(error(fs.follow("loop")), Status::Loop);
    assert_eq!(error(fs.find("loop/x")), Status::Loop);
    fs.symlink("dangling", "nothing").expect("symlink");
    assert_eq!(error(fs.follow("dangling")), Status::NoEnt);
    assert_eq!(error(fs.symlink("l", "x")), Status::Exist);
    // Some file systems take less, and say so.
    let long = "x".repeat(4095);
    match fs.symlink("long", &long) {
        Err(Status::NameTooLong) => {}
        _ => assert_eq!(read("long"), Ok(long.into_bytes())),
    }
    assert_eq!(error(fs.symlink("longer", &"x".repeat(4096))), Status::NameTooLong);
    assert_eq!(error(fs.symlink("empty", "")), Status::NoEnt);
}

pub fn removal(fs: &Fs) {
    fs.mkdir("d");
    fs.file("d/f", b"");
    assert_eq!(error(fs.remove("d", false)), Status::IsDir);
    assert_eq!(error(fs.remove("d", true)), Status::NotEmpty);
    assert_eq!(error(fs.remove("d/f", true)), Status::NotDir);
    assert_eq!(error(fs.remove("d/g", false)), Status::NoEnt);
    fs.remove("d/f", false).expect("remove");
    fs.remove("d", true).expect("remove");
    fs.symlink("l", "nothing").expect("symlink");
    fs.remove("l", false).expect("the symlink, not its target");
    assert_eq!(fs.list("").expect("list"), Vec::<String>::new());
}

pub fn renames(fs: &Fs) {
    fs.mkdir("d");
    let f = fs.file("f", b"f");
    fs.file("g", b"g");
    fs.rename("f", "d/f2").expect("rename");
    assert_eq!(fs.handle("d/f2"), f);
    assert_eq!(error(fs.find("f")), Status::NoEnt);
    assert_eq!(error(fs.rename_with("d/f2", "g", true, false)), Status::Exist);
    assert_eq!(error(fs.rename("nothing", "x")), Status::NoEnt);
    fs.rename("d/f2", "g").expect("replaces");
    assert_eq!(fs.bytes("g"), b"f");
    fs.rename("g", "g").expect("onto itself");
    fs.link("g", "h").expect("link");
    fs.rename("g", "h").expect("two names of one file");
    assert_eq!(fs.list("").expect("list"), ["d", "g", "h"], "both stay, as POSIX says");
    fs.rename_with("g", "new", true, false).expect("nothing there");
    assert_eq!(error(fs.rename_with("h", "x", true, true)), Status::Inval);
}

pub fn renames_of_directories(fs: &Fs) {
    fs.mkdir("a");
    fs.mkdir("a/b");
    fs.mkdir("c");
    fs.file("f", b"");
    assert_eq!(error(fs.rename("a", "a/b/x")), Status::Inval);
    assert_eq!(error(fs.rename("a", "a/x")), Status::Inval);
    assert!(matches!(error(fs.rename("c", "a")), Status::NotEmpty | Status::Exist));
    assert_eq!(error(fs.rename("c", "f")), Status::NotDir);
    assert_eq!(error(fs.rename("f", "c")), Status::IsDir);
    fs.rename("a", "c").expect("onto an empty directory");
    assert_eq!(fs.attr("c").links, 3);
    fs.mkdir("e");
    fs.rename("c/b", "e/b2").expect("rename");
    assert_eq!((fs.attr("c").links, fs.attr("e").links), (2, 3));
    let b = fs.handle("e/b2");
    let up = fs.store.lookup_parent(&fs.caller, &b).wait().expect("parent");
    assert_eq!(up.handle, fs.handle("e"));
}

pub fn exchange(fs: &Fs) {
    fs.mkdir("d");
    fs.mkdir("e");
    fs.file("e/f", b"f");
    if fs.rename_with("d", "e/f", false, true) == Err(Status::NotSupp) {
        return eprintln!("not of this store: no exchange here");
    }
    assert_eq!(fs.attr("e/f").kind, FileKind::Directory);
    assert_eq!(fs.bytes("d"), b"f");
    assert_eq!(fs.attr("e").links, 3);
    assert_eq!(error(fs.rename_with("d", "nothing", false, true)), Status::NoEnt);
    assert_eq!(error(fs.rename_with("e", "e/f", false, true)), Status::Inval);
}

pub fn listing_pages(fs: &Fs) {
    fs.mkdir("d");
    let names: BTreeSet<String> = (0..300).map(|i| format!("name-{i:04}")).collect();
    for name in &names {
        fs.file(&format!("d/{name}"), b"12345");
    }
    assert_eq!(fs.list("d").expect("list"), names.into_iter().collect::<Vec<_>>());
    let d = fs.handle("d");
    let page = |cookie, bytes| fs.store.read_dir(&fs.caller, &d, cookie, bytes, true, true).wait();
    let first = page(0, 10_000).expect("page");
    assert!(!first.end && first.entries.len() > 10);
    for entry in &first.entries {
        let path = format!("d/{}", String::from_utf8_lossy(&entry.name));
        let found = fs.find(&path).expect("find");
        assert_eq!(entry.kind, Some(FileKind::File));
        assert_eq!(entry.attr, Some(found.attr));
        // A store whose handles are descriptors does not open all files of a directory.
        assert!(entry.handle.is_none_or(|handle| handle == found.handle));
    }
    let bytes: usize = first.entries.iter().map(dafs_protocol::dir_entry_bytes).sum();
    assert!(bytes <= 10_000);
    let second = page(first.entries[4].cookie, 10_000).expect("page");
    assert_eq!(second.entries[0].name, first.entries[5].name, "any cookie can be gone on from");
    assert_eq!(error(page(0, 10)), Status::Range);
    fs.file("f", b"");
    let of_file = fs.store.read_dir(&fs.caller, &fs.handle("f"), 0, 4096, false, false).wait();
    assert_eq!(error(of_file), Status::NotDir);
    let root = fs.store.read_dir(&fs.caller, &fs.root, 0, 4096, false, false).wait().expect("page");
    let plain = &root.entries[0];
    assert!(plain.attr.is_none() && plain.handle.is_none(), "only what was asked for");
    fs.mkdir("empty");
    let empty = fs.handle("empty");
    let page = fs.store.read_dir(&fs.caller, &empty, 0, 4096, false, false).wait().expect("page");
    assert!(page.entries.is_empty() && page.end);
}

/// Names that stay are met exactly once, also when others come and go between the pages.
pub fn listing_while_it_changes(fs: &Fs) {
    fs.mkdir("d");
    for i in 0..100 {
        fs.file(&format!("d/stays-{i}"), b"");
        fs.file(&format!("d/goes-{i}"), b"");
    }
    let d = fs.handle("d");
    let (mut seen, mut cookie) = (Vec::new(), 0);
    for step in 0.. {
        let page =
            fs.store.read_dir(&fs.caller, &d, cookie, 400, false, false).wait().expect("page");
        for entry in &page.entries {
            cookie = entry.cookie;
            if entry.name.starts_with(b"stays") {
                seen.push(entry.name.clone());
            }
        }
        if page.end {
            break;
        }
        if step < 100 {
            fs.remove(&format!("d/goes-{step}"), false).expect("remove");
            fs.file(&format!("d/comes-{step}"), b"");
        }
    }
    let distinct: BTreeSet<_> = seen.iter().collect();
    assert_eq!((seen.len(), distinct.len()), (100, 100));
}

pub fn special_files(fs: &Fs) {
    for (name, kind) in [("fifo", FileKind::Fifo), ("socket", FileKind::Socket)] {
        let made = fs.make(name, kind, 0o640).expect(name);
        assert_eq!((made.attr.kind, made.attr.mode), (kind, 0o640));
        let page = fs.store.read_dir(&fs.caller, &fs.root, 0, 4096, false, false).wait();
        assert!(page.expect("page").entries.iter().any(|e| e.kind == Some(kind)));
        fs.remove(name, false).expect("remove");
    }
    assert_eq!(error(fs.make("file", FileKind::File, 0o644)), Status::BadType);
    let device =
        fs.store.create(&fs.caller, &fs.root, b"null", FileKind::CharDevice, 0o600, 259, b"");
    match device.wait() {
        Ok(made) => {
            assert_eq!((made.attr.kind, made.attr.rdev), (FileKind::CharDevice, 259));
            // Not even one that may be read by all.
            assert_eq!(error(fs.open("null", READ)), Status::BadType);
        }
        Err(status) => assert_eq!(status, Status::Perm),
    }
}

pub fn odd_names(fs: &Fs) {
    let names: [&[u8]; 6] =
        [b"\xff\xfe not text", b"new\nline", b" ", b"-rf", b"...", "\u{1f980}".as_bytes()];
    for name in names {
        let opened = fs.store.open(&fs.caller, &fs.root, name, MAKE, 0o644).wait().expect("open");
        let found = fs.store.lookup(&fs.caller, &fs.root, name, true).wait().expect("lookup");
        assert_eq!(found.handle, opened.handle);
    }
    let page = fs.store.read_dir(&fs.caller, &fs.root, 0, 4096, false, false).wait().expect("page");
    let listed: BTreeSet<&[u8]> = page.entries.iter().map(|entry| &entry.name[..]).collect();
    assert_eq!(listed, names.into_iter().collect());
}
