use dafs_protocol::{Attr, FileKind, Timestamp};

use super::*;

fn found(inode: u64) -> Found {
    let mut handle = FileHandle::default();
    handle.0[0] = u8::try_from(inode).expect("small");
    let time = Timestamp::default();
    let attr = Attr {
        kind: FileKind::File,
        mode: 0o644,
        links: 1,
        uid: 0,
        gid: 0,
        size: 0,
        allocated: 0,
        inode,
        device: 1,
        number: 0,
        rdev: 0,
        block_size: 4096,
        change: 0,
        accessed: time,
        modified: time,
        changed: time,
        created: None,
    };
    Found { handle, attr }
}

#[test]
fn one_object_has_one_number_until_it_is_forgotten() {
    let nodes = Nodes::new(&found(1), b"");
    let first = nodes.refer(&found(2), ROOT, b"a");
    let again = nodes.refer(&found(2), ROOT, b"link");
    assert_eq!(first.number, again.number);
    nodes.forget(first.number, 1);
    assert!(nodes.get(first.number).is_ok());
    nodes.forget(first.number, 1);
    assert!(nodes.get(first.number).is_err());
    assert!(nodes.named(ROOT, b"link").is_none());
    assert_ne!(nodes.refer(&found(2), ROOT, b"a").number, first.number);
    nodes.forget(ROOT, 100);
    assert!(nodes.get(ROOT).is_ok());
}

#[test]
fn a_file_renamed_by_others_gets_a_number_of_its_own() {
    let nodes = Nodes::new(&found(1), b"");
    let old = nodes.refer(&found(2), ROOT, b"a");
    assert!(nodes.elsewhere(&found(2), ROOT, b"a").is_none());
    let known = nodes.elsewhere(&found(2), ROOT, b"b").expect("known as a");
    nodes.part(&known);
    let new = nodes.refer(&found(2), ROOT, b"b");
    assert_ne!(new.number, old.number);
    assert_eq!(nodes.named(ROOT, b"a").map(|node| node.number), Some(old.number));
    nodes.forget(old.number, 1);
    assert_eq!(nodes.refer(&found(2), ROOT, b"b").number, new.number);
    // Renames through this mount keep the number.
    nodes.renamed((ROOT, b"b"), (ROOT, b"c"), false);
    assert!(nodes.elsewhere(&found(2), ROOT, b"c").is_none());
}

#[test]
fn names_follow_renames() {
    let nodes = Nodes::new(&found(1), b"");
    let (a, b) = (nodes.refer(&found(2), ROOT, b"a"), nodes.refer(&found(3), ROOT, b"b"));
    nodes.renamed((ROOT, b"a"), (ROOT, b"b"), true);
    assert_eq!(nodes.named(ROOT, b"b").map(|node| node.number), Some(a.number));
    assert_eq!(nodes.named(ROOT, b"a").map(|node| node.number), Some(b.number));
    nodes.renamed((ROOT, b"b"), (ROOT, b"c"), false);
    assert_eq!(a.place(), (ROOT, b"c".to_vec()));
    assert!(nodes.named(ROOT, b"b").is_none());
}

#[test]
fn a_path_is_that_of_the_names_seen_last() {
    let nodes = Nodes::new(&found(1), b"shown/here");
    let (dir, other) = (nodes.refer(&found(2), ROOT, b"d"), nodes.refer(&found(3), ROOT, b"e"));
    let file = nodes.refer(&found(4), dir.number, b"f");
    let path =
        |node: &Arc<Node>| nodes.path(node).map(|path| String::from_utf8(path).expect("text"));
    assert_eq!(path(&file).as_deref(), Some("shown/here/d/f"));
    nodes.renamed((ROOT, b"d"), (other.number, b"g"), false);
    nodes.renamed((dir.number, b"f"), (dir.number, b"h"), false);
    assert_eq!(path(&file).as_deref(), Some("shown/here/e/g/h"));
    assert_eq!(path(&nodes.refer(&found(5), ROOT, b"")), None, "made without a name");
    nodes.forget(other.number, 1);
    assert_eq!(path(&file), None);
}

#[test]
fn numbers_are_the_inodes_own_in_the_file_system_of_the_root() {
    let nodes = Nodes::new(&found(1), b"");
    let id = |device, inode| ObjectId { inode, device, number: 7 << 60 | inode };
    assert_eq!(nodes.inode(&id(1, 12)), 12);
    assert_eq!(nodes.inode(&id(2, 12)), 7 << 60 | 12);
    let like_a_number = NUMBER_TOP << 56 | 12;
    assert_eq!(nodes.inode(&id(1, like_a_number)), 7 << 60 | like_a_number);
}

