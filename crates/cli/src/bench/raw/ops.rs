//! What `dafs bench raw` can do, by name.

use clap::ValueEnum;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::bench) enum RawOpName {
    Read,
    Randread,
    Write,
    Randwrite,
    Stream,
    Ping,
    Copy,
    Mapped,
    Bounce,
    Memcpy,
    Sum,
    VmReadv,
    VmWritev,
    MemPread,
    MemPwrite,
}

impl RawOpName {
    /// As options and tables have it.
    pub(in crate::bench) fn text(self) -> &'static str {
        match self {
            RawOpName::Read => "read",
            RawOpName::Randread => "randread",
            RawOpName::Write => "write",
            RawOpName::Randwrite => "randwrite",
            RawOpName::Stream => "stream",
            RawOpName::Ping => "ping",
            RawOpName::Copy => "copy",
            RawOpName::Mapped => "mapped",
            RawOpName::Bounce => "bounce",
            RawOpName::Memcpy => "memcpy",
            RawOpName::Sum => "sum",
            RawOpName::VmReadv => "vm-readv",
            RawOpName::VmWritev => "vm-writev",
            RawOpName::MemPread => "mem-pread",
            RawOpName::MemPwrite => "mem-pwrite",
        }
    }
}
