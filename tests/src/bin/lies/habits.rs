//! How one liar behaves: drawn once for each seed, so that some do a few things all the time.

use dafs_tests::dice::Dice;

/// Steps of a liar, in the order of [`Habits::steps`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Connect,
    Ask,
    Again,
    Pay,
    Break,
    Garble,
    Deafen,
    Listen,
    Pause,
}

pub(crate) const STEPS: [Step; 9] = [
    Step::Connect,
    Step::Ask,
    Step::Again,
    Step::Pay,
    Step::Break,
    Step::Garble,
    Step::Deafen,
    Step::Listen,
    Step::Pause,
];

/// Operations of a chain, in the order of [`Habits::deeds`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    Open,
    OpenOthers,
    Write,
    WriteList,
    Append,
    Read,
    ReadPieces,
    SetXattr,
    GetXattr,
    MakeLink,
    ReadLink,
    List,
    Close,
    Copy,
    Names,
    Resize,
    Lock,
    Look,
    Other,
}

pub(crate) const DEEDS: [Deed; 19] = [
    Deed::Open,
    Deed::OpenOthers,
    Deed::Write,
    Deed::WriteList,
    Deed::Append,
    Deed::Read,
    Deed::ReadPieces,
    Deed::SetXattr,
    Deed::GetXattr,
    Deed::MakeLink,
    Deed::ReadLink,
    Deed::List,
    Deed::Close,
    Deed::Copy,
    Deed::Names,
    Deed::Resize,
    Deed::Lock,
    Deed::Look,
    Deed::Other,
];

/// How much of the data that is due is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Payment {
    All,
    Half,
    AllButAFrame,
    AllButAByte,
    Nothing,
}

pub(crate) const PAYMENTS: [Payment; 5] =
    [Payment::All, Payment::Half, Payment::AllButAFrame, Payment::AllButAByte, Payment::Nothing];

#[derive(Debug, Clone)]
pub(crate) struct Habits {
    pub name: &'static str,
    /// Sessions at a time.
    pub seats: usize,
    /// Connections of each.
    pub lines: usize,
    pub steps: [u32; STEPS.len()],
    pub deeds: [u32; DEEDS.len()],
    pub payments: [u32; PAYMENTS.len()],
    /// Operations of a chain at most.
    pub chain: usize,
    /// Bytes of an operation's data at most.
    pub bytes: usize,
    /// Its data begins below this place in a file.
    pub offsets: usize,
    /// Numbers of pieces of a list.
    pub pieces: &'static [usize],
    pub seconds: u64,
    /// Once in so many requests their length of data is another one.
    pub lie_once_in: usize,
    /// A break comes at once after a resend, once in so many.
    pub break_once_in: usize,
}

fn weights<const N: usize>(dice: &mut Dice) -> [u32; N] {
    std::array::from_fn(|_| dice.one(&[0, 1, 1, 4, 16]))
}

/// In files of some MiB.
const ANYWHERE: usize = 2 << 20;
const PIECES: &[usize] = &[2, 16, 40, 1000, 1024];

/// All of these, and nothing else but a little of everything.
fn mostly(deeds: &[(Deed, u32)]) -> [u32; DEEDS.len()] {
    DEEDS
        .map(|deed| deeds.iter().find(|(which, _)| *which == deed).map_or(0, |(_, weight)| *weight))
}

impl Habits {
    pub(crate) fn draw(dice: &mut Dice) -> Habits {
        match dice.below(5) {
            0 => Habits::resends(dice),
            1 => Habits::holds_back(dice),
            2 => Habits::takes_nothing(dice),
            _ => Habits::any(dice),
        }
    }

