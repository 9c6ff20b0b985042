//! Two nodes on a simulated network that ask each other at random, and check every answer.
//!
//! Each request says in its header what the responder is to do and a number from which all data
//! follows. Every buffer is taken back at the very event that gives it back: a span that is left
//! anywhere fails the test.

#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used)]

pub mod cache;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cache::Cache;
use dafs_fabric::sim::{FaultConfig, Rng, SimConfig, SimNet};
use dafs_fabric::{Address, Buffer, Domain, Listener, PostedBuffer, SgList, Span};
use dafs_message::{
    ConnId, ConnOptions, Event, Loan, Node, NodeConfig, RequestId, SubmitError,
    incoming_private_data,
};

/// How a run goes.
#[derive(Clone)]
pub struct Plan {
    pub sim: SimConfig,
    pub node: NodeConfig,
    pub options: [ConnOptions; 2],
    /// Requests of each side that must be answered.
    pub requests: [usize; 2],
    pub data_max: usize,
    pub abandon_percent: u64,
    /// Requests under way, per side.
    pub depth: usize,
    /// Replies that can be in memory that peers may read, per side.
    pub cached: usize,
    /// Of the requests without data, those that let the reply lend.
    pub lend_percent: u64,
    /// Loans that are held at a time, per side.
    pub loans_max: usize,
}

impl Plan {
    pub fn new(seed: u64) -> Plan {
        let options = ConnOptions { credits: 8, requests_max: 8, ..ConnOptions::default() };
        Plan {
            sim: SimConfig::new(seed),
            node: NodeConfig { receives_max: 512, ..NodeConfig::default() },
            options: [options; 2],
            requests: [40, 20],
            data_max: 40_000,
            abandon_percent: 3,
            depth: 12,
            cached: 0,
            lend_percent: 0,
            loans_max: 6,
        }
    }
}

/// Bytes that follow from a number.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    Rng::new(seed).bytes(len)
}

pub fn bytes(span: &Span) -> Vec<u8> {
    let mut out = vec![0; span.len()];
    span.copy_to(0, &mut out);
    out
}

/// A request as its header says.
#[derive(Clone, Copy, Debug)]
struct Task {
    seed: u64,
    fetch: bool,
    reply_len: usize,
    reply_header_len: usize,
    filler: usize,
}

impl Task {
    fn encode(&self) -> Vec<u8> {
        let mut out = self.seed.to_le_bytes().to_vec();
        out.push(u8::from(self.fetch));
        out.extend((self.reply_len as u32).to_le_bytes());
        out.extend((self.reply_header_len as u32).to_le_bytes());
        out.extend((self.filler as u32).to_le_bytes());
        out.extend(pattern(self.seed ^ 3, self.filler));
        out
    }

    fn decode(b: &[u8]) -> Task {
        let word = |at: usize| u32::from_le_bytes(b[at..at + 4].try_into().unwrap()) as usize;
        let task = Task {
            seed: u64::from_le_bytes(b[..8].try_into().unwrap()),
            fetch: b[8] == 1,
            reply_len: word(9),
            reply_header_len: word(13),
            filler: word(17),
        };
        assert!(b[21..] == pattern(task.seed ^ 3, task.filler), "request header is damaged");
        task
    }
}

struct Asked {
    conn: ConnId,
    task: Task,
    data: Option<PostedBuffer>,
    room: Option<PostedBuffer>,
    abandoned: bool,
}

#[derive(PartialEq, Clone, Copy, Debug)]
enum Stage {
    New,
    Fetching,
    Ready,
}

struct Served {
    task: Task,
    data_len: usize,
    stage: Stage,
    pages: Option<PostedBuffer>,
    replied: bool,
}

/// Where the data of a reply is.
enum Leaving {
    Buffer(PostedBuffer),
    Cache(usize),
}

