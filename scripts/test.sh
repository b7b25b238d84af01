#!/usr/bin/env bash
# All tests, with everything that they need brought up first.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh tinyproxy=tinyproxy unshare=util-linux
. scripts/lib.sh
need_cargo
say "Tests of the actors: pure, paused clock"
cargo test --locked -p egress-actors --features testkit
say "Tests of the adapters, and of the whole operator on real Squids"
cargo test --locked -p egress-proxies-operator --features testkit
