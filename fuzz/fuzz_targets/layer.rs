//! Bytes as a layer, unpacked on top of another.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| remora_engine::fuzz::layer(bytes));
