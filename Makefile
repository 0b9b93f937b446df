# Fusebox. `make` builds it and runs it; `make help` lists the rest.

CARGO ?= cargo

.DEFAULT_GOAL := run
.PHONY: run test setup lint units doc bench fmt update-psl help

run: ## build in release and serve (Ctrl-C ends it)
	@$(CARGO) run --release -- serve

test: setup lint units doc ## everything that must pass: format, lints, all tests, documentation

setup:
	@tests/setup.sh

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --quiet --locked --all-targets -- -D warnings

units:
	PATH="$(CURDIR)/target/venv/bin:$$PATH" $(CARGO) test --quiet --locked

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --quiet --locked --no-deps

bench: ## measure (Criterion; results under target/criterion)
	$(CARGO) bench --locked

fmt: ## format the sources
	$(CARGO) fmt --all

update-psl: ## replace the Public Suffix List with the newest one
	@data/update-psl.sh

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14