/// What docs/sizing.md says of a million objects.
#[test]
fn an_object_takes_little_memory() {
    let size = std::mem::size_of::<Node>();
    assert!(size <= 352, "{size} bytes");
    let nodes = Nodes::new(&found(1), b"");
    let node = nodes.refer(&found(2), ROOT, b"a");
    nodes.refer(&found(2), ROOT, b"b");
    assert_eq!(Arc::strong_count(&node.state().name), 2, "once for it and the table");
}

#[test]
fn a_reused_inode_is_another_object() {
    let nodes = Nodes::new(&found(1), b"");
    let old = nodes.refer(&found(2), ROOT, b"a");
    let mut new = found(2);
    new.handle.0[5] = 9;
    assert_ne!(nodes.refer(&new, ROOT, b"a").number, old.number);
    let born = |seconds| Some(Timestamp { seconds, ..Timestamp::default() });
    let mut first = found(3);
    first.attr.created = born(7);
    let node = nodes.refer(&first, ROOT, b"b");
    assert!(node.is(&found(3).attr) && node.is(&first.attr));
    first.attr.created = born(8);
    assert!(!node.is(&first.attr), "found under the same name");
}

#[test]
fn what_a_change_learned_is_told_once_and_not_when_another_came() {
    const TTL: Duration = Duration::from_secs(3600);
    let nodes = Nodes::new(&found(1), b"");
    let node = nodes.get(ROOT).expect("root");
    let attr = |size| Attr { size, ..found(1).attr };
    let change = |size| {
        let change = node.change();
        change.see(Some(attr(size)));
        change
    };
    drop(change(7));
    let (learned, left) = node.take_learned(TTL).expect("learned");
    assert!(learned == attr(7) && left <= TTL);
    assert!(node.take_learned(TTL).is_none(), "once");
    drop(change(8));
    assert!(node.take_learned(Duration::ZERO).is_none(), "believed no longer");
    drop(change(9));
    drop(node.change());
    assert!(node.take_learned(TTL).is_none(), "a change that learned nothing");
    let (first, second) = (change(1), change(2));
    drop(second);
    assert!(node.take_learned(TTL).is_none(), "the first may come after it");
    drop(first);
    assert!(node.take_learned(TTL).is_none(), "the second may have come after it");
    let (first, second) = (change(1), change(2));
    drop((first, second));
    assert!(node.take_learned(TTL).is_none());
    let another = node.change();
    another.see(Some(found(2).attr));
    drop(another);
    assert!(node.take_learned(TTL).is_none(), "of another object");
}

#[test]
fn what_changed_since_it_was_listed_is_not_told() {
    let nodes = Nodes::new(&found(1), b"");
    let node = nodes.refer(&found(2), ROOT, b"a");
    let root = nodes.get(ROOT).expect("root");
    let listed = |asked| nodes.refer_listed(&found(2), &root, b"a", asked);
    let before = Instant::now();
    assert_eq!(listed(before), Some(node.number));
    let change = node.change();
    assert_eq!((listed(before), listed(Instant::now())), (None, None), "under way");
    let within = Instant::now();
    drop(change);
    assert_eq!((listed(before), listed(within)), (None, None), "asked for before its end");
    let mut after = Instant::now();
    while Some(after) == node.state().changed {
        after = Instant::now();
    }
    assert_eq!(listed(after), Some(node.number));
    let mut mixed = found(4);
    mixed.handle = found(2).handle;
    assert_eq!(nodes.refer_listed(&mixed, &root, b"c", after), None, "another's handle");
    let unknown = || nodes.refer_listed(&found(3), &root, b"b", after);
    drop(root.change());
    assert_eq!(unknown(), None, "it may be what was removed");
    assert_eq!(listed(after), Some(node.number), "it was not");
}

#[test]
fn a_cache_is_good_while_nothing_changed() {
    let nodes = Nodes::new(&found(1), b"");
    let node = nodes.refer(&found(2), ROOT, b"a");
    let mut attr = found(2).attr;
    assert!(!node.cache_is_good(&attr));
    assert!(node.cache_is_good(&attr));
    attr.change += 1;
    assert!(!node.cache_is_good(&attr));
    assert!(!node.is_cached_after_change(), "nobody has it open");
    assert!(!node.cache_is_good(&attr), "it was changed past the cache");
    assert!(node.cache_is_good(&attr));
}
