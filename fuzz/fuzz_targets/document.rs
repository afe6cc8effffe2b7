//! Bytes as names, digests, manifests, configurations and credentials of images.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| remora_engine::fuzz::document(bytes));
