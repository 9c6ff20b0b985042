//! Several users at once. The store can act as any of them; `fs.caller` is root.

use dafs_protocol::{
    CreateMode, FileKind, OpenFlags, SetAttr, SetTime, Status, Timestamp, mode_with_umask,
};

pub use super::unlinked::making_one_needs_rights;
use super::{BOTH, Fs, MAKE, READ, WRITE, error, user};

pub fn a_private_file_is_private(fs: &Fs) {
    let (alice, bob) = (fs.by(&user(12_345, 12_345, &[])), fs.by(&user(12_346, 12_346, &[])));
    let opened =
        alice.store.open(&alice.caller, &alice.root, b"secret", MAKE, 0o600).wait().expect("made");
    assert_eq!((opened.attr.uid, opened.attr.gid), (12_345, 12_345));
    super::write(&*opened.file, 0, b"secret").expect("write");
    assert_eq!(alice.bytes("secret"), b"secret");
    // Also while it is open, by handle as by name.
    for flags in [READ, WRITE, BOTH, OpenFlags { truncate: true, ..WRITE }, MAKE] {
        assert_eq!(error(bob.open("secret", flags)), Status::Access);
        let by_handle = bob.store.open(&bob.caller, &opened.handle, b"", flags, 0).wait();
        assert_eq!(error(by_handle), Status::Access);
    }
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(error(bob.set("secret", cut)), Status::Access);
    assert_eq!(bob.attr("secret").size, 6, "attributes are not secret");
    assert_eq!(bob.store.access(&bob.caller, &opened.handle, 7).wait(), Ok(0));
    assert_eq!(alice.store.access(&alice.caller, &opened.handle, 7).wait(), Ok(6));
    assert_eq!(alice.bytes("secret"), b"secret");
}

pub fn groups_count(fs: &Fs) {
    let owner = fs.by(&user(12_345, 500, &[]));
    owner.store.open(&owner.caller, &owner.root, b"shared", MAKE, 0o640).wait().expect("made");
    let cases = [
        (user(12_346, 500, &[]), true),
        (user(12_346, 1, &[2, 3, 500]), true),
        (user(12_346, 1, &[2, 3]), false),
        (user(12_346, 1, &[]), false),
        (user(12_346, 1, &[500]), true),
        (user(12_347, 1, &[501]), false),
    ];
    // Twice, in changing order: no thread may keep another's groups.
    for (caller, may) in cases.iter().chain(cases.iter().rev()) {
        let opened = fs.by(caller).open("shared", READ).map(|_| ());
        assert_eq!(opened, if *may { Ok(()) } else { Err(Status::Access) }, "{caller:?}");
        assert_eq!(error(fs.by(caller).open("shared", WRITE)), Status::Access, "{caller:?}");
    }
    // The owner's bits count for the owner, even where the group has more.
    owner.chmod("shared", 0o060).expect("chmod");
    assert_eq!(error(owner.open("shared", READ)), Status::Access);
}

pub fn directories_are_guarded(fs: &Fs) {
    let (alice, bob) = (fs.by(&user(12_345, 12_345, &[])), fs.by(&user(12_346, 12_346, &[])));
    alice.mkdir("d");
    alice.file("d/f", b"x");
    assert_eq!(error(bob.open("d/new", MAKE)), Status::Access);
    assert_eq!(error(bob.make("d/new", FileKind::Directory, 0o755)), Status::Access);
    assert_eq!(error(bob.remove("d/f", false)), Status::Access);
    assert_eq!(error(bob.rename("d/f", "d/g")), Status::Access);
    assert!(matches!(error(bob.link("d/f", "d/g")), Status::Access | Status::Perm));
    assert_eq!(bob.list("d").expect("may be read"), ["f"]);
    alice.chmod("d", 0o711).expect("chmod");
    assert_eq!(error(bob.list("d")), Status::Access);
    assert_eq!(bob.attr("d/f").size, 1, "search is enough to walk");
    alice.chmod("d", 0o744).expect("chmod");
    assert_eq!(error(bob.find("d/f")), Status::Access);
    let d = bob.handle("d");
    let page = bob.store.read_dir(&bob.caller, &d, 0, 4096, true, true).wait().expect("names");
    assert_eq!(page.entries.len(), 1);
    assert!(page.entries[0].attr.is_none(), "no attributes without search");
    alice.chmod("d", 0o700).expect("chmod");
    assert_eq!(error(bob.find("d/f")), Status::Access);
    assert_eq!(error(bob.store.lookup_parent(&bob.caller, &d).wait()), Status::Access);
}

