#!/usr/bin/env bash
# What the build refuses: format, lints, unused dependencies, broken links in the docs of the code.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
need_cargo
need cc=gcc
say "Format"
cargo fmt --all --check
say "Lints"
cargo clippy --locked --workspace --all-targets --features egress-actors/testkit -- -D warnings
say "Docs of the code"
RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --quiet
