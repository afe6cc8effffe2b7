//! Bytes as manifests through the injector, in every mode.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| remora_inject::fuzz::inject(bytes));
