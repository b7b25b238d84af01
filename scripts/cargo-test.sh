#!/usr/bin/env bash
# cargo test over the whole workspace. A few tests that failed run once more, by name and with nothing beside them: most
# tests share two cores with real daemons, so one in a thousand runs meets a moment that it was not written for. Such a
# test is told loudly, and one that fails twice fails the run. A crash, a test on the paused clock of `actors/`, and more
# than a handful of failures are never tried again.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

most=5
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# failures LOG OUT: one line for each target that failed, "its cargo options<TAB>its tests"; fails where the log does not say
# exactly which tests failed.
failures() {
  awk '
    function shut() { if (failed) { n++; if (count != failed) bad = 1; tests[n] = names } }
    # A new binary begins.
    /^ +(Running|Doc-tests) / { shut(); failed = 0; names = ""; count = 0; inside = 0 }
    # The last list of names before the result is the one that counts; the one before it has what they printed.
    /^failures:$/ { names = ""; count = 0; inside = 1; next }
    inside && /^    [^ ]+$/ { names = names " " $1; count++; next }
    inside && /^test result: FAILED/ { match($0, /[0-9]+ failed/); failed = substr($0, RSTART) + 0; inside = 0 }
    /^error: [0-9]+ targets? failed:$/ { shut(); failed = 0; listed = 1; next }
    listed && /^ +`.*`$/ { m++; gsub(/^ +`|`$/, ""); target[m] = $0 }
    END {
      if (bad || n == 0 || n != m) exit 1
      for (i = 1; i <= n; i++) print target[i] "\t" tests[i]
    }' "$1" >"$2"
}

rc=0
cargo test --locked --workspace --no-fail-fast 2>&1 | tee "$dir/log" || rc=$?
[ "$rc" -ne 0 ] || exit 0
failures "$dir/log" "$dir/failed" || die "Failed, and not only by tests that can be named: see above."
mapfile -t lines <"$dir/failed"
names=$(cut -f2 "$dir/failed" | tr '\n' ' ')
say "Failed:$names"
[ "$(wc -w <<<"$names")" -le $most ] || die "More than $most tests failed: none is tried again."
for line in "${lines[@]}"; do
  case $line in
    "-p egress-proxies-operator "*) ;;
    *) die "Tests of ${line%%$'\t'*} depend on nothing outside: they are not tried again." ;;
  esac
done
for line in "${lines[@]}"; do
  # Split into words on purpose: options and names have no blanks in them.
  # shellcheck disable=SC2086
  cargo test --locked ${line%%$'\t'*} -- --exact ${line##*$'\t'} || die "FAILED TWICE: a test of${line##*$'\t'}"
done
printf '%s\n' "${bold}${red}FLAKY: failed once and passed the second time:$names${off}" \
  "Each is a defect of the test or of the product: find it, do not get used to it."
