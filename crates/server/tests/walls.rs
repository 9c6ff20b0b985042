//! With the comparison of a request's lengths of data taken out, what came short is refused all the
//! same: `cargo test -p dafs-server --features planted --test walls`.

#![cfg(feature = "planted")]

mod raw;

use std::sync::atomic::Ordering::Relaxed;

use dafs_protocol::{FileKind, Operation, Stability, StateId, Status};
use dafs_server::{DataPath, Defect, plant};
use raw::{MAKE, Raw, Served};

const BYTES: u32 = 20_000;

/// Its data is asked for and does not come; then the request comes again over another connection,
/// without data, and the first ends.
fn send_again_without_data(served: &Served, mut first: Raw, operation: Operation<'_>, bytes: u32) {
    let mut second = first.join(&served.addresses()[0]);
    let requests = || served.counter(|counters| counters.requests());
    let earlier = requests();
    first.begin_on_grant(2, std::slice::from_ref(&operation), bytes as usize);
    while requests() == earlier {
        std::thread::yield_now();
    }
    let short = || served.counter(|counters| counters.short_transfers.load(Relaxed));
    let before = short();
    second.begin(2, std::slice::from_ref(&operation));
    // What was sent before is handled before what comes after it.
    second.one(Operation::Null).expect("served");
    drop(first);
    let (slot, results) = second.results();
    assert_eq!(slot, 2);
    assert_eq!(results, Ok(vec![Err(Status::BadMessage)]), "{operation:?}");
    assert_eq!(short(), before + 1, "{operation:?}");
}

/// One test: a defect is planted in the whole process.
#[test]
fn what_came_short_is_refused_whatever_the_slot_lets_through() {
    plant(Some(Defect::LengthsNotCompared));
    for path in [DataPath::Unifier, DataPath::Normal, DataPath::Mmap, DataPath::Sendfile] {
        let served = Served::on(path);
        let again = |make: &dyn Fn(StateId, &Raw) -> Operation<'static>, bytes| {
            let mut first = Raw::connect(&served);
            let (_, state) = first.open("file", MAKE, 0o644).expect("open");
            let operation = make(state, &first);
            send_again_without_data(&served, first, operation, bytes);
        };
        again(&|state, _| raw::write_of(state, 0, BYTES), BYTES);
        let stability = Stability::Unstable;
        again(&|state, _| Operation::Append { state, bytes: BYTES, stability }, BYTES);
        let xattr = |_, raw: &Raw| Operation::SetXattr {
            handle: raw.root,
            name: b"user.short",
            value_bytes: 2000,
            flags: 0,
        };
        again(&xattr, 2000);
        let link = |_, raw: &Raw| Operation::Create {
            dir: raw.root,
            name: b"link",
            kind: FileKind::Symlink,
            mode: 0o777,
            rdev: 0,
            target_bytes: 2000,
        };
        again(&link, 2000);
        assert_eq!(std::fs::read(served.path("file")).expect("file"), b"", "{path:?}");
        assert!(std::fs::symlink_metadata(served.path("link")).is_err(), "{path:?}");
    }
}
