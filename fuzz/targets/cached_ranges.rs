#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dafs_fuzz::cached_ranges(bytes));
