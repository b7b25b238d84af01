#!/usr/bin/env bash
# All tests, with everything that they need brought up first.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh tinyproxy=tinyproxy unshare=util-linux
. scripts/lib.sh
need_cargo
say "Tests: pure, on a paused clock, on real Squids, and of the whole binary"
cargo test --locked --workspace
