#!/usr/bin/env bash
# Hypervisor hosts on this machine, hvA, hvB ..: each with network, mounts, processes and name of its own; sshd, libvirtd,
# QEMU by emulation, network and pool `default`. Root. `make lab-up`.
#   scripts/lab/up.sh [HOSTS]          brings them up (2), in 4 s; what is up stays; prints a line of key=value for each
#   scripts/lab/up.sh --hold [HOSTS]   the same, says `ready`, and takes them away when its stdin ends, or when it is killed
#   scripts/lab/up.sh --can            says why there can be none here, and exits with 1 then
#   scripts/lab/up.sh --packages       installs what is missing, and no more
# Host n is 10.77.n.2, this machine is 10.77.n.1 to it and to its guests, which are in 10.78.n.0/24: routed, no NAT, so
# nothing of the lab reaches further than this machine. LAB_NET, LAB_DIR: lib.sh.
set -euo pipefail
umask 022
cd "$(dirname "$0")/../.."
. scripts/lib.sh
. scripts/lab/lib.sh

packages() {
  need unshare=util-linux setpriv=util-linux flock=util-linux ip=iproute2 pgrep=procps nft=nftables curl=curl
  need_packages libvirt-daemon-system libvirt-daemon-driver-qemu libvirt-clients qemu-system-x86 qemu-utils ovmf \
    openssh-server openssh-client dnsmasq-base bindfs tini genisoimage
}

# Takes the networks, for as long as a process of this lab lives.
take_net() {
  local wanted=$net
  if [ "$wanted" = free ]; then
    for net in $(seq 80 2 250); do
      [ -z "$(ip route show root "10.$net.0.0/16")$(ip route show root "10.$((net + 1)).0.0/16")" ] || continue
      exec 9>"${TMPDIR:-/tmp}/egress-lab-$net.lock"
      flock -n 9 && break
    done
  else
    [[ $wanted =~ ^[0-9]+$ && $wanted -le 254 ]] || die "LAB_NET is a number up to 254, or free: $wanted"
    exec 9>"${TMPDIR:-/tmp}/egress-lab-$net.lock"
    flock -n 9 || [ -n "$(for host in $(hosts); do anchor "$host"; done)" ] ||
      die "The networks 10.$net and 10.$((net + 1)) belong to another lab: choose another LAB_NET."
  fi
  echo "$net" >"$LAB_DIR/net"
}

