//! What a handle says, and that this server said it.
//!
//! ```text
//!  0      kind: 1 kernel handle, 2 number in this process's table
//!  1      type of the kernel handle
//!  2      its bytes
//!  3..11  file system (f_fsid), or the table's epoch
//! 11..15  mount (0: that of the root), or 0
//! 15..55  kernel handle, or the number
//! 55..63  MAC over the rest and the export's root
//! 63      always 0: whoever serves several stores marks handles there
//! ```

use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use dafs_protocol::{FileHandle, Status};
use siphasher::sip128::SipHasher24;

use super::sys::KernelHandle;

const KERNEL: u8 = 1;
const TABLE: u8 = 2;
const HANDLE_AT: usize = 15;
const MAC_AT: usize = 55;
const MAC_END: usize = 63;
/// Bytes of a kernel handle that fit.
const KERNEL_BYTES_MAX: usize = MAC_AT - HANDLE_AT;

/// The key under which handles are authenticated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HandleKey(pub [u8; 16]);

impl std::fmt::Debug for HandleKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HandleKey(..)")
    }
}

impl HandleKey {
    /// A new one: handles made with it end with the process.
    ///
    /// # Panics
    /// When the system has no randomness.
    pub fn random() -> HandleKey {
        let mut key = [0; 16];
        getrandom::fill(&mut key).expect("the system has randomness");
        HandleKey(key)
    }
}

/// Where a server keeps its state: `/var/lib/dafs` for root, else `$XDG_STATE_HOME/dafs` or
/// `~/.local/state/dafs`.
pub fn state_dir() -> Option<PathBuf> {
    if super::sys::effective_ids().0 == 0 {
        return Some(PathBuf::from("/var/lib/dafs"));
    }
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .map(|state| state.join("dafs"))
}

