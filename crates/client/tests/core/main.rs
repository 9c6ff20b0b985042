//! The client's core against a scripted server, in virtual time.

mod addresses;
mod cancel;
mod fake;
mod handles;
mod in_doubt;
mod leases;
mod locks;
mod replaced;
mod replay_log;
mod same_host;
mod trust;

use std::sync::Arc;
use std::time::Duration;

use dafs_client::core::{Core, CoreConfig, CoreDone, FileKey, Memory, Owner, Place, Put, Work};
use dafs_client::{Error, OpenOptions, Output, SessionOptions};
use dafs_fabric::sim::{SimConfig, SimNet};
use dafs_fabric::{Address, Buffer, Domain};
use dafs_message::{Node, NodeConfig};
use dafs_protocol::{CommitLevel, ExtentList, Outcome, Reply, SetAttr, Stability, Status};
use fake::{Fake, SERVER};

const CLIENT: u32 = 2;

struct Pair {
    net: Arc<SimNet>,
    core: Core,
    fake: Fake,
    next_tag: u64,
    done: Vec<CoreDone>,
    notices: Vec<String>,
}

fn options() -> SessionOptions {
    SessionOptions { retry: Duration::from_secs(10), ..SessionOptions::default() }
}

impl Pair {
    fn new(seed: u64) -> Pair {
        Pair::with(seed, options())
    }

    fn with(seed: u64, options: SessionOptions) -> Pair {
        let net = SimNet::new(SimConfig::new(seed));
        let fake = Fake::simulated(&net);
        let core = core(&net, &options);
        Pair { net, core, fake, next_tag: 0, done: Vec::new(), notices: Vec::new() }
    }

    fn submit(&mut self, work: Work, memory: Memory) -> u64 {
        self.next_tag += 1;
        self.core.submit(Owner(0), self.next_tag, work, memory);
        self.next_tag
    }

    fn turn(&mut self) {
        let now = self.net.now();
        self.core.progress(now);
        self.fake.progress();
        while let Some(done) = self.core.next_done() {
            self.done.push(done);
        }
        self.notices.extend(std::iter::from_fn(|| self.core.next_notice()));
        let timeout = self.core.next_timeout().map(|at| at.max(now + Duration::from_micros(1)));
        match (self.net.next_event_at(), timeout) {
            (Some(event), timeout) if timeout.is_none_or(|at| event <= at) => drop(self.net.step()),
            (_, Some(at)) => self.net.advance_to(at),
            (_, None) => self.net.advance_to(now + Duration::from_millis(1)),
        }
    }

    fn run_until(&mut self, what: &str, mut reached: impl FnMut(&mut Pair) -> bool) {
        let limit = self.net.now() + Duration::from_secs(60);
        while !reached(self) {
            assert!(self.net.now() < limit, "not within a minute: {what}");
            self.turn();
        }
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.net.now() + time;
        while self.net.now() < end {
            self.turn();
        }
    }

    fn wait(&mut self, tag: u64) -> CoreDone {
        self.run_until("an answer", |pair| pair.done.iter().any(|done| done.tag == tag));
        let at = self.done.iter().position(|done| done.tag == tag).expect("just seen");
        self.done.swap_remove(at)
    }

    fn call(&mut self, work: Work) -> Result<Output<FileKey>, Error> {
        let tag = self.submit(work, Memory::None);
        self.wait(tag).result
    }

    fn open(&mut self, path: &[u8], options: OpenOptions) -> FileKey {
        match self.call(Work::Open { place: place(path), options }) {
            Ok(Output::File(key, _)) => key,
            other => panic!("{other:?}"),
        }
    }

    fn read(&mut self, file: FileKey, offset: u64, len: u32) -> Result<Vec<u8>, Error> {
        let tag = self.submit(Work::Read { file, offset, len }, room(len as usize));
        let done = self.wait(tag);
        let buffer = done.buffer.expect("the buffer comes back");
        done.result.map(|output| buffer[..output.bytes()].to_vec())
    }

    fn write(&mut self, file: FileKey, offset: u64, data: &[u8]) -> Result<usize, Error> {
        let tag = self.start_write(file, offset, data);
        self.wait(tag).result.map(|output| output.bytes())
    }

