//! Compiles `proto/ipam.proto`: always the messages and the descriptors, the service stubs with the
//! feature `grpc`.

use std::{error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto/ipam.proto");
    let stubs = std::env::var_os("CARGO_FEATURE_GRPC").is_some();
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true).open_file("ipam.proto")?;
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    fs::write(out.join("ipam.descriptors"), compiler.encode_file_descriptor_set())?;
    tonic_prost_build::configure()
        .build_client(stubs)
        .build_server(stubs)
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
