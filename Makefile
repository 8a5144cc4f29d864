# `make demo` and `make test` are all that a newcomer needs: they install what is missing.

.DEFAULT_GOAL := help
SHELL := /bin/bash -o pipefail
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
.PHONY: help setup build programs pages install deb rpm demo test test-python test-frameworks wheel test-booted fuzz soak lint bench audit clean

help: ## Show what there is to make
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: ## Install what building and testing need (with sudo where that takes root)
	@scripts/setup

build: programs pages ## Build the release programs, libpfo, manual pages and completions
	cargo build --profile dylib --lib -p pfo-shim

pages: programs
	rm -rf target/pages
	cargo run --release --quiet -p pfod --example manual target/pages/man
	target/release/pfoctl generate man target/pages/man
	target/release/pfoctl generate completions target/pages/completions

programs: setup
	cargo build --release -p pfod -p pfoctl -p pfo-sim

install: ## Install what `make build` built, under PREFIX (and DESTDIR)
	install -D -s -m 755 target/release/pfod $(DESTDIR)$(PREFIX)/sbin/pfod
	install -D -s -m 755 target/release/pfoctl $(DESTDIR)$(PREFIX)/bin/pfoctl
	install -D -s -m 644 target/dylib/libpfo.so $(DESTDIR)$(LIBDIR)/libpfo.so.0
	ln -sf libpfo.so.0 $(DESTDIR)$(LIBDIR)/libpfo.so
	install -D -m 644 shim/include/pfo.h $(DESTDIR)$(PREFIX)/include/pfo.h
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig
	sed -e 's|@prefix@|$(PREFIX)|' -e 's|@libdir@|$(LIBDIR)|' \
		-e 's|@includedir@|$${prefix}/include|' -e 's|@version@|$(VERSION)|' shim/pfo.pc.in \
		> $(DESTDIR)$(LIBDIR)/pkgconfig/pfo.pc
	for unit in pfod.service pfod.socket pfod-admin.socket; do \
		install -d $(DESTDIR)$(PREFIX)/lib/systemd/system && \
		sed -e 's|/usr/sbin/|$(PREFIX)/sbin/|' -e 's|/usr/bin/|$(PREFIX)/bin/|' systemd/$$unit \
			> $(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit || exit 1; \
	done
	install -D -m 644 systemd/pfod.preset $(DESTDIR)$(PREFIX)/lib/systemd/system-preset/50-pfod.preset
	install -D -m 644 systemd/pfod.catalog $(DESTDIR)$(PREFIX)/lib/systemd/catalog/pfod.catalog
	install -D -m 644 systemd/pfod.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/pfod.conf
	install -D -m 644 systemd/pfod.tmpfiles $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/pfod.conf
	for section in 1 5 8; do \
		install -d $(DESTDIR)$(PREFIX)/share/man/man$$section && \
		install -m 644 target/pages/man/*.$$section $(DESTDIR)$(PREFIX)/share/man/man$$section || exit 1; \
	done
	install -D -m 644 target/pages/completions/pfoctl.bash \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions/pfoctl
	install -D -m 644 target/pages/completions/_pfoctl \
		$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_pfoctl
	install -D -m 644 target/pages/completions/pfoctl.fish \
		$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/pfoctl.fish
	test -e $(DESTDIR)/etc/pfo/pfod.toml || \
		install -D -m 644 daemon/pfod.toml $(DESTDIR)/etc/pfo/pfod.toml

deb: build ## Build Debian packages, into target/debian
	@scripts/setup --packages
	@scripts/package-deb

rpm: build ## Build rpm packages, into target/rpm
	@scripts/setup --packages
	@scripts/package-rpm

demo: programs ## Watch four simulated GPUs save energy, in about a minute
	@demo/run

test: setup ## Run every test
	cargo build --workspace --all-targets
	@# Tests send signals, which nohup or a script that goes on without waiting would have made ignored.
	env --default-signal=HUP,INT,QUIT cargo test --workspace
	@$(MAKE) --no-print-directory test-python

test-python: setup ## Test the Python package (part of `make test`)
	cargo build --workspace
	VIRTUAL_ENV=$(CURDIR)/.venv .venv/bin/maturin develop --quiet -m shim/python/Cargo.toml
	cd shim/python && $(CURDIR)/.venv/bin/mypy && $(CURDIR)/.venv/bin/stubtest --mypy-config-file pyproject.toml pfo
	cd shim/python && $(CURDIR)/.venv/bin/pytest -q

test-frameworks: wheel ## Test the wheel with real PyTorch, DeepSpeed and Megatron-Core (installs 5 GB)
	@scripts/setup --frameworks
	cargo build --workspace
	target/frameworks/bin/pip install --quiet --no-index --no-deps --force-reinstall \
		--find-links target/wheels pfo
	cd shim/python && $(CURDIR)/target/frameworks/bin/pytest -q tests/frameworks

wheel: setup ## Build the Python package as a wheel, into target/wheels
	.venv/bin/maturin build -m shim/python/Cargo.toml

test-booted: deb rpm ## Test in booted Debians what takes a systemd, as root
	@scripts/setup --booted
	scripts/check-packages
	cargo build --workspace --all-targets
	cargo test -p pfo-tests --test 'booted*' -- --ignored

soak: ## Kill at random, a thousand times, in a booted Debian, as root (takes an hour)
	@scripts/setup --booted
	cargo build --workspace --all-targets
	cargo test -p pfo-tests --test soak -- --ignored --nocapture

fuzz: ## Fuzz everything that is read from somebody else, for FUZZ_SECONDS (60) each, and try new cases of properties
	@scripts/setup --fuzz
	fuzz/run $(or $(FUZZ_SECONDS),60)
	PROPTEST_RNG_SEED=$$(date +%s) cargo test -p pfo-protocol -p pfo-planner -p pfo-sim --lib --tests

lint: ## Check format, lints, documentation, dependencies and the unit's hardening
	@scripts/setup --lint
	cargo fmt --all -- --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
	cargo deny --offline check bans licenses sources
	systemd-analyze security --offline=true --threshold=15 --no-pager systemd/pfod.service | tail -1

bench: programs ## Measure latencies, memory, accuracy and planning, beside lowtime and the pfod before pfo-agent
	@scripts/setup --bench
	@tests/bench/build-before
	cargo run --release --quiet -p pfo-tests --bin pfo-bench

audit: ## Look for published vulnerabilities of dependencies (takes the network)
	@scripts/setup --lint
	cargo deny check advisories

clean: ## Remove everything that was built
	cargo clean
