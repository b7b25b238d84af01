#!/usr/bin/env bash
# What the build refuses: format and lints.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
need_cargo
need cc=gcc
say "Format"
cargo fmt --all --check
say "Lints"
cargo clippy --locked --workspace --lib --bins -- -D warnings
