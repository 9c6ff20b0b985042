//! How the policies share one arena.

use super::{Class, Following, Key, Policy, Replacement};

/// Where a file's units are kept in order: one list of what is used once, and one policy of each
/// kind for the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Share {
    Once = 0,
    Lru = 1,
    MultiQueue = 2,
}

impl Share {
    const COUNT: usize = 3;

    pub(crate) fn of(policy: Policy, class: Class) -> Share {
        match (class, policy) {
            (Class::Once, _) => Share::Once,
            (Class::Normal, Policy::Lru) => Share::Lru,
            (Class::Normal, Policy::MultiQueue) => Share::MultiQueue,
        }
    }
}

/// The order of all units. What is used once goes first; then the policy that holds more gives
/// up, so that each has half of the arena for sure, and what the other does not use.
pub(crate) struct Shares {
    shares: [One; Share::COUNT],
    /// The share of each unit, plus 1; 0: none.
    owner: Box<[u8]>,
    /// The uses of each unit that its policy knows of.
    told: Box<[u32]>,
}

struct One {
    policy: Box<dyn Replacement>,
    units: usize,
    slots: usize,
}

/// How often a search looks at each unit at most: the first time it may find uses, and the others
/// bring units that cannot go out of the way of those that can.
const ROUNDS: usize = 8;

/// How far a search for victims has come.
#[derive(Debug, Default)]
pub(crate) struct Search {
    looks: [usize; Share::COUNT],
}

impl Search {
    pub(crate) fn looks(&self) -> usize {
        self.looks.iter().sum()
    }
}

impl Shares {
    pub(crate) fn new(units: usize) -> Shares {
        let one = |policy: Policy| One { policy: policy.make(units), units: 0, slots: 0 };
        Shares {
            shares: [one(Policy::Lru), one(Policy::Lru), one(Policy::MultiQueue)],
            owner: vec![0; units].into_boxed_slice(),
            told: vec![0; units].into_boxed_slice(),
        }
    }

    fn owner(&mut self, unit: u32) -> Option<&mut One> {
        let owner = self.owner[unit as usize].checked_sub(1)?;
        Some(&mut self.shares[usize::from(owner)])
    }

    /// The uses that are remembered, this one included.
    pub(crate) fn insert(&mut self, unit: u32, slots: usize, share: Share, key: Key) -> u32 {
        self.owner[unit as usize] = share as u8 + 1;
        let one = &mut self.shares[share as usize];
        one.units += 1;
        one.slots += slots;
        let uses = one.policy.insert(unit, key);
        self.told[unit as usize] = uses;
        uses
    }

    pub(crate) fn remove(&mut self, unit: u32, slots: usize, uses: u32) {
        let more = self.untold(unit, uses);
        let Some(one) = self.owner(unit) else { return };
        if more > 0 {
            one.policy.touch(unit, more);
        }
        one.policy.remove(unit);
        one.units -= 1;
        one.slots -= slots;
        self.owner[unit as usize] = 0;
    }

    /// Another share has it from now on.
    pub(crate) fn transfer(&mut self, unit: u32, slots: usize, uses: u32, to: Share, key: Key) {
        if !self.has(unit) || self.owner[unit as usize] == to as u8 + 1 {
            return;
        }
        self.remove(unit, slots, uses);
        self.insert(unit, slots, to, key);
        self.told[unit as usize] = 1;
        self.tell(unit, uses);
    }

    pub(crate) fn has(&self, unit: u32) -> bool {
        self.owner[unit as usize] != 0
    }

    fn untold(&self, unit: u32, uses: u32) -> u32 {
        uses.wrapping_sub(self.told[unit as usize])
    }

    /// Tells the policy how often the unit has been used in all; true if it did not know.
    pub(crate) fn tell(&mut self, unit: u32, uses: u32) -> bool {
        let more = self.untold(unit, uses);
        self.told[unit as usize] = uses;
        if let Some(one) = self.owner(unit)
            && more > 0
        {
            one.policy.touch(unit, more);
        }
        more > 0
    }

    /// It cannot go now, or is about to: another comes next.
    pub(crate) fn pass(&mut self, unit: u32) {
        if let Some(one) = self.owner(unit) {
            one.policy.touch(unit, 0);
        }
    }

    /// What goes next, until all have been looked at.
    pub(crate) fn next(&self, search: &mut Search) -> Option<u32> {
        let left = |share: usize| {
            let one = &self.shares[share];
            one.units > 0 && search.looks[share] < ROUNDS * one.units
        };
        let by_size = (1..Share::COUNT).filter(|share| left(*share));
        let once = Some(0).filter(|share| left(*share));
        let share = once.or_else(|| by_size.max_by_key(|share| self.shares[*share].slots))?;
        search.looks[share] += 1;
        self.shares[share].policy.victim()
    }

    pub(crate) fn may_follow(&self, unit: u32, uses: u32) -> Following {
        match self.owner[unit as usize].checked_sub(1) {
            Some(owner) if self.untold(unit, uses) == 0 => {
                self.shares[usize::from(owner)].policy.may_follow(unit)
            }
            _ => Following::No,
        }
    }
}
