//! Bytes through splitting, reading, writing and reading again.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| remora_pod::yaml::fuzz::round_trip(bytes));
