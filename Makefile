# `make demo` and `make test` are all that a newcomer needs: they install what is missing.

.DEFAULT_GOAL := help
.PHONY: help setup build programs demo test lint bench audit clean

help: ## Show what there is to make
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: ## Install what building and testing need (with sudo where that takes root)
	@scripts/setup

build: programs ## Build the release programs and libpfo
	cargo build --profile dylib --lib -p pfo-shim

programs: setup
	cargo build --release -p pfod -p pfoctl -p pfo-sim

demo: programs ## Watch four simulated GPUs save energy, in about a minute
	@demo/run

test: setup ## Run every test
	cargo build --workspace --all-targets
	cargo test --workspace

lint: ## Check format, lints, documentation and dependencies
	@scripts/setup --lint
	cargo fmt --all -- --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
	cargo deny --offline check bans licenses sources

bench: programs ## Measure latencies, memory and planning side by side
	cargo run --release --quiet -p pfo-tests --bin pfo-bench

audit: ## Look for published vulnerabilities of dependencies (takes the network)
	@scripts/setup --lint
	cargo deny check advisories

clean: ## Remove everything that was built
	cargo clean