pub struct Side {
    pub node: Node,
    pub conn: Option<ConnId>,
    connecting: bool,
    options: ConnOptions,
    rng: Rng,
    next_tag: u32,
    next_token: u64,
    left: usize,
    asked: BTreeMap<u32, Asked>,
    /// Of broken connections, until they are quiescent.
    stranded: Vec<(u32, Asked)>,
    serving: BTreeMap<RequestId, Served>,
    leaving: BTreeMap<u64, (ConnId, Leaving)>,
    pub cache: Option<Cache>,
    /// What was lent, and the bytes that it is to have.
    pub loans: Vec<(Box<Loan>, Vec<u8>)>,
    pub lent: usize,
    /// Connections whose end was told.
    ended: BTreeSet<ConnId>,
    pub breaks: usize,
    pub answered: usize,
    pub abandoned: usize,
}

fn scattered(posted: &PostedBuffer, from: usize, len: usize, rng: &mut Rng) -> SgList {
    let mut cuts: Vec<usize> = (0..rng.below(5)).map(|_| rng.index(len + 1)).collect();
    cuts.extend([0, len]);
    cuts.sort_unstable();
    cuts.windows(2).map(|w| posted.span().part(from + w[0], w[1] - w[0])).collect()
}

impl Side {
    fn submit_some(&mut self, plan: &Plan) {
        let Some(conn) = self.conn else { return };
        while self.left > 0 && self.asked.len() < plan.depth && self.rng.below(3) > 0 {
            let rng = &mut self.rng;
            let size = |rng: &mut Rng| match rng.below(5) {
                0 => 0,
                1 => 1 + rng.index(600),
                2 => 4096 * (1 + rng.index(4)),
                _ => rng.index(plan.data_max) + 1,
            };
            let (mut data_len, room) = (size(rng), size(rng));
            if plan.cached > 0 && rng.below(4) > 0 {
                data_len = 0;
            }
            let task = Task {
                seed: rng.next(),
                fetch: rng.below(5) > 0,
                reply_len: if rng.below(3) == 0 { rng.index(room + 1) } else { room },
                reply_header_len: if rng.below(8) == 0 { rng.index(4097) } else { rng.index(200) },
                filler: if rng.below(8) == 0 { rng.index(700) } else { rng.index(40) },
            };
            let shift = rng.index(3);
            let make = |len: usize| (len > 0).then(|| Buffer::new(len + 3).unwrap());
            let data = make(data_len).map(|mut buffer| {
                buffer[shift..shift + data_len].copy_from_slice(&pattern(task.seed, data_len));
                buffer.post()
            });
            let room_buffer = make(room).map(Buffer::post);
            let sources =
                data.as_ref().map_or(SgList::new(), |b| scattered(b, shift, data_len, rng));
            let targets =
                room_buffer.as_ref().map_or(SgList::new(), |b| scattered(b, 2, room, rng));
            let tag = self.next_tag;
            let control = rng.below(10) == 0;
            let header = task.encode();
            let lend =
                plan.lend_percent > 0 && data_len == 0 && self.rng.below(100) < plan.lend_percent;
            let result = if lend {
                self.node.submit_to_lend(conn, tag, &header, targets)
            } else if control {
                self.node.submit_control(conn, tag, &header, sources, targets)
            } else {
                assert_eq!(self.node.can_submit(conn), self.node.can_submit(conn));
                self.node.submit(conn, tag, &header, sources, targets)
            };
            match result {
                Ok(()) => {}
                Err(SubmitError::NoCredit | SubmitError::QueueFull | SubmitError::NotConnected) => {
                    data.into_iter().chain(room_buffer).for_each(|b| {
                        b.take_back().expect("no span is held");
                    });
                    return;
                }
                Err(other) => panic!("{other}"),
            }
            let again = self.node.submit(conn, tag, &header, SgList::new(), SgList::new());
            assert!(again.is_err(), "a tag is used twice");
            self.next_tag += 1;
            self.left -= 1;
            let mut abandoned = false;
            if self.rng.below(100) < plan.abandon_percent {
                self.node.abandon(conn, tag);
                abandoned = true;
            }
            let asked = Asked { conn, task, data, room: room_buffer, abandoned };
            self.asked.insert(tag, asked);
        }
    }

