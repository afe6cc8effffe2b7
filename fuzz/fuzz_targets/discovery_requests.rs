//! Messages of a client to the sending side of discovery.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| remora_xds::fuzz::requests(bytes));
