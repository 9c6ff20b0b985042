//! CACHE_QUERY and ADVISE, at the level of messages.

mod raw;

use std::future::Future;
use std::task::{Context, Poll, Waker};

use dafs_protocol::{
    CacheHint, CacheInfo, CachedRange, CredHandle, ExtentList, FileHandle, OpenFlags, Operation,
    Outcome, StateId, Status, decode_cached_ranges,
};
use raw::{BOTH, MAKE, READ, Raw, Served, is_root};

/// Of a file by its handle, or of an open file.
type Which = (FileHandle, StateId);

fn query(
    raw: &mut Raw,
    (handle, state): Which,
    offset: u64,
    bytes_max: u32,
) -> Result<(CacheInfo, Vec<CachedRange>), Status> {
    let query = Operation::CacheQuery { handle, state, offset, len: 0, bytes_max };
    let (outcomes, data) = raw.chain(&[query], b"")?;
    let [Outcome::Cached(info)] = outcomes[..] else { panic!("{outcomes:?}") };
    assert_eq!(info.bytes as usize, data.len());
    Ok((info, decode_cached_ranges(&data).expect("ranges")))
}

fn advise(
    raw: &mut Raw,
    state: StateId,
    advice: u8,
    cache: CacheHint,
) -> Result<(u64, CacheHint), Status> {
    let advise = Operation::Advise { state, offset: 0, len: 0, advice, cache };
    match raw.one(advise)? {
        Outcome::Advised { bytes, cache } => Ok((bytes, cache)),
        other => panic!("{other:?}"),
    }
}

fn range(offset: u64, len: u64, dirty: bool) -> CachedRange {
    CachedRange { offset, len, dirty }
}

#[test]
fn what_is_cached_is_told_by_handle_and_by_open() {
    let served = Served::start();
    std::fs::write(served.path("f"), vec![1; 300_000]).expect("write");
    let mut raw = Raw::connect(&served);
    let (handle, state) = raw.open("f", BOTH, 0).expect("open");
    let open = (FileHandle::default(), state);
    let by_name = (handle, StateId::NONE);
    assert_eq!(query(&mut raw, open, 0, 65_536).expect("query").1, []);
    raw.read(state, 8192, 4096).expect("read");
    raw.write(state, 200_704, &[2; 4096]).expect("write");
    let want = [range(8192, 4096, false), range(200_704, 4096, true)];
    for which in [open, by_name] {
        let (info, ranges) = query(&mut raw, which, 0, 65_536).expect("query");
        assert_eq!(ranges, want);
        assert_eq!((info.size, info.clean_bytes, info.dirty_bytes), (300_000, 4096, 4096));
        assert_eq!(info.next, None);
    }
    // Room for one range at a time.
    let (info, ranges) = query(&mut raw, open, 0, 33).expect("query");
    assert_eq!((ranges.as_slice(), info.next), (&want[..1], Some(200_704)));
    let (info, ranges) = query(&mut raw, open, 200_704, 17).expect("query");
    assert_eq!((ranges.as_slice(), info.next), (&want[1..], None));
    assert_eq!(query(&mut raw, open, 0, 16), Err(Status::Range));
    assert_eq!(query(&mut raw, (handle, StateId(77)), 0, 100), Err(Status::BadStateId));
}

#[test]
fn a_query_opens_nothing_and_needs_the_right_to_read() {
    let served = Served::start();
    for name in ["cold", "secret"] {
        std::fs::write(served.path(name), b"data").expect("write");
    }
    std::fs::create_dir(served.path("d")).expect("directory");
    std::os::unix::fs::symlink("cold", served.path("link")).expect("symlink");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(served.path("secret"), mode).expect("chmod");
    let mut raw = Raw::connect(&served);
    let dir = raw.root;
    let find = |raw: &mut Raw, name: &str| {
        let lookup = Operation::Lookup { dir, path: name.as_bytes(), no_follow: true };
        match raw.one(lookup) {
            Ok(Outcome::Found { handle, .. }) => (handle, StateId::NONE),
            other => panic!("{other:?}"),
        }
    };
    let [cold, secret, directory, link] =
        ["cold", "secret", "d", "link"].map(|name| find(&mut raw, name));
    let before = served.files();
    assert_eq!(query(&mut raw, cold, 0, 100), Ok((CacheInfo::default(), Vec::new())));
    assert_eq!(query(&mut raw, directory, 0, 100), Err(Status::IsDir));
    assert_eq!(query(&mut raw, link, 0, 100), Err(Status::BadType));
    assert_eq!(served.files(), before, "the cache knows no more files than before");
    if !is_root() {
        return eprintln!("skipped in part: needs root");
    }
    raw.act_as(12_345, 12_345);
    assert_eq!(query(&mut raw, secret, 0, 100), Err(Status::Access));
    assert_eq!(query(&mut raw, cold, 0, 100), Ok((CacheInfo::default(), Vec::new())));
}

