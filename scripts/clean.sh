#!/usr/bin/env bash
# What demo and run-dev left: `make clean`. Not while a Squid of theirs runs, or it would be nobody's.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

# Squid writes no pid file here: it is known by the configuration among its arguments.
for arguments in /proc/[0-9]*/cmdline; do
  grep -qsaF "$(pwd -P)/.demo/state/process/" "$arguments" || continue
  pid=${arguments%/cmdline}
  die "A Squid of make run-dev still runs (pid ${pid#/proc/}). Start make run-dev once more and end it with Ctrl-C, which
removes its Squids, or end that process; then make clean."
done
rm -rf .demo
