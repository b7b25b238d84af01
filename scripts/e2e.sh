#!/usr/bin/env bash
# The deployed product on a real node of this machine: `make e2e`. Needs root; scripts/node.sh says what else, and takes
# everything away again, also when this fails or is interrupted.
#   E2E_ONLY=handover      claims with this in their names only (tests/node/main.rs has the list)
#   E2E_MAY_SKIP=1         where no node can run, says why in one line and is content
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
if ! why=$(scripts/node.sh can 2>&1); then
  [ -n "${E2E_MAY_SKIP:-}" ] && { note "make e2e is skipped: $why"; exit 0; }
  die "$why"
fi
scripts/setup.sh
need_cargo
say "The tests"
binary=$(cargo test --locked --test node --no-run --message-format=json-render-diagnostics |
  jq -r 'select(.reason == "compiler-artifact" and .target.name == "node") | .executable // empty' | tail -n 1)
[ -x "$binary" ] || die "The tests did not build."
exec scripts/node.sh run "$binary" --ignored --nocapture
