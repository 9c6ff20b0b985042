//! URLs: `dafs://HOST[:PORT]/PATH[?option=value]`, and `dafs+unix:///SOCKET//PATH`, also with the name of
//! another network whose addresses are paths.
//!
//! HOST may be an IPv6 address in brackets. PATH is percent-decoded to bytes, so that any name
//! can be written. Everything after the first `?` is options.

use std::fmt;
use std::path::PathBuf;

use dafs_fabric::Address;

use crate::error::Error;

/// Where servers listen when a URL has no port.
pub const DEFAULT_PORT: u16 = 20490;

/// Bytes of a URL; more are refused unread.
const URL_BYTES_MAX: usize = 64 << 10;
/// Options of a URL.
const OPTIONS_MAX: usize = 32;

/// A URL, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// Name or address, without brackets. Empty with `unix`.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// A socket of this host in place of host and port; a Unix socket, where `transport` names no other.
    pub unix: Option<PathBuf>,
    /// The transport, where it is not the usual one: `dafs+NAME://HOST`.
    pub transport: Option<String>,
    /// Bytes below the root, without a leading `/`; empty: the root.
    pub path: Vec<u8>,
    /// In the order in which they stand.
    pub options: Vec<(String, String)>,
}

impl Url {
    /// True for text that is meant as a URL of this kind (and not as a local path).
    pub fn is_url(text: &str) -> bool {
        split_scheme(text).is_some()
    }

    /// Takes `text` apart.
    ///
    /// # Errors
    /// [`Error::Config`], saying which part is wrong.
    pub fn parse(text: &str) -> Result<Url, Error> {
        let wrong = |what: &str| Error::Config(format!("URL '{}': {what}", shorten(text)));
        if text.len() > URL_BYTES_MAX {
            return Err(wrong("too long"));
        }
        let (before, query) = match text.split_once('?') {
            Some((before, query)) => (before, Some(query)),
            None => (text, None),
        };
        let url = match split_scheme(before) {
            Some((Some(Address::LOCAL_SCHEME), rest)) => parse_socket(None, rest),
            Some((Some(name), rest))
                if name != Address::DEFAULT_SCHEME && rest.starts_with('/') =>
            {
                parse_socket(Some(name), rest)
            }
            Some((transport, rest)) => parse_host(transport, rest),
            None => Err("must begin with dafs://".into()),
        };
        let mut url = url.map_err(|what| wrong(&what))?;
        url.options = parse_options(query.unwrap_or("")).map_err(|what| wrong(&what))?;
        Ok(url)
    }

    /// What a provider connects to.
    pub fn address(&self) -> Address {
        if let Some(socket) = &self.unix {
            let local = Address::local(socket);
            let scheme = self.transport.clone().unwrap_or_else(|| local.scheme.clone());
            return Address { scheme, ..local };
        }
        let scheme = self.transport.as_deref().unwrap_or(Address::DEFAULT_SCHEME);
        Address { scheme: scheme.into(), target: self.authority() }
    }

    /// The same server and options with another path.
    #[must_use]
    pub fn with_path(&self, path: &[u8]) -> Url {
        Url { path: path.to_vec(), ..self.clone() }
    }

    fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(socket) = &self.unix {
            use std::os::unix::ffi::OsStrExt;
            let scheme = self.transport.as_deref().unwrap_or(Address::LOCAL_SCHEME);
            write!(f, "dafs+{scheme}://{}//", escape(socket.as_os_str().as_bytes(), false))?;
        } else {
            let brackets = self.host.contains(':');
            let (open, close) = if brackets { ("[", "]") } else { ("", "") };
            f.write_str("dafs")?;
            if let Some(transport) = &self.transport {
                write!(f, "+{transport}")?;
            }
            write!(f, "://{open}{}{close}", self.host)?;
            if self.port != DEFAULT_PORT {
                write!(f, ":{}", self.port)?;
            }
            f.write_str("/")?;
        }
        f.write_str(&escape(&self.path, false))?;
        for (index, (name, value)) in self.options.iter().enumerate() {
            let before = if index == 0 { '?' } else { '&' };
            let (name, value) = (escape(name.as_bytes(), true), escape(value.as_bytes(), true));
            write!(f, "{before}{name}={value}")?;
        }
        Ok(())
    }
}