    fn start_write(&mut self, file: FileKey, offset: u64, data: &[u8]) -> u64 {
        let len = u32::try_from(data.len()).expect("small");
        let stability = Stability::Unstable;
        self.submit(Work::Write { file, offset, len, stability, within: false }, bytes(data))
    }

    fn commit(&mut self, file: FileKey) -> Result<(), Error> {
        self.call(Work::Commit { file, offset: 0, len: 0, level: CommitLevel::File }).map(drop)
    }
}

fn core(net: &Arc<SimNet>, options: &SessionOptions) -> Core {
    core_to(net, &net.provider(SERVER).address(), options)
}

fn core_to(net: &Arc<SimNet>, address: &Address, options: &SessionOptions) -> Core {
    let domain = Domain::open(&net.provider(CLIENT)).expect("device");
    let node = Node::new(domain, NodeConfig::default()).expect("node");
    let config = CoreConfig::new(address, options);
    let mut count = 0;
    let nonces = move |nonce: &mut [u8; 32]| {
        count += 1;
        *nonce = [count; 32];
    };
    Core::new(node, config, Box::new(nonces))
}

fn place(path: &[u8]) -> Place {
    Place::new(path).expect("place")
}

fn room(len: usize) -> Memory {
    Memory::Buffer(Buffer::new(len).expect("buffer").post())
}

fn bytes(data: &[u8]) -> Memory {
    let mut buffer = Buffer::new(data.len()).expect("buffer");
    buffer.copy_from_slice(data);
    Memory::Buffer(buffer.post())
}

fn read_write() -> OpenOptions {
    OpenOptions { read: true, write: true, ..OpenOptions::default() }
}

fn status(result: Result<impl std::fmt::Debug, Error>) -> Option<Status> {
    result.expect_err("a failure").status()
}

#[test]
fn a_file_is_written_and_read() {
    let mut pair = Pair::new(1);
    let file = pair.open(b"f", OpenOptions { create: true, ..read_write() });
    let data: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
    assert_eq!(pair.write(file, 10, &data).expect("write"), data.len());
    assert_eq!(pair.read(file, 10, 250_000).expect("read"), data);
    assert_eq!(pair.read(file, 11, 100).expect("read"), data[1..101]);
    pair.call(Work::Close { file }).expect("close");
    assert_eq!(pair.fake.open_count(), 0);
    assert_eq!(status(pair.read(file, 0, 1)), Some(Status::BadF));
}

#[test]
fn data_that_the_server_did_not_take_waits_until_it_asks() {
    let mut pair = Pair::new(1);
    let file = pair.open(b"f", OpenOptions { create: true, ..read_write() });
    let data = vec![7; 20_000];
    pair.fake.script.declines = 1;
    assert_eq!(pair.write(file, 0, &data).expect("write"), data.len());
    assert_eq!((pair.fake.pushed, pair.fake.script.declines), (1, 0), "asked for");
    pair.write(file, 20_000, &data).expect("write");
    assert_eq!(pair.fake.pushed, 1, "that of others as well, for a while");
    pair.run_for(Duration::from_secs(1));
    pair.write(file, 40_000, &data).expect("write");
    assert_eq!(pair.fake.pushed, 2);
    assert_eq!(pair.read(file, 0, 100_000).expect("read"), vec![7; 60_000]);
}

#[test]
fn one_message_for_stat_get_and_put() {
    let mut pair = Pair::new(2);
    pair.call(Work::Null).expect("connected");
    let before = pair.fake.requests;
    let put = Put::new(
        place(b"dir/tmp"),
        5,
        0o644,
        true,
        SetAttr::default(),
        true,
        Some(place(b"dir/f")),
    );
    let tag = pair.submit(Work::Put(Box::new(put)), bytes(b"hello"));
    let done = pair.wait(tag);
    assert!(matches!(done.result, Ok(Output::Attr(_))), "{done:?}");
    assert_eq!(pair.fake.requests, before + 1);
    assert_eq!(pair.fake.disk.files.get(&b"dir/tmp"[..]).map(Vec::as_slice), Some(&b"hello"[..]));
    pair.call(Work::Stat { place: place(b"dir/f"), no_follow: false }).expect("stat");
    assert_eq!(pair.fake.requests, before + 2);
    let tag = pair.submit(Work::Get { place: place(b"dir/f"), len: 100 }, room(100));
    let done = pair.wait(tag);
    assert_eq!(&done.buffer.expect("buffer")[..5], b"hello");
    assert!(matches!(done.result, Ok(Output::Got { bytes: 5, .. })));
    assert_eq!(pair.fake.requests, before + 3);
    assert_eq!(pair.fake.open_count(), 0);
}

