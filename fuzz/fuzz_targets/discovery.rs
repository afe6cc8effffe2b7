//! Messages of discovery through the reading into the tables.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| remora_proxy::fuzz::discovery(bytes));
