#!/usr/bin/env bash
# The first process of a host's namespaces: its own /dev, /run, user list and libvirt folders, then a reaper. Only up.sh
# starts it, through unshare.
set -euo pipefail
state=$1
hostname "${state##*/}"
# The sysfs of our network namespace (bridges); it also hides the machine's cgroups.
mount -t sysfs sysfs /sys
# No /dev/kvm: guests are emulated everywhere, and libvirt would take what looks like KVM and is not.
mount -t tmpfs -o mode=755 dev "$state/dev"
cd "$state/dev"
mkdir pts shm net
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty .
[ ! -c /dev/fuse ] || cp -a /dev/fuse .
cp -a /dev/net/tun net/
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts pts
ln -s pts/ptmx ptmx
ln -s /proc/self/fd fd
ln -s fd/0 stdin
ln -s fd/1 stdout
ln -s fd/2 stderr
cd /
mount --move "$state/dev" /dev
for pair in run:/run home:/home ssh:/etc/ssh etc:/etc/libvirt lib:/var/lib/libvirt cache:/var/cache/libvirt log:/var/log/libvirt; do
  mount --bind "$state/${pair%%:*}" "${pair#*:}"
done
for file in passwd group shadow hostname hosts resolv.conf; do mount --bind "$state/files/$file" "/etc/$file"; done
# Through FUSE, so that break.sh can freeze the pool by stopping this bindfs.
if [ "${LAB_FUSE:-1}" = 0 ]; then
  mount --bind "$state/pool" /var/lib/libvirt/images
else
  bindfs --multithreaded "$state/pool" /var/lib/libvirt/images
fi
touch "$state/ready"
# libvirt waits until a killed QEMU is gone, so orphans must be reaped.
exec tini -- sleep infinity
