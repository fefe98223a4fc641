# `make` alone prints what there is to make.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

CACHE ?= $(if $(TOMBOLO_CACHE),$(TOMBOLO_CACHE),$(HOME)/.cache/tombolo)
STATIC_TARGET := x86_64-unknown-linux-musl
STATIC := target/$(STATIC_TARGET)/release/tombolo
CARGO_DENY_VERSION := 0.20.2
CARGO_DENY := $(CACHE)/tools/cargo-deny-$(CARGO_DENY_VERSION)/bin/cargo-deny

# The same packages and features everywhere, so that nothing is built twice.
ALL := --workspace --all-features --locked

# A test program is for control planes when it needs no node, else for clusters.
CONTROL_PLANE_TESTS := crashes discovery exposure lease offloading on_a_real_api_server other_mdns peering reflection search_domain several_peers shadow_pod time_limits
ALL_TESTS := $(basename $(notdir $(wildcard crates/*/tests/*.rs testbed/tests/*.rs))) \
	$(notdir $(patsubst %/main.rs,%,$(wildcard crates/*/tests/*/main.rs testbed/tests/*/main.rs)))
CLUSTER_TESTS := $(filter-out $(CONTROL_PLANE_TESTS),$(ALL_TESTS))

# Clusters need root. What is built is built as the user; only what runs clusters runs as root.
AS_ROOT := scripts/as-root
ON_CLUSTERS := CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER='$(CURDIR)/$(AS_ROOT)'

say = @printf '\n\033[1m%s\033[0m\n' "$(1)"

.PHONY: help
help: ## Print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-20s %s\n", $$1, $$2}'

.PHONY: playground
playground: $(STATIC) ## Start two real clusters on this machine, and say how to use them
	$(STATIC) playground prepare
	$(AS_ROOT) $(STATIC) playground up

.PHONY: test
test: lint test-unit fuzz prepare test-control-plane test-clusters ## Lint, then all tests: pure, fuzzed, on control planes, on whole clusters

.PHONY: test-unit
test-unit: toolchain ## Unit and property tests: no root, no clusters
	$(call say,Unit and property tests)
	cargo test $(ALL) --lib --bins
	cargo test $(ALL) --doc

.PHONY: fuzz
fuzz: toolchain ## What comes from outside, at random, for a minute in all; FUZZ_SECONDS=600 for longer
	$(call say,Fuzz targets)
	TOMBOLO_CACHE='$(CACHE)' scripts/fuzz

.PHONY: test-control-plane
test-control-plane: prepare ## Tests against a real API server and etcd
	$(call say,Tests on real control planes)
	$(ON_CLUSTERS) cargo test $(ALL) $(addprefix --test ,$(CONTROL_PLANE_TESTS)) --no-fail-fast

.PHONY: test-clusters
test-clusters: prepare $(STATIC) ## Tests on whole clusters
	$(call say,Tests on real clusters)
	$(ON_CLUSTERS) TOMBOLO_STATIC='$(CURDIR)/$(STATIC)' cargo test $(ALL) $(addprefix --test ,$(CLUSTER_TESTS)) --no-fail-fast

.PHONY: prepare
prepare: programs ## Build and fetch what clusters are made of (minutes the first time, then nothing)
	$(call say,What clusters are made of)
	target/debug/tombolo playground prepare

.PHONY: lint
lint: $(CARGO_DENY) programs ## Format, clippy, licences and duplicates, generated files, who may depend on whom
	$(call say,Lint)
	cargo fmt --all --check
	cargo clippy $(ALL) --all-targets -- --deny warnings
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	TOMBOLO_CACHE='$(CACHE)' scripts/fuzz --lint
	scripts/dependency-direction
	target/debug/examples/crds --check crates/api/crds
	$(CARGO_DENY) --log-level error check --hide-inclusion-graph bans licenses sources
	$(CARGO_DENY) --log-level error --manifest-path fuzz/Cargo.toml check --hide-inclusion-graph bans licenses sources
	scripts/advisories $(CARGO_DENY)

.PHONY: bench
bench: prepare $(STATIC) ## Measure, and print ratios against something measured in the same run
	$(ON_CLUSTERS) TOMBOLO_STATIC='$(CURDIR)/$(STATIC)' cargo bench --profile dev $(ALL) --bench start --bench first_light --bench discovery
	$(ON_CLUSTERS) TOMBOLO_STATIC='$(CURDIR)/$(STATIC)' cargo bench --locked --package tombolo --bench addresses --bench neighbours

.PHONY: crds
crds: programs ## Write the CRDs in crates/api/crds anew from the Rust types
	target/debug/examples/crds crates/api/crds

.PHONY: image
image: $(STATIC) ## Write the product's container image, target/tombolo.tar
	$(STATIC) image --output target/tombolo.tar

.PHONY: clean
clean: ## Remove all clusters of this machine, and what was built in this checkout
	@for program in $(STATIC) target/debug/tombolo; do \
		if [ -x $$program ]; then $(AS_ROOT) $$program playground down --all; break; fi; \
	done
	cargo clean

.PHONY: toolchain
toolchain:
	@scripts/toolchain

.PHONY: programs
programs: toolchain
	cargo build $(ALL) --bins --examples

# The product is one static program. Cargo knows best whether it is up to date.
.PHONY: $(STATIC)
$(STATIC): toolchain
	cargo build --release --locked --package tombolo --target $(STATIC_TARGET)

$(CARGO_DENY): | toolchain
	$(call say,Build cargo-deny: once)
	cargo install --locked --quiet --root $(CACHE)/tools/cargo-deny-$(CARGO_DENY_VERSION) \
		--target-dir $(CACHE)/tools/build cargo-deny --version $(CARGO_DENY_VERSION)
	rm -rf $(CACHE)/tools/build