impl std::str::FromStr for Url {
    type Err = Error;
    fn from_str(text: &str) -> Result<Url, Error> {
        Url::parse(text)
    }
}

/// The transport, if it is named, and what follows `://`.
fn split_scheme(text: &str) -> Option<(Option<&str>, &str)> {
    let (scheme, rest) = text.split_once("://")?;
    let transport = match scheme.strip_prefix("dafs")? {
        "" => None,
        name => Some(name.strip_prefix('+')?),
    };
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    };
    transport.is_none_or(is_name).then_some((transport, rest))
}

fn parse_host(transport: Option<&str>, rest: &str) -> Result<Url, String> {
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (host, port) = if let Some(inside) = authority.strip_prefix('[') {
        let (host, after) = inside.split_once(']').ok_or("']' is missing")?;
        host.parse::<std::net::Ipv6Addr>()
            .map_err(|_| format!("'{host}' in brackets is no IPv6 address"))?;
        let port = match after {
            "" => None,
            _ => Some(after.strip_prefix(':').ok_or("only a port may follow ']'")?),
        };
        (host, port)
    } else {
        match authority.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err("an IPv6 address must stand in brackets".into());
            }
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        }
    };
    if host.is_empty() {
        return Err("no host".into());
    }
    let bad = |c: char| c.is_control() || c.is_whitespace() || "@%\\#\"<>".contains(c);
    if host.len() > 255 || host.contains(bad) {
        return Err("bad host name".into());
    }
    Ok(Url {
        host: host.into(),
        port: port.map_or(Ok(DEFAULT_PORT), parse_port)?,
        unix: None,
        transport: transport.filter(|name| *name != Address::DEFAULT_SCHEME).map(str::to_owned),
        path: decode_path(path)?,
        options: Vec::new(),
    })
}

fn parse_port(text: &str) -> Result<u16, String> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse() {
        Ok(port) if digits && port != 0 => Ok(port),
        _ => Err(format!("'{text}' is no port")),
    }
}

fn parse_socket(transport: Option<&str>, rest: &str) -> Result<Url, String> {
    use std::os::unix::ffi::OsStringExt;
    if !rest.starts_with('/') {
        return Err("the socket's path must be absolute".into());
    }
    let (socket, path) = rest.split_once("//").unwrap_or((rest, ""));
    let socket = percent_decode(socket)?;
    // What sockaddr_un takes, with its NUL.
    if socket.len() < 2 || socket.len() > 107 {
        return Err("the socket's path must have 2 to 107 bytes".into());
    }
    Ok(Url {
        host: String::new(),
        port: DEFAULT_PORT,
        unix: Some(PathBuf::from(std::ffi::OsString::from_vec(socket))),
        transport: transport.map(str::to_owned),
        path: decode_path(path)?,
        options: Vec::new(),
    })
}

fn decode_path(text: &str) -> Result<Vec<u8>, String> {
    percent_decode(text.trim_start_matches('/'))
}

fn parse_options(query: &str) -> Result<Vec<(String, String)>, String> {
    let mut options = Vec::new();
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let text = |part| {
            String::from_utf8(percent_decode(part)?).map_err(|_| "option is not UTF-8".to_owned())
        };
        options.push((text(name)?, text(value)?));
        if options.len() > OPTIONS_MAX {
            return Err("too many options".into());
        }
    }
    Ok(options)
}

fn percent_decode(text: &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| byte.and_then(|b| char::from(b).to_digit(16));
        let (high, low) = (digit(bytes.next()), digit(bytes.next()));
        match (high, low) {
            (Some(high), Some(low)) => out.push(u8::try_from(high * 16 + low).unwrap_or(0)),
            _ => return Err("'%' must be followed by two hexadecimal digits".into()),
        }
    }
    if out.contains(&0) {
        return Err("a path has no NUL byte".into());
    }
    Ok(out)
}