pub fn sticky_directories(fs: &Fs) {
    let (alice, bob) = (fs.by(&user(12_345, 12_345, &[])), fs.by(&user(12_346, 12_346, &[])));
    fs.make("tmp", FileKind::Directory, 0o1777).expect("mkdir");
    alice.file("tmp/a", b"");
    bob.file("tmp/b", b"");
    assert_eq!(error(bob.remove("tmp/a", false)), Status::Perm);
    assert_eq!(error(bob.rename("tmp/a", "tmp/c")), Status::Perm);
    assert_eq!(error(bob.rename("tmp/b", "tmp/a")), Status::Perm);
    alice.remove("tmp/a", false).expect("one's own");
    fs.remove("tmp/b", false).expect("root");
}

pub fn owners_change_their_files(fs: &Fs) {
    let (alice, bob) = (fs.by(&user(12_345, 500, &[600])), fs.by(&user(12_346, 500, &[])));
    alice.file("f", b"");
    assert_eq!(error(bob.chmod("f", 0o777)), Status::Perm);
    assert_eq!(alice.chmod("f", 0o2770).expect("chmod").mode, 0o2770);
    assert_eq!(error(alice.chown("f", Some(12_346), None)), Status::Perm);
    assert_eq!(error(alice.chown("f", None, Some(700))), Status::Perm);
    let given = alice.chown("f", None, Some(600)).expect("to a group of hers");
    assert_eq!((given.gid, given.mode), (600, 0o770), "the setgid bit goes");
    let attr = fs.chown("f", Some(12_346), Some(700)).expect("root may");
    assert_eq!((attr.uid, attr.gid), (12_346, 700));
    assert_eq!(bob.chmod("f", 0o2775).expect("chmod").mode, 0o775, "not a member of the group");
    fs.symlink("l", "f").expect("symlink");
    let link = fs.chown("l", Some(1), Some(2)).expect("the symlink itself");
    assert_eq!((link.uid, link.gid), (1, 2));
    assert_eq!(fs.attr("f").uid, 12_346);
}

pub fn umasks_come_along(fs: &Fs) {
    let open = |flags, name: &[u8], mode| {
        let opened = fs.store.open(&fs.caller, &fs.root, name, flags, mode).wait();
        opened.map(|opened| opened.attr.mode)
    };
    assert_eq!(open(MAKE, b"f", mode_with_umask(0o666, 0o027)), Ok(0o640));
    assert_eq!(open(MAKE, b"g", 0o666), Ok(0o666), "it is of one call");
    let unlinked = OpenFlags { unlinked: true, ..BOTH };
    match open(unlinked, b"", mode_with_umask(0o4777, 0o027)) {
        Err(Status::NotSupp) => {}
        made => assert_eq!(made, Ok(0o4750)),
    }
    let make = |name, kind, mode| fs.make(name, kind, mode).expect("made").attr.mode;
    assert_eq!(make("d", FileKind::Directory, mode_with_umask(0o1777, 0o077)), 0o1700);
    assert_eq!(make("e", FileKind::Directory, mode_with_umask(0o2777, 0o022)), 0o2755);
    assert_eq!(make("p", FileKind::Fifo, mode_with_umask(0o666, 0o022)), 0o644);
}

