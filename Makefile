# The ways in: `make demo` shows what hurts here and what Quell does about it, `make check` is the quick loop, `make test` and
# `make test-long` are what CI runs, `make soak` is the long one, `make vm` what needs another kernel than this machine's.

CARGO ?= cargo
# What the lab is made of; kept between runs.
export QUELL_CACHE ?= $(CURDIR)/.cache
# How often `make soak` kills a run that holds programs back.
KILLS ?= 1000
RELEASE := $(or $(CARGO_TARGET_DIR),target)/release
QUELL := $(RELEASE)/quell
# Rust's name for 64-bit Arm.
ARM := aarch64-unknown-linux-gnu
# Tests that change the machine need root; without it they skip themselves aloud.
PACKAGES := redis-server redis-tools stress-ng rt-tests sqlite3 valgrind cpio numactl shellcheck

.PHONY: demo build check check-arm check-deny check-shell test test-long soak vm bench published imports deps clean

demo: build
	$(QUELL) demo

# Debug information goes to a file next to each program: *.debug.
build:
	$(CARGO) build --release --locked --config 'profile.release.debug="line-tables-only"' -p quell -p quell-lab-plugin
	scripts/split-debug.sh $(QUELL) $(RELEASE)/libquell_lab_plugin.so

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) test --workspace --lib --bins --locked -q
	$(CARGO) test -p quell --test pure --locked -q -- architecture:: fuzz::
	@$(MAKE) --no-print-directory check-arm

# Whether all of it compiles for Arm, where Rust's standard library for Arm is installed.
check-arm:
	@if ls "$$($${RUSTC:-rustc} --print target-libdir --target $(ARM))"/libstd-*.rlib >/dev/null 2>&1; \
	then set -x; $(CARGO) check --workspace --all-targets --locked --target $(ARM); \
	else echo "SKIPPED: the standard library of $(ARM) is not installed; not checked for Arm"; fi

# Licences, banned crates and where crates come from, as deny.toml has it, where cargo-deny is installed.
# Advisories, where their database can be fetched.
check-deny:
	@if $(CARGO) deny --version >/dev/null 2>&1; \
	then set -x; $(CARGO) deny --locked check licenses bans sources || exit 1; \
	  if $(CARGO) deny --locked fetch db 2>/dev/null; \
	  then $(CARGO) deny --locked check --disable-fetch advisories; \
	  else set +x; echo "SKIPPED: the advisory database cannot be fetched; advisories are not checked"; fi; \
	else echo "SKIPPED: cargo-deny is not installed; licences, sources and advisories are not checked"; fi

# Every shell script that git knows, where shellcheck is installed.
check-shell:
	@if command -v shellcheck >/dev/null; \
	then set -x; shellcheck --severity=warning .ci/run $$(git ls-files '*.sh'); \
	else echo "SKIPPED: shellcheck is not installed; shell scripts are not checked"; fi

test: deps
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc --workspace --no-deps --locked
	@$(MAKE) --no-print-directory check-deny
	@$(MAKE) --no-print-directory check-shell
	@$(MAKE) --no-print-directory check-arm
	CARGO="$(CARGO)" scripts/test.sh
	@if command -v cmake >/dev/null && command -v c++ >/dev/null; \
	then set -x; $(CARGO) clippy -p quell-model --features oracle --all-targets --locked -- -D warnings && \
	  $(CARGO) test -p quell-model --features oracle --test oracle --locked; \
	else echo "SKIPPED: cmake or a C++ compiler is missing; the DRAM model is not compared with DRAMsim3"; fi

# What takes long and has another test in `make test`, where files that it depends on have changed (tests/changed.toml).
test-long: deps
	CARGO="$(CARGO)" scripts/test.sh --changed

# Ten demonstrations with the same first place in nine, twenty controls in which nothing hurts in nineteen (tests/measured/demo.rs).
# The thousand kills, another thousand while programs are frozen or limited, and the hour: every fault point, 200 random kills,
# a minute or ten of damaged input for each parser, every interleaving of the pool, caps and frontier in full.
soak: deps build
	QUELL_KILLS=$(KILLS) CARGO="$(CARGO)" scripts/test.sh --soak
	RUSTFLAGS="--cfg loom" $(CARGO) test -p quell-control --release --locked --target-dir target/loom --lib pool
	$(QUELL) compare experiments/caps.toml --check
	$(QUELL) compare neighbour --rounds 60 --check
	$(QUELL) compare deadline --check

# cgroup v2, with remote partitions and without, in a virtual machine.
vm:
	CARGO="$(CARGO)" tests/vm/run.sh --kernels

# Speed, as a page for docs/results/.
bench: build
	scripts/performance.sh $(QUELL)

# The experiments of published studies, whole: their reports, for docs/examples/published. Hours.
published: build
	QUELL=$(QUELL) scripts/published.sh

# Which sources import each other in a circle.
imports:
	$(CARGO) test -q --locked -p quell --test pure -- --ignored --nocapture imports_are_printed

# What the tests use besides Rust; left alone where it is there or cannot be had.
deps:
	@missing=; for program in redis-server redis-benchmark stress-ng cyclictest sqlite3 valgrind cpio numactl shellcheck; do \
	  command -v $$program >/dev/null || missing=$$program; done; \
	test -z "$$missing" || \
	{ test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(PACKAGES) >/dev/null; } || \
	echo "SKIPPED: $(PACKAGES) cannot be installed here; what needs them will skip"

clean:
	$(CARGO) clean
	rm -rf .cache runs
