#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dafs_fuzz::tcp_frames(bytes));