#[test]
fn advice_says_what_was_taken() {
    let served = Served::start();
    std::fs::write(served.path("f"), vec![1; 300_000]).expect("write");
    let mut raw = Raw::connect(&served);
    let (_, state) = raw.open("f", READ, 0).expect("open");
    let none = CacheHint::default();
    let [mq, normal] = [CacheHint::POLICIES[1].0, CacheHint::CLASSES[1].0];
    let default = CacheHint { policy: mq, class: normal, ..none };
    for advice in [0, 1, 2, 5] {
        assert_eq!(advise(&mut raw, state, advice, none), Ok((0, default)), "{advice}");
    }
    assert_eq!(advise(&mut raw, state, 6, none), Err(Status::Inval));
    assert_eq!(advise(&mut raw, StateId(77), 3, none), Err(Status::BadStateId));
    assert_eq!(advise(&mut raw, state, 3, none), Ok((300_000, default)));
    raw.read(state, 0, 300_000).expect("read");
    let open = (FileHandle::default(), state);
    assert_eq!(query(&mut raw, open, 0, 100).expect("query").1, [range(0, 303_104, false)]);
    assert_eq!(advise(&mut raw, state, 4, none), Ok((303_104, default)));
    assert_eq!(query(&mut raw, open, 0, 100).expect("query").1, []);
    let taken = CacheHint { unit: 64 << 10, ..default };
    assert_eq!(advise(&mut raw, state, 0, CacheHint { unit: 60_000, ..none }), Ok((0, taken)));
    assert_eq!(advise(&mut raw, state, 0, none), Ok((0, taken)));
    // All who have it open have the same.
    let (_, other) = raw.open("f", READ, 0).expect("open");
    assert_eq!(advise(&mut raw, other, 0, none), Ok((0, taken)));
    assert_eq!(query(&mut raw, open, 0, 100).expect("query").0.cache, taken);
    let high = CacheHint { policy: 1, class: 3, ..taken };
    assert_eq!(
        advise(&mut raw, other, 0, CacheHint { policy: 1, class: 3, ..none }),
        Ok((0, high))
    );
    let unknown = CacheHint { policy: 77, class: 77, ..none };
    assert_eq!(advise(&mut raw, state, 0, unknown), Ok((0, high)));
}

#[test]
fn only_who_may_change_a_file_steers_it_for_all() {
    if !is_root() {
        return eprintln!("skipped: needs root");
    }
    use std::os::unix::fs::{PermissionsExt, chown};
    const STRANGER: u32 = 12_345;
    let served = Served::start();
    let path = served.path("f");
    std::fs::write(&path, vec![1; 10_000]).expect("write");
    let mode = |bits| {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(bits)).expect("chmod");
    };
    mode(0o644);
    let mut raw = Raw::connect(&served);
    let none = CacheHint::default();
    let wish = |policy| CacheHint { policy, ..none };
    let open = |raw: &mut Raw, cache| {
        let dir = raw.root;
        match raw.one(Operation::Open { dir, path: b"f", flags: READ, mode: 0, cache }) {
            Ok(Outcome::Opened { state, .. }) => state,
            other => panic!("{other:?}"),
        }
    };
    raw.act_as(STRANGER, STRANGER);
    let state = open(&mut raw, wish(1));
    let (bytes, holds) = advise(&mut raw, state, 3, none).expect("to read in is anybody's");
    assert_eq!((bytes, holds.policy), (10_000, 2), "the wish at the open was not taken");
    for advice in [0, 3, 5] {
        assert_eq!(advise(&mut raw, state, advice, wish(1)), Err(Status::Perm));
    }
    assert_eq!(advise(&mut raw, state, 1, none).expect("for this open").1.policy, 2);
    // Who may write may, also through an open that only reads; so may the owner.
    mode(0o666);
    assert_eq!(advise(&mut raw, state, 5, wish(1)).expect("advice").1.policy, 1);
    mode(0o444);
    assert_eq!(advise(&mut raw, state, 5, wish(2)), Err(Status::Perm));
    chown(&path, Some(STRANGER), None).expect("chown");
    let state = open(&mut raw, wish(2));
    assert_eq!(advise(&mut raw, state, 5, none).expect("advice").1.policy, 2);
    assert_eq!(advise(&mut raw, state, 5, wish(1)).expect("advice").1.policy, 1);
}

