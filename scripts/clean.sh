#!/usr/bin/env bash
# What demo and run-dev left: `make clean`. Not while a Squid of theirs runs, or it would be nobody's.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

running=$(grep -alF "$PWD/.demo/" /proc/[0-9]*/cmdline 2>/dev/null || true)
if [ -n "$running" ]; then
  die "Squids of make run-dev still run ($(tr -cs '0-9' ' ' <<<"$running")): start its line of the README once more with
--on-exit delete added, end it with Ctrl-C, then make clean."
fi
rm -rf .demo
