//! Bytes as an admission review, through both webhooks.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| remora_control::fuzz::review(bytes));
