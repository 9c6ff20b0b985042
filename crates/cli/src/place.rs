//! Paths as bytes: on a server, or here.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::failure::Failure;

/// Without slashes around it, empty and `.` components.
pub fn clean(path: &[u8]) -> Vec<u8> {
    let parts = path.split(|b| *b == b'/').filter(|part| !part.is_empty() && *part != b".");
    parts.collect::<Vec<_>>().join(&b'/')
}

/// `name` in the directory `dir`.
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(dir.len() + 1 + name.len());
    path.extend_from_slice(dir);
    if !dir.is_empty() && !dir.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// The directory and the name in it.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(0) => (b"/", &path[1..]),
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// The last component; slashes at the end do not count. Empty for a root.
pub fn name(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|b| *b != b'/').map_or(0, |at| at + 1);
    split(&path[..end]).1
}

/// As the system's calls take it.
pub fn local(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

/// A name in the same directory that nobody else uses: random for each process, then counted,
/// since one is needed for each file.
///
/// # Errors
/// The system has no random numbers.
pub fn temporary(path: &[u8]) -> Result<Vec<u8>, Failure> {
    static FIRST: OnceLock<u64> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let first = match FIRST.get() {
        Some(first) => *first,
        None => {
            let random = getrandom::u64()
                .map_err(|error| Failure::about("", format!("no random numbers: {error}")))?;
            *FIRST.get_or_init(|| random)
        }
    };
    let number = first.wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed));
    Ok(join(split(path).0, format!(".dafs-tmp-{number:016x}").as_bytes()))
}

/// A path as bytes.
pub fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

/// As given on the command line.
#[derive(Debug, Clone)]
pub enum Place {
    /// A file of this machine.
    Local(PathBuf),
    /// A URL.
    Remote(dafs_client::Url),
    /// `-`: standard input or output.
    Standard,
}

impl Place {
    /// What an argument means.
    ///
    /// # Errors
    /// It is a URL that makes no sense.
    pub fn parse(text: &OsStr) -> Result<Place, Failure> {
        match text.to_str() {
            Some("-") => Ok(Place::Standard),
            Some(url) if dafs_client::Url::is_url(url) => dafs_client::Url::parse(url)
                .map(Place::Remote)
                .map_err(|error| Failure::about("", error)),
            _ if text.is_empty() => Err(Failure::usage("a path is empty")),
            _ => Ok(Place::Local(PathBuf::from(text))),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Local(path) => f.write_str(&crate::text::escape(&bytes(path))),
            Place::Remote(url) => write!(f, "{url}"),
            Place::Standard => f.write_str("-"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_apart_and_joined() {
        assert_eq!(clean(b"//a/./b//"), b"a/b");
        assert_eq!(join(b"", b"x"), b"x");
        assert_eq!(join(b"a/b", b"x"), b"a/b/x");
        assert_eq!(join(b"/", b"x"), b"/x");
        assert_eq!(split(b"a/b/c"), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(split(b"/c"), (&b"/"[..], &b"c"[..]));
        assert_eq!(split(b"c"), (&b""[..], &b"c"[..]));
        assert_eq!(name(b"/a/b//"), b"b");
        assert_eq!(name(b"/"), b"");
    }

    #[test]
    fn temporary_names_stay_in_the_directory_and_differ() {
        let one = temporary(b"a/b").expect("random");
        assert!(one.starts_with(b"a/.dafs-tmp-"));
        assert_ne!(one, temporary(b"a/b").expect("random"));
    }

    #[test]
    fn arguments_are_urls_paths_or_a_dash() {
        let parse = |text: &str| Place::parse(OsStr::new(text));
        assert!(matches!(parse("-"), Ok(Place::Standard)));
        assert!(matches!(parse("dafs://h/x"), Ok(Place::Remote(url)) if url.path == b"x"));
        assert!(matches!(parse("h:/x"), Ok(Place::Local(_))));
        assert_eq!(parse("dafs:///x").expect_err("no host").code, crate::failure::USAGE);
        assert!(parse("").is_err());
    }
}