    fn serve_some(&mut self) {
        let ids: Vec<RequestId> = self.serving.keys().copied().collect();
        for id in ids {
            if self.rng.coin() {
                continue;
            }
            let served = self.serving.get_mut(&id).unwrap();
            let task = served.task;
            if served.stage == Stage::New && task.fetch {
                let pages = Buffer::new(served.data_len + 1).unwrap().post();
                let into = scattered(&pages, 1, served.data_len, &mut self.rng);
                served.pages = Some(pages);
                served.stage = Stage::Fetching;
                self.node.fetch(id, into);
                // Now and then the answer is given before the data is here.
                if self.rng.below(10) > 0 {
                    continue;
                }
            } else if served.stage == Stage::Fetching || served.replied {
                continue;
            }
            self.reply(id);
        }
    }

    fn reply(&mut self, id: RequestId) {
        let served = self.serving.get_mut(&id).unwrap();
        let task = served.task;
        served.replied = true;
        let fetching = served.stage == Stage::Fetching;
        if !fetching {
            self.serving.remove(&id);
        }
        let header = pattern(task.seed ^ 2, task.reply_header_len);
        let (token, mut data) = (self.next_token, SgList::new());
        self.next_token += 1;
        if task.reply_len > 0 {
            let bytes = pattern(task.seed ^ 1, task.reply_len);
            let leaving = match self.cache.as_mut().and_then(|cache| cache.put(&bytes)) {
                Some((place, span)) => {
                    data.push(span);
                    Leaving::Cache(place)
                }
                None => {
                    let mut buffer = Buffer::new(task.reply_len + 5).unwrap();
                    buffer[5..].copy_from_slice(&bytes);
                    let posted = buffer.post();
                    data = scattered(&posted, 5, task.reply_len, &mut self.rng);
                    Leaving::Buffer(posted)
                }
            };
            self.leaving.insert(token, (id.conn(), leaving));
        }
        self.node.reply(id, &header, data, token);
    }

    /// They are as they were when they were lent.
    pub fn look_at_loans(&self) {
        for (loan, expected) in &self.loans {
            assert_eq!(loan.bytes(), expected.len());
            let mut at = 0;
            for piece in loan.pieces() {
                assert!(piece == &expected[at..at + piece.len()], "what was lent has changed");
                at += piece.len();
            }
        }
    }

    fn return_some(&mut self, plan: &Plan) {
        while self.loans.len() > plan.loans_max || !self.loans.is_empty() && self.rng.below(60) == 0
        {
            self.look_at_loans();
            self.loans.swap_remove(self.rng.index(self.loans.len()));
        }
    }

    fn refer(&mut self, conn: ConnId) {
        if let Some(cache) = &self.cache {
            self.node.refer(conn, cache.quota.clone());
        }
    }

    pub fn handle_events(&mut self) {
        while let Some(event) = self.node.next_event() {
            self.handle(event);
        }
    }

