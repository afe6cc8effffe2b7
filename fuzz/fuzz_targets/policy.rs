//! Policies through reading and matching.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| remora_proxy::fuzz::policy(bytes));
