//! Compiles the protocol files without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = [
        "proto/discovery.proto",
        "proto/workload.proto",
        "proto/authorization.proto",
        "proto/certificate.proto",
    ];
    for file in files {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
