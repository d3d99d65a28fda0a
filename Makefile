# Two commands set up everything on a bare Debian 12 with Rust installed:
#
#   make demo    builds weft, then runs its main job and says in plain words what it did
#   make test    what CI runs: format, lints, every test (under 20 minutes on two cores)
#
# The rest:
#
#   make test-long SECONDS=3600   the long campaigns, for about that many seconds
#   make bench                    the measurements, beside the kernel and fuse2fs
#   make guest                    what needs a kernel of its own, in a QEMU guest
#   make portability              weft-hfs on a big-endian machine and on a 32-bit one
#   make fuzz [SECONDS=600]       coverage-guided fuzzing (needs cargo-fuzz)
#   make install [PREFIX=...]     weft, its manual pages and completions

CARGO ?= cargo
PREFIX ?= /usr/local
SECONDS ?= 600
export CARGO

.PHONY: all build demo test test-long bench guest portability fuzz install setup setup-bench setup-guest clean

all: build

build: setup
	$(CARGO) build --locked --release -p weft-cli --features wasm

demo: setup
	$(CARGO) build --locked --profile ci -p weft-cli
	bash scripts/demo.sh target/ci/weft

test: setup
	bash scripts/test.sh

test-long: setup
	bash scripts/test-long.sh "$(SECONDS)"

bench: setup-bench
	bash scripts/bench.sh

guest: setup-guest
	$(CARGO) build --locked --release -p weft-cli
	bash scripts/guest.sh all target/release/weft

portability:
	bash scripts/portability.sh

fuzz: setup
	bash scripts/fuzz.sh "$(SECONDS)"

install: build
	bash scripts/install.sh target/release/weft "$(DESTDIR)$(PREFIX)" "$(PREFIX)"

setup:
	@bash scripts/setup.sh

setup-bench:
	@bash scripts/setup.sh bench

setup-guest:
	@bash scripts/setup.sh guest

clean:
	$(CARGO) clean
