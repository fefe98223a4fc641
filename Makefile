# `make` alone prints what there is to make.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

# Nothing is compiled twice in a fresh checkout of CI.
ifdef CI
export CARGO_INCREMENTAL := 0
endif

CACHE ?= $(if $(TOMBOLO_CACHE),$(TOMBOLO_CACHE),$(HOME)/.cache/tombolo)
STATIC_TARGET := x86_64-unknown-linux-musl
STATIC := target/$(STATIC_TARGET)/release/tombolo
# Built in a quarter of the time; for the image that tests install in clusters.
TEST_STATIC := target/$(STATIC_TARGET)/test-image/tombolo
CARGO_DENY_VERSION := 0.20.2
CARGO_DENY := $(CACHE)/tools/cargo-deny-$(CARGO_DENY_VERSION)/bin/cargo-deny

# The same packages and features everywhere, so that nothing is built twice.
ALL := --workspace --all-features --locked

# A test program is for control planes when it needs no node, else for clusters. The longest come
# first: they run side by side. ALONE are those that compare the whole machine before and after.
CONTROL_PLANE_TESTS := auth crashes discovery exposure lease offloading on_a_real_api_server other_mdns peering reflection search_domain several_peers shadow_pod time_limits
FIRST := first_light by_hand auth meeting search_domain faults
ALONE := leaves_nothing playground
ALL_TESTS := $(basename $(notdir $(wildcard crates/*/tests/*.rs testbed/tests/*.rs))) \
	$(notdir $(patsubst %/main.rs,%,$(wildcard crates/*/tests/*/main.rs testbed/tests/*/main.rs)))
CLUSTER_TESTS := $(filter-out $(CONTROL_PLANE_TESTS),$(ALL_TESTS))
LANES ?= 3

# Clusters need root. What is built is built as the user; only what runs clusters runs as root.
AS_ROOT := scripts/as-root
RUNNER := CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER
ON_CLUSTERS := $(RUNNER)='$(CURDIR)/$(AS_ROOT) $(CURDIR)/scripts/run-test'

# Test programs in the order in which to start them; behind `--` those that run alone.
in_order = $(filter $(1),$(FIRST)) $(filter-out $(FIRST) $(ALONE),$(1)) -- $(filter $(1),$(ALONE))

say = @printf '\n\033[1m%s\033[0m\n' "$(1)"

.PHONY: help
help: ## Print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-20s %s\n", $$1, $$2}'

.PHONY: playground
playground: $(STATIC) ## Start two real clusters on this machine, and say how to use them
	$(STATIC) playground prepare
	$(AS_ROOT) $(STATIC) playground up

.PHONY: test
test: ## Lint, then all tests: unit, fuzz, control planes, whole clusters
	@rm -rf target/test-run
	@trap scripts/test-times EXIT; \
	scripts/stage 'Restore dependencies' $(MAKE) dependencies; \
	scripts/stage 'Lint' $(MAKE) lint; \
	scripts/stage 'Build tests' $(MAKE) build-tests; \
	scripts/stage 'Prepare clusters' $(MAKE) prepare; \
	scripts/stage 'Tests' scripts/side-by-side $(LANES) $(call in_order,unit doc fuzz $(ALL_TESTS))

.PHONY: test-long
test-long: image ## Long tests: ten minutes of fuzzing, many property-test cases, image size
	FUZZ_SECONDS=$${FUZZ_SECONDS:-600} scripts/fuzz
	PROPTEST_CASES=$${PROPTEST_CASES:-25600} cargo test --release --locked --package tombolo-core --lib

.PHONY: test-unit
test-unit: toolchain run-unit run-doc ## Unit and property tests: no root, no clusters

.PHONY: fuzz
fuzz: toolchain run-fuzz ## Fuzz the parsers of external input, the same inputs each time; FUZZ_SECONDS=600 for new ones

.PHONY: test-control-plane
test-control-plane: prepare ## Tests against a real API server and etcd
	scripts/side-by-side $(LANES) $(call in_order,$(CONTROL_PLANE_TESTS))

.PHONY: test-clusters
test-clusters: prepare $(TEST_STATIC) ## Tests on whole clusters
	scripts/side-by-side $(LANES) $(call in_order,$(CLUSTER_TESTS))

# What scripts/side-by-side runs: one test program, which is built and has what it needs.
.PHONY: run-unit run-doc run-fuzz
run-unit:
	$(RUNNER)='$(CURDIR)/scripts/run-test' cargo test $(ALL) --lib --bins
run-doc:
	cargo test $(ALL) --doc
run-fuzz:
	scripts/fuzz
run-%:
	$(ON_CLUSTERS) TOMBOLO_STATIC='$(CURDIR)/$(TEST_STATIC)' cargo test $(ALL) --test $*

.PHONY: dependencies
dependencies: toolchain
	TOMBOLO_CACHE='$(CACHE)' scripts/dependencies restore

.PHONY: build-tests
build-tests: $(TEST_STATIC)
	cargo test --quiet $(ALL) --no-run
	scripts/fuzz --build
	TOMBOLO_CACHE='$(CACHE)' scripts/dependencies save

.PHONY: prepare
prepare: programs ## Build and fetch what clusters are made of (minutes the first time, then nothing)
	target/debug/tombolo playground prepare

.PHONY: lint
lint: $(CARGO_DENY) programs ## Format, clippy, licences and duplicates, generated files, dependency direction
	cargo fmt --all --check
	cargo clippy $(ALL) --all-targets -- --deny warnings
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	scripts/fuzz --lint
	scripts/dependency-direction
	target/debug/examples/crds --check crates/api/crds
	$(CARGO_DENY) --log-level error check --hide-inclusion-graph bans licenses sources
	$(CARGO_DENY) --log-level error --manifest-path fuzz/Cargo.toml check --hide-inclusion-graph bans licenses sources
	scripts/advisories $(CARGO_DENY)

.PHONY: bench
bench: prepare $(STATIC) ## Run all benchmarks; ratios are to a reference measured in the same run
	$(ON_CLUSTERS) TOMBOLO_STATIC='$(CURDIR)/$(STATIC)' cargo bench --profile dev $(ALL) --bench start --bench first_light --bench discovery
	$(ON_CLUSTERS) TOMBOLO_STATIC='$(CURDIR)/$(STATIC)' cargo bench --locked --package tombolo --bench addresses --bench neighbours

.PHONY: crds
crds: programs ## Write the CRDs in crates/api/crds anew from the Rust types
	target/debug/examples/crds crates/api/crds

.PHONY: image
image: $(STATIC) ## Write the product's container image, target/tombolo.tar
	$(STATIC) image --output target/tombolo.tar
	@size=$$(stat -c %s target/tombolo.tar); [ $$size -lt 40000000 ] || { \
		echo "target/tombolo.tar has $$size bytes, more than 40 MB: look for a new large dependency" >&2; exit 1; }

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

.PHONY: $(TEST_STATIC)
$(TEST_STATIC): toolchain
	cargo build --quiet --profile test-image --locked --package tombolo --target $(STATIC_TARGET)

$(CARGO_DENY): | toolchain
	$(call say,Build cargo-deny: once)
	cargo install --locked --quiet --root $(CACHE)/tools/cargo-deny-$(CARGO_DENY_VERSION) \
		--target-dir $(CACHE)/tools/build cargo-deny --version $(CARGO_DENY_VERSION)
	rm -rf $(CACHE)/tools/build
