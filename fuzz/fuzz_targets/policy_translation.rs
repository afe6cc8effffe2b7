//! Istio's policies, translated and enforced: a defect in a policy never lets more in.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| remora_engine::fuzz::policy_translation(bytes));
