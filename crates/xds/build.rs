//! Compiles the protocol files without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = [
        "proto/discovery.proto",
        "proto/workload.proto",
        "proto/authorization.proto",
        "proto/certificate.proto",
        "proto/tls.proto",
    ];
    // Services that speak of another package's messages are compiled apart, and before it: each run writes a file
    // for every package it has seen.
    let services = ["proto/secret.proto"];
    for file in files.iter().chain(&services) {
        println!("cargo:rerun-if-changed={file}");
    }
    tonic_prost_build::configure()
        .extern_path(".envoy.service.discovery.v3", "crate::proto::discovery")
        .compile_fds(protox::compile(services, ["proto"])?)?;
    tonic_prost_build::configure().compile_fds(protox::compile(files, ["proto"])?)?;
    Ok(())
}