#[test]
fn long_paths_are_walked_in_steps() {
    let mut pair = Pair::new(3);
    let deep = [&b"dir_of_a_name_that_is_not_short"[..]; 80].join(&b'/');
    let file = [deep.as_slice(), b"f"].join(&b'/');
    pair.fake.put(&file, b"deep");
    let stat = pair.call(Work::Stat { place: place(&file), no_follow: false }).expect("stat");
    assert!(matches!(stat, Output::Attr(attr) if attr.size == 4));
    assert!(pair.fake.executed["lookup"] > 3);
    let to = [deep.as_slice(), b"dir_other", b"g"].join(&b'/');
    let rename = Work::Rename {
        from: place(&file),
        to: place(&to),
        from_dir: None,
        no_replace: false,
        exchange: false,
        whiteout: false,
    };
    pair.call(rename).expect("rename");
    assert!(pair.fake.memory.files.contains_key(&to));
}

#[test]
fn names_of_full_length_still_fit() {
    let mut pair = Pair::new(4);
    let (from, to) = ([b'a'; 255], [b'b'; 255]);
    let put = Put::new(
        place(&from),
        1,
        0o600,
        true,
        Put::attributes(0o600, None, Some((1, 1))),
        true,
        Some(place(&to)),
    );
    let tag = pair.submit(Work::Put(Box::new(put)), bytes(b"x"));
    assert!(matches!(pair.wait(tag).result, Ok(Output::Attr(_))));
    assert!(pair.fake.memory.files.contains_key(&to[..]));
}

#[test]
fn more_calls_than_slots_all_end() {
    let mut pair = Pair::new(5);
    pair.fake.put(b"f", &[7; 1000]);
    let file = pair.open(b"f", read_write());
    let read =
        |pair: &mut Pair, offset| pair.submit(Work::Read { file, offset, len: 100 }, room(100));
    let tags: Vec<u64> = (0..50).map(|i| read(&mut pair, i * 10)).collect();
    for tag in tags {
        assert!(pair.wait(tag).result.is_ok());
    }
}

#[test]
fn a_lost_reply_is_asked_for_again_and_nothing_is_done_twice() {
    for seed in 0..20 {
        let mut pair = Pair::new(seed);
        pair.fake.put(b"f", b"");
        let file = pair.open(b"f", read_write());
        pair.fake.script.lose_replies = 2;
        let append = |file| Work::Append { file, len: 3, stability: Stability::Unstable };
        let tags: Vec<u64> = (0..4).map(|_| pair.submit(append(file), bytes(b"abc"))).collect();
        for tag in tags {
            let done = pair.wait(tag);
            assert!(done.result.is_ok(), "{done:?}");
        }
        assert_eq!(pair.fake.memory.files[&b"f"[..]].len(), 12, "seed {seed}");
        assert!(pair.core.facts().reconnects > 0);
        assert_eq!(pair.core.facts().new_sessions, 0);
        assert!(pair.notices.iter().any(|notice| notice.starts_with("lost sim://1")));
        assert!(pair.notices.iter().any(|notice| notice == "connected again"));
    }
}

#[test]
fn reading_goes_on_over_a_restart() {
    for forgets_handles in [false, true] {
        let mut pair = Pair::new(6);
        pair.fake.script.forgets_handles = forgets_handles;
        pair.fake.put(b"dir/f", b"contents");
        let file = pair.open(b"dir/f", read_write());
        pair.fake.restart();
        let start = pair.net.now();
        assert_eq!(pair.read(file, 3, 100).expect("read"), b"tents");
        assert!(pair.net.now() - start < Duration::from_secs(2));
        assert_eq!(pair.core.facts().new_sessions, 1);
        pair.call(Work::Close { file }).expect("close");
    }
}

