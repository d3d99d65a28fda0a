# Two commands set up everything on a bare Debian 12 with Rust and make installed:
#
#   make demo    builds weft, then runs its main job and says in plain words what it did
#   make test    what CI runs: format, lints, every test (25 minutes on two cores)
#
# The rest:
#
#   make test-long SECONDS=3600   the long campaigns, for about that many seconds
#   make bench                    the measurements, beside the kernel and fuse2fs
#   make guest                    what needs a kernel of its own, in a QEMU guest
#   make portability              weft-hfs on a big-endian machine and on a 32-bit one
#   make fuzz [SECONDS=600]       coverage-guided fuzzing (needs cargo-fuzz)
#   make install [PREFIX=...]     weft, its manual pages and completions; libweft for C (make build, then
#                                 sudo make install, where PREFIX is root's)
#   make install-debug            and its debug data, for backtraces and debuggers
#   make uninstall [PREFIX=...]   removes them
#   make wheel                    the Python package as a wheel, tested as installed (needs maturin)
#
# Each installs the Debian packages that it needs and that are missing (scripts/setup.sh): demo six
# at most, test other people's tools to compare with.

CARGO ?= cargo
PREFIX ?= /usr/local
SECONDS ?= 600
export CARGO

.PHONY: all build demo test test-long bench guest portability fuzz install install-debug uninstall \
  wheel setup setup-build setup-demo setup-bench setup-guest setup-soak clean

all: build

# The command, and libweft for C: in one run, so that both are made of one build of what is below them.
build: setup-build
	$(CARGO) build --locked --release -p weft-cli -p weft-c --features weft-cli/wasm

# Without what the demo does not use: the shared file service with its stores (SQLite, etcd, object
# stores) and QUIC, compression stages in C, WebAssembly.
demo: setup-demo
	$(CARGO) build --locked --profile demo -p weft-cli --no-default-features
	bash scripts/demo.sh target/demo/weft

test: setup
	bash scripts/test.sh

test-long: setup-soak
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

# PREFIX is tried before minutes of building. sudo has no cargo of the user's: what `make build` left
# is installed then, and the build directory gets no files of root's.
install:
	@bash scripts/install.sh --writable "$(DESTDIR)$(PREFIX)"
	@if [ -n "$$SUDO_UID" ] && [ -e target/release/weft ]; then :; \
	  elif [ -n "$$SUDO_UID" ]; then echo "install: run 'make build' first, without sudo" >&2; exit 1; \
	  else $(MAKE) --no-print-directory build; fi
	bash scripts/install.sh target/release/weft "$(DESTDIR)$(PREFIX)" "$(PREFIX)"

install-debug: install
	install -D -m 644 target/release/weft.debug "$(DESTDIR)$(PREFIX)/bin/.debug/weft.debug"

wheel: setup-build
	bash scripts/wheel.sh

uninstall:
	bash scripts/uninstall.sh "$(DESTDIR)$(PREFIX)"

setup:
	@bash scripts/setup.sh

setup-build:
	@bash scripts/setup.sh build

setup-demo:
	@bash scripts/setup.sh demo

setup-bench:
	@bash scripts/setup.sh bench

setup-guest:
	@bash scripts/setup.sh guest

setup-soak:
	@bash scripts/setup.sh soak

clean:
	$(CARGO) clean