pub fn root_opens_all(fs: &Fs) {
    let alice = fs.by(&user(12_345, 12_345, &[]));
    alice.file("f", b"x");
    alice.chmod("f", 0).expect("chmod");
    assert_eq!(error(alice.open("f", READ)), Status::Access);
    assert_eq!(fs.bytes("f"), b"x");
    // (Device 0 is an overlay's whiteout, which anybody may make.)
    let kind = FileKind::CharDevice;
    let device = fs.store.create(&alice.caller, &fs.root, b"device", kind, 0o666, 259, b"");
    assert_eq!(error(device.wait()), Status::Perm);
}

pub fn owners_open_again(fs: &Fs) {
    let (alice, bob) = (fs.by(&user(12_345, 12_345, &[])), fs.by(&user(12_346, 12_345, &[])));
    alice.file("f", b"x");
    alice.chmod("f", 0o060).expect("chmod");
    assert_eq!(error(alice.open("f", BOTH)), Status::Access);
    let again = OpenFlags { again: true, ..BOTH };
    let write_only = OpenFlags { read: false, ..again };
    for flags in [again, write_only, OpenFlags { write: false, ..again }] {
        // The second time with the descriptor of the first.
        for _ in 0..2 {
            alice.open("f", flags).expect("it is hers");
        }
    }
    alice.chmod("f", 0o006).expect("chmod");
    assert_eq!(error(bob.open("f", again)), Status::Access);
    for flags in [
        OpenFlags { create: CreateMode::Unchecked, ..again },
        OpenFlags { truncate: true, ..again },
        OpenFlags { unlinked: true, ..again },
    ] {
        assert_eq!(error(alice.open("f", flags)), Status::Inval);
    }
    assert_eq!(fs.bytes("f"), b"x");
}

pub fn times_need_rights(fs: &Fs) {
    let (alice, bob) = (fs.by(&user(12_345, 500, &[])), fs.by(&user(12_346, 500, &[])));
    alice.file("f", b"");
    alice.chmod("f", 0o664).expect("chmod");
    let now = SetAttr {
        accessed: Some(SetTime::Now),
        modified: Some(SetTime::Now),
        ..SetAttr::default()
    };
    let old = Timestamp { seconds: 1, nanoseconds: 0 };
    let to = SetAttr { modified: Some(SetTime::To(old)), ..SetAttr::default() };
    bob.set("f", now).expect("who may write it may touch it");
    assert_eq!(error(bob.set("f", to)), Status::Perm);
    alice.chmod("f", 0o644).expect("chmod");
    assert_eq!(error(bob.set("f", now)), Status::Access);
    assert_eq!(alice.set("f", to).expect("the owner").modified, old);
}

pub fn setgid_directories_inherit(fs: &Fs) {
    let alice = fs.by(&user(12_345, 500, &[]));
    fs.make("d", FileKind::Directory, 0o777).expect("mkdir");
    fs.chown("d", None, Some(900)).expect("chown");
    fs.chmod("d", 0o2777).expect("chmod");
    alice.file("d/f", b"");
    alice.mkdir("d/sub");
    assert_eq!(alice.attr("d/f").gid, 900);
    assert_eq!((alice.attr("d/sub").gid, alice.attr("d/sub").mode), (900, 0o2755));
}

pub fn attributes_need_rights(fs: &Fs) {
    let (alice, bob) = (fs.by(&user(12_345, 500, &[])), fs.by(&user(12_346, 501, &[])));
    let f = alice.file("f", b"");
    if alice.store.set_xattr(&alice.caller, &f, b"user.a", b"1", 0).wait() == Err(Status::NotSupp) {
        return eprintln!("not of this store: this file system has no extended attributes");
    }
    let set = |fs: &Fs, name: &[u8]| fs.store.set_xattr(&fs.caller, &f, name, b"2", 0).wait();
    assert_eq!(set(&bob, b"user.a"), Err(Status::Access));
    assert_eq!(bob.store.xattr(&bob.caller, &f, b"user.a").wait(), Ok(b"1".to_vec()));
    alice.chmod("f", 0o600).expect("chmod");
    assert_eq!(bob.store.xattr(&bob.caller, &f, b"user.a").wait(), Err(Status::Access));
    assert_eq!(bob.store.remove_xattr(&bob.caller, &f, b"user.a").wait(), Err(Status::Access));
    assert_eq!(set(&alice, b"trusted.a"), Err(Status::Perm));
    assert_eq!(set(fs, b"trusted.a"), Ok(()));
    let names = alice.store.list_xattr(&alice.caller, &f).wait().expect("list");
    assert!(!names.starts_with(b"trusted.") && names.starts_with(b"user.a\0"));
}