    #[expect(clippy::too_many_lines, reason = "a table of events")]
    fn handle(&mut self, event: Event) {
        match event {
            Event::Connected { conn, private_data } => {
                assert_eq!(private_data, b"welcome");
                self.conn = Some(conn);
                self.refer(conn);
                self.connecting = false;
            }
            Event::Refused { refused, .. } => {
                let _ = refused;
                self.connecting = false;
            }
            Event::Request { id, header, data_len, reply_max, .. } => {
                assert!(!self.ended.contains(&id.conn()), "a request after the end");
                let task = Task::decode(&header);
                self.node.recycle(header);
                assert!(reply_max as usize >= task.reply_len);
                let data_len = data_len as usize;
                let (stage, pages) = (Stage::New, None);
                let served = Served { task, data_len, stage, pages, replied: false };
                assert!(self.serving.insert(id, served).is_none(), "delivered twice");
            }
            Event::Fetched { id, placed } => {
                let served = self.serving.get_mut(&id).expect("a request in service");
                assert_eq!(served.stage, Stage::Fetching, "fetched without a fetch");
                served.stage = Stage::Ready;
                let pages = served.pages.take().unwrap().take_back().expect("pages are free");
                if let Some(placed) = placed {
                    assert_eq!(placed as usize, served.data_len);
                    let expected = pattern(served.task.seed, served.data_len);
                    assert!(pages[1..] == expected, "fetched data differs");
                }
                if served.replied || (placed.is_none() && self.rng.coin()) {
                    self.serving.remove(&id);
                }
            }
            Event::ReplySent { token } => {
                match self.leaving.remove(&token).expect("a reply that is leaving").1 {
                    Leaving::Buffer(posted) => {
                        posted.take_back().expect("reply memory is free");
                    }
                    Leaving::Cache(place) => self.cache.as_mut().unwrap().take(place),
                }
            }
            Event::Reply { conn, tag, header, data_len } => {
                assert!(!self.ended.contains(&conn), "a reply after the end");
                let asked = self.asked.remove(&tag).expect("a request under way");
                assert_eq!(asked.conn, conn);
                assert!(!asked.abandoned, "an abandoned request is answered");
                let task = asked.task;
                assert!(header == pattern(task.seed ^ 2, task.reply_header_len), "reply header");
                self.node.recycle(header);
                assert_eq!(data_len as usize, task.reply_len);
                let expected = pattern(task.seed ^ 1, task.reply_len);
                let loan = self.node.take_loan(conn, tag);
                if let Some(room) = asked.room {
                    let room = room.take_back().expect("room is free");
                    let is_there = room[2..2 + task.reply_len] == expected;
                    assert!(is_there || loan.is_some(), "reply data differs");
                    assert!(room[..2] == [0, 0] && room[room.len() - 1] == 0, "outside");
                }
                if let Some(loan) = loan {
                    self.loans.push((loan, expected));
                    self.lent += 1;
                    self.look_at_loans();
                }
                asked.data.map(|data| data.take_back().expect("sources are free"));
                self.answered += 1;
            }
            Event::Abandoned { conn, tag } => {
                let stranded = self.stranded.iter().position(|(t, a)| a.conn == conn && *t == tag);
                let asked = match self.asked.remove(&tag) {
                    Some(asked) => asked,
                    None => self.stranded.swap_remove(stranded.expect("a request under way")).1,
                };
                assert!(asked.abandoned);
                asked.data.into_iter().chain(asked.room).for_each(|b| {
                    b.take_back().expect("memory is free");
                });
                self.abandoned += 1;
            }
            Event::Disconnected { conn, reason, peer_fault } => {
                assert!(!peer_fault, "an honest peer is accused: {reason}");
                assert!(self.ended.insert(conn), "the end is told twice");
                self.breaks += 1;
                if self.conn == Some(conn) {
                    self.conn = None;
                }
                let all = std::mem::take(&mut self.asked).into_iter();
                let (gone, kept): (Vec<_>, Vec<_>) = all.partition(|(_, a)| a.conn == conn);
                self.asked.extend(kept);
                for (tag, asked) in gone {
                    // To be asked again, unless nobody wants it.
                    self.left += usize::from(!asked.abandoned);
                    self.stranded.push((tag, asked));
                }
            }
            Event::Quiescent { conn } => {
                assert!(self.ended.contains(&conn), "quiescent before its end");
                let may_be_lent = self.node.has_lent();
                let is_lent =
                    |leaving: &Leaving| may_be_lent && matches!(leaving, Leaving::Cache(_));
                let mut left = self.leaving.values().filter(|(of, _)| *of == conn);
                assert!(left.all(|(_, leaving)| is_lent(leaving)), "a reply is forgotten");
                for (id, served) in &self.serving {
                    let fetching = served.stage == Stage::Fetching && id.conn() == conn;
                    assert!(!fetching, "a fetch is forgotten");
                }
                let all = std::mem::take(&mut self.stranded).into_iter();
                let (gone, kept): (Vec<_>, Vec<_>) = all.partition(|(_, a)| a.conn == conn);
                self.stranded = kept;
                for (_, asked) in gone {
                    assert!(!asked.abandoned, "an abandoned request is forgotten");
                    asked.data.into_iter().chain(asked.room).for_each(|b| {
                        b.take_back().expect("memory is free when quiescent");
                    });
                }
            }
            other => panic!("unexpected {other:?}"),
        }
    }

    fn is_done(&self) -> bool {
        self.left == 0
            && self.asked.is_empty()
            && self.stranded.is_empty()
            && self.serving.is_empty()
            && self.leaving.values().all(|(conn, _)| self.lends_to(*conn))
    }

