//! Bytes as a question and as an answer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| remora_proxy::fuzz::dns(bytes));
