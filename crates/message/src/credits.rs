//! Credits: cumulative limits, counted modulo 2^32, for requests (1 each) and for pushed bytes.
//!
//! The receiving side tells "you may have used up to `limit` in all". A lost or overtaken update
//! costs nothing, and a credit cannot be given or spent twice: both ends check.

use crate::fault::Fault;
use crate::planted::{Defect, planted};

/// The side that gives credits.
#[derive(Debug, Default)]
pub struct CreditGiver {
    window: u32,
    advertised: u32,
    taken: u32,
    returned: u32,
}

impl CreditGiver {
    /// Gives `window` credits to begin with, which the other side knows from the set-up.
    pub fn new(window: u32) -> CreditGiver {
        CreditGiver { window, advertised: window, taken: 0, returned: 0 }
    }

    /// The limit to tell now.
    pub fn advertise(&mut self) -> u32 {
        self.advertised = self.returned.wrapping_add(self.window);
        self.advertised
    }

    /// The limit to tell when so many more are given back.
    #[inline]
    pub fn limit_after(&self, amount: u32) -> u32 {
        self.returned.wrapping_add(amount).wrapping_add(self.window)
    }

    /// So many more are given back, and that [limit](Self::limit_after) was told.
    #[inline]
    pub fn told_after(&mut self, amount: u32, limit: u32) {
        self.give_back(amount);
        self.advertised = limit;
    }

    /// The peer used `amount`.
    ///
    /// # Errors
    /// It had fewer.
    pub fn take(&mut self, amount: u32) -> Result<(), Fault> {
        if self.advertised.wrapping_sub(self.taken) < amount {
            return Err(Fault::peer("more than its credits"));
        }
        self.taken = self.taken.wrapping_add(amount);
        Ok(())
    }

    /// What was taken can be used again.
    pub fn give_back(&mut self, amount: u32) {
        self.returned = self.returned.wrapping_add(amount);
        debug_assert!(self.taken.wrapping_sub(self.returned) <= self.window, "returned twice");
        if planted(Defect::CreditGivenTwice) && self.taken != self.returned {
            self.returned = self.returned.wrapping_add(amount);
        }
    }
}

/// The side that spends them.
#[derive(Debug, Default)]
pub struct CreditHolder {
    window: u32,
    limit: u32,
    used: u32,
}

impl CreditHolder {
    /// As the peer's set-up says.
    pub fn new(window: u32) -> CreditHolder {
        CreditHolder { window, limit: window, used: 0 }
    }

    /// What can be spent.
    pub fn available(&self) -> u32 {
        self.limit.wrapping_sub(self.used)
    }

    /// Spends what is available.
    pub fn spend(&mut self, amount: u32) {
        debug_assert!(amount <= self.available(), "spent more than available");
        self.used = self.used.wrapping_add(amount);
    }

    /// Takes a limit from the peer; an older one changes nothing.
    ///
    /// # Errors
    /// The peer gave more than its window: a credit given twice.
    #[inline(always)]
    pub fn update(&mut self, limit: u32) -> Result<(), Fault> {
        if limit == self.limit || limit.wrapping_sub(self.limit) > u32::MAX / 2 {
            return Ok(());
        }
        if limit.wrapping_sub(self.used) > self.window {
            return Err(Fault::peer("credits given twice"));
        }
        self.limit = limit;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_go_round_past_the_wrap() {
        let (mut giver, mut holder) = (CreditGiver::new(1 << 30), CreditHolder::new(1 << 30));
        for _ in 0..20 {
            assert_eq!(holder.available(), 1 << 30);
            holder.spend(1 << 30);
            giver.take(1 << 30).expect("told");
            assert!(giver.take(1).is_err());
            giver.give_back(1 << 30);
            holder.update(giver.advertise()).expect("honest");
        }
    }

    #[test]
    fn old_limits_change_nothing() {
        let mut holder = CreditHolder::new(4);
        holder.spend(4);
        holder.update(6).expect("two returned");
        holder.update(5).expect("overtaken");
        assert_eq!(holder.available(), 2);
    }

    #[test]
    fn a_credit_given_twice_is_found() {
        let mut holder = CreditHolder::new(4);
        assert!(holder.update(5).is_err());
        holder.spend(1);
        holder.update(5).expect("one returned");
        assert!(holder.update(6).is_err());
    }
}