/// The data path has the server's rights; a truncation is done as the caller.
pub fn writes_by_others_clear_privileges(fs: &Fs) {
    let alice = fs.by(&user(12_345, 500, &[]));
    alice.file("f", b"x");
    alice.chmod("f", 0o6777).expect("chmod");
    let bob = fs.by(&user(12_346, 501, &[]));
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(bob.set("f", cut).expect("truncate").mode, 0o777);
}

/// Who is in an access list has what it says, and the group's bits are its mask.
pub fn access_lists(fs: &Fs) {
    let (alice, bob) = (fs.by(&user(12_345, 500, &[])), fs.by(&user(12_346, 501, &[])));
    let carol = fs.by(&user(12_347, 502, &[]));
    let f = alice.file("f", b"x");
    let list = |entries: &[(u16, u16, u32)]| {
        let mut bytes = 2u32.to_le_bytes().to_vec();
        for (tag, rights, id) in entries {
            bytes.extend(tag.to_le_bytes().into_iter().chain(rights.to_le_bytes()));
            bytes.extend(id.to_le_bytes());
        }
        bytes
    };
    let (user_object, named_user, group_object, mask, other) = (1, 2, 4, 0x10, 0x20);
    let nobody = u32::MAX;
    let value = list(&[
        (user_object, 6, nobody),
        (named_user, 4, 12_346),
        (group_object, 0, nobody),
        (mask, 4, nobody),
        (other, 0, nobody),
    ]);
    let name = b"system.posix_acl_access";
    match alice.store.set_xattr(&alice.caller, &f, name, &value, 0).wait() {
        Err(Status::NotSupp) => return eprintln!("not of this store: no access lists here"),
        other => assert_eq!(other, Ok(())),
    }
    assert_eq!(bob.store.xattr(&bob.caller, &f, name).wait(), Ok(value.clone()));
    assert_eq!(alice.attr("f").mode, 0o640);
    assert!(bob.open("f", READ).is_ok());
    assert_eq!(error(bob.open("f", WRITE)), Status::Access);
    assert_eq!(error(carol.open("f", READ)), Status::Access);
    assert_eq!(bob.store.access(&bob.caller, &f, 7).wait(), Ok(4));
    assert_eq!(error(bob.store.set_xattr(&bob.caller, &f, name, &value, 0).wait()), Status::Perm);
    alice.chmod("f", 0o600).expect("takes the mask away");
    assert_eq!(error(bob.open("f", READ)), Status::Access);
    let d = alice.mkdir("d");
    let name = b"system.posix_acl_default";
    alice
        .store
        .set_xattr(&alice.caller, &d, name, &value, 0)
        .wait()
        .expect("for what is made there");
    alice.file("d/f", b"y");
    alice.chmod("d", 0o755).expect("chmod");
    assert_eq!(bob.bytes("d/f"), b"y");
    assert_eq!(error(carol.open("d/f", READ)), Status::Access);
    let mode = mode_with_umask(0o666, 0o777);
    let made = alice.store.open(&alice.caller, &d, b"g", MAKE, mode).wait().expect("made");
    assert_eq!(made.attr.mode, 0o640, "the list counts, and no umask");
    let made = alice.make("d/d", FileKind::Directory, mode_with_umask(0o2777, 0o777));
    assert_eq!(made.expect("made").attr.mode, 0o2640);
    alice.store.remove_xattr(&alice.caller, &d, name).wait().expect("remove");
    assert_eq!(alice.store.xattr(&alice.caller, &d, name).wait(), Err(Status::NoData));
}
