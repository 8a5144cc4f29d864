# `make demo` and `make test` install what they require: a newcomer runs nothing else.

.DEFAULT_GOAL := help
SHELL := /bin/bash -o pipefail
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
CARGO_BUILD := cargo build
BUILT := target/release
# Tests send signals. Under nohup, or behind a script that does not wait, they would be ignored.
WITH_SIGNALS := env --default-signal=HUP,INT,QUIT
# Cargo unites the features of what it builds at once, and would build the crates below again for other sets.
BUILD_FOR_TESTS := cargo build --workspace --all-targets
# Most tests wait for what other processes do, so more of them than cores run at a time.
WAITING := env RUST_TEST_THREADS=4
.PHONY: help setup package-tools build programs pages install deb rpm demo demo-fleet test \
	test-python test-free-threaded test-frameworks test-frameworks-matrix wheel wheel-free-threaded \
	wheel-aarch64 packages-aarch64 playground-wheel check-wheel try-playground test-wheel reference \
	repository reproducible lint-packages test-packages test-booted test-measured fuzz soak schedules \
	lint bench bench-short short-programs audit clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 24

setup: ## Install what building and testing require (with sudo where that takes root)
	@scripts/setup

build: programs pages ## Build the release programs, libpfo, manual pages and completions
	$(CARGO_BUILD) --release --lib -p pfo-shim

# What prints the pages of the daemons is optimised for nobody.
pages: programs
	rm -rf target/pages
	cargo build --quiet --workspace --example manual --example agent-manual
	target/debug/examples/manual target/pages/man
	target/debug/examples/agent-manual target/pages/man
	$(BUILT)/pfoctl generate man target/pages/man
	$(BUILT)/pfoctl generate completions target/pages/completions
	sed 's|@version@|$(VERSION)|' packaging/manual/pfo.7 > target/pages/man/pfo.7

programs: setup
	$(CARGO_BUILD) --release -p pfod -p pfo-agent -p pfoctl -p pfo-sim

