# The lab's names, addresses and entry points. Sourced by the other scripts, after scripts/lib.sh.
# shellcheck shell=bash
#   LAB_DIR   the lab's state while it is there (~/.cache/egress-proxies-operator/lab)
#   LAB_NET   its addresses: hosts 10.LAB_NET.n.2, guests 10.(LAB_NET + 1).n.0/24 (77), or `free` for the first that nobody uses
#   LAB_FUSE  0: the pools are plain folders, which cannot be frozen or failed
cache=${XDG_CACHE_HOME:-$HOME/.cache}/egress-proxies-operator
LAB_DIR=${LAB_DIR:-$cache/lab}
images=$cache/images
# What an operator needs: one key, and the keys of all hosts.
client=$LAB_DIR/client
PATH=$PATH:/usr/sbin:/sbin

# The pair of networks: that of the lab which is there, else what LAB_NET asks for.
net=$(cat "$LAB_DIR/net" 2>/dev/null) || net=${LAB_NET:-77}

# number HOST: hvA -> 1
number() { echo $(($(printf %d "'${1#hv}") - 64)); }
# link HOST: its cable, as seen from here
link() { printf 'hv%s%s' "$net" "${1#hv}"; }
address() { echo "10.$net.$(number "$1").2"; }
outside() { echo "10.$net.$(number "$1").1"; }
guests() { echo "10.$((net + 1)).$(number "$1").0/24"; }
hosts() { (cd "$LAB_DIR" 2>/dev/null && ls -d hv[A-Z] 2>/dev/null) || true; }

# anchor HOST: the PID of its first process. The namespace is compared, as PIDs are used again.
anchor() {
  local pid
  pid=$(cat "$LAB_DIR/$1/pid" 2>/dev/null) || return 1
  [ "$(readlink "/proc/$pid/ns/pid" 2>/dev/null)" = "$(cat "$LAB_DIR/$1/ns" 2>/dev/null)" ] && echo "$pid"
}

# inside HOST COMMAND..: in all of its namespaces
inside() {
  local pid
  pid=$(anchor "$1") || die "$1 is not up"
  shift
  nsenter -t "$pid" -m -u -i -n -p -- env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "$@"
}

# pids HOST NAME: its processes of that name, as seen from here
pids() {
  local pid name=$2
  # Newer ones serve their sessions by programs of their own.
  [ "$name" != sshd ] || name='sshd(-session|-auth)?'
  pid=$(anchor "$1") && pgrep --ns "$pid" --nslist pid -x "$name"
}

# within SECONDS COMMAND..: repeats it until it succeeds
within() {
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || return 1
    sleep 0.05
  done
}

# virsh_of HOST ARGUMENTS..: past sshd
virsh_of() {
  local socket=$LAB_DIR/$1/run/libvirt/libvirt-sock
  shift
  timeout 15 virsh -q -c "qemu:///system?socket=$socket" "$@"
}

# starts HOST PROGRAM: unless it runs
starts() {
  [ -z "$(pids "$1" "$2")" ] || return 0
  local log=$LAB_DIR/$1/log
  case $2 in
    libvirtd) inside "$1" timeout 60 libvirtd -d -f /etc/libvirt/libvirtd.conf >"$log/libvirtd.out" 2>&1 </dev/null ||
      die "$1: libvirtd: $(tail -n 5 "$log/libvirtd.out" "$log/libvirtd.log")" ;;
    sshd) inside "$1" /usr/sbin/sshd -f /etc/ssh/sshd_config -E /var/log/libvirt/sshd.log </dev/null || die "$1: sshd" ;;
  esac
}

# contents HOST: network and pool `default`. no-ping saves each guest the 3 s in which dnsmasq looks whether its address
# is in use.
contents() {
  local host=$1 subnet
  subnet=$(guests "$host")
  subnet=${subnet%.0/24}
  within 30 virsh_of "$host" version || die "$host: libvirtd does not answer: $(tail -n 5 "$LAB_DIR/$host/log/libvirtd.log")"
  if ! virsh_of "$host" net-info default >/dev/null 2>&1; then
    virsh_of "$host" net-define /dev/stdin >/dev/null <<X
<network xmlns:dnsmasq='http://libvirt.org/schemas/network/dnsmasq/1.0'><name>default</name>
<forward mode='open'/><bridge name='virbr0' stp='off' delay='0'/>
<ip address='$subnet.1' netmask='255.255.255.0'><dhcp><range start='$subnet.10' end='$subnet.250'/></dhcp></ip>
<dnsmasq:options><dnsmasq:option value='no-ping'/></dnsmasq:options></network>
X
    virsh_of "$host" net-autostart default >/dev/null
  fi
  [[ $(virsh_of "$host" net-list --name) = *default* ]] || virsh_of "$host" net-start default >/dev/null
  if ! virsh_of "$host" pool-info default >/dev/null 2>&1; then
    virsh_of "$host" pool-define-as default dir --target /var/lib/libvirt/images >/dev/null
    virsh_of "$host" pool-autostart default >/dev/null
  fi
  [[ $(virsh_of "$host" pool-list --name) = *default* ]] || virsh_of "$host" pool-start default >/dev/null
}

# Says why there can be no lab here.
can() {
  [ "$(uname -s)" = Linux ] || die "The lab needs Linux."
  [ "$(id -u)" -eq 0 ] || die "The lab needs root: it makes namespaces, mounts and links."
  [ "$(uname -m)" = x86_64 ] || die "The lab's guests are x86_64."
  [ -c /dev/net/tun ] || die "The lab needs /dev/net/tun, for the guests' network."
  [ -c /dev/fuse ] || [ "${LAB_FUSE:-1}" = 0 ] || die "The lab needs /dev/fuse, for pools that can be frozen (LAB_FUSE=0: without)."
  unshare --mount --uts --ipc --net --pid --fork --mount-proc true 2>/dev/null || die "The lab needs namespaces (unshare)."
  command -v apt-get >/dev/null || [ -x /usr/sbin/libvirtd ] || die "The lab needs libvirt and QEMU, and there is no apt-get to install them."
}
