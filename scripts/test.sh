#!/usr/bin/env bash
# All tests, with everything that they need brought up first.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh tinyproxy=tinyproxy unshare=util-linux setpriv=util-linux flock=util-linux
. scripts/lib.sh
need_cargo
scripts/kube-tools.sh >/dev/null
say "Tests: pure, on a paused clock, on real Squids, of the whole binary, and on a real Kubernetes API server"
cargo test --locked --workspace
