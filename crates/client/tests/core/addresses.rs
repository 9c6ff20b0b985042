//! A server with several addresses, of which some are of no use.

use dafs_fabric::sim::FaultConfig;
use dafs_fabric::{Address, Listener, Provider};

use super::*;

/// Where nobody, or somebody else, is.
const OTHER: u32 = 9;
const KEY: &[u8] = b"a key of sixteen bytes or more";

/// A client of the server at its usual address, and at a second one.
struct Scene {
    pair: Pair,
    /// Who is at the second address, if anybody answers.
    other: Option<Fake>,
    /// Somebody who takes no connection.
    _silent: Option<Box<dyn Listener>>,
}

fn second(net: &Arc<SimNet>) -> Address {
    net.provider(OTHER).address()
}

impl Scene {
    fn new(seed: u64, options: SessionOptions) -> Scene {
        let net = SimNet::new(SimConfig::new(seed));
        let fake = Fake::simulated(&net);
        let also = vec![second(&net)];
        let core = core(&net, &SessionOptions { also, ..options });
        let (done, notices) = (Vec::new(), Vec::new());
        let pair = Pair { net, core, fake, next_tag: 0, done, notices };
        Scene { pair, other: None, _silent: None }
    }

    /// Nothing comes back from the second address.
    fn silent(seed: u64, options: SessionOptions) -> Scene {
        let mut scene = Scene::new(seed, options);
        let device = scene.pair.net.provider(OTHER).open().expect("device");
        scene._silent = Some(device.listen(&second(&scene.pair.net)).expect("listens"));
        scene
    }

    /// Somebody is there who says no.
    fn refusing(seed: u64, options: SessionOptions, status: Status) -> Scene {
        let mut scene = Scene::new(seed, options);
        let net = &scene.pair.net;
        let mut other = Fake::new(Arc::new(net.provider(OTHER)), &second(net));
        other.script.refuse = Some(status);
        scene.other = Some(other);
        scene
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.pair.net.now() + time;
        while self.pair.net.now() < end {
            self.pair.turn();
            self.other.iter_mut().for_each(Fake::progress);
        }
    }

    /// The server goes, and is back after this time.
    fn restart_after(&mut self, time: Duration) {
        self.pair.fake.leave();
        self.run_for(time);
        self.pair.fake.restart();
    }

    fn finish(&mut self, tag: u64, patience: Duration) -> Result<(), Error> {
        let end = self.pair.net.now() + patience;
        loop {
            if let Some(at) = self.pair.done.iter().position(|done| done.tag == tag) {
                return self.pair.done.swap_remove(at).result.map(drop);
            }
            assert!(self.pair.net.now() < end, "no answer in {patience:?}");
            self.run_for(Duration::from_millis(1));
        }
    }
}

fn hard() -> SessionOptions {
    SessionOptions { retry: Duration::MAX, ..options() }
}

fn read(file: FileKey) -> Work {
    Work::Read { file, offset: 0, len: 8 }
}

/// Writes what is kept until it is safe.
fn keep(pair: &mut Pair, file: FileKey) {
    pair.next_tag += 1;
    let (tag, stability) = (pair.next_tag, Stability::Unstable);
    let work = Work::Write { file, offset: 0, len: 4, stability, within: false };
    pair.core.submit_kept(Owner(0), tag, work, bytes(b"kept"), b"kept".to_vec());
    pair.wait(tag).result.expect("written");
}

#[test]
fn a_far_server_is_reached_although_it_has_a_second_address() {
    let mut scene = Scene::silent(1, options());
    let way = Duration::from_millis(10);
    let faults = FaultConfig { delay_min: way, delay_max: way, ..FaultConfig::default() };
    scene.pair.net.set_faults(faults);
    scene.pair.call(Work::Null).expect("the first address answers");
    assert_eq!(scene.pair.fake.session_count(), 1);
}

