#!/usr/bin/env bash
# Takes the lab's hosts away, all of them or those that are named: guests, daemons, namespaces, links, routes, state.
# `make lab-down`. Says what is left, and exits with 1 then.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. scripts/lib.sh
. scripts/lab/lib.sh

[ $# -gt 0 ] || read -ra names <<<"$(hosts | tr '\n' ' ')"
[ $# -eq 0 ] || names=("$@")
gone() { [ ! -e "/proc/$1" ]; }
left=0
# All at once: the kernel ends the whole PID namespace with its first process; mounts and network follow.
for host in "${names[@]}"; do
  ! pid=$(anchor "$host") || kill -KILL "$pid"
done
for host in "${names[@]}"; do
  [ -d "$LAB_DIR/$host" ] || continue
  pid=$(anchor "$host") && ! within 20 gone "$pid" && { note "$host: $pid does not end"; left=1; continue; }
  ip link del "$(link "$host")" 2>/dev/null
  rm -rf --one-file-system "${LAB_DIR:?}/$host" || left=1
done
if [ -z "$(hosts)" ]; then
  rm -f "$LAB_DIR/hosts" "$LAB_DIR/net"
  [ ! -d "$LAB_DIR" ] || rmdir "$LAB_DIR" || left=1
fi
exit $left
