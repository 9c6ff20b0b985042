#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dafs_fuzz::message_headers(bytes));
