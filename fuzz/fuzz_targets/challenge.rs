//! A registry, redirects, and what the last host wants to see.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| remora_engine::fuzz::challenge(bytes));