    /// What leaves may stay with the peer.
    fn lends_to(&self, conn: ConnId) -> bool {
        self.cache.is_some() && self.node.has_lent() || self.conn == Some(conn)
    }
}

pub struct Pair {
    pub net: Arc<SimNet>,
    pub plan: Plan,
    pub sides: [Side; 2],
    pub listener: Box<dyn Listener>,
    rng: Rng,
    seed: u64,
}

/// A failure is a seed.
struct SeedOnPanic(u64);

impl Drop for SeedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failing seed: {}", self.0);
        }
    }
}

pub fn address() -> Address {
    Address::parse("sim://1").unwrap()
}

impl Pair {
    pub fn new(plan: Plan, seed: u64) -> Pair {
        let net = SimNet::new(plan.sim.clone());
        // What a node needs for itself it has from the start.
        let faults = net.faults();
        net.set_faults(FaultConfig { refuse_registration_per_million: 0, ..faults });
        let mut domains = Vec::new();
        let sides = [1, 2].map(|node| {
            let domain = Domain::open(&net.provider(node)).unwrap();
            domains.push(domain.clone());
            let index = node as usize - 1;
            let cache = Cache::new(&domain, &plan);
            Side {
                cache,
                node: Node::new(domain, plan.node.clone()).unwrap(),
                conn: None,
                connecting: false,
                options: plan.options[index],
                rng: Rng::new(seed).fork(u64::from(node)),
                next_tag: 7 * node,
                next_token: 1,
                left: plan.requests[index],
                asked: BTreeMap::new(),
                stranded: Vec::new(),
                serving: BTreeMap::new(),
                leaving: BTreeMap::new(),
                loans: Vec::new(),
                lent: 0,
                ended: BTreeSet::new(),
                breaks: 0,
                answered: 0,
                abandoned: 0,
            }
        });
        net.set_faults(faults);
        let listener = domains[0].device().listen(&address()).unwrap();
        Pair { net, plan, sides, listener, rng: Rng::new(seed).fork(99), seed }
    }

    /// One round: somebody does something.
    pub fn round(&mut self) -> bool {
        let stepped = self.net.step();
        if self.rng.below(3) == 0 && stepped {
            return true;
        }
        let second = &mut self.sides[1];
        if second.conn.is_none() && !second.connecting {
            let options = second.options;
            second.node.connect(&address(), b"hello", options).unwrap();
            second.connecting = true;
        }
        if let Some(incoming) = self.listener.poll_accept() {
            assert_eq!(incoming_private_data(&incoming), Some(&b"hello"[..]));
            let first = &mut self.sides[0];
            let conn = first.node.accept(incoming, b"welcome", first.options).unwrap();
            first.conn = Some(conn);
            first.refer(conn);
        }
        let mut events = 0;
        for side in &mut self.sides {
            if self.rng.below(4) == 0 {
                continue;
            }
            events += side.node.poll();
            side.handle_events();
            side.submit_some(&self.plan);
            side.serve_some();
            side.return_some(&self.plan);
            side.node.ring();
        }
        stepped || events > 0
    }

    pub fn run(&mut self) {
        let _seed = SeedOnPanic(self.seed);
        let (mut idle, mut rounds) = (0, 0u64);
        while !self.sides.iter().all(Side::is_done) {
            idle = if self.round() { 0 } else { idle + 1 };
            rounds += 1;
            assert!(idle < 5000 && rounds < 20_000_000, "no progress: {}", self.state());
        }
        assert_eq!(self.net.violations(), [""; 0]);
    }

    fn state(&self) -> String {
        let side = |s: &Side| {
            format!(
                "left {} asked {:?} stranded {} serving {:?} leaving {} conn {:?} stats {:?}",
                s.left,
                s.asked.values().map(|a| a.task).collect::<Vec<_>>(),
                s.stranded.len(),
                s.serving.values().map(|s| (s.stage, s.task)).collect::<Vec<_>>(),
                s.leaving.len(),
                s.conn,
                s.node.stats()
            )
        };
        self.sides.iter().map(side).collect::<Vec<_>>().join("\n")
    }
}
