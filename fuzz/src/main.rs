//! Every fuzz target in one program, so that one build does for all. `REMORA_FUZZ_TARGET` names the one to run.
#![no_main]

use std::sync::LazyLock;

type Target = fn(&[u8]);

/// One line for each target: tools/fuzz reads the names here.
#[rustfmt::skip]
const TARGETS: &[(&str, Target)] = &[
    ("archive", remora_engine::fuzz::archive),
    ("capture_host", remora_capture::fuzz::host),
    ("capture_options", remora_capture::fuzz::options),
    ("capture_pod", remora_capture::fuzz::pod),
    ("capture_values", remora_capture::fuzz::values),
    ("certificate", remora_mtls::fuzz::certificate),
    ("challenge", remora_engine::fuzz::challenge),
    ("discovery", remora_proxy::fuzz::discovery),
    ("discovery_requests", remora_xds::fuzz::requests),
    ("dns", remora_proxy::fuzz::dns),
    ("document", remora_engine::fuzz::document),
    ("hello", remora_proxy::fuzz::hello),
    ("inject", remora_inject::fuzz::inject),
    ("layer", remora_engine::fuzz::layer),
    ("netlink", remora_net::fuzz::messages),
    ("policy", remora_proxy::fuzz::policy),
    ("policy_translation", remora_engine::fuzz::policy_translation),
    ("request", remora_proxy::fuzz::request),
    ("review", remora_control::fuzz::review),
    ("spiffe", remora_mtls::fuzz::spiffe),
    ("yaml", remora_pod::yaml::fuzz::round_trip),
];

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("REMORA_FUZZ_TARGET").unwrap_or_default();
    let found = TARGETS.iter().find(|(other, _)| *other == name);
    let Some((_, target)) = found else {
        let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
        eprintln!("REMORA_FUZZ_TARGET={name}: not one of {}", names.join(", "));
        std::process::exit(2);
    };
    *target
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| TARGET(bytes));
