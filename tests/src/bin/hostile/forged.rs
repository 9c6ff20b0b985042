//! What is well-formed and not so: versions, secrets, slots, sequences, handles, ranges, rights.

use dafs_protocol::{
    CacheHint, Dialled, Extent, ExtentList, FileHandle, Operation, Purpose, SessionId, SetupReply,
    SetupRequest, SizeClass, Stability, StateId, Status,
};
use dafs_tests::wire::Mode;

use crate::attack::Attack;
use crate::frames::{Frames, create, expect, hello, open, open_flags, request, status};

/// How a set-up that says this, and nothing else, is refused.
fn refusal(attack: &Attack, says: &SetupRequest) -> Result<Option<Status>, String> {
    match Frames::connect(&attack.url)?.set_up(says)? {
        SetupReply::Refused { status, .. } => Ok(Some(status)),
        _ => Ok(None),
    }
}

pub(crate) fn set_up(attack: &Attack) -> Result<(), String> {
    let first = Frames::session(&attack.url)?;
    let (session, mut secret) = first.session;
    secret[15] ^= 1;
    let foreign = Purpose::Bind { session: SessionId([7; 16]), secret: [0; 16] };
    let join = |purpose| hello(SizeClass::Any, purpose);
    let mut from_future = join(create());
    if let SetupRequest::Hello { version, oldest, .. } = &mut from_future {
        (*version, *oldest) = (99, 98);
    }
    let prove = SetupRequest::Prove { dialled: Dialled::default(), proof: [0; 32] };
    for (what, says, expected) in [
        ("another version", from_future, Status::Version),
        ("a foreign session", join(foreign), Status::BadSession),
        ("a wrong secret", join(Purpose::Bind { session, secret }), Status::BadSession),
        ("a proof nobody asked for", prove, Status::BadMessage),
    ] {
        let got = refusal(attack, &says)?;
        expect(&format!("{what} is refused: {got:?}"), got == Some(expected))?;
    }
    let mut early = Frames::connect(&attack.url)?;
    let got = early.chain(&[Operation::Null]);
    expect("a request before set-up ends the connection", got.is_err() && !early.is_up())
}

pub(crate) fn slots(attack: &Attack) -> Result<(), String> {
    let mut frames = Frames::session(&attack.url)?;
    let handle = frames.root()?;
    let other = Operation::GetAttr { handle, state: StateId::NONE };
    for (what, slot, sequence, operation, expected) in [
        ("an unknown slot", 4000, 1, Operation::Null, Some(Status::BadSlot)),
        ("a sequence from the future", 1, 5, Operation::Null, Some(Status::SeqMisordered)),
        ("the first", 1, 1, Operation::Null, None),
        ("the past", 1, 0, Operation::Null, Some(Status::SeqMisordered)),
        ("another request as a retry", 1, 1, other, Some(Status::SeqFalseRetry)),
        ("a true retry", 1, 1, Operation::Null, None),
    ] {
        let got = status(Ok(frames.chain_at((slot, sequence, 0), &[operation])?));
        expect(&format!("{what}: {got:?}"), got == expected)?;
    }
    Ok(())
}

pub(crate) fn handles(attack: &Attack) -> Result<(), String> {
    let mut frames = Frames::session(&attack.url)?;
    let root = frames.root()?;
    for byte in 0..64 {
        let mut handle = root;
        handle.0[byte] ^= 0x10;
        let got = status(frames.chain(&[Operation::GetAttr { handle, state: StateId::NONE }]));
        let ok = matches!(got, Some(Status::BadHandle | Status::Stale));
        expect(&format!("a handle forged at byte {byte}: {got:?}"), ok)?;
    }
    for state in [1, 77, u64::MAX - 1] {
        let extents = ExtentList::one(0, 4096);
        let read = Operation::Read { state: StateId(state), extents };
        let got = status(frames.chain(&[read]));
        expect(&format!("a foreign state: {got:?}"), got == Some(Status::BadStateId))?;
    }
    // Appending is writing: the store would be asked for the right to read only.
    let flags = dafs_protocol::OpenFlags { append: true, ..open_flags(false) };
    let cache = CacheHint::default();
    let sly = Operation::Open { dir: root, path: b"data", flags, mode: 0, cache };
    let got = status(frames.chain(&[sly]));
    expect(&format!("appending without writing: {got:?}"), got == Some(Status::Inval))?;
    for path in [&b"../../etc/passwd"[..], b"/../etc/passwd", b"escape/passwd", b"absolute/passwd"]
    {
        let got = status(frames.chain(&[Operation::Lookup { dir: root, path, no_follow: false }]));
        let path = String::from_utf8_lossy(path);
        expect(&format!("out of the export by {path}"), got.is_some())?;
    }
    Ok(())
}

pub(crate) fn ranges(attack: &Attack) -> Result<(), String> {
    let (mut frames, state) = Frames::with_file(&attack.url, "ranges")?;
    let far = i64::MAX as u64 - 4096;
    for extent in [
        Extent { offset: 0, len: 4096, count: 1000, stride: 1 << 60 },
        Extent { offset: 0, len: 1 << 20, count: 3, stride: 1 << 20 },
        Extent { offset: 0, len: 1, count: 60_000, stride: 1 },
    ] {
        let Some(extents) = ExtentList::new(&[extent]) else { continue };
        let read = [Operation::Read { state, extents }];
        // What the encoder refuses, a server never sees from it; the rest must be refused there.
        if request(2, 1, 0, &read).is_ok() {
            let got = status(frames.chain(&read));
            expect(&format!("an impossible extent {extent:?}"), got.is_some())?;
        }
    }
    let extents = ExtentList::one(far, 4096);
    let read = Operation::Read { state, extents };
    let got = frames.chain(&[read])?;
    expect(&format!("a read far behind the end: {got:?}"), status(Ok(got.clone())).is_none())?;
    // Data that is not there: says 65536, announces 100.
    let (extents, stability) = (ExtentList::one(0, 65_536), Stability::Unstable);
    let write = Operation::Write { state, extents, stability, within: false };
    frames.ask(3, &request(3, 1, 0, &[write])?, Mode::Grant, 100);
    let got = status(frames.answer());
    expect(&format!("too little data: {got:?}"), got == Some(Status::BadMessage))?;
    let truncate = Operation::Fallocate { state, mode: 0xffff, offset: 0, len: u64::MAX };
    expect("an impossible fallocate", status(frames.chain(&[truncate])).is_some())
}

/// Claims uid 0 and reads a 0600 file of root.
pub(crate) fn rights(attack: &Attack) -> Result<(), String> {
    let mut frames = Frames::session(&attack.url)?;
    let got = status(frames.chain(&[Operation::CredRegister { uid: 0, gid: 0, groups: &[] }]));
    expect(&format!("uid 0 without proof: {got:?}"), got == Some(Status::NotAuthorized))?;
    let root: FileHandle = frames.root()?;
    let got = status(frames.chain(&[open(root, b"secret", false)]));
    expect(&format!("a 0600 file of root: {got:?}"), got == Some(Status::Access))?;
    let extents = ExtentList::one(0, 4096);
    let read = Operation::Read { state: StateId::PREVIOUS, extents };
    let got = status(frames.chain(&[open(root, b"secret", false), read]));
    expect(&format!("read in one chain: {got:?}"), got == Some(Status::Access))?;
    let got = status(frames.chain_at((1, 1, 1), &[open(root, b"secret", false)]));
    expect(&format!("a credential nobody registered: {got:?}"), got == Some(Status::NoCreds))
}