#[test]
fn another_file_under_the_name_is_not_taken_for_ours() {
    let mut pair = Pair::new(7);
    pair.fake.script.forgets_handles = true;
    pair.fake.put(b"f", b"ours");
    let file = pair.open(b"f", read_write());
    pair.fake.put(b"f", b"theirs");
    pair.fake.restart();
    assert_eq!(status(pair.read(file, 0, 10)), Some(Status::Stale));
    assert_eq!(status(pair.call(Work::Close { file })), Some(Status::Stale));
}

#[test]
fn lost_unstable_writes_are_told_once() {
    let mut pair = Pair::new(8);
    pair.fake.put(b"f", b"");
    let file = pair.open(b"f", read_write());
    pair.write(file, 0, b"committed").expect("write");
    pair.commit(file).expect("commit");
    pair.write(file, 0, b"lost").expect("write");
    pair.fake.restart();
    assert_eq!(status(pair.commit(file)), Some(Status::WritesLost));
    pair.commit(file).expect("told once");
    assert_eq!(pair.read(file, 0, 100).expect("read"), b"committed");
    assert_eq!(status(pair.call(Work::Sync)), Some(Status::WritesLost), "the sync is told too");
    pair.call(Work::Sync).expect("once");
}

#[test]
fn a_commit_does_not_cover_what_was_written_after_it() {
    let mut pair = Pair::new(8);
    pair.fake.put(b"f", b"");
    let file = pair.open(b"f", read_write());
    pair.write(file, 0, b"committed").expect("write");
    pair.fake.script.hold_commits = true;
    let work = Work::Commit { file, offset: 0, len: 0, level: CommitLevel::File };
    let commit = pair.submit(work, Memory::None);
    let is_done = |pair: &mut Pair| pair.fake.disk.files[&b"f"[..]] == b"committed";
    pair.run_until("the commit", is_done);
    pair.write(file, 0, b"lost").expect("write");
    pair.fake.script.hold_commits = false;
    pair.wait(commit).result.expect("commit");
    pair.fake.restart();
    assert_eq!(status(pair.commit(file)), Some(Status::WritesLost));
    assert_eq!(pair.read(file, 0, 100).expect("read"), b"committed");
}

#[test]
fn a_close_tells_of_lost_writes() {
    let mut pair = Pair::new(9);
    pair.fake.put(b"f", b"");
    let file = pair.open(b"f", read_write());
    pair.write(file, 0, b"lost").expect("write");
    pair.fake.restart();
    assert_eq!(status(pair.call(Work::Close { file })), Some(Status::WritesLost));
    assert_eq!(pair.fake.open_count(), 0);
}

#[test]
fn a_change_in_flight_over_a_restart_is_never_done_twice() {
    let mut pair = Pair::new(10);
    pair.fake.put(b"f", b"");
    let file = pair.open(b"f", read_write());
    let append = Work::Append { file, len: 3, stability: Stability::File };
    pair.fake.script.lose_replies = 1;
    let tag = pair.submit(append, bytes(b"abc"));
    pair.run_until("executed", |pair| pair.fake.executed.contains_key("append"));
    pair.fake.disk = pair.fake.memory.clone();
    pair.fake.restart();
    assert_eq!(status(pair.wait(tag).result), Some(Status::OutcomeUnknown));
    assert_eq!(pair.fake.memory.files[&b"f"[..]], b"abc");
    // A positional write in the same situation is done again.
    pair.fake.script.lose_replies = 1;
    let tag = pair.start_write(file, 1, b"xy");
    pair.run_until("the break", |pair| pair.fake.script.lose_replies == 0);
    pair.fake.restart();
    assert_eq!(pair.wait(tag).result.expect("write").bytes(), 2);
    assert_eq!(pair.fake.memory.files[&b"f"[..]], b"axy");
    pair.commit(file).expect("nothing acknowledged was lost");
}

