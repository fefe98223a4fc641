# The same image as `make image` writes. Run `make image` first: it builds the binary copied here.
FROM scratch
COPY target/x86_64-unknown-linux-musl/release/tombolo /tombolo
ENTRYPOINT ["/tombolo"]
