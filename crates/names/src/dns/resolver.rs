//! Who is asked when, and for how long.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use super::message::{self, Kind, Reply};
use super::settings::Settings;

/// More than a datagram that nobody asked to be longer can be.
const DATAGRAM_BYTES: usize = 4096;

/// What name servers say of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Addresses(Vec<IpAddr>),
    /// There is such a name, without an address.
    NoAddress,
    NoSuchName,
}

/// Asks name servers.
pub struct Resolver<'a> {
    settings: &'a Settings,
}

impl<'a> Resolver<'a> {
    /// That asks as `settings` say.
    pub fn new(settings: &'a Settings) -> Resolver<'a> {
        Resolver { settings }
    }

    /// The addresses of a host; a short name is looked for in the domains to be searched, too. Blocks for as
    /// long as the settings let it, and no longer.
    ///
    /// # Errors
    /// No server can say, or none answers in time.
    pub fn addresses(&self, host: &str) -> io::Result<Answer> {
        let deadline = Instant::now() + self.settings.limit;
        let mut answer = Answer::NoSuchName;
        for name in self.names(host) {
            match self.ask(&name, deadline)? {
                Answer::NoSuchName => {}
                Answer::NoAddress => answer = Answer::NoAddress,
                found @ Answer::Addresses(_) => return Ok(found),
            }
        }
        Ok(answer)
    }

    /// What a host may be called in full, in the order in which that is tried.
    fn names(&self, host: &str) -> Vec<String> {
        if host.ends_with('.') {
            return vec![host.to_owned()];
        }
        let searched = self.settings.search.iter().map(|domain| format!("{host}.{domain}"));
        let mut names: Vec<_> = searched.collect();
        let is_long = host.matches('.').count() >= self.settings.dots;
        names.insert(if is_long { 0 } else { names.len() }, host.to_owned());
        names
    }

    fn ask(&self, name: &str, deadline: Instant) -> io::Result<Answer> {
        let mut failure = None;
        for _ in 0..self.settings.attempts {
            for server in &self.settings.servers {
                let until = deadline.min(Instant::now() + self.settings.timeout);
                match ask_server(*server, name, until) {
                    Ok(answer) => return Ok(answer),
                    // Nobody else knows of such a name either.
                    Err(error) if error.kind() == ErrorKind::InvalidInput => return Err(error),
                    Err(error) => failure = Some(error),
                }
                if Instant::now() >= deadline {
                    return Err(self.failed(failure));
                }
            }
        }
        Err(self.failed(failure))
    }

    fn failed(&self, last: Option<io::Error>) -> io::Error {
        let servers: Vec<_> =
            self.settings.servers.iter().map(|server| server.ip().to_string()).collect();
        let servers = servers.join(", ");
        let (kind, why) = match last {
            None => (ErrorKind::NotFound, "no name server is known".to_owned()),
            Some(error) if is_time(&error) => {
                (ErrorKind::TimedOut, format!("no answer from the name servers {servers}"))
            }
            Some(error) => {
                (error.kind(), format!("the name servers {servers} cannot say: {error}"))
            }
        };
        io::Error::new(kind, format!("{why} (/etc/resolv.conf)"))
    }
}

fn is_time(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock)
}

/// A question under way.
struct Question<'a> {
    name: &'a str,
    kind: Kind,
    id: u16,
    bytes: Vec<u8>,
    reply: Option<Reply>,
}

impl<'a> Question<'a> {
    fn new(name: &'a str, kind: Kind) -> io::Result<Question<'a>> {
        let mut id = [0; 2];
        getrandom::fill(&mut id)?;
        let id = u16::from_ne_bytes(id);
        let bytes = message::question(id, name, kind)
            .ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "no host can have this name"))?;
        Ok(Question { name, kind, id, bytes, reply: None })
    }

    fn take(&mut self, bytes: &[u8]) -> bool {
        let reply = message::reply(bytes, self.id, self.name, self.kind);
        let is_one = reply.is_some() && self.reply.is_none();
        if is_one {
            self.reply = reply;
        }
        is_one
    }
}

/// Both kinds of addresses are asked for at once. A server that keeps silent about one kind, and has
/// addresses of the other, has answered.
fn ask_server(server: SocketAddr, name: &str, until: Instant) -> io::Result<Answer> {
    let mut questions = [Question::new(name, Kind::V6)?, Question::new(name, Kind::V4)?];
    let silent = by_datagrams(server, &mut questions, until).err();
    for question in &mut questions {
        if question.reply == Some(Reply::Cut) {
            question.reply = Some(by_stream(server, question, until)?);
        }
    }
    let mut found = Vec::new();
    let (mut is_name, mut failed) = (false, None);
    for question in questions {
        match question.reply {
            Some(Reply::Addresses(list)) => {
                is_name = true;
                found.extend(list);
            }
            Some(Reply::NoSuchName) => {}
            Some(Reply::Failed(code)) => failed = Some(format!("{server} answers code {code}")),
            Some(Reply::Cut | Reply::Malformed) => {
                failed = Some(format!("{server} answers nonsense"))
            }
            None => {}
        }
    }
    match (silent, failed) {
        _ if !found.is_empty() => Ok(Answer::Addresses(found)),
        (Some(error), _) => Err(error),
        (None, Some(text)) => Err(io::Error::other(text)),
        (None, None) if is_name => Ok(Answer::NoAddress),
        (None, None) => Ok(Answer::NoSuchName),
    }
}

fn by_datagrams(
    server: SocketAddr,
    questions: &mut [Question<'_>],
    until: Instant,
) -> io::Result<()> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    // Who is not this server is not heard.
    socket.connect(server)?;
    for question in &*questions {
        socket.send(&question.bytes)?;
    }
    let mut room = [0; DATAGRAM_BYTES];
    while questions.iter().any(|question| question.reply.is_none()) {
        socket.set_read_timeout(Some(left(until)?))?;
        let bytes = socket.recv(&mut room)?;
        let Some(datagram) = room.get(..bytes) else { continue };
        let _ = questions.iter_mut().any(|question| question.take(datagram));
    }
    Ok(())
}

fn by_stream(server: SocketAddr, question: &Question<'_>, until: Instant) -> io::Result<Reply> {
    let mut stream = TcpStream::connect_timeout(&server, left(until)?)?;
    stream.set_write_timeout(Some(left(until)?))?;
    let length = u16::try_from(question.bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], &question.bytes].concat())?;
    let mut length = [0; 2];
    fill(&mut stream, &mut length, until)?;
    let mut bytes = vec![0; u16::from_be_bytes(length).into()];
    fill(&mut stream, &mut bytes, until)?;
    let reply = message::reply(&bytes, question.id, question.name, question.kind);
    Ok(reply.unwrap_or(Reply::Malformed))
}

/// Reads all of it by then: who sends a byte now and then is not waited for longer.
fn fill(stream: &mut TcpStream, mut room: &mut [u8], until: Instant) -> io::Result<()> {
    while !room.is_empty() {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(room)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => room = room.get_mut(count..).unwrap_or_default(),
        }
    }
    Ok(())
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
#[path = "resolver_tests.rs"]
mod tests;
