//! Spin or sleep: what a thread does while nothing is ready.

use std::time::Duration;

/// Whether a thread looks again and again before it sleeps: measured, not guessed.
///
/// It keeps the mean time from the beginning of a wait to its end for waits that began with
/// spinning, and for waits that were slept, and does what was shorter; now and then it tries the
/// other for a few waits. So it finds out what no rule tells: how long a wake-up takes here, whether
/// the other side spins, whether others want the CPU or the other side needs this very one. Waits
/// of which the mean is longer than [`MAX`](Self::MAX) are slept, and those for somebody who is known to need this
/// very CPU: but now and then one is spun, so that the system finds the other side another one where it may.
#[derive(Debug)]
pub struct Spin {
    spun: Mean,
    slept: Mean,
    /// Spinning is what is done, but for trials.
    usual: bool,
    /// Waits since the last trial ended.
    waits: u32,
    began: Option<Duration>,
    /// This wait began with spinning.
    spins: bool,
}

impl Default for Spin {
    fn default() -> Spin {
        Spin {
            spun: Mean::default(),
            slept: Mean::default(),
            usual: false,
            // Both are tried soon.
            waits: Spin::SPIN_INTERVAL - Spin::TRIAL,
            began: None,
            spins: false,
        }
    }
}

/// A mean in which newer values weigh more, in nanoseconds.
#[derive(Debug, Default, Clone, Copy)]
struct Mean(u64);

impl Mean {
    fn add(&mut self, value: Duration) {
        let value = u64::try_from(value.min(Spin::WORST).as_nanos()).unwrap_or(u64::MAX);
        self.0 = if self.0 == 0 { value } else { (self.0 * 15 + value) / 16 };
    }
}

impl Spin {
    /// The longest spin: somewhat more than a round trip in which both sides sleep.
    pub const MAX: Duration = Duration::from_micros(150);
    /// A longer wait counts as one of this length.
    const WORST: Duration = Duration::from_micros(400);
    /// Waits of a trial.
    const TRIAL: u32 = 4;
    /// Waits from one trial of spinning to the next, and of sleeping, which costs time.
    const SPIN_INTERVAL: u32 = 100;
    const SLEEP_INTERVAL: u32 = 2000;

    /// What the thread waited for, if it waited, is there.
    pub fn came(&mut self, now: Duration) {
        let Some(began) = self.began.take() else { return };
        let wait = now.saturating_sub(began);
        if self.spins {
            self.spun.add(wait);
        } else {
            self.slept.add(wait);
        }
    }

    /// Nothing is there: whether to look again at once. Otherwise the thread is to sleep. `together` is asked when a
    /// wait begins: what is waited for is known to need the CPU on which this thread is.
    pub fn goes_on(&mut self, now: Duration, together: impl FnOnce() -> bool) -> bool {
        let began = match self.began {
            Some(began) => began,
            None => {
                self.spins = self.choose(together());
                *self.began.insert(now)
            }
        };
        self.spins && now.saturating_sub(began) < Self::MAX
    }

    fn choose(&mut self, together: bool) -> bool {
        self.waits += 1;
        let usual = self.usual && !together;
        let seldom = self.usual || together;
        let interval = if seldom { Self::SLEEP_INTERVAL } else { Self::SPIN_INTERVAL };
        let in_vain = usual && self.spun.0 > self.slept.0;
        if self.waits <= interval && !in_vain {
            return usual;
        }
        if self.waits <= interval || self.waits > interval + Self::TRIAL {
            let long = u64::try_from(Self::MAX.as_nanos()).unwrap_or(u64::MAX);
            self.usual = self.spun.0 < self.slept.0 && self.slept.0 < long;
            self.waits = 0;
            return self.usual && !together;
        }
        if self.waits == interval + 1 {
            // What was found last time says nothing of now.
            let other = if usual { &mut self.slept } else { &mut self.spun };
            *other = Mean::default();
        }
        !usual
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    /// Waits that take `spun` where they are spun and `slept` where they are slept; how many were
    /// spun to their end.
    fn waits(spin: &mut Spin, count: u32, spun: Duration, slept: Duration) -> u32 {
        waits_of(spin, (count, false), spun, slept)
    }

    /// As `waits`, for somebody who needs the same CPU, if `together`.
    fn waits_of(
        spin: &mut Spin,
        (count, together): (u32, bool),
        spun: Duration,
        slept: Duration,
    ) -> u32 {
        let mut now = us(1);
        let mut spins = 0;
        for _ in 0..count {
            let begin = now;
            if spin.goes_on(now, || together) {
                let sleeps = !spin.goes_on(begin + spun, || together);
                spins += u32::from(!sleeps);
                now = begin + spun;
            } else {
                now = begin + slept;
            }
            spin.came(now);
            now += us(5);
        }
        spins
    }

    #[test]
    fn what_is_shorter_is_done() {
        let mut spin = Spin::default();
        assert!(waits(&mut spin, 1000, us(10), us(60)) > 900, "a wake-up takes 50 µs");
        assert!(waits(&mut spin, 1000, us(400), us(30)) < 50, "others want the CPU");
        assert!(waits(&mut spin, 1000, us(60), us(100)) > 800, "the other side sleeps");
        assert!(waits(&mut spin, 1000, us(900), us(950)) < 50, "long waits are slept");
    }

    #[test]
    fn who_needs_this_cpu_gets_it_and_is_parted_from_it_now_and_then() {
        let mut spin = Spin::default();
        assert!(waits(&mut spin, 1000, us(1), us(7)) > 900);
        // While both are on one, it is in vain to spin. Where they part, all is as it was.
        let spun = waits_of(&mut spin, (10_000, true), us(140), us(7));
        assert!((8..=60).contains(&spun), "{spun}");
        assert!(waits(&mut spin, 1000, us(1), us(7)) > 800);
    }

    #[test]
    fn sleeping_is_tried_seldom() {
        let mut spin = Spin::default();
        waits(&mut spin, 100, us(10), us(60));
        let slept = 20_000 - waits(&mut spin, 20_000, us(10), us(60));
        assert!((20..=80).contains(&slept), "{slept}");
    }
}
