#!/usr/bin/env bash
# Takes the lab's hosts away, all of them or those that are named: guests, daemons, namespaces, links, routes, state.
# `make lab-down`. Says what is left, and exits with 1 then.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. scripts/lib.sh
. scripts/lab/lib.sh

[ $# -gt 0 ] || read -ra names <<<"$(hosts | tr '\n' ' ')"
[ $# -eq 0 ] || names=("$@")
# A zombie is somebody else's to reap.
gone() { [ ! -e "/proc/$1" ] || grep -qs '^State:.Z' "/proc/$1/status"; }
left=0
# All at once: the kernel ends the whole PID namespace with its first process; mounts and network follow. A host that did
# not come up has only its unshare, which takes the first process along.
pids=()
for host in "${names[@]}"; do
  if pid=$(anchor "$host"); then pids+=("$pid"); fi
  outer=$(cat "$LAB_DIR/$host/outer" 2>/dev/null) || continue
  ! grep -qszF "$LAB_DIR/$host" "/proc/$outer/cmdline" || pids+=("$outer")
done
[ ${#pids[@]} -eq 0 ] || kill -KILL "${pids[@]}" 2>/dev/null
for pid in "${pids[@]}"; do within 20 gone "$pid" || { note "$pid does not end"; left=1; }; done
for host in "${names[@]}"; do
  [ -d "$LAB_DIR/$host" ] || continue
  ip link del "$(link "$host")" 2>/dev/null
  rm -rf --one-file-system "${LAB_DIR:?}/$host" || left=1
done
if [ -z "$(hosts)" ] && [ -d "$LAB_DIR" ]; then
  rm -f "$LAB_DIR/hosts" "$LAB_DIR/net" "$LAB_DIR/keeper.log" "$client/id_ed25519" "$client/id_ed25519.pub" "$client/known_hosts"
  rmdir "$client" "$LAB_DIR" || left=1
fi
exit $left
