//! Compiles `proto/ipam.proto`: the messages always, the service stubs with the feature `grpc`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto/ipam.proto");
    let stubs = std::env::var_os("CARGO_FEATURE_GRPC").is_some();
    let descriptors = protox::compile(["ipam.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .build_client(stubs)
        .build_server(stubs)
        .compile_fds(descriptors)?;
    Ok(())
}
