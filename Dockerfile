# The image that `make image` writes, for whoever has Docker: `make image` builds the program first.
FROM scratch
COPY target/x86_64-unknown-linux-musl/release/tombolo /tombolo
ENTRYPOINT ["/tombolo"]
