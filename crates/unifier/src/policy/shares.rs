//! How the policies share one arena.

use super::{Class, Following, Key, Origin, Policy, Replacement};

/// Bits of the count of uses.
pub(crate) const USE_BITS: u32 = 26;

/// Where a file's units are kept in order: one policy of each kind, and least recently used for
/// what is to go first and last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Share {
    Low = 0,
    Lru = 1,
    MultiQueue = 2,
    High = 3,
}

impl Share {
    const COUNT: usize = 4;
    /// What orders each.
    const ORDERS: [Policy; Share::COUNT] =
        [Policy::Lru, Policy::Lru, Policy::MultiQueue, Policy::Lru];

    pub(crate) fn of(policy: Policy, class: Class) -> Share {
        match (class, policy) {
            (Class::Low, _) => Share::Low,
            (Class::High, _) => Share::High,
            (Class::Normal, Policy::Lru) => Share::Lru,
            (Class::Normal, Policy::MultiQueue) => Share::MultiQueue,
        }
    }
}

/// The order of all units. What is low goes first, and what is high beyond half of the arena;
/// then the policy that holds more gives up, so that each has half of the rest for sure, and
/// what the other does not use; then what is high.
pub(crate) struct Shares {
    shares: [One; Share::COUNT],
    /// The share of each unit, plus 1; 0: none.
    owner: Box<[u8]>,
    /// The uses of each unit that its policy knows of, or has counted before they come.
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
    /// Units that stayed since they had been [accessed](crate::accessed).
    pub(crate) spared: usize,
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
            shares: Share::ORDERS.map(one),
            owner: vec![0; units].into_boxed_slice(),
            told: vec![0; units].into_boxed_slice(),
        }
    }

    fn owner(&mut self, unit: u32) -> Option<&mut One> {
        let owner = self.owner[unit as usize].checked_sub(1)?;
        Some(&mut self.shares[usize::from(owner)])
    }

    /// The uses that are remembered, this one included.
    pub(crate) fn insert(
        &mut self,
        unit: u32,
        slots: usize,
        share: Share,
        (key, origin): (Key, Origin),
    ) -> u32 {
        self.owner[unit as usize] = share as u8 + 1;
        let one = &mut self.shares[share as usize];
        one.units += 1;
        one.slots += slots;
        let uses = one.policy.insert(unit, slots as u32, key, origin);
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

    /// As [`remove`](Self::remove), of a unit of one slot that [goes](Self::next), which was not
    /// [passed](Self::pass).
    pub(crate) fn replace(&mut self, unit: u32, uses: u32) {
        let more = self.untold(unit, uses);
        let Some(one) = self.owner(unit) else { return };
        if more > 0 {
            one.policy.touch(unit, more);
        }
        one.policy.go(unit);
        one.units -= 1;
        one.slots -= 1;
        self.owner[unit as usize] = 0;
    }

    /// Another share has it from now on.
    pub(crate) fn transfer(&mut self, unit: u32, slots: usize, uses: u32, to: Share, key: Key) {
        if !self.has(unit) || self.owner[unit as usize] == to as u8 + 1 {
            return;
        }
        self.remove(unit, slots, uses);
        self.insert(unit, slots, to, (key, Origin::ByRead));
        self.told[unit as usize] = 1;
        self.tell(unit, uses);
    }

    pub(crate) fn has(&self, unit: u32) -> bool {
        self.owner[unit as usize] != 0
    }

    /// Both counts begin anew beyond their bits: what is less than half of them ahead is more.
    fn untold(&self, unit: u32, uses: u32) -> u32 {
        const SPARE: u32 = u32::BITS - USE_BITS;
        let more = (uses.wrapping_sub(self.told[unit as usize]) << SPARE).cast_signed() >> SPARE;
        more.max(0).cast_unsigned()
    }

    /// The unit was read in for a use that is still to come: it is counted already.
    pub(crate) fn expect_use(&mut self, unit: u32) {
        let told = &mut self.told[unit as usize];
        *told = told.wrapping_add(1);
    }

    /// Tells the policy how often the unit has been used in all; true if it did not know.
    pub(crate) fn tell(&mut self, unit: u32, uses: u32) -> bool {
        let more = self.untold(unit, uses);
        if more > 0 {
            self.told[unit as usize] = uses;
            if let Some(one) = self.owner(unit) {
                one.policy.touch(unit, more);
            }
        }
        more > 0
    }

    /// It cannot go now, or is about to: another comes next.
    pub(crate) fn pass(&mut self, unit: u32) {
        if let Some(one) = self.owner(unit) {
            one.policy.touch(unit, 0);
        }
    }

    /// All that are listed.
    pub(crate) fn units(&self) -> usize {
        self.shares.iter().map(|share| share.units).sum()
    }

    /// What goes next, until all have been looked at.
    pub(crate) fn next(&self, search: &mut Search) -> Option<u32> {
        let of = |share: Share| &self.shares[share as usize];
        let left = |share: &Share| search.looks[*share as usize] < ROUNDS * of(*share).units;
        let too_high = of(Share::High).slots > self.owner.len() / 2;
        let more = if of(Share::MultiQueue).slots > of(Share::Lru).slots {
            [Share::MultiQueue, Share::Lru]
        } else {
            [Share::Lru, Share::MultiQueue]
        };
        let order = match too_high {
            true => [Share::Low, Share::High, more[0], more[1]],
            false => [Share::Low, more[0], more[1], Share::High],
        };
        let share = order.into_iter().find(left)?;
        search.looks[share as usize] += 1;
        of(share).policy.victim()
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
