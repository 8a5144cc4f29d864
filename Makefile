# `make demo` and `make test` install what they require: a newcomer runs nothing else.

.DEFAULT_GOAL := help
SHELL := /bin/bash -o pipefail
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
CARGO_BUILD := cargo build
BUILT := target/release
# pfo-journal links libsystemd. pfoctl runs without it, and so does everything but the tests and the packages.
BUILD_JOURNAL = ! pkg-config --exists libsystemd 2>/dev/null || $(CARGO_BUILD) --release -p pfo-journal
# Tests send signals. Under nohup, or behind a script that does not wait, they would be ignored.
WITH_SIGNALS := env --default-signal=HUP,INT,QUIT
# Cargo unites the features of what it builds at once, and would build the crates below again for other sets.
BUILD_FOR_TESTS := cargo build --workspace --all-targets
# .config/nextest.toml says how many run at a time, and which by themselves.
NEXTEST := cargo nextest run --workspace
WRITE_SNAPSHOTS := INSTA_UPDATE=always INSTA_FORCE_PASS=1 $(WITH_SIGNALS)
# The tests across processes that hold what a program prints.
WITH_SNAPSHOTS = $(shell grep -l assert_printed! tests/tests/*.rs | xargs -n 1 basename -s .rs | paste -sd '|')
.PHONY: help setup package-tools build programs demo-programs demo-picture pages install deb rpm demo demo-fleet \
	quick snapshots test test-rust test-python test-free-threaded test-frameworks test-frameworks-matrix canary-frameworks wheel wheel-free-threaded \
	wheel-aarch64 packages-aarch64 playground-wheel gpu-kit check-wheel try-playground test-wheel reference \
	repository release reproducible lint-packages test-packages test-booted test-measured fuzz soak schedules \
	lint format clippy rustdoc bench bench-short bench-programs audit clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 24

setup: ## Install what building and `make test` require (with sudo where that takes root)
	@scripts/setup build test python

build: programs pages ## Build the release programs, libpfo, manual pages and completions
	$(CARGO_BUILD) --release --lib -p pfo-shim
	$(BUILD_JOURNAL)

# What prints the pages of the daemons is optimised for nobody.
pages: programs
	rm -rf target/pages
	cargo build --quiet --workspace --example manual --example agent-manual
	target/debug/examples/manual target/pages/man
	target/debug/examples/agent-manual target/pages/man
	$(BUILT)/pfoctl generate man target/pages/man
	$(BUILT)/pfoctl generate completions target/pages/completions
	sed 's|@version@|$(VERSION)|' packaging/manual/pfo.7 > target/pages/man/pfo.7

programs:
	@scripts/setup build
	$(CARGO_BUILD) --release -p pfod -p pfo-agent -p pfoctl -p pfo-sim

install: ## Install what `make build` built, under PREFIX (and DESTDIR)
	install -D -s -m 755 $(BUILT)/pfod $(DESTDIR)$(PREFIX)/sbin/pfod
	install -D -s -m 755 $(BUILT)/pfo-agent $(DESTDIR)$(PREFIX)/sbin/pfo-agent
	install -D -s -m 755 $(BUILT)/pfoctl $(DESTDIR)$(PREFIX)/bin/pfoctl
	test ! -e $(BUILT)/pfo-journal || \
		install -D -s -m 755 $(BUILT)/pfo-journal $(DESTDIR)$(PREFIX)/libexec/pfo/pfo-journal
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
ZIGBUILD := env PATH="$(CURDIR)/.venv/bin:$$PATH" RUSTFLAGS=-Clink-arg=-Wl,--build-id=sha1 \
	cargo auditable zigbuild --target $(TARGET).$(GLIBC)
PACKAGED := $(ZIGBUILD) --release
# Who made the packages, as "NAME <ADDRESS>", and where: fields of the packages.
export MAINTAINER HOMEPAGE AARCH64
deb rpm packages-aarch64: CARGO_BUILD := $(ZIGBUILD)
deb rpm packages-aarch64: BUILT := target/$(TARGET)/release
deb rpm: BUILD_JOURNAL = scripts/libsystemd-stub $(TARGET) && \
	SYSTEMD_LIB_DIR=$(CURDIR)/target/libsystemd/$(TARGET) $(CARGO_BUILD) --release -p pfo-journal

package-tools:
	@scripts/setup packages

deb: package-tools build wheel ## Build Debian packages, into target/debian
	@scripts/package-deb $(TARGET)

rpm: package-tools build wheel ## Build rpm packages, into target/rpm
	@scripts/package-rpm $(TARGET)

packages-aarch64: package-tools pages ## Build the packages for aarch64 as well, and run them emulated, as root (takes minutes)
	@scripts/setup booted
	@scripts/setup aarch64
	GLIBC=$(GLIBC) scripts/build-packages-aarch64
	scripts/check-packages-aarch64

repository: deb rpm ## Make a signed repository for apt and dnf of the packages, with KEY=FINGERPRINT of gpg
	@scripts/setup repository
	@scripts/package-repository $(KEY)

release: deb rpm wheel ## Put packages, wheels, repository, image, chart, SBOMs and provenance into one signed folder, with KEY=
	@scripts/setup release lint
	@$(if $(AARCH64),$(MAKE) --no-print-directory packages-aarch64)
	@scripts/make-release $(KEY)

reproducible: ## Build the packages of the last commit twice, and compare them (takes half an hour)
	@scripts/check-reproducible

demo: demo-programs ## Watch four simulated GPUs save energy (takes a minute)
	@demo/run

demo-fleet: demo-programs ## Watch a pipeline over four simulated nodes be tuned (takes a few minutes)
	@scripts/setup fleet
	@demo/fleet

demo-picture: demo-programs ## Draw docs/demo.svg anew, from a demo; look at it
	@scripts/setup python
	@.venv/bin/pip install --quiet --disable-pip-version-check pyte==0.8.2
	@.venv/bin/python scripts/picture-of-demo

demo-programs:
	@scripts/setup build
	cargo build --profile demo -p pfod -p pfo-agent -p pfoctl -p pfo-sim

quick: format clippy ## Check format and lints, and run the unit tests and snapshots: before each commit
	@scripts/setup test
	$(WITH_SIGNALS) $(NEXTEST) --profile quick

snapshots: ## Write anew what commands are expected to print; look at the difference before you commit it
	$(BUILD_FOR_TESTS)
	$(WRITE_SNAPSHOTS) $(NEXTEST) --profile quick
	$(WRITE_SNAPSHOTS) $(NEXTEST) -E 'binary(node) & test(/^($(WITH_SNAPSHOTS))::/)'

test: test-rust test-python ## Run every test that requires no root and no container

test-rust: ## Run the Rust tests (part of `make test`)
	@scripts/setup test
	$(BUILD_FOR_TESTS)
	$(WITH_SIGNALS) $(NEXTEST)
	$(WITH_SIGNALS) PFO_TEST_MODE=observe $(NEXTEST) --profile observe
	cargo test --workspace --doc

test-python: ## Test the Python package (part of `make test`)
	@scripts/setup python
	$(BUILD_FOR_TESTS)
	VIRTUAL_ENV=$(CURDIR)/.venv .venv/bin/maturin develop --quiet -m shim/python/Cargo.toml
	cd shim/python && $(CURDIR)/.venv/bin/mypy && \
		$(CURDIR)/.venv/bin/stubtest --allowlist stubtest-allowlist --mypy-config-file pyproject.toml pfo_gpu
	cd playground && $(CURDIR)/.venv/bin/python -m mypy --strict -p pfo_gpu_playground
	cd gpu-kit && $(CURDIR)/.venv/bin/python -m mypy
	@$(MAKE) --no-print-directory reference
	cd shim/python && $(WITH_SIGNALS) $(CURDIR)/.venv/bin/pytest -q

test-free-threaded: wheel-free-threaded ## Test the wheels for CPython without a GIL, which is built from source (takes minutes)
	$(BUILD_FOR_TESTS)
	$(WITH_SIGNALS) scripts/test-free-threaded

test-frameworks: ## Test the Python package with real PyTorch, DeepSpeed and Megatron-Core (installs 5 GB)
	@scripts/setup frameworks
	$(BUILD_FOR_TESTS)
	.venv/bin/maturin build --quiet -m shim/python/Cargo.toml -o target/frameworks/wheels
	target/frameworks/bin/pip install --quiet --no-index --no-deps --force-reinstall \
		--find-links target/frameworks/wheels pfo-gpu
	cd shim/python && $(WITH_SIGNALS) $(CURDIR)/target/frameworks/bin/pytest -q tests/frameworks

test-frameworks-matrix: wheel ## Test the wheel with the two newest releases of every framework (installs 12 GB)
	$(BUILD_FOR_TESTS)
	$(WITH_SIGNALS) scripts/frameworks-matrix

canary-frameworks: wheel ## Test the wheel with the newest of every framework, whatever is tested (installs 6 GB)
	$(BUILD_FOR_TESTS)
	$(WITH_SIGNALS) scripts/frameworks-matrix canary

wheel: ## Build the wheel (manylinux_2_17, CPython 3.9 and later) and the sdist, into target/wheels
	@scripts/setup wheel
	@scripts/build-wheel

# Not part of `wheel`: each is linked for a minute.
wheel-free-threaded: wheel ## Build these and the wheels for CPython 3.14 and later without a GIL, and check all (takes minutes)
	@scripts/build-wheel-free-threaded
	@scripts/check-wheel

wheel-aarch64: ## Build the wheel for aarch64, with Rust from Debian unstable, as root (takes minutes)
	@scripts/setup wheel
	@scripts/setup booted
	@scripts/build-wheel-aarch64

check-wheel: wheel ## Check the wheel and the sdist: tags, stable ABI, metadata, installation without Rust
	@scripts/check-wheel

playground-wheel: wheel ## Build the wheel of the playground, with the programs (takes minutes)
	@GLIBC=$(GLIBC) scripts/build-playground

gpu-kit: wheel ## Build the folder that measures a GPU and changes nothing, into target/gpu-kit (takes minutes)
	@GLIBC=$(GLIBC) scripts/build-gpu-kit

try-playground: playground-wheel ## Install both wheels as a new user does, and play (takes minutes)
	@scripts/try-playground

test-wheel: playground-wheel ## Install both wheels in Debian 11, 12 and 13, and play there, as root
	@scripts/setup booted
	@scripts/check-wheel-on-debian

reference: ## Build the reference and tutorial of the Python package, into target/reference
	.venv/bin/python -m sphinx -q -W --keep-going -d target/reference-state shim/python/docs target/reference

lint-packages: deb rpm ## Check the files, manual pages and dependencies of the packages, with lintian, rpmlint and mandoc
	@scripts/setup booted
	scripts/check-packages
	scripts/check-wheel

test-packages: deb ## Install the packages in Debian 11, and run their programs there, as root
	@scripts/setup booted
	@scripts/check-packages-on-debian

# What `make test-booted` and `make bench-short` test: CI has built it by then, and says so with an empty one.
PACKAGES := deb rpm

test-booted: $(PACKAGES) ## Test in booted Debians what requires a systemd, as root
	@scripts/setup booted
	scripts/check-packages
	scripts/check-wheel
	$(BUILD_FOR_TESTS)
	$(WITH_SIGNALS) $(NEXTEST) --profile booted --run-ignored only

test-measured: ## Measure what `tune` saves and how a budget holds over four nodes, on a machine that does nothing else (takes minutes)
	@scripts/setup test
	$(BUILD_FOR_TESTS)
	$(WITH_SIGNALS) $(NEXTEST) --profile measured --run-ignored only

soak: ## Kill at random, PFO_SOAK_ROUNDS (2000) times, in a booted Debian, as root (takes hours)
	@scripts/setup booted
	$(BUILD_FOR_TESTS)
	cargo test -p pfo-tests --test booted -- --ignored --nocapture soak::

schedules: ## Run PFO_SCHEDULES (a million) schedules of a job's agents, 10,000 of meters, 100 quarters of 50 nodes (minutes)
	@scripts/setup build
	PFO_SCHEDULES=$(or $(PFO_SCHEDULES),1000000) cargo test --release -p pfo-fleet --test it no_two
	PFO_METER_SCHEDULES=10000 cargo test --release -p pfod --lib judge
	PFO_QUARTERS=100 cargo test --release -p pfo-agent --lib quarter

fuzz: ## Fuzz every reader of foreign bytes for FUZZ_SECONDS (60), and try new cases of properties
	@scripts/setup fuzz
	fuzz/run $(or $(FUZZ_SECONDS),60)
	PROPTEST_RNG_SEED=$$(date +%s) PFO_OPTIMUM_CASES=1000 cargo test -p pfo-protocol -p pfo-planner -p pfo-sim --lib --tests

format:
	cargo fmt --all -- --check

clippy:
	@scripts/setup workspace
	cargo clippy --workspace --all-targets -- -D warnings

rustdoc:
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

lint: format clippy rustdoc ## Check format, lints, documentation, dependencies, budgets and the units' hardening
	@scripts/setup lint
	@# cargo-deny looks at the crates of every platform, also at those that nothing here compiles.
	cargo fetch --quiet --locked
	cargo deny --offline check bans licenses sources
	scripts/budgets
	scripts/check-docs
	scripts/framework-releases check
	scripts/check-snapshots
	.venv/bin/python scripts/check-manifests

bench: programs wheel ## Measure latencies, memory, accuracy and planning, beside lowtime and pfod 0.1
	@scripts/setup bench
	@tests/bench/build-before
	@tests/bench/budget-before
	cargo build --release -p pfo-tests --bin pfo-test-attacker
	cargo run --release --quiet -p pfo-tests --bin pfo-bench
	cargo bench --quiet -p pfo-experiment --bench tuning

# What was packaged is measured; only the program that measures is built beside it.
bench-programs: package-tools
	$(PACKAGED) -p pfo-tests --lib --bins

bench-short: $(filter deb,$(PACKAGES)) bench-programs ## Run every part of the measurements of the packaged programs once, briefly
	@scripts/setup bench
	target/$(TARGET)/release/pfo-bench --short

audit: ## Look for published vulnerabilities of dependencies (requires the network)
	@scripts/setup lint
	cargo deny check advisories

clean: ## Remove everything that was built
	cargo clean
