use dafs_fabric::mem::PAGE_BYTES;
use dafs_fabric::{Arena, Domain, PostError, SgList, WrId, conformance};

use super::*;

const NONE: Access = Access { remote_read: false, remote_write: false };
const PAGE: u64 = PAGE_BYTES as u64;

#[test]
fn it_conforms() {
    if let Err(reason) = crate::machine::locked_memory(64 << 20) {
        return println!("{reason}");
    }
    let provider = Pinning::over_tcp();
    let address = Address::parse("tcp://127.0.0.1:0").expect("an address");
    let mut progress = std::thread::yield_now;
    conformance::run_all(&mut conformance::Harness::new(&provider, address, &mut progress));
    assert!(provider.registrations().0 > 100);
    assert_eq!((provider.locked_bytes(), provider.regions().len()), (0, 0), "all has ended");
}

#[test]
fn pages_are_locked_while_something_of_them_is_registered() {
    let provider = Pinning::over_tcp();
    let device = provider.open().expect("a device");
    let arena = Arena::new(4 * PAGE_BYTES).expect("memory");
    let register = |at, len| device.register(arena.span(at, len), NONE);
    let first = register(0, 2 * PAGE_BYTES).expect("a region");
    let second = register(2 * PAGE_BYTES - 1, 2).expect("a region");
    let other = Pinning::over_tcp();
    let third = other.open().expect("a device").register(arena.span(5, 1), NONE);
    assert_eq!((provider.locked_bytes(), other.locked_bytes()), (3 * PAGE, PAGE));
    assert!(arena.discard(0, PAGE_BYTES).is_err(), "pinned");
    drop(first);
    assert_eq!(provider.locked_bytes(), 2 * PAGE);
    let (books, kernel) = locked_bytes_of_process();
    assert_eq!(books, kernel, "the kernel unlocks the page that nobody has");
    drop((second, third));
    assert_eq!((provider.locked_bytes(), provider.locked_bytes_max()), (0, 3 * PAGE));
    arena.discard(0, 4 * PAGE_BYTES).expect("it is free");
    assert_eq!(provider.violations(), [""; 0]);
}

#[test]
fn more_than_the_limit_is_refused() {
    let provider = Pinning::over_tcp();
    let device = provider.open().expect("a device");
    let arena = Arena::new(3 * PAGE_BYTES).expect("memory");
    provider.limit_locked_bytes(2 * PAGE);
    let whole = device.register(arena.span(0, 2 * PAGE_BYTES), NONE).expect("as many as allowed");
    let refused = device.register(arena.span(0, 2 * PAGE_BYTES + 1), NONE);
    assert!(matches!(refused, Err(RegisterError::Refused(_))));
    let part = device.register(arena.span(10, 20), NONE).expect("locked already");
    assert_eq!((provider.registrations(), provider.locked_bytes()), ((2, 1), 2 * PAGE));
    drop((whole, part));
    device.register(arena.span(2 * PAGE_BYTES, 1), NONE).expect("there is room again");
}

#[test]
fn memory_that_is_not_registered_is_told() {
    let provider = Pinning::over_tcp();
    let mut engine = provider.open().expect("a device").engine().expect("an engine");
    let arena = Arena::new(PAGE_BYTES).expect("memory");
    let posted = engine.post_recv(WrId(1), SgList::from_iter([arena.span(0, 10)]));
    assert_eq!(posted, Err(PostError::NotRegistered));
    let [told] = provider.violations().try_into().expect("one");
    assert!(told.contains("posted without a registration"), "{told}");
}

#[test]
fn a_registration_that_ends_under_posted_work_is_told() {
    let provider = Pinning::over_tcp();
    let domain = Domain::open(&provider).expect("a device");
    let mut engine = domain.engine().expect("an engine");
    let arena = Arena::new(PAGE_BYTES).expect("memory");
    let [first, second] =
        [(); 2].map(|()| domain.device().register(arena.span(0, 100), NONE).expect("a region"));
    engine.post_recv(WrId(1), SgList::from_iter([arena.span(0, 10)])).expect("posted");
    drop(first);
    assert_eq!(provider.violations(), [""; 0], "another region has it");
    drop(second);
    let [told] = provider.violations().try_into().expect("one");
    assert!(told.contains("ended under posted work"), "{told}");
    let again = domain.device().register(arena.span(0, 100), NONE).expect("a region");
    drop(engine);
    drop(again);
    assert_eq!(provider.violations().len(), 1, "an engine that is gone holds nothing");
}

#[test]
fn a_page_that_is_gone_while_registered_is_told() {
    let provider = Pinning::over_tcp();
    let device = provider.open().expect("a device");
    let arena = Arena::new(3 * PAGE_BYTES).expect("memory");
    let region = device.register(arena.span(0, 2 * PAGE_BYTES), NONE).expect("a region");
    if let Err(error) = crate::sys::give_back_locked(&arena.span(PAGE_BYTES, PAGE_BYTES)) {
        return println!("skipped: {error}");
    }
    for _ in 0..2 {
        let told = provider.violations().pop().expect("told");
        assert!(told.contains("1 pages") && told.contains("gone while registered"), "{told}");
    }
    drop(region);
    assert_eq!(provider.violations().len(), 3, "and when the registration ends");
}
