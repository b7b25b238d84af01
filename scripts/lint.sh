#!/usr/bin/env bash
# What the build refuses: format, lints, broken links in the docs, dependencies that nobody uses.
# Who may import whom is a test: tests/imports. Advisories are not looked up: their database is a git repository, and
# this must pass without a network.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
need_cargo
scripts/setup.sh
need_cargo_tool cargo-machete 0.9.2
say "Format"
cargo fmt --all --check
say "Lints"
cargo clippy --locked --workspace --all-targets -- -D warnings
say "Docs"
RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --document-private-items
say "Dependencies"
cargo machete
