//! Reads that clients make by themselves out of the server's cache, while all else goes on between their steps.

use dafs_client::Output;
use dafs_client::core::{Referred, Work};
use dafs_client::optimistic::BLOCKS;
use dafs_fabric::mem::PAGE_BYTES;

use crate::calls::{Call, Kind, Piece};
use crate::checker::Answer;
use crate::client::Open;
use crate::model::Span;
use crate::model::file::STEP;
use crate::plan::Mishap;
use crate::sim::Sim;

/// Bytes of such a read at most.
const BYTES_MAX: u64 = 64 << 10;
/// How many calls earlier than planned the server may end, for that to be in the midst of a read.
const EARLIER: usize = 30;

impl Sim {
    /// Asks where the server's cache has blocks of a file.
    pub(crate) fn ask_where(&mut self, client: usize, open: &Open) {
        let kind = Kind::Where { open: open.number, file: open.file };
        let call = self.call(client, kind, 0);
        let work = Work::References { file: open.key, first: 0, count: BLOCKS, accessed: 0 };
        self.clients[client].submit(call, work, None);
    }

    /// What the server said to that.
    pub(crate) fn told_where(
        &mut self,
        client: usize,
        call: &Call,
        number: u64,
        (answer, end): (Answer, u64),
    ) -> Result<(), String> {
        let optimistic = self.clients[client].optimistic.clone();
        let open = self.clients[client].open(number);
        let learn = |referred: Option<&Referred>| {
            let Some(open) = open else { return };
            open.references.hear(&optimistic, 0, referred);
            let Some(referred) = referred else { return };
            open.told_by = Some(referred.lives());
            open.cached = referred.blocks().collect();
        };
        match answer {
            Ok(Output::References(referred)) => {
                learn(Some(&referred));
                Ok(())
            }
            // A reference that is checked, where nobody maps anything: the client has taken it.
            Ok(Output::Unit) => {
                learn(None);
                Ok(())
            }
            Ok(other) => Err(format!("an answer of another kind: {other:?}")),
            Err(error) => {
                learn(None);
                self.failed(client, call, error, end)
            }
        }
    }

    /// Each client reads now and then what it can without the server.
    pub(crate) fn read_by_themselves(&mut self) -> Result<(), String> {
        if !self.plan.hits || !self.is_wild {
            return Ok(());
        }
        for client in 0..self.clients.len() {
            let told = self.clients[client].opens.iter().filter(|open| !open.cached.is_empty());
            let told: Vec<Open> = told.cloned().collect();
            if !told.is_empty() && self.rng.below(4) == 0 {
                let open = &told[self.rng.index(told.len())];
                self.read_by_itself(client, open)?;
            }
        }
        Ok(())
    }

    /// Mostly a few bytes of what was cached when that was told: all blocks of a read must be there.
    fn near(&mut self, open: &Open) -> Piece {
        let len = match self.rng.below(8) {
            0 => self.len().min(BYTES_MAX),
            1..=3 => self.rng.range(1, 2 * PAGE_BYTES as u64 / STEP) * STEP,
            _ => self.rng.range(1, 512 / STEP) * STEP,
        };
        let block = open.cached[self.rng.index(open.cached.len())];
        let within = self.rng.below(PAGE_BYTES as u64 / STEP) * STEP;
        Piece { offset: (block * PAGE_BYTES) as u64 + within, len, change: 0 }
    }

    fn read_by_itself(&mut self, client: usize, open: &Open) -> Result<(), String> {
        let piece = self.near(open);
        let (optimistic, who) = (self.clients[client].optimistic.clone(), self.clients[client].who);
        let mut into = vec![0; piece.len as usize];
        let start = self.tick();
        let mut meanwhile = Ok(());
        let read = open.references.read_among(&optimistic, (&mut into, piece.offset), |_| {
            if meanwhile.is_ok() {
                meanwhile = self.meanwhile();
            }
        });
        meanwhile?;
        let span = Span { start, end: self.tick() };
        let Some(bytes) = read else {
            self.report.misses += 1;
            return Ok(());
        };
        self.log(|| {
            format!("client {who} reads {bytes} of {piece:?} of file {} by itself", open.file)
        });
        self.report.hits += 1;
        self.report.note(bytes as u64);
        let at_end = bytes < into.len();
        let got = into.get(..bytes).unwrap_or(&[]);
        let checked = self.check_pieces(open.file, &[piece], got, (bytes, at_end), span);
        checked.and_then(|()| self.check_life(open)).map_err(|why| {
            format!("{why}\n  in a read without the server, {span:?}, of {piece:?} by client {who}")
        })
    }

    /// Who told where the block is lives still.
    fn check_life(&self, open: &Open) -> Result<(), String> {
        if !self.host.is_up() {
            return Err("the memory of a dead server was believed".into());
        }
        match open.told_by.is_some_and(|life| self.host.stands_for(life)) {
            true => Ok(()),
            false => Err("a session that has ended was believed".into()),
        }
    }

    /// A client stands still in the midst of a read; others do not.
    fn meanwhile(&mut self) -> Result<(), String> {
        if self.rng.coin() {
            return Ok(());
        }
        for _ in 0..self.rng.range(1, 40) {
            self.progress()?;
            self.do_wakes()?;
            self.pass_time()?;
        }
        self.resize_cache();
        let next = self.plan.mishaps.first().copied();
        let ends = next.filter(|(at, mishap)| {
            let is_end = matches!(mishap, Mishap::ProcessCrash(_) | Mishap::MachineCrash(_))
                || matches!(mishap, Mishap::Restart(_));
            is_end && *at <= self.report.operations + EARLIER
        });
        if let Some((_, mishap)) = ends
            && self.rng.below(8) == 0
        {
            self.plan.mishaps.remove(0);
            self.mishap(mishap)?;
        }
        Ok(())
    }
}