#[test]
fn a_wish_at_open_holds() {
    let served = Served::start();
    std::fs::write(served.path("f"), vec![1; 10_000]).expect("write");
    let mut raw = Raw::connect(&served);
    let none = CacheHint::default();
    let (dir, mode, path) = (raw.root, 0, b"f".as_slice());
    let mut open = |cache| match raw
        .one(Operation::Open { dir, path, flags: READ, mode, cache })
        .expect("open")
    {
        Outcome::Opened { state, .. } => advise(&mut raw, state, 0, none).expect("advise").1,
        other => panic!("{other:?}"),
    };
    let wished = CacheHint { unit: 0, policy: 1, class: 1 };
    assert_eq!(open(none), CacheHint { unit: 0, policy: 2, class: 2 });
    assert_eq!(open(CacheHint { policy: 9, ..none }), CacheHint { unit: 0, policy: 2, class: 2 });
    assert_eq!(open(wished), wished);
    assert_eq!(open(none), wished, "until somebody wishes something else");
}

#[test]
fn a_chain_that_copies_while_it_holds_what_it_read_waits_for_its_turn() {
    let served = Served::start();
    let mut raw = Raw::connect(&served);
    let (_, state) = raw.open("f", MAKE, 0o644).expect("open");
    raw.write(state, 0, b"read").expect("write");
    let mut permit = Box::pin(served.unifier().hold_permit());
    let permit = match permit.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(permit) => permit,
        Poll::Pending => panic!("nobody else has it"),
    };
    let read = Operation::Read { state, extents: ExtentList::one(0, 4) };
    // Nothing is left to copy there: it would be answered at once.
    let copy =
        Operation::CopyRange { from: state, from_offset: 4, to: state, to_offset: 9, len: 1 };
    raw.begin(0, &[read, copy]);
    raw.begin(1, &[Operation::Null]);
    assert_eq!(raw.answered(), 1);
    drop(permit);
    assert_eq!(raw.answered(), 0);
}

/// Changes of names and attributes change a file's time of change, as local programs do that
/// change its data.
#[test]
fn own_changes_of_names_and_attributes_keep_what_is_cached() {
    let served = Served::start();
    std::fs::write(served.path("f"), vec![1; 65_536]).expect("write");
    // Nobody has unwritten stores in it.
    std::fs::File::open(served.path("f")).and_then(|file| file.sync_all()).expect("sync");
    let mut raw = Raw::connect(&served);
    let dir = raw.root;
    let misses = || served.unifier().stats().misses;
    let read = |raw: &mut Raw| {
        let (handle, state) = raw.open("f", READ, 0).expect("open");
        raw.read(state, 0, 65_536).expect("read");
        raw.one(Operation::Close { state }).expect("close");
        handle
    };
    let handle = read(&mut raw);
    let cached = misses();
    read(&mut raw);
    if misses() != cached {
        return eprintln!("skipped: a file system that does not tell of unwritten stores");
    }
    let none = StateId::NONE;
    let xattr = |raw: &mut Raw| {
        let set = Operation::SetXattr { handle, name: b"user.x", value_bytes: 1, flags: 0 };
        raw.chain(&[set], b"1").map(drop)
    };
    type Change<'a> = &'a dyn Fn(&mut Raw) -> Result<(), Status>;
    let changes: [Change<'_>; 5] = [
        &|raw| {
            let (no_replace, exchange) = (false, false);
            let (from, to): (&[u8], &[u8]) = (b"f", b"g");
            let to_dir = dir;
            raw.one(Operation::Rename {
                from_dir: dir,
                from,
                to_dir,
                to,
                no_replace,
                exchange,
                whiteout: false,
            })
            .map(drop)
        },
        &|raw| raw.one(Operation::Link { handle, state: none, dir, name: b"h" }).map(drop),
        &|raw| raw.one(Operation::Remove { dir, name: b"h", directory: false }).map(drop),
        &xattr,
        &|raw| raw.one(Operation::RemoveXattr { handle, name: b"user.x" }).map(drop),
    ];
    for (number, change) in changes.iter().enumerate() {
        change(&mut raw).expect("change");
        let (_, state) = raw.open("g", READ, 0).expect("open");
        assert_eq!(raw.read(state, 0, 65_536), Ok(vec![1; 65_536]));
        raw.one(Operation::Close { state }).expect("close");
        assert_eq!(misses(), cached, "change {number}");
    }
    // What a local program did before is seen all the same.
    std::fs::write(served.path("g"), vec![2; 65_536]).expect("write");
    changes[3](&mut raw).expect("change");
    let (_, state) = raw.open("g", READ, 0).expect("open");
    assert_eq!(raw.read(state, 0, 65_536), Ok(vec![2; 65_536]));
}

