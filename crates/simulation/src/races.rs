//! Several clients make, or remove, the same name at once: one of them succeeds.

use std::time::Duration;

use dafs_client::core::{Place, Put, Work};
use dafs_client::{Error, Output};
use dafs_protocol::{FileKind, SetAttr, Status};

use crate::calls::{Call, Kind};
use crate::sim::Sim;

fn place(name: usize) -> Place {
    Place::new(format!("race/r{name}").as_bytes()).expect("a short name")
}

impl Sim {
    /// A client joins a race. False: there is none to join.
    pub(crate) fn join_race(&mut self, client: usize) -> bool {
        let name = self.rng.index(self.races.len());
        let directory = self.rng.coin();
        let race = &mut self.races[name];
        if race.unclear || race.looking || race.started >= 4 {
            return false;
        }
        if race.started == 0 && !race.present {
            race.directory = directory;
        }
        race.running += 1;
        race.started += 1;
        let place = place(name);
        let work = match (race.present, race.directory) {
            (true, directory) => Work::Remove { place, directory },
            (false, true) => {
                let (kind, target) = (FileKind::Directory, Vec::new());
                Work::Make { place, kind, mode: 0o700, rdev: 0, target }
            }
            (false, false) => {
                let set = SetAttr::default();
                Work::Put(Box::new(Put::new(place, 0, 0o600, true, set, false, None)))
            }
        };
        let is_second = race.running == 2;
        let call = self.call(client, Kind::Race { name }, 0);
        self.clients[client].submit(call, work, None);
        if is_second {
            self.race_trap();
        }
        true
    }

    pub(crate) fn race_answered(
        &mut self,
        client: usize,
        call: &Call,
        name: usize,
        result: &Result<Output<dafs_client::core::FileKey>, Error>,
    ) -> Result<(), String> {
        let race = &self.races[name];
        let beaten = if race.present { Status::NoEnt } else { Status::Exist };
        let error = result.as_ref().err();
        let excused = error.is_some_and(|error| self.is_excused(client, call, error));
        let now = self.now();
        let race = &mut self.races[name];
        match error {
            None => race.won += 1,
            Some(error) if error.status() == Some(beaten) => race.beaten += 1,
            Some(_) if excused => {
                race.lost += 1;
                race.not_before = race.not_before.max(now);
            }
            Some(error) => return Err(format!("race for r{name}: {error}")),
        }
        if let Some(error) = error {
            self.without_server(client, error);
        }
        let race = &mut self.races[name];
        let last = race.running == 1;
        let wrong = race.won > 1 || (last && race.won + race.lost == 0);
        if wrong {
            let what = if race.present { "removed" } else { "made" };
            return Err(format!(
                "race/r{name} was {what} {} times at once, {} clients were told that others were \
                 faster, {} nothing",
                race.won, race.beaten, race.lost
            ));
        }
        race.ended();
        Ok(())
    }

    /// Somebody looks at names of which nobody knows.
    pub(crate) fn look_at_races(&mut self) {
        let now = self.now();
        for name in 0..self.races.len() {
            let race = &mut self.races[name];
            if !race.unclear || race.looking || race.not_before > now {
                continue;
            }
            (race.unclear, race.looking) = (false, true);
            let client = self.rng.index(self.clients.len());
            let call = self.call(client, Kind::RaceLook { name }, 0);
            let work = Work::Stat { place: place(name), no_follow: true };
            self.clients[client].submit(call, work, None);
        }
    }

    pub(crate) fn race_looked_at(
        &mut self,
        client: usize,
        call: &Call,
        name: usize,
        result: &Result<Output<dafs_client::core::FileKey>, Error>,
    ) -> Result<(), String> {
        let excused = result.as_ref().is_err_and(|error| self.is_excused(client, call, error));
        let now = self.now();
        let race = &mut self.races[name];
        race.looking = false;
        match result {
            Ok(Output::Attr(attr)) => {
                (race.present, race.directory) = (true, attr.kind == FileKind::Directory);
            }
            Err(error) if error.status() == Some(Status::NoEnt) => race.present = false,
            Err(_) if excused => {
                race.unclear = true;
                race.not_before = now + Duration::from_millis(20);
            }
            other => return Err(format!("a look at race/r{name}: {other:?}")),
        }
        Ok(())
    }
}
