# Two commands do all the set-up: `make serve DIR=/some/dir` and `make test`.
.POSIX:
.PHONY: help build serve install uninstall programs deb wheel static source checksums reproducible
.PHONY: check test test-long bench-compare fuzz lint docs clean

DIR ?=
ARGS ?=
SECONDS ?= 600
OLD ?=
NEW ?=
PREFIX ?= /usr/local
DESTDIR ?=
export PATH := $(PATH):$(HOME)/.cargo/bin

help:
	@echo "make serve DIR=/some/dir   install what is missing, build, serve the directory"
	@echo "make install, uninstall    all of it below PREFIX=/usr/local, which may be your ~/.local"
	@echo "make deb                   a package for Debian and its like: target/deb/dafs_VERSION_ARCHITECTURE.deb"
	@echo "make wheel                 the Python package: target/wheels/dafs-VERSION-….whl"
	@echo "make static                one program that needs no library: target/static/dafs"
	@echo "make source                the sources with those of all crates: target/source"
	@echo "make checksums             what was made for others, with SHA256SUMS, in target/dist"
	@echo "make reproducible          whether two builds give the same package"
	@echo "make check                 format, lints, unit tests, 100 seeds (1 minute once it is built)"
	@echo "make test                  all tests in their short form (some 30 minutes)"
	@echo "make test-long             every bar at full size, one line per bar"
	@echo "make bench-compare OLD=COMMIT   this build beside that of a commit, by turns"
	@echo "make fuzz                  each fuzzer for SECONDS=600"
	@echo "make lint                  format, lints, documentation"

build:
	@scripts/setup.sh build
	cargo build --release --package dafs-cli

serve:
	@test -n "$(DIR)" || { echo "make serve: which directory? make serve DIR=/some/dir" >&2; exit 2; }
	@test -e "$(DIR)" || { echo "make serve: DIR=$(DIR): there is no such directory; mkdir -p makes it" >&2; exit 2; }
	@test -d "$(DIR)" || { echo "make serve: DIR=$(DIR) is no directory" >&2; exit 2; }
	@$(MAKE) --no-print-directory build
	@exec target/release/dafs serve $(ARGS) "$(DIR)"

# By sudo what somebody else has built is installed: root builds nothing in his tree.
install:
	@test -n "$(SUDO_UID)" -a -f target/release/libdafs.so || { scripts/setup.sh build && $(MAKE) --no-print-directory programs; }
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install.sh install

uninstall:
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install.sh uninstall

programs:
	cargo build --release --package dafs-cli
	cargo rustc --release --package dafs-capi --lib --crate-type cdylib --crate-type staticlib

source:
	scripts/source-archive.sh

checksums:
	scripts/checksums.sh

reproducible:
	@scripts/setup.sh deb
	scripts/reproducible.sh

static:
	@scripts/setup.sh deb
	scripts/static.sh

deb:
	@scripts/setup.sh deb
	scripts/deb.sh

wheel:
	@scripts/setup.sh build
	scripts/wheel.sh

check:
	@scripts/setup.sh build
	scripts/check.sh

test:
	@scripts/setup.sh test
	scripts/test.sh

test-long:
	@scripts/setup.sh test-long
	scripts/test.sh --long

bench-compare:
	@test -n "$(OLD)" || { echo "make bench-compare: with which? make bench-compare OLD=COMMIT" >&2; exit 2; }
	@scripts/setup.sh build
	scripts/bench-compare.sh "$(OLD)" $(NEW) -- $(ARGS)

fuzz:
	@scripts/setup.sh build
	scripts/fuzz.sh $(SECONDS)

lint:
	@scripts/setup.sh lint
	scripts/lint.sh

docs:
	cargo doc --workspace --no-deps

clean:
	cargo clean
