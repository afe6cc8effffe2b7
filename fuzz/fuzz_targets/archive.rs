//! Bytes as an archive of images.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| remora_engine::fuzz::archive(bytes));
