#!/usr/bin/env bash
# A real Kubernetes node on this machine, for `make e2e`: as root, in mount, network and process namespaces of its own.
#   scripts/node.sh can            says why it cannot run here, and exits with 1 then
#   scripts/node.sh up             images and node, from nothing in a minute or so; again: does nothing
#   scripts/node.sh in COMMAND ..  runs it in the node's namespaces, with KUBECONFIG set and kubectl on the PATH
#   scripts/node.sh down           takes it away; again: does nothing
#   scripts/node.sh run COMMAND .. up, in, and down however the command ends
# Nothing of it outlives `down`, or the death of whoever called `run`: no process, mount, address, rule or setting of the
# machine. What stays are the packages that it needs, and two caches (the Kubernetes programs, the operator's build).
#   EGRESS_NODE_DIR   where its state is while it is there (/var/tmp/egress-node); the logs of its parts are in log/
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
. scripts/node/settings.sh
PATH=$PATH:/usr/sbin:/sbin

can() {
  [ "$(uname -s)" = Linux ] || die "A node needs Linux."
  [ "$(id -u)" -eq 0 ] || die "A node needs root: it makes namespaces, mounts and cgroups."
  [ "$(uname -m)" = x86_64 ] || [ "$(uname -m)" = aarch64 ] || die "A node needs x86_64 or aarch64."
  grep -qw overlay /proc/filesystems || modprobe overlay 2>/dev/null || die "A node needs overlayfs, which this kernel does not have."
  [ -d /sys/fs/cgroup/memory ] || [ -e /sys/fs/cgroup/cgroup.controllers ] || die "A node needs cgroups at /sys/fs/cgroup."
  [ -w /sys/fs/cgroup ] && mkdir -p "$(a_cgroup)" 2>/dev/null || die "A node needs to make cgroups, and /sys/fs/cgroup cannot be written."
  rmdir "$(a_cgroup)" 2>/dev/null || true
  [ "$(df --output=avail -k "$(dirname "$state")" | tail -n 1)" -gt $((2 << 20)) ] || die "A node needs 2 GiB of room in $(dirname "$state")."
  unshare --mount --net --pid --fork true 2>/dev/null || die "A node needs mount, network and process namespaces (unshare)."
  command -v apt-get >/dev/null || command -v containerd >/dev/null ||
    die "A node needs containerd, runc, CNI plugins and buildah, and there is no apt-get to install them."
}

a_cgroup() {
  if [ -d /sys/fs/cgroup/memory ]; then echo "/sys/fs/cgroup/memory/$cgroup-can"; else echo "/sys/fs/cgroup/$cgroup-can"; fi
}

# The first process of the node, as it is seen from outside.
holder() {
  local pid
  pid=$(cat "$state/pid" 2>/dev/null) || return 1
  grep -zqF "$PWD/scripts/node/inside.sh" "/proc/$pid/cmdline" 2>/dev/null || return 1
  printf '%s\n' "$pid"
}

down() {
  local pid hierarchy
  if pid=$(holder); then
    kill -KILL "$pid" 2>/dev/null || true
    # It is gone when all of its namespace are.
    for _ in $(seq 300); do [ -d "/proc/$pid" ] || break; sleep 0.1; done
    [ ! -d "/proc/$pid" ] || die "The node's first process $pid does not end."
  fi
  for hierarchy in /sys/fs/cgroup/ /sys/fs/cgroup/*/; do
    [ -d "$hierarchy$cgroup" ] || continue
    for _ in 1 2 3 4 5; do
      find "$hierarchy$cgroup" -depth -type d -exec rmdir {} \; 2>/dev/null || true
      [ -d "$hierarchy$cgroup" ] || break
      sleep 0.2
    done
    [ ! -d "$hierarchy$cgroup" ] || note "Left: $hierarchy$cgroup, which somebody still uses."
  done
  if [ "${1:-}" != keep-logs ]; then rm -rf --one-file-system "$state"; fi
}

up() {
  local tools tied=() pid
  if holder >/dev/null && [ -e "$state/ready" ]; then return; fi
  can
  down
  need containerd=containerd runc=runc /usr/lib/cni/bridge=containernetworking-plugins iptables=iptables \
    conntrack=conntrack socat=socat ip=iproute2 unshare=util-linux setpriv=util-linux buildah=buildah curl=curl jq=jq \
    cc=gcc openssl=openssl squid=squid
  tools=$(scripts/kube-tools.sh node)
  mkdir -p "$images"
  chmod 711 "$state"
  say "Images, without a registry"
  # In namespaces of their own, so that no mount and no process of the build stays either. Waited for as below.
  setpriv --pdeathsig KILL -- unshare --mount --pid --fork --kill-child --mount-proc scripts/node/images.sh "$images" &
  wait $!
  say "A node"
  # Programs may be in either place; one folder makes it one place.
  mkdir -p "$state/bin"
  for program in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl; do
    for place in "${KUBEBUILDER_ASSETS:-/nowhere}" "$tools"; do
      [ -x "$place/$program" ] && ln -sf "$place/$program" "$state/bin/$program" && break
    done
  done
  # With `run`, its death is the kernel's to see to, also if we are killed.
  [ "${1:-}" = tied ] && tied=(setpriv --pdeathsig KILL --)
  "${tied[@]}" unshare --mount --net --pid --fork --kill-child --mount-proc \
    "$PWD/scripts/node/inside.sh" "$state/bin" >"$state/inside.log" 2>&1 </dev/null &
  local outer=$!
  for _ in $(seq 100); do
    pid=$(cat "/proc/$outer/task/$outer/children" 2>/dev/null | tr -d ' ') || true
    [ -n "$pid" ] && break
    sleep 0.05
  done
  printf '%s\n' "$pid" >"$state/pid"
  for _ in $(seq 600); do
    [ -e "$state/ready" ] && return
    kill -0 $outer 2>/dev/null || break
    sleep 0.2
  done
  die "The node does not come up: $(cat "$state/failed" 2>/dev/null || tail -n 5 "$state/inside.log")"
}

inside() {
  local pid
  pid=$(holder) || die "There is no node: scripts/node.sh up"
  KUBECONFIG=$kubeconfig PATH=$state/bin:$PATH exec nsenter --target "$pid" --mount --net --pid --wd="$PWD" "$@"
}

# Two at once would share cgroups and state.
alone() {
  exec 9>"${TMPDIR:-/tmp}/egress-node.lock"
  flock -n 9 || die "Another node is coming up or is in use on this machine; one at a time."
}

case ${1:-} in
  can) can ;;
  up) alone && up 9>&- ;;
  down) down ;;
  in) shift && inside "$@" ;;
  run)
    shift
    alone
    trap 'down' EXIT
    trap 'exit 130' INT TERM HUP
    up tied
    # Waited for in the background: a trap would wait for the end of what runs in the foreground.
    (inside "$@") 9>&- &
    wait $!
    ;;
  *) die "usage: scripts/node.sh can|up|down|in COMMAND ..|run COMMAND .." ;;
esac
