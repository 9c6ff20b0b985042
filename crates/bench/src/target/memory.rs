//! The memory that data of a server is read into, or where it stays.

use std::hint::black_box;
use std::io;
use std::str::FromStr;

use dafs_client::{Output, Session};
use dafs_fabric::Buffer;

/// Where the data of reads is to be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Memory {
    /// In buffers of the session, which a server on the same host reaches.
    #[default]
    Shared,
    /// In memory of this process, which copies it out of the server's cache where it may.
    Private,
    /// The same, but that it comes by way of memory that both reach, where the network is one of this host.
    Bounce,
    /// In the server's cache, where it may: it is lent, and summed.
    Lent,
}

impl Memory {
    const ALL: [(Memory, &str); 4] = [
        (Memory::Shared, "shared"),
        (Memory::Private, "private"),
        (Memory::Bounce, "bounce"),
        (Memory::Lent, "lent"),
    ];

    /// Buffers of that kind.
    ///
    /// # Errors
    /// There is no memory.
    pub(super) fn buffers(
        self,
        session: &Session,
        count: usize,
        size: usize,
    ) -> io::Result<Vec<Buffer>> {
        match self {
            Memory::Shared | Memory::Lent => session.buffers(count, size).map_err(io::Error::other),
            Memory::Private | Memory::Bounce => Buffer::many(count, size).map_err(io::Error::other),
        }
    }
}

impl FromStr for Memory {
    type Err = String;
    fn from_str(text: &str) -> Result<Memory, String> {
        let found = Memory::ALL.into_iter().find(|(_, name)| *name == text);
        found.map(|(memory, _)| memory).ok_or_else(|| {
            let names = Memory::ALL.map(|(_, name)| name).join(", ");
            format!("'{text}' is not one of {names}")
        })
    }
}

/// Looks at all that was lent, or copied in its place; copies what was read once more, if it is wanted somewhere else.
/// How many bytes were copied.
pub(super) fn take(output: &Output, buffer: Option<&Buffer>, wanted: Option<&mut [u8]>) -> usize {
    if let (Output::Read { bytes, .. }, Some(wanted)) = (output, wanted)
        && let Some(read) = buffer.and_then(|buffer| buffer.get(..*bytes))
        && let Some(wanted) = wanted.get_mut(..*bytes)
    {
        wanted.copy_from_slice(read);
        black_box(wanted);
        return *bytes;
    }
    look(output, buffer);
    0
}

fn look(output: &Output, buffer: Option<&Buffer>) {
    let Output::Lent { bytes, loan, .. } = output else { return };
    let sums = match loan {
        Some(loan) => loan.pieces().map(sum).fold(0, u64::wrapping_add),
        None => buffer.and_then(|buffer| buffer.get(..*bytes)).map_or(0, sum),
    };
    black_box(sums);
}

/// The sum of the words there, of whole 64 bytes, as the bare mechanism sums.
fn sum(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 8];
    for line in bytes.as_chunks::<64>().0 {
        for (sum, word) in sums.iter_mut().zip(line.as_chunks().0) {
            *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
        }
    }
    sums.into_iter().fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_summed() {
        let bytes: Vec<u8> = (1..=17u64).flat_map(u64::to_ne_bytes).collect();
        assert_eq!(sum(&bytes), (1..=16).sum::<u64>(), "of whole lines");
        assert_eq!(sum(&[]), 0);
    }

    #[test]
    fn names_are_known() {
        assert_eq!("lent".parse(), Ok(Memory::Lent));
        let wrong = "mapped".parse::<Memory>().expect_err("no name");
        assert!(wrong.contains("private") && wrong.contains("bounce"));
    }
}