#[test]
fn a_session_that_the_server_forgot_is_made_again() {
    let mut pair = Pair::new(11);
    pair.fake.put(b"f", b"contents");
    let file = pair.open(b"f", read_write());
    pair.write(file, 0, b"C").expect("write");
    pair.fake.forget_sessions();
    assert_eq!(pair.read(file, 0, 8).expect("read"), b"Contents");
    pair.commit(file).expect("the same server still has the write");
    assert_eq!(pair.core.facts().new_sessions, 1);
}

#[test]
fn a_silent_server_is_given_up_and_found_again() {
    let mut pair = Pair::new(13);
    pair.fake.put(b"f", b"contents");
    let file = pair.open(b"f", read_write());
    pair.fake.live = false;
    let tag = pair.submit(Work::Read { file, offset: 0, len: 8 }, room(8));
    pair.run_until("the end of patience", |pair| !pair.notices.is_empty());
    assert!(pair.notices[0].contains("no answer for 3.0 s"), "{:?}", pair.notices);
    pair.fake.live = true;
    assert!(pair.wait(tag).result.is_ok());
}

#[test]
fn a_server_that_stays_away_ends_calls_after_the_retry_time() {
    let mut pair = Pair::new(14);
    pair.fake.put(b"f", b"contents");
    let file = pair.open(b"f", read_write());
    pair.net.crash(SERVER);
    pair.fake.live = false;
    let start = pair.net.now();
    let error = pair.read(file, 0, 8).expect_err("no server");
    assert!(matches!(error, Error::Connect { refused: true, .. }), "{error}");
    let took = pair.net.now() - start;
    assert!(took >= Duration::from_secs(9) && took < Duration::from_secs(15), "{took:?}");
    // It comes back, and a later call finds it.
    pair.fake.live = true;
    pair.fake.restart();
    assert_eq!(pair.read(file, 0, 8).expect("read"), b"contents");
}

#[test]
fn the_first_connection_is_tried_once() {
    let mut pair = Pair::new(15);
    pair.net.crash(SERVER);
    pair.fake.live = false;
    let error = pair.call(Work::Null).expect_err("nobody listens");
    assert!(matches!(error, Error::Connect { refused: true, .. }), "{error}");
    assert!(pair.net.now() < Duration::from_secs(1));
}

#[test]
fn a_failed_chain_leaves_nothing_open() {
    let mut pair = Pair::new(21);
    pair.fake.put(b"f", b"x");
    pair.call(Work::Null).expect("connected");
    // The rename at its end fails after the close, the read before it: both leave no open.
    let put =
        Put::new(place(b"g"), 1, 0o600, true, SetAttr::default(), false, Some(place(b"gone/h")));
    let tag = pair.submit(Work::Put(Box::new(put)), bytes(b"x"));
    assert_eq!(status(pair.wait(tag).result), Some(Status::NoEnt));
    pair.run_until("closed", |pair| pair.fake.open_count() == 0);
}

#[test]
fn abandoned_calls_keep_their_memory_until_the_network_left_it() {
    let mut pair = Pair::new(22);
    pair.fake.put(b"f", &[5; 100_000]);
    let file = pair.open(b"f", read_write());
    for round in 0..100 {
        let read = Work::Read { file, offset: 0, len: 100_000 };
        pair.core.submit(Owner(1), round, read, room(100_000));
        for _ in 0..round {
            pair.turn();
        }
        pair.core.abandon_owner(Owner(1));
        pair.done.clear();
    }
    pair.run_until("all ended", |pair| !pair.core.is_unsettled());
    assert!(pair.done.is_empty(), "nobody waits for these");
    assert_eq!(pair.read(file, 0, 1).expect("read"), [5]);
}

#[test]
fn an_abandoned_open_is_closed() {
    let mut pair = Pair::new(23);
    pair.fake.put(b"f", b"");
    pair.call(Work::Null).expect("connected");
    let open = Work::Open { place: place(b"f"), options: read_write() };
    pair.core.submit(Owner(1), 1, open, Memory::None);
    pair.core.abandon_owner(Owner(1));
    pair.run_until("settled", |pair| !pair.core.is_unsettled());
    assert_eq!(pair.fake.open_count(), 0);
}

