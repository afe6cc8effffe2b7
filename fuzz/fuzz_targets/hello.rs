//! The first bytes of a captured connection, whole and in parts.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| remora_proxy::fuzz::hello(bytes));
