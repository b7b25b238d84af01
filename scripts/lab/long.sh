#!/usr/bin/env bash
# The tests on hypervisor hosts that take minutes each. `make lab-long`. Memory is measured on a release.
set -euo pipefail
cd "$(dirname "$0")/../.."
scripts/setup.sh
. scripts/lib.sh
need_cargo
scripts/lab/up.sh --packages
scripts/lab/image.sh tiny debian >/dev/null
say "Building"
cargo build --locked --release
target=$(cargo metadata --locked --no-deps --format-version 1 | jq -r .target_directory)
say "On hypervisor hosts: kills of the operator, restarts of libvirtd, Debian by the samples, an image of 2 GiB"
LAB_MUST_RUN=1 LAB_OPERATOR=$target/release/egress-proxies-operator \
  cargo test --locked --test lab -- --ignored --nocapture life:: faults:: transfers:: hypervisor::
