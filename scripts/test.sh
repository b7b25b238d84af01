#!/usr/bin/env bash
# All tests, with everything that they need brought up first.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh tinyproxy=tinyproxy unshare=util-linux setpriv=util-linux flock=util-linux \
  sshd=openssh-server ssh-keygen=openssh-client isoinfo=genisoimage
. scripts/lib.sh
need_cargo
scripts/kube-tools.sh >/dev/null
# The tests bring their own lab up and take it away; what it is made of is brought here.
if why=$(scripts/lab/up.sh --can 2>&1); then
  scripts/lab/up.sh --packages
  scripts/lab/image.sh tiny >/dev/null
  export LAB_MUST_RUN=1
else
  note "Without the tests on hypervisor hosts (tests/lab). $why"
fi
say "Tests: pure, on a paused clock, on real Squids, of the whole binary, on a real API server, and on hypervisor hosts"
exec scripts/cargo-test.sh
