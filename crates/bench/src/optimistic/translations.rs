//! The translation cache of a server's network card, emulated: no card is here to ask.
//!
//! A card that reads the server's memory by itself needs the physical addresses of its pages, and keeps some on board
//! (\[ODAFS\] 4.1, 4.2.2). A page that it lacks costs a look into the host's table before the read goes on, which the
//! paper's prototype does by an interrupt of the host. Here the reader waits for as long, awake.

use std::time::{Duration, Instant};

use super::blocks::Blocks;

/// What a miss costs in the paper's prototype (\[ODAFS\] 5).
const MISS: Duration = Duration::from_micros(9);

/// Pages whose translations the card has: the least recently used goes.
pub(super) struct Translations(Blocks<()>);

impl Translations {
    /// Of so many pages at a time.
    pub(super) fn new(pages: usize) -> Translations {
        Translations(Blocks::new(vec![(); pages]))
    }

    /// The card needs that page. True: it had to wait for it.
    pub(super) fn load(&mut self, page: u64) -> bool {
        let start = Instant::now();
        if self.0.find(page).is_some() {
            return false;
        }
        if self.0.take().is_some() {
            self.0.put(page, ());
        }
        while start.elapsed() < MISS {
            std::hint::spin_loop();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_waited_for_until_it_is_there() {
        let (mut card, start) = (Translations::new(2), Instant::now());
        let waited = [1, 2, 1, 3, 1, 2].map(|page| card.load(page));
        assert_eq!(waited, [true, true, false, true, false, true], "2 made room for 3");
        assert!(start.elapsed() >= 4 * MISS);
    }
}
