# Two commands do all the set-up: `make serve DIR=/some/dir` and `make test`.
.POSIX:
.PHONY: help build serve install check test test-long bench-compare fuzz lint docs clean

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
	@echo "make install               dafs to PREFIX=/usr/local, and the helper for /etc/fstab"
	@echo "make check                 format, lints, unit tests, 100 seeds (1 minute once it is built)"
	@echo "make test                  all tests in their short form (some 30 minutes)"
	@echo "make test-long             every bar at full size, one line per bar"
	@echo "make bench-compare OLD=COMMIT   this build beside that of a commit, by turns"
	@echo "make fuzz                  each fuzzer for SECONDS=600"
	@echo "make lint                  format, lints, documentation"

build:
	@scripts/setup.sh build
	cargo build --release --package dafs-cli

serve: build
	@test -n "$(DIR)" || { echo "make serve: which directory? make serve DIR=/some/dir" >&2; exit 2; }
	@exec target/release/dafs serve $(ARGS) "$(DIR)"

install: build
	install -D -m 0755 target/release/dafs "$(DESTDIR)$(PREFIX)/bin/dafs"
	install -d "$(DESTDIR)/sbin"
	ln -sf "$(PREFIX)/bin/dafs" "$(DESTDIR)/sbin/mount.fuse.dafs"

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
	@scripts/setup.sh build
	scripts/lint.sh

docs:
	cargo doc --workspace --no-deps

clean:
	cargo clean
