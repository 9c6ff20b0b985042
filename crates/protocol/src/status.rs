//! One list of status codes: number, name, errno, text.

macro_rules! statuses {
    ($( $(#[$doc:meta])* $name:ident = $code:literal, $errno:expr, $text:literal; )*) => {
        /// Why an operation failed. Numbers follow DAFS 1.0 where it has one; unknown numbers
        /// from a peer survive a round trip.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[allow(missing_docs)] // `text` says it
        pub enum Status { $( $(#[$doc])* $name, )* Other(u32) }

        impl Status {
            /// All named ones.
            pub const ALL: &'static [Status] = &[ $( Status::$name, )* ];
            /// The number on the wire; never 0, which means success.
            pub fn code(self) -> u32 {
                match self { $( Status::$name => $code, )* Status::Other(code) => code }
            }
            /// From the number on the wire.
            pub fn from_code(code: u32) -> Status {
                match code { $( $code => Status::$name, )* other => Status::Other(other) }
            }
            /// The Linux errno that says the same.
            pub fn errno(self) -> i32 {
                match self { $( Status::$name => $errno, )* Status::Other(_) => 5 }
            }
            /// For people.
            pub fn text(self) -> &'static str {
                match self { $( Status::$name => $text, )* Status::Other(_) => "unknown error" }
            }
        }
    };
}

statuses! {
    Perm = 1, 1, "operation not permitted";
    NoEnt = 2, 2, "no such file or directory";
    Intr = 4, 4, "interrupted";
    Io = 5, 5, "input/output error on the server";
    NxIo = 6, 6, "no such device or address";
    TooBig = 7, 7, "argument list too long";
    BadF = 9, 9, "not open for this";
    Again = 11, 11, "resource temporarily unavailable";
    NoMem = 12, 12, "out of memory on the server";
    Access = 13, 13, "permission denied";
    Busy = 16, 16, "device or resource busy";
    Exist = 17, 17, "file exists";
    XDev = 18, 18, "on another file system or outside of the export";
    NotDir = 20, 20, "not a directory";
    IsDir = 21, 21, "is a directory";
    Inval = 22, 22, "invalid argument";
    NFile = 23, 23, "too many open files on the server";
    TxtBsy = 26, 26, "text file busy";
    FBig = 27, 27, "file too large";
    NoSpc = 28, 28, "no space left on device (server disk full)";
    RoFs = 30, 30, "read-only export or file system";
    MLink = 31, 31, "too many links";
    Range = 34, 34, "result does not fit";
    NameTooLong = 63, 36, "file name too long";
    NotEmpty = 66, 39, "directory not empty";
    Loop = 67, 40, "too many levels of symbolic links";
    NoData = 68, 61, "no such attribute";
    DQuot = 69, 122, "disk quota exceeded";
    Stale = 70, 116, "stale handle: the file is gone or was replaced";
    BadHandle = 10001, 116, "bad handle";
    BadCookie = 10003, 22, "bad directory position";
    NotSupp = 10004, 95, "operation not supported";
    ServerFault = 10006, 5, "server failed internally";
    BadType = 10007, 22, "wrong type of file";
    Delay = 10008, 11, "not now";
    Resource = 10018, 23, "server limit reached";
    BadStateId = 10025, 9, "bad open state";
    ChainForm = 15009, 22, "badly formed chain";
    ChainBroken = 15010, 125, "an operation before this one failed";
    BadSession = 15012, 116, "no such session";
    NoCreds = 15013, 1, "no such credential";
    NotAuthorized = 15006, 13, "not authorized";
    BadMessage = 15100, 74, "malformed message";
    SeqMisordered = 15101, 71, "sequence out of order";
    SeqFalseRetry = 15102, 71, "resent request differs from the original";
    OutcomeUnknown = 15103, 5, "the server restarted: outcome of the operation unknown";
    WritesLost = 15104, 5, "unstable writes were lost: the server restarted, or could not write them";
    Version = 15105, 93, "versions of client and server differ";
    BadSlot = 15106, 22, "no such slot";
    /// Between servers' lives: locks are reclaimed first.
    Grace = 10013, 11, "the server waits for clients to reclaim their locks";
    NoGrace = 10033, 5, "too late to reclaim a lock";
    Deadlock = 10045, 35, "would wait for ever (deadlock)";
    LocksLost = 15108, 5, "locks were lost: the server had given the client up";
    AuthFailed = 15107, 13, "authentication failed";
}

impl Status {
    /// From a Linux errno.
    pub fn from_errno(errno: i32) -> Status {
        let plain = |status: &&Status| status.code() < 10_000 && status.errno() == errno;
        match errno {
            14 | 38 => Status::ServerFault, // EFAULT, ENOSYS
            19 => Status::NxIo,             // ENODEV
            24 => Status::NFile,            // EMFILE
            25 | 95 => Status::NotSupp,     // ENOTTY, EOPNOTSUPP
            75 => Status::FBig,             // EOVERFLOW
            _ => Status::ALL.iter().find(plain).copied().unwrap_or(Status::Io),
        }
    }

    /// From what the system said.
    pub fn from_io(error: &std::io::Error) -> Status {
        use std::io::ErrorKind as Kind;
        match (error.raw_os_error(), error.kind()) {
            (Some(errno), _) => Status::from_errno(errno),
            (None, Kind::NotFound) => Status::NoEnt,
            (None, Kind::PermissionDenied) => Status::Access,
            (None, Kind::AlreadyExists) => Status::Exist,
            (None, Kind::InvalidInput) => Status::Inval,
            (None, Kind::Interrupted) => Status::Intr,
            (None, Kind::WouldBlock | Kind::TimedOut) => Status::Again,
            (None, Kind::OutOfMemory) => Status::NoMem,
            (None, Kind::Unsupported) => Status::NotSupp,
            (None, Kind::NotADirectory) => Status::NotDir,
            (None, Kind::IsADirectory) => Status::IsDir,
            (None, Kind::DirectoryNotEmpty) => Status::NotEmpty,
            (None, Kind::StorageFull) => Status::NoSpc,
            (None, Kind::QuotaExceeded) => Status::DQuot,
            (None, Kind::FileTooLarge) => Status::FBig,
            (None, Kind::ReadOnlyFilesystem) => Status::RoFs,
            (None, Kind::StaleNetworkFileHandle) => Status::Stale,
            (None, Kind::InvalidFilename) => Status::NameTooLong,
            _ => Status::Io,
        }
    }

    /// As an error of the system, with the errno that says the same.
    pub fn to_io(self) -> std::io::Error {
        std::io::Error::from_raw_os_error(self.errno())
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Status::Other(code) => write!(f, "unknown error {code}"),
            known => f.write_str(known.text()),
        }
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::Status;

    #[test]
    fn numbers_are_unique_and_survive() {
        for (index, status) in Status::ALL.iter().enumerate() {
            assert_ne!(status.code(), 0);
            assert_eq!(Status::from_code(status.code()), *status);
            assert!(!Status::ALL[index + 1..].iter().any(|other| other.code() == status.code()));
        }
        assert_eq!(Status::from_code(987_654), Status::Other(987_654));
        assert_eq!(Status::Other(987_654).code(), 987_654);
    }

    #[test]
    fn an_errno_comes_back_as_itself() {
        for status in Status::ALL.iter().filter(|status| status.code() < 10_000) {
            assert_eq!(Status::from_errno(status.errno()), *status);
        }
        assert_eq!(Status::from_errno(95), Status::NotSupp);
        assert_eq!(Status::from_errno(24), Status::NFile);
        assert_eq!(Status::from_errno(4242), Status::Io);
    }

    #[test]
    fn an_io_error_keeps_its_errno_or_its_kind() {
        assert_eq!(Status::from_io(&Error::from_raw_os_error(28)), Status::NoSpc);
        assert_eq!(Status::from_io(&Error::from_raw_os_error(18)), Status::XDev);
        assert_eq!(Status::from_io(&Error::from(ErrorKind::NotFound)), Status::NoEnt);
        assert_eq!(Status::from_io(&Error::other("odd")), Status::Io);
        assert_eq!(Status::NoSpc.to_io().raw_os_error(), Some(28));
    }
}
