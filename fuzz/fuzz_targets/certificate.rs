//! Bytes as certificates, keys and files of them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| remora_mtls::fuzz::certificate(bytes));
