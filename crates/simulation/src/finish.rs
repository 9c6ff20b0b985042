//! The workload, and the end: everything is looked at once more, and nothing is left over.

use std::time::Duration;

use dafs_client::OpenOptions;
use dafs_protocol::FileKind;

use crate::calls::Piece;
use crate::held;
use crate::model::names::Path;
use crate::plan::{DATA_FILES, LOCK_FILES, YARDS};
use crate::sim::Sim;

impl Sim {
    /// Clients ask for what it is time for.
    pub(crate) fn make_calls(&mut self) -> Result<(), String> {
        for client in 0..self.clients.len() {
            if self.report.operations >= self.plan.operations {
                break;
            }
            if self.clients[client].next_at > self.now() {
                continue;
            }
            let pause = match self.rng.below(100) {
                0 => self.rng.range(100_000, 1_500_000),
                1..=9 => self.rng.range(1000, 20_000),
                _ => self.rng.range(1, 500),
            };
            self.clients[client].next_at = self.now() + Duration::from_micros(pause);
            let calls = self.clients[client].calls.values();
            if calls.filter(|call| call.kind.locker().is_none()).count() >= self.plan.depth {
                continue;
            }
            self.make_call(client)?;
            self.report.operations += 1;
            self.mishaps()?;
            self.resize_cache();
        }
        Ok(())
    }

    fn make_call(&mut self, client: usize) -> Result<(), String> {
        let locks = self.plan.lock_percent;
        if locks > 0 && self.rng.below(100) < locks && self.lock_call(client) {
            return Ok(());
        }
        if self.rng.below(100) >= self.plan.data_percent {
            // A trap waits for two at once.
            if (self.traps.race || self.rng.below(6) == 0) && self.join_race(client) {
                return Ok(());
            }
            if self.name_call(client)? {
                return Ok(());
            }
        }
        self.data_call(client)
    }

    /// Closes everything, looks at everything, and ends the sessions.
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        for client in 0..self.clients.len() {
            let numbers: Vec<u64> =
                self.clients[client].opens.iter().map(|open| open.number).collect();
            numbers.into_iter().for_each(|number| self.ask_close(client, number));
            for file in 0..LOCK_FILES {
                self.close_lock_file(client, file);
            }
        }
        self.wait_idle()?;
        let client = self.rng.index(self.clients.len());
        for slot in 0..DATA_FILES {
            self.read_file(client, slot)?;
        }
        for yard in 0..YARDS {
            self.ask_list(client, yard);
            self.wait_idle()?;
            for path in self.paths_below(&Path { yard, parts: Vec::new() }) {
                self.ask_stat(client, &path);
                self.wait_idle()?;
                let node = self.names.find(&path).unwrap_or_default();
                if node.is_some_and(|node| self.names.node(node).kind == FileKind::File) {
                    self.ask_get(client, &path)?;
                    self.wait_idle()?;
                }
            }
        }
        self.end_sessions()?;
        self.check_leftovers()
    }

    fn paths_below(&self, path: &Path) -> Vec<Path> {
        let Ok(Some(dir)) = self.names.find(path) else { return Vec::new() };
        let mut paths = Vec::new();
        for (name, _) in self.names.list(dir) {
            let mut below = path.clone();
            below.parts.push(name.clone());
            let more = self.paths_below(&below);
            paths.push(below);
            paths.extend(more);
        }
        paths
    }

    /// Reads all of a data file, with what may be beyond its end.
    fn read_file(&mut self, client: usize, slot: usize) -> Result<(), String> {
        let file = self.slots[slot].file;
        self.open_file(client, slot, OpenOptions::read());
        self.wait_idle()?;
        let open = self.clients[client].opens.last().cloned().ok_or("a file was not opened")?;
        let (size, step) = (self.files[file].size_max() + 8192, self.plan.io_max / 8 * 8);
        let mut offset = 0;
        while offset < size {
            self.read_pieces(client, &open, vec![Piece { offset, len: step, change: 0 }])?;
            self.wait_idle()?;
            offset += step;
        }
        self.ask_close(client, open.number);
        self.wait_idle()
    }

    fn end_sessions(&mut self) -> Result<(), String> {
        self.clients.iter_mut().for_each(|client| client.core.close_session());
        let end = self.now() + self.patience();
        while !self.clients.iter().all(|client| client.core.is_destroyed()) {
            if self.now() > end {
                return Err("a session does not end".into());
            }
            self.turn()?;
        }
        for client in &mut self.clients {
            client.core.end(dafs_client::Error::Interrupted);
        }
        while !self.clients.iter().all(|client| client.core.is_closed()) {
            if self.now() > end {
                return Err("a client does not come to its end".into());
            }
            self.turn()?;
        }
        Ok(())
    }

    /// One lease and a second later nothing is held for anybody.
    fn check_leftovers(&mut self) -> Result<(), String> {
        for client in &self.clients {
            client.buffers.check()?;
            if client.buffers.out > 0 {
                return Err(format!("{} buffers did not come back", client.buffers.out));
            }
        }
        // They outlive sessions and clients.
        for client in &mut self.clients {
            held::check(&client.loans)?;
            client.loans.clear();
        }
        let lease = Duration::from_secs(u64::from(self.plan.limits.lease_seconds));
        self.wait_for(lease + Duration::from_secs(1))?;
        for client in &self.clients {
            client.buffers.check()?;
        }
        match self.host.leftovers().as_slice() {
            [] => Ok(()),
            left => Err(format!("when all sessions have ended: {}", left.join(", "))),
        }
    }
}
