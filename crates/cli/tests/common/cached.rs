//! A file that is read again and again, by sessions that read the server's cache.

use std::sync::LazyLock;

use dafs_client::{File, Session};

use super::{Server, open_url};

/// Of the file that [`serving`] makes.
pub const BYTES: usize = 8 << 20;
pub const PAGE: usize = 4096;

pub fn contents() -> &'static [u8] {
    static CONTENTS: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let words = (0..BYTES as u32 / 4).map(|word| word.wrapping_mul(0x9e37_79b9));
        words.flat_map(u32::to_le_bytes).collect()
    });
    &CONTENTS
}

/// A server of a file `file` that is on disk.
pub fn serving(options: &[&str]) -> Server {
    let server = Server::start(&[&["--arena", "64m"], options].concat());
    std::fs::write(server.file("file"), contents()).expect("written");
    std::fs::File::open(server.file("file")).and_then(|file| file.sync_all()).expect("sync");
    server
}

/// That file, by a session of its own.
pub fn open(server: &Server, options: &str) -> (Session, File) {
    open_url(&server.at(&format!("file?{options}")))
}

/// What is there of so many bytes.
pub fn read(file: &File, offset: usize, len: usize) -> Vec<u8> {
    let mut into = vec![0xee; len];
    let bytes = file.read_at(&mut into, offset as u64).expect("read");
    into.truncate(bytes);
    into
}

/// Numbers that look random, the same in every run.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}
