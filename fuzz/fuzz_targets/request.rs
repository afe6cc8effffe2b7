//! What a tunnel is asked for, as the text of its request.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| remora_proxy::fuzz::request(bytes));
