//! Names, sizes, modes and times as people read them.

use std::borrow::Cow;
use std::fmt::Write;

use dafs_protocol::{Attr, FileKind, Timestamp};

use crate::sys;

/// A name on one line of a terminal: control characters, backslashes and bytes that are no
/// UTF-8 are written `\n`, `\\`, `\xNN`.
pub fn escape(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                '\r' => out.push_str("\\r"),
                c if is_wild(c) => hexadecimal(c, &mut out),
                c => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

/// Text of several lines, as a terminal may have it: characters that would move its cursor, change its
/// colours or turn the direction of writing are written `\xNN`; ends of lines and tabs stay.
pub fn tame(text: &str) -> Cow<'_, str> {
    let is_wild = |c: char| !matches!(c, '\n' | '\t') && is_wild(c);
    if !text.contains(is_wild) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_wild(c) { hexadecimal(c, &mut out) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// Control characters, and those that turn the direction of writing or end a line.
fn is_wild(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn hexadecimal(c: char, out: &mut String) {
    let mut bytes = [0; 4];
    for byte in c.encode_utf8(&mut bytes).bytes() {
        let _ = write!(out, "\\x{byte:02x}");
    }
}

/// `4.0K`, `1.5M`: as `ls -h`.
pub fn human(bytes: u64) -> String {
    if bytes < 1024 {
        return bytes.to_string();
    }
    let mut value = bytes as f64;
    let mut unit = ' ';
    for next in ['K', 'M', 'G', 'T', 'P', 'E'] {
        if value < 1023.5 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if value < 9.95 { format!("{value:.1}{unit}") } else { format!("{value:.0}{unit}") }
}

/// `drwxr-xr-x`.
pub fn mode(attr: &Attr) -> String {
    let mut out = String::with_capacity(10);
    out.push(match attr.kind {
        FileKind::File => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
    });
    let mode = attr.mode;
    for (shift, special, with, without) in
        [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = mode >> shift;
        out.push(if bits & 4 != 0 { 'r' } else { '-' });
        out.push(if bits & 2 != 0 { 'w' } else { '-' });
        out.push(match (bits & 1 != 0, mode & special != 0) {
            (true, true) => with,
            (false, true) => without,
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    out
}

/// The word for a kind of file, in `stat` and JSON.
pub fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "char-device",
        FileKind::BlockDevice => "block-device",
    }
}

/// `2026-11-20 11:30`, local time.
pub fn short_time(time: Timestamp) -> String {
    sys::local_time(time.seconds, c"%Y-%m-%d %H:%M").unwrap_or_else(|| time.seconds.to_string())
}

/// `2026-11-20 11:30:05.123456789 +0000`, local time.
pub fn long_time(time: Timestamp) -> String {
    let day = sys::local_time(time.seconds, c"%Y-%m-%d %H:%M:%S");
    let zone = sys::local_time(time.seconds, c"%z");
    match day.zip(zone) {
        Some((day, zone)) => format!("{day}.{:09} {zone}", time.nanoseconds),
        None => format!("{}.{:09}", time.seconds, time.nanoseconds),
    }
}

/// True when `name` matches a shell pattern of `*`, `?` and `[...]`.
pub fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // Where to go on when what follows the last `*` did not fit.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        let step = match pattern.get(p) {
            Some(b'*') => {
                star = Some((p + 1, n));
                p += 1;
                continue;
            }
            Some(b'?') => Some(p + 1),
            Some(b'[') => class(&pattern[p..], name[n]).map(|used| p + used),
            Some(b'\\') if pattern.get(p + 1) == Some(&name[n]) => Some(p + 2),
            Some(byte) if *byte == name[n] => Some(p + 1),
            _ => None,
        };
        match (step, star) {
            (Some(next), _) => (p, n) = (next, n + 1),
            (None, Some((after, from))) => {
                (p, n) = (after, from + 1);
                star = Some((after, from + 1));
            }
            (None, None) => return false,
        }
    }
    pattern[p.min(pattern.len())..].iter().all(|byte| *byte == b'*')
}

/// Bytes of the class at the start of `pattern`, when `byte` belongs to it.
fn class(pattern: &[u8], byte: u8) -> Option<usize> {
    let negated = matches!(pattern.get(1), Some(b'!' | b'^'));
    let start = if negated { 2 } else { 1 };
    // A `]` in the first place is a member.
    let len = pattern.get(start + 1..)?.iter().position(|b| *b == b']')? + 1;
    let members = pattern.get(start..start + len)?;
    let mut found = false;
    let mut rest = members;
    while let Some((first, tail)) = rest.split_first() {
        rest = match tail {
            [b'-', last, tail @ ..] => {
                found |= (*first..=*last).contains(&byte);
                tail
            }
            _ => {
                found |= *first == byte;
                tail
            }
        };
    }
    (found != negated).then_some(start + len + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_fit_a_line() {
        assert_eq!(escape("grün.txt".as_bytes()), "grün.txt");
        assert_eq!(escape(b"a\nb\\c\x01"), "a\\nb\\\\c\\x01");
        assert_eq!(escape(b"\xff\xfeend"), "\\xff\\xfeend");
        assert_eq!(escape("a\u{202e}b".as_bytes()), "a\\xe2\\x80\\xaeb");
    }

    #[test]
    fn text_does_not_turn_a_terminal_around() {
        assert_eq!(tame("a\tb\nc"), "a\tb\nc");
        assert_eq!(tame("\x1b[2Jgone\u{9b}1m"), "\\x1b[2Jgone\\xc2\\x9b1m");
        assert_eq!(tame("x\u{2066}y\r"), "x\\xe2\\x81\\xa6y\\x0d");
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(human(1023), "1023");
        assert_eq!(human(1024), "1.0K");
        assert_eq!(human(10 << 20), "10M");
        assert_eq!(human(u64::MAX), "16E");
    }

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, name, expected) in [
            ("*.rs", "main.rs", true),
            ("*.rs", "main.rsx", false),
            ("m?in*", "main.rs", true),
            ("[a-m]*", "main", true),
            ("[!a-m]*", "main", false),
            ("[]]x", "]x", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-b-b-", false),
            ("", "", true),
            ("*", "", true),
            ("\\*", "*", true),
            ("[a", "[a", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }
}
