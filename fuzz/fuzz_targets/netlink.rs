//! Bytes through the reading of netlink messages.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| remora_net::fuzz::messages(bytes));