#[test]
fn pages_go_with_the_last_name_and_open() {
    let served = Served::start();
    let mut raw = Raw::connect(&served);
    let dir = raw.root;
    for name in ["removed", "replaced", "new", "open"] {
        std::fs::write(served.path(name), vec![1; 65_536]).expect("write");
        let (_, state) = raw.open(name, READ, 0).expect("open");
        raw.read(state, 0, 65_536).expect("read");
        if name != "open" {
            raw.one(Operation::Close { state }).expect("close");
        }
    }
    let resident = || served.unifier().stats().resident_bytes;
    assert_eq!(resident(), 4 * 65_536);
    raw.one(Operation::Remove { dir, name: b"removed", directory: false }).expect("remove");
    assert_eq!(resident(), 3 * 65_536);
    let (from, to): (&[u8], &[u8]) = (b"new", b"replaced");
    let (no_replace, exchange) = (false, false);
    raw.one(Operation::Rename {
        from_dir: dir,
        from,
        to_dir: dir,
        to,
        no_replace,
        exchange,
        whiteout: false,
    })
    .expect("rename");
    assert_eq!(resident(), 2 * 65_536);
    raw.one(Operation::Remove { dir, name: b"open", directory: false }).expect("remove");
    assert_eq!(resident(), 2 * 65_536, "it can still be read");
}

/// Alone it is no chain.
#[test]
fn a_cold_read_is_answered_the_same_alone_and_in_a_chain() {
    let served = Served::start();
    std::fs::write(served.path("cold"), [7; 20_000]).expect("written");
    let mut raw = Raw::connect(&served);
    let (_, readable) = raw.open("cold", READ, 0).expect("open");
    let written = OpenFlags { read: false, write: true, ..READ };
    let (_, written) = raw.open("cold", written, 0).expect("open");
    let mut both = |state, offset, len, cred| {
        raw.cred = CredHandle(cred);
        let read = Operation::Read { state, extents: ExtentList::one(offset, len) };
        let mut told = |operations: &[Operation<'_>]| {
            let (outcomes, data) = raw.chain(operations, b"")?;
            Ok::<_, Status>((outcomes.last().cloned(), data))
        };
        let alone = told(std::slice::from_ref(&read));
        assert_eq!(alone, told(&[Operation::Null, read]), "{offset}+{len} {cred}");
        alone
    };
    assert_eq!(both(StateId(99), 0, 1, 0), Err(Status::BadStateId));
    assert_eq!(both(written, 0, 1, 0), Err(Status::BadF));
    assert_eq!(both(readable, 0, (1 << 20) + 1, 0), Err(Status::TooBig));
    assert_eq!(both(readable, 0, 1, 9), Err(Status::NoCreds));
    let end = both(readable, 16_384, 8192, 0).expect("read");
    assert_eq!(end.1, [7; 3616]);
    let outcome = Outcome::Read { bytes: 3616, end_of_file: true };
    assert_eq!(end.0, Some(outcome));
    assert_eq!(both(readable, 20_000, 1, 0).map(|end| end.1), Ok(Vec::new()));
}