/// The key in `dir/handle.key`, made (with the directory) where there is none.
///
/// # Errors
/// The file cannot be read or made, or others may read it.
pub fn load_or_create_key(dir: &Path) -> std::io::Result<HandleKey> {
    let path = dir.join("handle.key");
    match load_key(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        other => return other,
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let mut name = [0; 8];
    getrandom::fill(&mut name).map_err(|error| std::io::Error::other(error.to_string()))?;
    let new = dir.join(format!("handle.key.{:016x}", u64::from_ne_bytes(name)));
    let mut file =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(&HandleKey::random().0)?;
    file.sync_all()?;
    // A link does not replace: where two servers start at once, one key wins and both use it.
    let linked = std::fs::hard_link(&new, &path);
    std::fs::remove_file(&new)?;
    match linked {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        _ => load_key(&path),
    }
}

fn load_key(path: &Path) -> std::io::Result<HandleKey> {
    let file = std::fs::File::open(path)?;
    let meta = file.metadata()?;
    let refused = |why: &str| {
        Err(std::io::Error::new(
            std::io::ErrorKind::PermissionDenied,
            format!("{}: {why}", path.display()),
        ))
    };
    if meta.uid() != super::sys::effective_ids().0 {
        return refused("somebody else's file");
    }
    if meta.mode() & 0o077 != 0 {
        return refused("others may read it: chmod 600");
    }
    let mut bytes = Vec::new();
    file.take(17).read_to_end(&mut bytes)?;
    match <[u8; 16]>::try_from(bytes) {
        Ok(key) => Ok(HandleKey(key)),
        Err(_) => refused("not a key of 16 bytes"),
    }
}

/// Differs from handle to handle of one inode number, as what it names does; `None`: the handle is
/// a place in a table.
pub(super) fn generation(handle: &FileHandle) -> Option<u64> {
    let mut own = *handle;
    // Not through which mount it was seen.
    own.0[3..HANDLE_AT].fill(0);
    own.0[MAC_AT..].fill(0);
    (own.0[0] == KERNEL).then(|| SipHasher24::new().hash(&own.0).h1)
}

/// Of what tells file systems apart; stays the same from version to version.
pub(super) fn digest(uuid: &[u8; 16], id: u64) -> u64 {
    let mut bytes = [0; 24];
    bytes[..16].copy_from_slice(uuid);
    bytes[16..].copy_from_slice(&id.to_le_bytes());
    SipHasher24::new().hash(&bytes).h1
}

/// What an authentic handle names.
#[derive(Debug, Clone, Copy)]
pub(super) enum Named {
    /// In the file system `fs`, seen through `mount`.
    Kernel { fs: u64, mount: u32, handle: KernelHandle },
    /// In the table of the process that had this epoch.
    Table { epoch: u64, number: u64 },
}

/// Makes and checks handles of one export.
pub(super) struct Sealer {
    hasher: SipHasher24,
    export: [u8; 16],
}

impl Sealer {
    /// `export` tells exports under one key apart.
    pub(super) fn new(key: HandleKey, export: [u8; 16]) -> Sealer {
        Sealer { hasher: SipHasher24::new_with_key(&key.0), export }
    }

    /// `None`: this kernel handle is too long, the table has to do.
    pub(super) fn kernel(&self, fs: u64, mount: u32, handle: &KernelHandle) -> Option<FileHandle> {
        let bytes = handle.bytes();
        if bytes.is_empty() || bytes.len() > KERNEL_BYTES_MAX {
            return None;
        }
        let (kind, len) = (u8::try_from(handle.kind).ok()?, u8::try_from(bytes.len()).ok()?);
        Some(self.seal(&[&[KERNEL, kind, len], &fs.to_le_bytes(), &mount.to_le_bytes(), bytes]))
    }

    pub(super) fn table(&self, epoch: u64, number: u64) -> FileHandle {
        let head = [TABLE, 0, 0];
        self.seal(&[&head, &epoch.to_le_bytes(), &[0; 4], &number.to_le_bytes()])
    }

    fn seal(&self, parts: &[&[u8]]) -> FileHandle {
        let mut handle = FileHandle::default();
        let bytes = parts.iter().copied().flatten();
        for (slot, byte) in handle.0.iter_mut().take(MAC_AT).zip(bytes) {
            *slot = *byte;
        }
        let mac = self.mac(&handle);
        for (slot, byte) in handle.0.iter_mut().skip(MAC_AT).zip(mac) {
            *slot = byte;
        }
        handle
    }

    fn mac(&self, handle: &FileHandle) -> [u8; 8] {
        let mut message = [0; MAC_AT + 16];
        let (head, tail) = message.split_at_mut(MAC_AT);
        head.copy_from_slice(&handle.0[..MAC_AT]);
        tail.copy_from_slice(&self.export);
        self.hasher.hash(&message).h1.to_le_bytes()
    }

    /// # Errors
    /// BADHANDLE: not made by this server for this export.
    pub(super) fn open(&self, handle: &FileHandle) -> Result<Named, Status> {
        let claimed = <[u8; 8]>::try_from(&handle.0[MAC_AT..MAC_END]).unwrap_or_default();
        let mac = u64::from_le_bytes(self.mac(handle));
        // One comparison of words: time tells nothing of where they differ.
        if u64::from_le_bytes(claimed) != mac || handle.0[MAC_END] != 0 {
            return Err(Status::BadHandle);
        }
        self.parse(handle).ok_or(Status::BadHandle)
    }

    fn parse(&self, handle: &FileHandle) -> Option<Named> {
        let bytes = &handle.0;
        let long = |at: usize| {
            let bytes = bytes.get(at..at + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        match bytes[0] {
            KERNEL => {
                let len = usize::from(bytes[2]);
                let own = bytes.get(HANDLE_AT..MAC_AT)?.get(..len)?;
                let mount = u32::from_le_bytes(bytes.get(11..15)?.try_into().ok()?);
                let handle = KernelHandle::new(bytes[1].into(), own)?;
                Some(Named::Kernel { fs: long(3)?, mount, handle })
            }
            TABLE => Some(Named::Table { epoch: long(3)?, number: long(HANDLE_AT)? }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_of_one_key_and_export() {
        let key = HandleKey::random();
        let sealer = Sealer::new(key, [1; 16]);
        let kernel = KernelHandle::new(0x81, &[7; 20]).expect("fits");
        let handle = sealer.kernel(5, 6, &kernel).expect("fits");
        assert!(matches!(
            sealer.open(&handle),
            Ok(Named::Kernel { fs: 5, mount: 6, handle }) if handle.bytes() == [7; 20]
        ));
        assert_eq!(generation(&handle), generation(&sealer.kernel(6, 7, &kernel).expect("fits")));
        let later = KernelHandle::new(0x81, &[8; 20]).expect("fits");
        assert_ne!(generation(&handle), generation(&sealer.kernel(5, 6, &later).expect("fits")));
        let table = sealer.table(9, 10);
        assert_eq!(generation(&table), None);
        assert!(matches!(sealer.open(&table), Ok(Named::Table { epoch: 9, number: 10 })));
        for other in [Sealer::new(key, [2; 16]), Sealer::new(HandleKey::random(), [1; 16])] {
            assert!(matches!(other.open(&handle), Err(Status::BadHandle)));
        }
        for place in 0..64 {
            let mut forged = handle;
            forged.0[place] ^= 0x10;
            assert!(matches!(sealer.open(&forged), Err(Status::BadHandle)), "byte {place}");
        }
        let long = KernelHandle::new(1, &[7; 41]).expect("the kernel may have such");
        assert_eq!(sealer.kernel(5, 6, &long), None);
    }

    #[test]
    fn a_key_is_made_once_and_kept_private() {
        let dir = std::env::temp_dir().join(format!("dafs-key-{}", std::process::id()));
        let key = load_or_create_key(&dir).expect("made");
        assert_eq!(load_or_create_key(&dir).expect("read"), key);
        let path = dir.join("handle.key");
        let mode = |mode| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&path, mode).expect("chmod");
        };
        assert_eq!(std::fs::metadata(&path).expect("key").mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(&dir).expect("dir").count(), 1, "no leftovers");
        mode(0o644);
        assert!(load_or_create_key(&dir).is_err());
        mode(0o600);
        std::fs::write(&path, b"short").expect("write");
        assert!(load_or_create_key(&dir).is_err());
        std::fs::remove_dir_all(&dir).expect("remove");
    }
}
