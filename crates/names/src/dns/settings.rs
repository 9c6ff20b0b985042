//! What `/etc/resolv.conf` says.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

const PORT: u16 = 53;
/// More name servers than these are not asked, nor are more domains searched.
const SERVERS_MAX: usize = 3;
const SEARCH_MAX: usize = 6;

/// Who is asked, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub servers: Vec<SocketAddr>,
    /// Domains that a short name is looked for in.
    pub search: Vec<String>,
    /// A name with so many dots is tried as it is first.
    pub dots: usize,
    /// For how long one server may think about one question.
    pub timeout: Duration,
    /// How often all of them are asked.
    pub attempts: u32,
    /// For how long a look-up may take, whatever the others say.
    pub limit: Duration,
}

impl Default for Settings {
    /// Where the file says nothing: a name server on this machine.
    fn default() -> Settings {
        Settings {
            servers: vec![(Ipv4Addr::LOCALHOST, PORT).into()],
            search: Vec::new(),
            dots: 1,
            timeout: Duration::from_secs(5),
            attempts: 2,
            limit: Duration::from_secs(30),
        }
    }
}

impl Settings {
    /// Reads the lines of `resolv.conf(5)`; what it does not know it passes over, as others do.
    pub fn parse(text: &str) -> Settings {
        let mut settings = Settings { servers: Vec::new(), ..Settings::default() };
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    let server = words.next().and_then(server);
                    let room = SERVERS_MAX.saturating_sub(settings.servers.len());
                    settings.servers.extend(server.into_iter().take(room));
                }
                Some("search" | "domain") => {
                    let domains = words.map(|word| word.trim_matches('.').to_owned());
                    settings.search =
                        domains.filter(|word| !word.is_empty()).take(SEARCH_MAX).collect();
                }
                Some("options") => words.for_each(|word| settings.option(word)),
                _ => {}
            }
        }
        if settings.servers.is_empty() {
            settings.servers = Settings::default().servers;
        }
        settings
    }

    fn option(&mut self, word: &str) {
        let Some((name, value)) = word.split_once(':') else { return };
        let Ok(value) = value.parse::<u32>() else { return };
        match name {
            "ndots" => self.dots = value.min(15) as usize,
            "timeout" => self.timeout = Duration::from_secs(value.clamp(1, 30).into()),
            "attempts" => self.attempts = value.clamp(1, 5),
            _ => {}
        }
    }
}

/// An address, of a link also with the name of its interface.
fn server(word: &str) -> Option<SocketAddr> {
    if let Ok(ip) = word.parse::<IpAddr>() {
        return Some(SocketAddr::new(ip, PORT));
    }
    let (ip, scope) = word.split_once('%')?;
    let scope = match scope.parse() {
        Ok(number) => number,
        Err(_) if scope.contains(['/', '.']) => return None,
        Err(_) => std::fs::read_to_string(format!("/sys/class/net/{scope}/ifindex"))
            .ok()?
            .trim()
            .parse()
            .ok()?,
    };
    Some(SocketAddrV6::new(ip.parse().ok()?, PORT, 0, scope).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_says_who_is_asked_and_how() {
        let text = "# made by hand\nnameserver 10.0.0.1\nnameserver ::2\nnameserver nonsense\n\
                    nameserver fe80::1%7\nnameserver 10.0.0.4\nsearch a.example. b.example\n\
                    options ndots:2 timeout:99 attempts:0 rotate edns0\nsortlist 1.2.3.4\n";
        let found = Settings::parse(text);
        let servers: Vec<_> = found.servers.iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["10.0.0.1:53", "[::2]:53", "[fe80::1%7]:53"]);
        assert_eq!(found.search, ["a.example", "b.example"]);
        assert_eq!((found.dots, found.attempts), (2, 1));
        assert_eq!(found.timeout, Duration::from_secs(30));
    }

    #[test]
    fn an_empty_file_means_this_machine() {
        assert_eq!(Settings::parse(""), Settings::default());
        assert_eq!(Settings::parse("nameserver\noptions ndots\n"), Settings::default());
    }
}