fn escape(bytes: &[u8], option: bool) -> String {
    let mut out = String::with_capacity(bytes.len());
    for &byte in bytes {
        let plain = byte.is_ascii_alphanumeric()
            || b"-._~/:,+@!".contains(&byte)
            || (!option && b"=&()*';$".contains(&byte));
        if plain {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

fn shorten(text: &str) -> String {
    if text.chars().count() <= 120 {
        return text.into();
    }
    text.chars().take(117).chain("...".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(text: &str, with: &str) {
        match Url::parse(text) {
            Err(Error::Config(what)) => assert!(what.contains(with), "{what}"),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn parts_are_found() {
        let url = Url::parse("dafs://host:1234/a%20b/c?wait=polled&rdma_read=off").expect("url");
        assert_eq!((url.host.as_str(), url.port), ("host", 1234));
        assert_eq!(url.path, b"a b/c");
        assert_eq!(url.options.len(), 2);
        assert_eq!(url.options[1], ("rdma_read".into(), "off".into()));
        assert_eq!(url.address().to_string(), "tcp://host:1234");
    }

    #[test]
    fn port_and_path_may_be_missing() {
        let url = Url::parse("dafs://localhost").expect("url");
        assert_eq!((url.port, url.path.as_slice()), (DEFAULT_PORT, &b""[..]));
        assert_eq!(url.to_string(), "dafs://localhost/");
    }

    #[test]
    fn ipv6_stands_in_brackets() {
        let url = Url::parse("dafs://[::1]:99/x").expect("url");
        assert_eq!((url.host.as_str(), url.port), ("::1", 99));
        assert_eq!(url.to_string(), "dafs://[::1]:99/x");
        assert_eq!(url.address().to_string(), "tcp://[::1]:99");
        fails("dafs://::1/x", "brackets");
        fails("dafs://[::1", "']' is missing");
        fails("dafs://[host]/", "no IPv6 address");
        fails("dafs://[::1]99/", "only a port");
    }

    #[test]
    fn any_bytes_survive_printing_and_parsing() {
        let path: Vec<u8> = (1..=255).filter(|b| *b != b'/').collect();
        let url = Url::parse("dafs://h/").expect("url").with_path(&path);
        assert_eq!(Url::parse(&url.to_string()).expect("again"), url);
    }

    #[test]
    fn a_transport_can_be_named() {
        let url = Url::parse("dafs+mesh://host:7/a?retry=1s").expect("url");
        assert_eq!(url.address().to_string(), "mesh://host:7");
        assert_eq!(url.to_string(), "dafs+mesh://host:7/a?retry=1s");
        let usual = Url::parse("dafs+tcp://host/a").expect("url");
        assert_eq!(usual, Url::parse("dafs://host/a").expect("url"));
        for no_url in
            ["dafs+://host", "dafs+Mesh://host", "dafsmesh://host", "/dafs://x", "dafs:/x"]
        {
            assert!(!Url::is_url(no_url), "{no_url}");
        }
    }

    #[test]
    fn unix_sockets() {
        let url = Url::parse("dafs+unix:///run/d.sock//a/b?retry=1s").expect("url");
        assert_eq!(url.unix.as_deref(), Some(std::path::Path::new("/run/d.sock")));
        assert_eq!(url.path, b"a/b");
        assert_eq!(url.address().to_string(), "unix:/run/d.sock");
        assert_eq!(Url::parse(&url.to_string()).expect("again"), url);
        fails("dafs+unix://x//y", "absolute");
        let url = Url::parse("dafs+mesh:///run/d.sock//a").expect("url");
        assert_eq!(url.address().to_string(), "mesh:/run/d.sock");
        assert_eq!(url.to_string(), "dafs+mesh:///run/d.sock//a");
        assert_eq!(Url::parse(&url.to_string()).expect("again"), url);
        fails("dafs+tcp:///x", "no host");
    }

    #[test]
    fn hostile_text_is_refused() {
        fails("http://host/", "dafs://");
        fails("dafs:///x", "no host");
        fails("dafs://h:0/", "no port");
        fails("dafs://h:70000/", "no port");
        fails("dafs://h:+1/", "no port");
        fails("dafs://h/%", "hexadecimal");
        fails("dafs://h/%4", "hexadecimal");
        fails("dafs://h/%zz", "hexadecimal");
        fails("dafs://h/%00", "NUL");
        fails("dafs://user@h/", "bad host");
        fails("dafs://h/?%ff=1", "UTF-8");
        fails(&format!("dafs://h/{}", "x".repeat(URL_BYTES_MAX)), "too long");
        fails(&format!("dafs://h/?{}", "a=1&".repeat(40)), "too many");
    }
}