# prepare HOST: files; only what is missing, so that a host keeps its keys, domains and disks over a power-off.
prepare() {
  local host=$1 own=$LAB_DIR/$1 key
  rm -rf --one-file-system "$own/run"
  mkdir -p "$own"/{dev,run/sshd,home/operator/.ssh,ssh,files,log/qemu,pool,cache/qemu,lib/{images,qemu,boot}}
  if [ ! -e "$own/etc" ]; then
    cp -a /etc/libvirt "$own/etc"
    rm -rf "$own"/etc/qemu/networks/* "$own"/etc/storage
  fi
  chown libvirt-qemu:libvirt-qemu "$own/lib/qemu"
  chmod 711 "$own/lib" "$own/pool"
  cp /etc/passwd /etc/group /etc/shadow "$own/files/"
  chmod 640 "$own/files/shadow"
  # Without these each virConnectGetHostname and each name a guest asks for waits for a DNS server that is not there.
  echo "$host" >"$own/files/hostname"
  printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$host" >"$own/files/hosts"
  : >"$own/files/resolv.conf"
  echo "operator:x:977:37:hypervisor operator:/home/operator:/bin/bash" >>"$own/files/passwd"
  echo 'operator:*:19000:0:99999:7:::' >>"$own/files/shadow"
  sed -Ei 's/^(libvirt:[^:]*:[^:]*:).*/\1operator/' "$own/files/group"
  for key in ed25519 ecdsa rsa; do
    [ -e "$own/ssh/ssh_host_${key}_key" ] ||
      ssh-keygen -q -t $key $([ $key != rsa ] || echo -b 2048) -N '' -C "$host" -f "$own/ssh/ssh_host_${key}_key"
  done
  for key in "$own"/ssh/*.pub; do echo "$(address "$host") $(cut -d' ' -f1,2 "$key")"; done >"$own/known_hosts"
  cp "$client/id_ed25519.pub" "$own/home/operator/.ssh/authorized_keys"
  chown -R 977:37 "$own/home/operator"
  cat >"$own/ssh/sshd_config" <<X
ListenAddress $(address "$host"):22
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin no
AllowUsers operator
UsePAM no
AllowStreamLocalForwarding yes
AllowTcpForwarding local
X11Forwarding no
LogLevel VERBOSE
PidFile /run/sshd.pid
X
  cat >"$own/etc/libvirtd.conf" <<X
unix_sock_group = "libvirt"
unix_sock_rw_perms = "0770"
auth_unix_ro = "none"
auth_unix_rw = "none"
host_uuid = "4c4c4544-0000-4000-8000-0000000000$(printf %02x "$(number "$host")")"
log_outputs = "2:file:/var/log/libvirt/libvirtd.log"
X
  # There is no virtlogd and no cgroup mount to be seen; a /dev for each guest cannot be made from ours; AppArmor would
  # know the paths outside; remembered owners are void only after a boot of the machine, so a guest would not start again
  # after a power-off.
  cat >"$own/etc/qemu.conf" <<X
stdio_handler = "file"
security_driver = "none"
cgroup_controllers = []
namespaces = []
remember_owner = 0
X
}

# boot HOST: its namespaces; with --hold the kernel ends them with us, also if we are killed.
boot() {
  local own=$LAB_DIR/$1 tied=()
  [ -z "$hold" ] || tied=(setpriv --pdeathsig KILL --)
  rm -f "$own/ready"
  setsid "${tied[@]}" unshare --mount --uts --ipc --net --pid --fork --kill-child --mount-proc \
    scripts/lab/host.sh "$own" >"$own/log/init.log" 2>&1 </dev/null &
  echo $! >"$own/outer"
}

# connect HOST: the cable and the way to its guests.
connect() {
  local host=$1 own=$LAB_DIR/$1 outer pid cable
  outer=$(cat "$own/outer")
  cable=$(link "$host")
  within 10 test -e "$own/ready" || die "$host: namespaces: $(tail -n 5 "$own/log/init.log")"
  pid=$(cat "/proc/$outer/task/$outer/children")
  pid=${pid%% *}
  readlink "/proc/$pid/ns/pid" >"$own/ns"
  echo "$pid" >"$own/pid"
  ip link del "$cable" 2>/dev/null || true
  ip link add "$cable" type veth peer name eth0 netns "$pid"
  ip addr add "$(outside "$host")/24" dev "$cable"
  ip link set "$cable" up
  inside "$host" sh -ec "ip link set lo up; ip addr add $(address "$host")/24 dev eth0; ip link set eth0 up
    ip route add default via $(outside "$host"); sysctl -qw net.ipv4.ip_forward=1"
  ip route replace "$(guests "$host")" via "$(address "$host")"
}

answers() { ssh-keyscan -T 2 -t ed25519 "$(address "$1")" 2>/dev/null | grep -q ssh-ed25519; }

tell() {
  local host=$1
  echo "$host address=$(address "$host") port=22 user=operator key=$client/id_ed25519 known_hosts=$client/known_hosts" \
    "socket=/run/libvirt/libvirt-sock local_socket=$LAB_DIR/$host/run/libvirt/libvirt-sock outside=$(outside "$host")" \
    "guests=$(guests "$host") pool=default network=default pool_files=$LAB_DIR/$host/pool log=$LAB_DIR/$host/log"
}

# rest HOST: what is left once it has booted.
rest() {
  [ -z "$2" ] || connect "$1"
  starts "$1" sshd
  starts "$1" libvirtd
  contents "$1"
  within 10 answers "$1" || die "$1: sshd does not answer: $(tail -n 5 "$LAB_DIR/$1/log/sshd.log")"
}

hold='' count=2
for word in "$@"; do
  case $word in
    --can) can && exit ;;
    --packages) can && packages && exit ;;
    --hold) hold=yes ;;
    [1-9]) count=$word ;;
    *) die "usage: scripts/lab/up.sh [--hold] [HOSTS], up to 9 | --can | --packages" ;;
  esac
done
can
packages >&2
[[ $LAB_DIR != *[[:space:]]* ]] || die "LAB_DIR has a space in it: $LAB_DIR"
[ ${#LAB_DIR} -le 70 ] || die "LAB_DIR is too long for the sockets below it (70 characters at most): $LAB_DIR"
mkdir -p "$client"
# Held until here is nothing left to hold: however it ends.
[ -z "$hold" ] || trap 'scripts/lab/down.sh >/dev/null 2>&1' EXIT
[ -z "$hold" ] || trap 'exit 143' TERM INT HUP
take_net
[ -e "$client/id_ed25519" ] || ssh-keygen -q -t ed25519 -N '' -C operator -f "$client/id_ed25519"

names=() booted=()
for i in $(seq "$count"); do
  host=hv$(printf "\\x$(printf %x $((64 + i)))")
  names+=("$host")
  if anchor "$host" >/dev/null; then
    booted+=('')
  else
    prepare "$host"
    boot "$host"
    booted+=(yes)
  fi
done
for host in $(hosts); do cat "$LAB_DIR/$host/known_hosts"; done >"$client/known_hosts"
pending=()
for i in "${!names[@]}"; do
  rest "${names[i]}" "${booted[i]}" &
  pending+=($!)
done
for pid in "${pending[@]}"; do wait "$pid" || die "The lab does not come up."; done
for host in "${names[@]}"; do tell "$host"; done | tee "$LAB_DIR/hosts"
if [ -n "$hold" ]; then
  echo ready
  exec >/dev/null 2>&1
  # Whoever holds the other end of the pipe: when it ends, in whatever way, so does this.
  while read -r _; do :; done
fi
