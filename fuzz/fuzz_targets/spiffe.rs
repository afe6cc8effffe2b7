//! Texts as identities.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| remora_mtls::fuzz::spiffe(bytes));
