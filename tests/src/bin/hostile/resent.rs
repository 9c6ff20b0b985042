//! A request comes again over another connection of its session, with less data than the first
//! time, while that runs: what its data would have filled would be what was in memory before.

use dafs_protocol::{
    ExtentList, FileHandle, FileKind, Operation, Outcome, Stability, StateId, Status,
};
use dafs_tests::wire::Mode;

use crate::attack::Attack;
use crate::frames::{DATA, Frames, ROOT, expect, request, status};

const NAME: &[u8] = b"user.resent";
const LINK: &[u8] = b"resent link";
const VALUE: u32 = 4000;

/// Sends a request without its data, and again with none or less. Both is refused, the second time
/// at once: that the first one runs on is no answer.
fn resend(attack: &Attack, first: Frames, header: &[u8], len: u32) -> Result<Frames, String> {
    let mut first = first;
    let mut second = first.second(&attack.url)?;
    first.ask(1, header, Mode::Grant, len);
    first.granted()?;
    for (mode, less) in [(Mode::None, 0), (Mode::Grant, 100)] {
        second.ask(1, header, mode, less);
        let results = second.answer()?;
        let refused = results == Err(Status::SeqFalseRetry);
        expect(&format!("{less} bytes: {results:?}"), refused)?;
    }
    // The request runs until this breaks.
    drop(first);
    Ok(second)
}

/// The file is empty still. What is read is looked through for what is somebody else's.
fn is_empty(frames: &mut Frames, state: StateId) -> Result<(), String> {
    let read = Operation::Read { state, extents: ExtentList::one(0, DATA) };
    let results = frames.chain(&[read])?;
    let empty = matches!(results.as_deref(), Ok([Ok(Outcome::Read { bytes: 0, .. })]));
    expect(&format!("nothing was written: {results:?}"), empty)
}

fn of_data(
    attack: &Attack,
    name: &str,
    change: fn(StateId) -> Operation<'static>,
) -> Result<(), String> {
    let (first, state) = Frames::with_file(&attack.url, name)?;
    let mut second = resend(attack, first, &request(1, 1, 0, &[change(state)])?, DATA)?;
    is_empty(&mut second, state)
}

pub(crate) fn a_write(attack: &Attack) -> Result<(), String> {
    of_data(attack, "resent write", |state| {
        let (extents, stability) = (ExtentList::one(0, DATA), Stability::Unstable);
        Operation::Write { state, extents, stability, within: false }
    })
}

pub(crate) fn an_append(attack: &Attack) -> Result<(), String> {
    of_data(attack, "resent append", |state| Operation::Append {
        state,
        bytes: DATA,
        stability: Stability::Unstable,
    })
}

/// A handle of the file of this name.
fn look_up(frames: &mut Frames, path: &[u8]) -> Result<FileHandle, String> {
    let look = Operation::Lookup { dir: FileHandle::PREVIOUS, path, no_follow: true };
    match frames.chain(&[ROOT, look])?.as_deref() {
        Ok([_, Ok(Outcome::Found { handle, .. })]) => Ok(*handle),
        other => Err(format!("look-up: {other:?}")),
    }
}

pub(crate) fn an_attribute(attack: &Attack) -> Result<(), String> {
    let (mut first, _) = Frames::with_file(&attack.url, "resent attribute")?;
    let handle = look_up(&mut first, b"resent attribute")?;
    let set = Operation::SetXattr { handle, name: NAME, value_bytes: VALUE, flags: 0 };
    let mut second = resend(attack, first, &request(1, 1, 0, &[set])?, VALUE)?;
    let get = Operation::GetXattr { handle, name: NAME, size_max: 65_536 };
    let got = status(second.chain(&[get]));
    expect(&format!("it has none: {got:?}"), matches!(got, Some(Status::NoData | Status::NotSupp)))
}

pub(crate) fn a_link(attack: &Attack) -> Result<(), String> {
    let mut first = Frames::session(&attack.url)?;
    let (dir, kind) = (first.root()?, FileKind::Symlink);
    let make =
        Operation::Create { dir, name: LINK, kind, mode: 0o777, rdev: 0, target_bytes: VALUE };
    let mut second = resend(attack, first, &request(1, 1, 0, &[make])?, VALUE)?;
    let look = Operation::Lookup { dir, path: LINK, no_follow: true };
    let got = status(second.chain(&[look]));
    expect(&format!("there is none: {got:?}"), got == Some(Status::NoEnt))
}
