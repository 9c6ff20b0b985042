//! Numbers of operations and outcomes on the wire, one list each.
//!
//! Numbers marked `reserved` belong to operations that this version does not have; a message
//! with one of them is malformed. They stand here so that nobody gives them away.

macro_rules! opcodes {
    ($( $(#[$doc:meta])* $name:ident = $number:literal $($state:ident)?; )*) => {
        $( $(#[$doc])* #[allow(missing_docs)] pub const $name: u16 = $number; )*

        /// An entry of the list of operations.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct Entry {
            /// As in the documentation.
            pub name: &'static str,
            /// On the wire.
            pub number: u16,
            /// Not in this version.
            pub reserved: bool,
        }

        /// All operations, reserved ones too.
        pub const ALL: &[Entry] = &[
            $( Entry { name: stringify!($name), number: $number, reserved: opcodes!(@ $($state)?) }, )*
        ];

        /// The name of an operation's number.
        pub fn name(number: u16) -> Option<&'static str> {
            match number { $( $number => Some(stringify!($name)), )* _ => None }
        }
    };
    (@ reserved) => { true };
    (@) => { false };
}

opcodes! {
    NULL = 1;
    CRED_REGISTER = 2;
    CRED_RELEASE = 3;
    SESSION_STATS = 4;
    SESSION_DESTROY = 5;
    GRANT = 6 reserved;
    SLOT_QUERY = 7;
    RECLAIM_COMPLETE = 8;
    MEM_ADVERTISE = 9 reserved;
    MEM_WITHDRAW = 10 reserved;

    GET_ROOT = 32;
    LOOKUP = 33;
    LOOKUP_PARENT = 34;
    OPEN = 35;
    CLOSE = 36;
    OPEN_DOWNGRADE = 37;
    CREATE = 38;
    LINK = 39;
    REMOVE = 40;
    RENAME = 41;
    READ_DIR = 42;
    READ_LINK = 43;
    VERIFY_HANDLE = 44 reserved;
    SYNC_DIR = 45;

    GET_ATTR = 64;
    SET_ATTR = 65;
    ACCESS = 66;
    STAT_FS = 67;
    GET_XATTR = 68;
    SET_XATTR = 69;
    LIST_XATTR = 70;
    REMOVE_XATTR = 71;
    VERIFY = 72 reserved;
    NVERIFY = 73 reserved;
    GET_ACL = 74 reserved;
    SET_ACL = 75 reserved;
    GET_QUOTA = 76 reserved;

    READ = 96;
    WRITE = 97;
    APPEND = 98;
    COMMIT = 99;
    SYNC_FS = 100;
    FALLOCATE = 101;
    SEEK = 102;
    ADVISE = 103;
    BATCH = 104 reserved;
    BATCH_HURRY = 105 reserved;
    BATCH_CANCEL = 106 reserved;
    EXTENTS = 107;
    COPY_RANGE = 108;
    CLONE_RANGE = 109;
    COPY_REMOTE = 110 reserved;
    REFS_GET = 111;
    CACHE_QUERY = 112;

    LOCK = 128;
    LOCK_TEST = 129;
    UNLOCK = 130;
    LOCK_CANCEL = 131;
    LOCK_ABORT = 132 reserved;
    OWNER_RELEASE = 133;
    LEASE_GET = 134 reserved;
    LEASE_RETURN = 135 reserved;
    LEASE_PURGE = 136 reserved;
    FENCE_GET = 137 reserved;
    FENCE_SET = 138 reserved;

    LAYOUT_GET = 160 reserved;
    LAYOUT_RETURN = 161 reserved;
    LAYOUT_COMMIT = 162 reserved;
    DEVICE_INFO = 163 reserved;
    LAYOUT_REPORT = 164 reserved;

    CB_NULL = 192;
    CB_GRANT = 193 reserved;
    CB_BATCH_DONE = 194 reserved;
    CB_RECALL = 195 reserved;
    CB_RECALL_ANY = 196 reserved;
    CB_GETATTR = 197 reserved;
    CB_LOCK = 198;
    CB_SLOTS = 199 reserved;
    CB_NOTIFY_DIR = 200 reserved;
    CB_REF_REVOKE = 201 reserved;
    CB_EVENT = 202 reserved;
}

/// Numbers of outcomes. 0 stands with a failure, which has no body.
pub mod outcome {
    #![allow(missing_docs)] // named after the variants of `Outcome`
    pub const NONE: u16 = 0;
    pub const DONE: u16 = 1;
    pub const FOUND: u16 = 2;
    pub const OPENED: u16 = 3;
    pub const CLOSED: u16 = 4;
    pub const ATTRIBUTES: u16 = 5;
    pub const GRANTED: u16 = 6;
    pub const FILE_SYSTEM: u16 = 7;
    pub const DATA: u16 = 8;
    pub const READ: u16 = 9;
    pub const WRITTEN: u16 = 10;
    pub const COMMITTED: u16 = 11;
    pub const OFFSET: u16 = 12;
    pub const CREDENTIAL: u16 = 13;
    pub const STATS: u16 = 14;
    pub const COPIED: u16 = 15;
    pub const LOCK: u16 = 16;
    pub const CONFLICT: u16 = 17;
    pub const REQUEST_OUTCOME: u16 = 18;
    pub const ADVISED: u16 = 19;
    pub const CACHED: u16 = 20;
    pub const REFS: u16 = 21;
    pub const NAMED: u16 = 22;
    /// The largest number.
    pub const LAST: u16 = NAMED;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_unique() {
        for (index, entry) in ALL.iter().enumerate() {
            for other in &ALL[index + 1..] {
                assert_ne!(entry.number, other.number, "{} and {}", entry.name, other.name);
                assert_ne!(entry.name, other.name);
            }
            assert_eq!(name(entry.number), Some(entry.name));
            assert_ne!(entry.number, 0);
        }
        assert_eq!(name(0), None);
    }

    #[test]
    fn what_this_version_leaves_out_keeps_its_number() {
        let reserved =
            |start: &str| ALL.iter().filter(|e| e.reserved && e.name.starts_with(start)).count();
        for start in ["LEASE_", "LOCK_ABORT", "BATCH", "COPY_REMOTE"] {
            assert!(reserved(start) > 0, "{start}");
        }
        for start in ["COPY_REMOTE", "LAYOUT_", "CB_"] {
            assert!(reserved(start) > 0, "{start}");
        }
        assert_eq!(ALL.iter().filter(|e| !e.reserved).count(), 48);
    }
}
