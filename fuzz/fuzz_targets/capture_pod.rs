//! Bytes through the reading of capture pod: flags, values, facts or manifests.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| remora_capture::fuzz::pod(bytes));
