//! Ten mounts of one server, with a process on each.

use std::path::PathBuf;
use std::time::Duration;

use dafs_tests::Place;
use dafs_tests::mounted::Ending;

use crate::role::{Player, all_end, now, play};

/// Mounts, and processes.
pub(crate) const TEN: u64 = 10;

/// Ten mounts of one place.
pub(crate) struct Ten {
    pub place: Place,
    pub dirs: Vec<PathBuf>,
    /// When the server of the last play began to end, and when it was there again.
    pub restarts: Vec<(u64, u64)>,
}

impl Ten {
    pub(crate) fn new(limit: Duration) -> Ten {
        let mut place = Place::new(limit);
        let mut dirs = vec![place.path().to_path_buf()];
        while (dirs.len() as u64) < TEN {
            dirs.push(place.mount_again(""));
        }
        Ten { place, dirs, restarts: Vec::new() }
    }

    /// Plays a role on each, with its number and these ones; the server ends and starts again in
    /// these ways, after such pauses. Answers what each said.
    pub(crate) fn play(
        &mut self,
        role: &str,
        numbers: &[u64],
        endings: &[Ending],
        pause: Duration,
        limit: Duration,
    ) -> Result<Vec<String>, String> {
        let start = |(i, dir): (usize, &PathBuf)| play(role, dir, &[&[i as u64], numbers].concat());
        let mut players: Vec<Player> = self.dirs.iter().enumerate().map(start).collect();
        self.restarts.clear();
        if self.place.is_mount() {
            for ending in endings {
                std::thread::sleep(pause);
                let began = now();
                self.place.restart(*ending);
                self.restarts.push((began, now()));
            }
        }
        all_end(&mut players, limit)
    }
}
