#!/usr/bin/env bash
# scripts/lab/break.sh HOST WHAT [GUEST]   One fault on one host of the lab, or its undo. Each is idempotent.
#   stop-libvirtd cont-libvirtd     frozen: connects, never answers
#   kill-libvirtd start-libvirtd restart-libvirtd      guests go on
#   stop-sshd cont-sshd             the listener and all its sessions, frozen
#   kill-sshd start-sshd            the listener, refused                  kill-sessions    sessions only
#   drop undrop                     packets to and from the host and its guests vanish
#   reject undrop                   they are refused
#   link-down link-up               the cable
#   drop-guests undrop-guests       packets of the guests only
#   freeze-pool thaw-pool           calls that touch the pool and guests that touch their disk hang, the rest answers
#   fail-pool heal-pool             every access to the pool fails (FUSE daemon dead); libvirt's pool may need a pool-start then
#   stop-dnsmasq cont-dnsmasq       no DHCP
#   stop-guest cont-guest kill-guest GUEST      its QEMU
#   power-off                       all of it dies at once; up.sh boots it again, with its keys, domains and disks
#   heal                            undoes all of the above but power-off; network and pool are up then
#   wipe                            no domain is left, and no volume in the pool
#   exec COMMAND..                  runs it inside the host
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh
. scripts/lab/lib.sh
if [ $# -lt 2 ]; then
  sed -n '2,/^set/s/^# \?//p' scripts/lab/break.sh
  exit 2
fi
host=$1 what=$2
shift 2
pid=$(anchor "$host") || die "$host is not up"

signal() {
  local found
  found=$(pids "$host" "$2") || return 0
  # shellcheck disable=SC2086
  kill "-$1" $found 2>/dev/null || true
}
# What forked while the others were being stopped is stopped as well.
frozen() {
  local found state
  signal STOP "$1"
  found=$(pids "$host" "$1") || return 0
  for process in $found; do
    state=$(sed -n 's/^State:\t\(.\).*/\1/p' "/proc/$process/status" 2>/dev/null) || continue
    [[ $state == [TtZX] || -z $state ]] || return 1
  done
}
ended() { [ -z "$(pids "$host" "$1")" ]; }
kills() {
  signal KILL "$1"
  within 10 ended "$1" || die "$host: $1 does not end"
}
guest() { pgrep --ns "$pid" --nslist pid -f "qemu-system.*guest=${1:?which guest}," || die "$host: no guest $1"; }
rules() { inside "$host" nft "add table inet lab; delete table inet lab; $1"; }
# Before every other chain. libvirt's own tables are left alone.
at='priority -400'
refuse='iifname eth0 meta l4proto tcp reject with tcp reset; iifname eth0 reject'

# At the host's end: at ours, the route would go with it, and what is for the host would leave this machine.
plug() { inside "$host" sh -ec "ip link set eth0 up; ip route replace default via $(outside "$host")"; }
guests_of() { virsh_of "$host" list --all --name | sed '/^$/d'; }
heal_pool() {
  [ -z "$(pids "$host" bindfs)" ] || return 0
  # A plain pool has none, and needs none.
  [ "${LAB_FUSE:-1}" != 0 ] || return 0
  inside "$host" sh -c "umount -l /var/lib/libvirt/images; bindfs --multithreaded $LAB_DIR/$host/pool /var/lib/libvirt/images"
}

case $what in
  stop-libvirtd | stop-sshd | stop-dnsmasq)
    frozen "${what#stop-}" || true
    within 10 frozen "${what#stop-}" || die "$host: ${what#stop-} does not stop"
    ;;
  cont-libvirtd | cont-sshd | cont-dnsmasq) signal CONT "${what#cont-}" ;;
  kill-libvirtd) kills libvirtd ;;
  start-libvirtd | start-sshd) starts "$host" "${what#start-}" ;;
  restart-libvirtd)
    signal CONT libvirtd
    signal TERM libvirtd
    within 15 ended libvirtd || kills libvirtd
    starts "$host" libvirtd
    ;;
  kill-sshd) kills sshd ;;
  kill-sessions)
    for session in $(pids "$host" sshd); do
      grep -qsz listener "/proc/$session/cmdline" || kill -KILL "$session" 2>/dev/null || true
    done
    ;;
  drop) rules "table inet lab {
    chain i { type filter hook input $at; iifname eth0 drop; }
    chain o { type filter hook output $at; oifname eth0 drop; }
    chain f { type filter hook forward $at; drop; }; }" ;;
  reject) rules "table inet lab {
    chain i { type filter hook input $at; $refuse; }
    chain f { type filter hook forward priority -1; $refuse; }; }" ;;
  drop-guests) rules "table inet lab { chain f { type filter hook forward $at; drop; }; }" ;;
  undrop | undrop-guests) rules '' ;;
  link-down) inside "$host" ip link set eth0 down ;;
  link-up) plug ;;
  freeze-pool) signal STOP bindfs ;;
  thaw-pool) signal CONT bindfs ;;
  fail-pool) signal KILL bindfs ;;
  heal-pool) heal_pool ;;
  stop-guest) guest "${1:-}" | xargs kill -STOP ;;
  cont-guest) guest "${1:-}" | xargs kill -CONT ;;
  kill-guest) guest "${1:-}" | xargs kill -KILL ;;
  heal)
    for name in bindfs libvirtd sshd dnsmasq qemu-system-x86; do signal CONT "$name"; done
    rules ''
    plug
    heal_pool
    starts "$host" libvirtd
    starts "$host" sshd
    contents "$host"
    ;;
  wipe)
    for domain in $(guests_of); do
      virsh_of "$host" destroy "$domain" >/dev/null 2>&1 || true
      virsh_of "$host" undefine --nvram --managed-save --snapshots-metadata "$domain" >/dev/null
    done
    find "$LAB_DIR/$host/pool" -mindepth 1 -delete
    virsh_of "$host" pool-refresh default >/dev/null
    ;;
  power-off)
    kill -KILL "$pid"
    off() { [ ! -e "/proc/$pid" ]; }
    within 20 off || die "$host does not end"
    ip link del "$(link "$host")" 2>/dev/null || true
    ;;
  exec) inside "$host" "$@" ;;
  *) die "Unknown: $what. scripts/lab/break.sh alone lists what there is." ;;
esac