#[test]
fn a_short_break_is_short_although_the_second_address_is_silent() {
    for options in [options(), hard()] {
        let mut scene = Scene::silent(2, options);
        scene.pair.fake.put(b"f", b"contents");
        let file = scene.pair.open(b"f", read_write());
        let tag = scene.pair.submit(read(file), room(8));
        scene.restart_after(Duration::from_millis(50));
        // A lease is 3 s.
        scene.finish(tag, Duration::from_secs(3)).expect("read");
    }
}

#[test]
fn what_is_kept_outlives_a_long_downtime_whatever_the_second_address_is() {
    let wrong = Address { scheme: "no-such-network".into(), target: "x".into() };
    for also in [None, Some(wrong)] {
        let mut scene = Scene::silent(3, hard());
        if let Some(wrong) = also {
            let options = SessionOptions { also: vec![wrong], ..hard() };
            scene.pair.core = core(&scene.pair.net, &options);
        }
        scene.pair.fake.put(b"f", b"");
        let file = scene.pair.open(b"f", read_write());
        keep(&mut scene.pair, file);
        // Ten leases.
        scene.restart_after(Duration::from_secs(30));
        scene.pair.commit(file).expect("written again");
    }
}

#[test]
fn a_session_outlives_an_address_that_does_not_want_it() {
    for status in [Status::AuthFailed, Status::NotAuthorized, Status::Version] {
        let mut scene = Scene::refusing(4, hard(), status);
        scene.pair.fake.put(b"f", b"contents");
        let file = scene.pair.open(b"f", read_write());
        let tag = scene.pair.submit(read(file), room(8));
        scene.restart_after(Duration::from_millis(50));
        scene.finish(tag, Duration::from_secs(3)).expect("a hard session waits for its server");
    }
}

#[test]
fn a_first_connection_is_made_by_whichever_address_takes_it() {
    let mut scene = Scene::refusing(5, options(), Status::AuthFailed);
    // The first wants a key, and the second takes whoever comes.
    scene.pair.fake.script.key = Some(KEY.to_vec());
    scene.other.iter_mut().for_each(|other| other.script.refuse = None);
    let tag = scene.pair.submit(Work::Null, Memory::None);
    scene.finish(tag, Duration::from_secs(5)).expect("the second takes it");
    // Where none does, all are told.
    let mut scene = Scene::refusing(5, options(), Status::AuthFailed);
    scene.pair.fake.script.key = Some(KEY.to_vec());
    let tag = scene.pair.submit(Work::Null, Memory::None);
    let error = scene.finish(tag, Duration::from_secs(5)).expect_err("nobody takes it");
    let text = error.to_string();
    assert!(matches!(error, Error::Auth(_)), "{text}");
    assert!(text.contains("wants a key") && text.contains("not  today"), "{text}");
}

/// Who has no key can neither end a session nor say that writes are lost.
#[test]
fn only_the_server_says_that_writes_are_lost() {
    for status in [Status::WritesLost, Status::BadSession] {
        let options = SessionOptions { key: Some(KEY.to_vec()), ..hard() };
        let mut scene = Scene::refusing(6, options, status);
        scene.pair.fake.script.key = Some(KEY.to_vec());
        scene.pair.fake.put(b"f", b"");
        let file = scene.pair.open(b"f", read_write());
        scene.pair.write(file, 0, b"data").expect("written");
        scene.pair.net.partition(CLIENT, SERVER);
        scene.pair.net.break_connections(CLIENT);
        scene.run_for(Duration::from_millis(50));
        scene.pair.net.heal(CLIENT, SERVER);
        let level = CommitLevel::File;
        let commit = Work::Commit { file, offset: 0, len: 0, level };
        let tag = scene.pair.submit(commit, Memory::None);
        scene.finish(tag, Duration::from_secs(10)).expect("the server has it all");
        assert_eq!(scene.pair.core.facts().new_sessions, 0, "{status:?}");
    }
}