install: ## Install what `make build` built, under PREFIX (and DESTDIR)
	install -D -s -m 755 $(BUILT)/pfod $(DESTDIR)$(PREFIX)/sbin/pfod
	install -D -s -m 755 $(BUILT)/pfo-agent $(DESTDIR)$(PREFIX)/sbin/pfo-agent
	install -D -s -m 755 $(BUILT)/pfoctl $(DESTDIR)$(PREFIX)/bin/pfoctl
	install -D -s -m 644 $(BUILT)/libpfo.so $(DESTDIR)$(LIBDIR)/libpfo.so.0
	ln -sf libpfo.so.0 $(DESTDIR)$(LIBDIR)/libpfo.so
	install -D -m 644 shim/include/pfo.h $(DESTDIR)$(PREFIX)/include/pfo.h
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig
	sed -e 's|@prefix@|$(PREFIX)|' -e 's|@libdir@|$(LIBDIR)|' \
		-e 's|@includedir@|$${prefix}/include|' -e 's|@version@|$(VERSION)|' shim/pfo.pc.in \
		> $(DESTDIR)$(LIBDIR)/pkgconfig/pfo.pc
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	for unit in systemd/*.service systemd/*.socket; do \
		sed -e 's|/usr/sbin/|$(PREFIX)/sbin/|' -e 's|/usr/bin/|$(PREFIX)/bin/|' $$unit \
			> $(DESTDIR)$(PREFIX)/lib/systemd/system/$${unit##*/} || exit 1; \
	done
	install -D -m 644 systemd/pfod.preset $(DESTDIR)$(PREFIX)/lib/systemd/system-preset/50-pfod.preset
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/catalog
	install -m 644 systemd/*.catalog $(DESTDIR)$(PREFIX)/lib/systemd/catalog
	install -D -m 644 systemd/pfod.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/pfod.conf
	install -D -m 644 systemd/pfod.tmpfiles $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/pfod.conf
	for section in 1 5 7 8; do \
		install -d $(DESTDIR)$(PREFIX)/share/man/man$$section && \
		install -m 644 target/pages/man/*.$$section $(DESTDIR)$(PREFIX)/share/man/man$$section || exit 1; \
	done
	install -D -m 644 target/pages/completions/pfoctl.bash \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions/pfoctl
	install -D -m 644 target/pages/completions/_pfoctl \
		$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_pfoctl
	install -D -m 644 target/pages/completions/pfoctl.fish \
		$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/pfoctl.fish
	install -D -m 644 packaging/grafana/pfo.json $(DESTDIR)$(PREFIX)/share/pfo/grafana/pfo.json
	install -D -m 644 packaging/prometheus/pfo.rules.yml \
		$(DESTDIR)$(PREFIX)/share/pfo/prometheus/pfo.rules.yml
	install -D -m 644 packaging/prometheus/pfo-agent-metrics.socket \
		$(DESTDIR)$(PREFIX)/share/pfo/pfo-agent-metrics.socket
	for file in daemon/pfod.toml agent/agent.toml; do \
		test -e $(DESTDIR)/etc/pfo/$${file##*/} || \
			install -D -m 644 $$file $(DESTDIR)/etc/pfo/$${file##*/} || exit 1; \
	done

# What is packaged carries the list of the crates that it was built from, and runs with the C library of
# RHEL 8 and whatever is newer: zig links with the symbols of old ones. It writes no build id by itself.
GLIBC := 2.28
TARGET := $(shell uname -m)-unknown-linux-gnu
deb rpm packages-aarch64: CARGO_BUILD := env PATH="$(CURDIR)/.venv/bin:$$PATH" RUSTFLAGS=-Clink-arg=-Wl,--build-id=sha1 \
	cargo auditable zigbuild --target $(TARGET).$(GLIBC)
deb rpm packages-aarch64: BUILT := target/$(TARGET)/release

package-tools:
	@scripts/setup --packages
	@scripts/setup --wheel

deb: package-tools build wheel ## Build Debian packages, into target/debian
	@scripts/package-deb $(TARGET)

rpm: package-tools build wheel ## Build rpm packages, into target/rpm
	@scripts/package-rpm $(TARGET)

packages-aarch64: package-tools pages ## Build the packages for aarch64 as well, and run them emulated, as root (takes minutes)
	@scripts/setup --booted
	@scripts/setup --aarch64
	GLIBC=$(GLIBC) scripts/build-packages-aarch64
	scripts/check-packages-aarch64

repository: deb rpm ## Make a signed repository for apt and dnf of the packages, with KEY=FINGERPRINT of gpg
	@scripts/setup --repository
	@scripts/package-repository $(KEY)

reproducible: ## Build the packages of the last commit twice, and compare them (takes half an hour)
	@scripts/check-reproducible

demo: programs ## Watch four simulated GPUs save energy (takes a minute)
	@demo/run

demo-fleet: programs ## Watch a pipeline over four simulated nodes be tuned (takes a few minutes)
	@demo/fleet

test: setup ## Run every test
	$(BUILD_FOR_TESTS)
	$(WITH_SIGNALS) $(WAITING) scripts/run-tests 2 --workspace --lib --bins --tests --examples
	cargo test --workspace --doc
	@$(MAKE) --no-print-directory test-python

test-python: setup ## Test the Python package (part of `make test`)
	$(BUILD_FOR_TESTS)
	VIRTUAL_ENV=$(CURDIR)/.venv .venv/bin/maturin develop --quiet -m shim/python/Cargo.toml
	cd shim/python && $(CURDIR)/.venv/bin/mypy && \
		$(CURDIR)/.venv/bin/stubtest --allowlist stubtest-allowlist --mypy-config-file pyproject.toml pfo_gpu
	cd playground && $(CURDIR)/.venv/bin/python -m mypy --strict -p pfo_gpu_playground
	@$(MAKE) --no-print-directory reference
	cd shim/python && $(WITH_SIGNALS) $(CURDIR)/.venv/bin/pytest -q

test-free-threaded: wheel-free-threaded ## Test the wheels for CPython without a GIL, which is built from source (takes minutes)
	$(BUILD_FOR_TESTS)
	$(WITH_SIGNALS) scripts/test-free-threaded

test-frameworks: setup ## Test the Python package with real PyTorch, DeepSpeed and Megatron-Core (installs 5 GB)
	@scripts/setup --frameworks
	$(BUILD_FOR_TESTS)
	.venv/bin/maturin build --quiet -m shim/python/Cargo.toml -o target/frameworks/wheels
	target/frameworks/bin/pip install --quiet --no-index --no-deps --force-reinstall \
		--find-links target/frameworks/wheels pfo-gpu
	cd shim/python && $(WITH_SIGNALS) $(CURDIR)/target/frameworks/bin/pytest -q tests/frameworks

test-frameworks-matrix: wheel ## Test the wheel with the two newest releases of every framework (installs 12 GB)
	$(BUILD_FOR_TESTS)
	$(WITH_SIGNALS) scripts/frameworks-matrix

wheel: setup ## Build the wheel (manylinux_2_17, CPython 3.9 and later) and the sdist, into target/wheels
	@scripts/setup --wheel
	@scripts/build-wheel

# Not part of `wheel`: each is linked for a minute.
wheel-free-threaded: wheel ## Build these and the wheels for CPython 3.14 and later without a GIL, and check all (takes minutes)
	@scripts/build-wheel-free-threaded
	@scripts/check-wheel

wheel-aarch64: setup ## Build the wheel for aarch64, with Rust from Debian unstable, as root (takes minutes)
	@scripts/setup --wheel
	@scripts/setup --booted
	@scripts/build-wheel-aarch64

check-wheel: wheel ## Check the wheel and the sdist: tags, stable ABI, metadata, installation without Rust
	@scripts/check-wheel

playground-wheel: wheel ## Build the wheel of the playground, with the programs (takes minutes)
	@GLIBC=$(GLIBC) scripts/build-playground

try-playground: playground-wheel ## Install both wheels as a new user does, and play (takes minutes)
	@scripts/try-playground

test-wheel: playground-wheel ## Install both wheels in Debian 11, 12 and 13, and play there, as root
	@scripts/setup --booted
	@scripts/check-wheel-on-debian

reference: ## Build the reference and tutorial of the Python package, into target/reference
	.venv/bin/python -m sphinx -q -W --keep-going -d target/reference-state shim/python/docs target/reference

lint-packages: deb rpm ## Check the files, manual pages and dependencies of the packages, with lintian, rpmlint and mandoc
	@scripts/setup --booted
	scripts/check-packages
	scripts/check-wheel

test-packages: deb ## Install the packages in Debian 11, and run their programs there, as root
	@scripts/setup --booted
	@scripts/check-packages-on-debian

test-booted: deb rpm ## Test in booted Debians what requires a systemd, as root
	@scripts/setup --booted
	scripts/check-packages
	scripts/check-wheel
	$(BUILD_FOR_TESTS)
	$(WITH_SIGNALS) scripts/run-tests 2 --workspace --test 'booted*' -- --ignored

test-measured: setup ## Measure what `tune` saves and how a budget holds over four nodes, on a machine that does nothing else (takes minutes)
	$(BUILD_FOR_TESTS)
	$(WITH_SIGNALS) $(WAITING) cargo test --workspace --test fleet -- --ignored --test-threads=1

soak: ## Kill at random, PFO_SOAK_ROUNDS (2000) times, in a booted Debian, as root (takes hours)
	@scripts/setup --booted
	$(BUILD_FOR_TESTS)
	cargo test -p pfo-tests --test soak -- --ignored --nocapture

schedules: setup ## Run PFO_SCHEDULES (a million) random schedules of the agents of a job (takes minutes)
	PFO_SCHEDULES=$(or $(PFO_SCHEDULES),1000000) cargo test --release -p pfo-fleet --test schedules no_two

fuzz: ## Fuzz every reader of foreign bytes for FUZZ_SECONDS (60), and try new cases of properties
	@scripts/setup --fuzz
	fuzz/run $(or $(FUZZ_SECONDS),60)
	PROPTEST_RNG_SEED=$$(date +%s) PFO_OPTIMUM_CASES=1000 cargo test -p pfo-protocol -p pfo-planner -p pfo-sim --lib --tests

lint: ## Check format, lints, documentation, dependencies, budgets and the units' hardening
	@scripts/setup --lint
	cargo fmt --all -- --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
	@# cargo-deny looks at the crates of every platform, also at those that nothing here compiles.
	cargo fetch --quiet --locked
	cargo deny --offline check bans licenses sources
	scripts/budgets
	scripts/check-docs
	.venv/bin/python scripts/check-manifests

bench: programs wheel ## Measure latencies, memory, accuracy and planning, beside lowtime and pfod 0.1
	@scripts/setup --bench
	@tests/bench/build-before
	cargo build --release -p pfo-tests --bin pfo-test-attacker
	cargo run --release --quiet -p pfo-tests --bin pfo-bench

# These are built in half the time, and are a little slower.
SHORT := target/short
short-programs: setup
	CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 cargo build --release --target-dir $(SHORT) \
		-p pfod -p pfo-agent -p pfoctl -p pfo-sim -p pfo-tests --lib --bins

bench-short: short-programs wheel ## Run every part of the measurements once, briefly
	@scripts/setup --bench
	$(SHORT)/release/pfo-bench --short

audit: ## Look for published vulnerabilities of dependencies (requires the network)
	@scripts/setup --lint
	cargo deny check advisories

clean: ## Remove everything that was built
	cargo clean
