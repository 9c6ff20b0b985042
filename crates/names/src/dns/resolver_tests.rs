//! With name servers of our own, on loopback.

use std::net::TcpListener;
use std::thread::JoinHandle;

use super::*;

/// Long enough that a busy machine answers in it.
const PATIENCE: Duration = Duration::from_secs(60);
/// For who never answers.
const SHORT: Duration = Duration::from_millis(20);

/// What the server answers to a question for a name of one kind; `None`: nothing.
type Script = fn(name: &str, is_v6: bool) -> Option<(u16, Vec<u8>)>;

/// A name server that ends with its owner.
struct Server {
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(script: Script) -> Server {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
        let address = socket.local_addr().expect("address");
        let serve = move || {
            let mut room = [0; 512];
            loop {
                let (bytes, from) = socket.recv_from(&mut room).expect("a question");
                let Some(question) = room.get(..bytes).filter(|q| q.len() > 1) else { return };
                let (name, is_v6) = asked(question);
                if let Some((flags, address)) = script(&name, is_v6) {
                    // Of somebody else, and of another question: neither is heard.
                    let mut wrong = answer(question, 0, &[9; 4]);
                    wrong[0] ^= 1;
                    socket.send_to(&wrong, from).expect("sent");
                    socket.send_to(&answer(question, flags, &address), from).expect("sent");
                }
            }
        };
        Server { address, thread: Some(std::thread::spawn(serve)) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let end =
            UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.send_to(&[0], self.address));
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(end.is_ok() && ended.is_none_or(|ended| ended.is_ok()));
    }
}

fn asked(question: &[u8]) -> (String, bool) {
    let (mut at, mut labels) = (12, Vec::new());
    while question[at] != 0 {
        let length = usize::from(question[at]);
        labels.push(String::from_utf8_lossy(&question[at + 1..=at + length]).into_owned());
        at += length + 1;
    }
    (labels.join("."), question[at + 2] == 28)
}

fn answer(question: &[u8], flags: u16, address: &[u8]) -> Vec<u8> {
    let mut bytes = question.to_vec();
    bytes[2..4].copy_from_slice(&(0x8000 | flags).to_be_bytes());
    if !address.is_empty() {
        bytes[7] = 1;
        let kind = if address.len() == 4 { 1 } else { 28 };
        bytes.extend([0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 9, 0, address.len() as u8]);
        bytes.extend(address);
    }
    bytes
}

fn settings(servers: &[SocketAddr]) -> Settings {
    Settings {
        servers: servers.to_vec(),
        search: vec!["lan".into()],
        timeout: PATIENCE,
        limit: PATIENCE,
        ..Settings::default()
    }
}

fn ask(settings: &Settings, host: &str) -> Result<String, String> {
    match Resolver::new(settings).addresses(host) {
        Ok(Answer::Addresses(list)) => {
            Ok(list.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
        }
        Ok(other) => Ok(format!("{other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

fn usual(name: &str, is_v6: bool) -> Option<(u16, Vec<u8>)> {
    match (name, is_v6) {
        ("both.lan", true) => Some((0, [&[0; 15][..], &[5]].concat())),
        ("both.lan" | "a.b", false) => Some((0, vec![10, 0, 0, 1])),
        ("a.b" | "none.lan", _) => Some((0, Vec::new())),
        ("broken.lan", _) => Some((2, Vec::new())),
        ("half.lan", true) => None,
        ("half.lan", false) => Some((0, vec![10, 0, 0, 2])),
        _ => Some((3, Vec::new())),
    }
}

#[test]
fn names_are_looked_for_as_they_are_and_in_domains() {
    let server = Server::start(usual);
    let settings = settings(&[server.address]);
    assert_eq!(ask(&settings, "both"), Ok("::5 10.0.0.1".to_owned()));
    assert_eq!(ask(&settings, "both.lan."), Ok("::5 10.0.0.1".to_owned()));
    assert_eq!(ask(&settings, "a.b"), Ok("10.0.0.1".to_owned()));
    assert_eq!(ask(&settings, "none"), Ok("NoAddress".to_owned()));
    assert_eq!(ask(&settings, "both."), Ok("NoSuchName".to_owned()));
    assert_eq!(ask(&settings, "nobody.example"), Ok("NoSuchName".to_owned()));
    let wrong = ask(&settings, "a b").expect_err("no name");
    assert!(wrong.contains("no host can have this name"), "{wrong}");
}

#[test]
fn another_server_is_asked_when_one_cannot_say() {
    let (broken, good) = (Server::start(|_, _| Some((5, Vec::new()))), Server::start(usual));
    let both = settings(&[broken.address, good.address]);
    assert_eq!(ask(&both, "both"), Ok("::5 10.0.0.1".to_owned()));
    let alone = settings(&[broken.address]);
    let wrong = ask(&alone, "both").expect_err("refused");
    assert!(wrong.contains("answers code 5") && wrong.contains("/etc/resolv.conf"), "{wrong}");
}

#[test]
fn silent_servers_are_left_in_the_end() {
    let silent = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let address = silent.local_addr().expect("address");
    let short = Settings { timeout: SHORT, ..settings(&[address]) };
    let wrong = ask(&short, "both").expect_err("silence");
    assert!(wrong.contains("no answer from the name servers 127.0.0.1"), "{wrong}");
    // However many there are, and however often they are to be asked.
    let many = Settings {
        servers: vec![address; 3],
        attempts: u32::MAX,
        timeout: SHORT,
        limit: SHORT * 2,
        ..settings(&[])
    };
    ask(&many, "both").expect_err("silence");
}

#[test]
fn half_an_answer_is_one() {
    let server = Server::start(usual);
    let short =
        Settings { timeout: Duration::from_secs(1), attempts: 5, ..settings(&[server.address]) };
    assert_eq!(ask(&short, "half"), Ok("10.0.0.2".to_owned()));
}

#[test]
fn a_long_answer_comes_by_a_stream() {
    let (stream, datagrams, address) = loop {
        let stream = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = stream.local_addr().expect("address");
        // The port may be somebody's.
        if let Ok(datagrams) = UdpSocket::bind(address) {
            break (stream, datagrams, address);
        }
    };
    let serve = move || {
        let mut room = [0; 512];
        for _ in 0..2 {
            let (bytes, from) = datagrams.recv_from(&mut room).expect("a question");
            let cut = if asked(&room[..bytes]).1 { 0 } else { 0x0200 };
            datagrams.send_to(&answer(&room[..bytes], cut, &[]), from).expect("sent");
        }
        let (mut peer, _) = stream.accept().expect("accept");
        let mut length = [0; 2];
        peer.read_exact(&mut length).expect("length");
        let mut question = vec![0; u16::from_be_bytes(length).into()];
        peer.read_exact(&mut question).expect("question");
        let long = answer(&question, 0, &[10, 1, 1, 1]);
        // A byte at a time.
        for byte in [&(long.len() as u16).to_be_bytes()[..], &long].concat() {
            peer.write_all(&[byte]).expect("sent");
        }
    };
    let server = std::thread::spawn(serve);
    assert_eq!(ask(&settings(&[address]), "big.example"), Ok("10.1.1.1".to_owned()));
    server.join().expect("served");
}
