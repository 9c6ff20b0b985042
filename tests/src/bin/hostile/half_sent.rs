//! Lies between requests and their data: a byte short, never; replies that nobody takes. Whoever
//! tells them waits: others do not, and not because the server has had enough of it.

use std::time::{Duration, Instant};

use dafs_protocol::{Extent, ExtentList, Operation, Stability, StateId};
use dafs_tests::wire::{FRAME_PAYLOAD, Mode};

use crate::attack::Attack;
use crate::frames::{DATA, Frames, expect, request};
use crate::limits::LEASE;

/// As many requests as wait in each session.
const REQUESTS: u16 = 15;
const SESSIONS: usize = 4;
/// Times that the machine may be too slow.
const CHANCES: usize = 4;

fn write(state: StateId, offset: u64, bytes: u32) -> Operation<'static> {
    let extents = ExtentList::one(offset, bytes);
    Operation::Write { state, extents, stability: Stability::Unstable, within: false }
}

/// Sessions with a file of this name open. All of them at first: one that came while this user's
/// share is taken would wait for that.
fn sessions(attack: &Attack, count: usize, name: &str, write: bool) -> Result<Kept, String> {
    let session = |_| {
        let mut frames = Frames::session(&attack.url)?;
        let state = frames.open(name, write)?;
        Ok((frames, state))
    };
    (0..count).map(session).collect()
}

type Kept = Vec<(Frames, StateId)>;

/// Somebody else writes and reads while all of these wait.
fn others_are_served(
    attack: &Attack,
    lie: fn(&Attack) -> Result<Kept, String>,
) -> Result<(), String> {
    for _ in 0..CHANCES {
        let mut kept = lie(attack)?;
        let start = Instant::now();
        attack.ask("serve")?;
        if kept.iter_mut().all(|(frames, _)| frames.is_up()) {
            return Ok(());
        }
        // After a lease they have ended by right: perhaps it was the machine that was slow.
        let is_early = start.elapsed() < Duration::from_secs(LEASE) * 3 / 4;
        expect("a connection ended early", !is_early)?;
    }
    Err("others were served when the connections had ended".into())
}

/// All slots wait for the end of what they write, in chains that need memory of their own, which
/// is filled up to there.
pub(crate) fn a_byte_short(attack: &Attack) -> Result<(), String> {
    others_are_served(attack, short)
}

fn short(attack: &Attack) -> Result<Kept, String> {
    let mut kept = sessions(attack, 2 * SESSIONS, "short", true)?;
    for (frames, state) in &mut kept {
        for slot in 1..=REQUESTS {
            let chain = [write(*state, 0, 1), write(*state, 4096, DATA - 1)];
            frames.ask(slot, &request(slot, 1, 0, &chain)?, Mode::Grant, DATA);
        }
    }
    // When somebody else has been served, the server has looked at them too.
    attack.ask("serve")?;
    for (frames, _) in &mut kept {
        // Where the machine is slow it has ended by right, which is seen later.
        let Ok(wanted) = frames.wanted() else { continue };
        wanted.iter().for_each(|tag| all_but_the_end(frames, *tag));
        if let Some(tag) = wanted.last() {
            all_but_a_byte(frames, *tag);
        }
    }
    Ok(kept)
}

const BEGUN: usize = DATA as usize - FRAME_PAYLOAD;

fn all_but_the_end(frames: &mut Frames, tag: u32) {
    frames.wire.push_data(tag, DATA as usize, 0, &vec![7; BEGUN]);
    frames.flush();
}

/// Of the end.
fn all_but_a_byte(frames: &mut Frames, tag: u32) {
    frames.wire.push_data(tag, DATA as usize, BEGUN, &[7; FRAME_PAYLOAD]);
    frames.wire.tear(1);
    frames.flush();
}

/// No byte of what they write ever comes.
pub(crate) fn data_that_never_comes(attack: &Attack) -> Result<(), String> {
    others_are_served(attack, never)
}

fn never(attack: &Attack) -> Result<Kept, String> {
    let mut kept = sessions(attack, SESSIONS, "never", true)?;
    for (number, (frames, state)) in kept.iter_mut().enumerate() {
        let state = *state;
        for slot in 1..=REQUESTS {
            let chain = [write(state, u64::from(slot) << 20, DATA)];
            frames.ask(slot, &request(slot, 1, 0, &chain)?, Mode::Grant, DATA);
        }
        if number == 0 {
            frames.granted()?;
        }
    }
    Ok(kept)
}

/// Sessions whose first `large` requests are answered with more than a connection takes.
fn unread(attack: &Attack, count: usize, large: u16, tiny: u16) -> Result<Kept, String> {
    let of = |extent| ExtentList::new(&[extent]).ok_or("extents");
    let whole = of(Extent::one(0, DATA))?;
    let pieces = of(Extent { offset: 0, len: 1, count: 1024, stride: 1 })?;
    let mut kept = sessions(attack, count, "data", false)?;
    for (frames, state) in &mut kept {
        for slot in 1..=large + tiny {
            let extents = if slot <= large { whole.clone() } else { pieces.clone() };
            let read = Operation::Read { state: *state, extents };
            frames.ask(slot, &request(slot, 1, 0, &[read])?, Mode::None, 0);
        }
    }
    Ok(kept)
}

pub(crate) fn replies_not_taken(attack: &Attack) -> Result<(), String> {
    others_are_served(attack, |attack| unread(attack, 16, 15, 0))
}

/// Reads of a thousand single bytes of a page, behind large ones. Each of them would have that
/// page in use a thousand times, until its reply has left: four million in all.
pub(crate) fn a_page_read_very_often(attack: &Attack) -> Result<(), String> {
    let _kept = unread(attack, 80, 8, 55)?;
    attack.ask("serve")
}