    fn any(dice: &mut Dice) -> Habits {
        let mut deeds = weights(dice);
        // Without an open file the rest is of little use.
        deeds[0] = deeds[0].max(2);
        let mut steps = weights(dice);
        for (place, least) in [(0, 1), (1, 16), (2, 1), (3, 1), (4, 1), (7, 1), (8, 1)] {
            steps[place] = steps[place].max(least);
        }
        // Both end most of what was begun.
        (steps[5], steps[6]) = (steps[5].min(1), steps[6].min(1));
        let mut payments = weights(dice);
        payments[0] = payments[0].max(1);
        Habits {
            name: "does anything",
            seats: dice.size(16),
            lines: dice.size(4),
            steps,
            deeds,
            payments,
            chain: dice.size(16),
            bytes: dice.one(&[4096, 65_536, 1 << 20]),
            offsets: dice.one(&[4096, 65_536, ANYWHERE]),
            pieces: PIECES,
            seconds: 3,
            lie_once_in: dice.one(&[2, 8, 64]),
            break_once_in: dice.one(&[2, 8, 64]),
        }
    }

    fn resends(dice: &mut Dice) -> Habits {
        let mut deeds = weights(dice);
        for place in [0, 2, 4, 5, 7, 9] {
            deeds[place] += 8;
        }
        Habits {
            name: "sends again",
            seats: dice.size(6),
            lines: 2 + dice.below(2),
            steps: [8, 16, 16, 4, 4, 0, 0, 4, 2],
            deeds,
            payments: [4, 1, 1, 2, 8],
            chain: dice.size(4),
            // Much that waits would keep all the rest from beginning.
            bytes: dice.one(&[4096, 65_536, 65_536, 1 << 20]),
            offsets: dice.one(&[65_536, ANYWHERE]),
            pieces: PIECES,
            seconds: 3,
            lie_once_in: dice.one(&[2, 8, 64]),
            break_once_in: dice.one(&[1, 2]),
        }
    }

    fn holds_back(dice: &mut Dice) -> Habits {
        let deeds = [(Deed::Open, 2), (Deed::Write, 16), (Deed::Append, 4), (Deed::SetXattr, 2)];
        Habits {
            name: "holds data back",
            seats: dice.one(&[4, 16, 64]),
            lines: 1,
            steps: [8, 64, 1, 4, 0, 0, 0, 4, 1],
            deeds: mostly(&deeds),
            payments: dice.one(&[[0, 0, 1, 0, 0], [1, 4, 4, 4, 4], [0, 4, 4, 16, 1]]),
            chain: dice.one(&[1, 3, 8]),
            bytes: 1 << 20,
            offsets: ANYWHERE,
            pieces: PIECES,
            seconds: 5,
            lie_once_in: 64,
            break_once_in: 64,
        }
    }

    fn takes_nothing(dice: &mut Dice) -> Habits {
        let deeds = dice.one(&[
            [(Deed::OpenOthers, 1), (Deed::Read, 2), (Deed::ReadPieces, 16), (Deed::List, 0)],
            [(Deed::OpenOthers, 1), (Deed::Read, 8), (Deed::ReadPieces, 4), (Deed::List, 8)],
        ]);
        Habits {
            name: "takes no replies",
            seats: dice.one(&[8, 96, 96]),
            lines: 1,
            steps: [8, 64, 1, 0, 0, 0, 16, 0, 0],
            deeds: mostly(&deeds),
            payments: [1, 0, 0, 0, 0],
            chain: 1,
            bytes: 1 << 20,
            offsets: dice.one(&[4096, 4096, ANYWHERE]),
            pieces: dice.one(&[&[1000, 1024], PIECES]),
            seconds: 6,
            lie_once_in: 1000,
            break_once_in: 64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_is_always_done() {
        for seed in 0..500 {
            let habits = Habits::draw(&mut Dice::new(seed));
            assert!(habits.steps[0] > 0 && habits.steps[1] > 0, "{habits:?}");
            assert!(habits.deeds.iter().any(|weight| *weight > 0), "{habits:?}");
            assert!(habits.payments.iter().any(|weight| *weight > 0), "{habits:?}");
            assert!(habits.seats > 0 && habits.lines > 0 && habits.chain > 0, "{habits:?}");
        }
    }
}