#[test]
fn a_close_waits_for_the_calls_before_it() {
    let mut pair = Pair::new(24);
    pair.fake.put(b"f", &[1; 1000]);
    let file = pair.open(b"f", read_write());
    let tags: Vec<u64> = (0..10)
        .map(|_| pair.submit(Work::Read { file, offset: 0, len: 1000 }, room(1000)))
        .collect();
    let close = pair.submit(Work::Close { file }, Memory::None);
    let late = pair.submit(Work::FileAttr { file }, Memory::None);
    assert_eq!(status(pair.wait(late).result), Some(Status::BadF));
    for tag in tags {
        assert!(pair.wait(tag).result.is_ok());
    }
    assert!(pair.wait(close).result.is_ok());
}

#[test]
fn arguments_are_checked_here() {
    let mut pair = Pair::new(25);
    pair.fake.put(b"f", b"");
    let file = pair.open(b"f", read_write());
    let tag = pair.submit(Work::Read { file, offset: 0, len: 11 }, room(10));
    let done = pair.wait(tag);
    assert!(matches!(done.result, Err(Error::Config(_))) && done.buffer.is_some());
    let tag = pair.submit(Work::Read { file, offset: 0, len: 300 << 10 }, room(300 << 10));
    assert!(matches!(pair.wait(tag).result, Err(Error::Config(_))));
    let extents = ExtentList::one(0, 10);
    let tag = pair.submit(Work::ReadList { file, extents, len: 10 }, Memory::None);
    assert!(matches!(pair.wait(tag).result, Err(Error::Config(_))));
    assert!(Place::new(b"a\0b").is_err());
}

#[test]
fn the_end_ends_all() {
    let mut pair = Pair::new(26);
    pair.fake.put(b"f", &[1; 100]);
    let file = pair.open(b"f", read_write());
    pair.fake.live = false;
    let tag = pair.submit(Work::Read { file, offset: 0, len: 100 }, room(100));
    pair.turn();
    pair.core.end(Error::Interrupted);
    assert_eq!(pair.wait(tag).result.expect_err("ended"), Error::Interrupted);
    pair.run_until("closed", |pair| pair.core.is_closed());
    assert_eq!(pair.call(Work::Null).expect_err("closed"), Error::Interrupted);
}

#[test]
fn a_session_is_destroyed_when_it_is_closed() {
    let mut pair = Pair::new(27);
    pair.call(Work::Null).expect("connected");
    assert_eq!(pair.fake.session_count(), 1);
    pair.core.close_session();
    pair.run_until("destroyed", |pair| pair.core.is_destroyed());
    assert_eq!(pair.fake.session_count(), 0);
}

#[test]
fn large_requests_get_a_connection_of_their_own() {
    let mut pair = Pair::new(28);
    pair.fake.put(b"f", &[1; 200_000]);
    let file = pair.open(b"f", read_write());
    for _ in 0..20 {
        pair.read(file, 0, 200_000).expect("read");
    }
    assert_eq!(pair.fake.connection_count(), 2);
    pair.net.break_connections(SERVER);
    assert_eq!(pair.read(file, 0, 200_000).expect("read").len(), 200_000);
    assert_eq!(pair.core.facts().new_sessions, 0);
}

#[test]
fn breaks_and_restarts_at_any_time() {
    for seed in 0..60 {
        let mut pair = Pair::new(1000 + seed);
        pair.fake.put(b"f", &[3; 50_000]);
        let file = pair.open(b"f", read_write());
        let mut faults = pair.net.faults();
        faults.break_per_million = 2000;
        faults.queue_full_per_million = 20_000;
        faults.late_write_per_million = 500_000;
        pair.net.set_faults(faults);
        let mut tags = Vec::new();
        for round in 0..40u64 {
            let read = Work::Read { file, offset: 0, len: 50_000 };
            tags.push(pair.submit(read, room(50_000)));
            for _ in 0..(seed + round) % 17 {
                pair.turn();
            }
            if round == 20 && seed % 3 == 0 {
                pair.fake.restart();
            }
        }
        for tag in tags {
            let done = pair.wait(tag);
            assert_eq!(done.result.expect("read").bytes(), 50_000, "seed {seed}");
            assert!(done.buffer.expect("buffer").iter().all(|b| *b == 3), "seed {seed}");
        }
    }
}
