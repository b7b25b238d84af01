#!/usr/bin/env bash
# The lab's guest images, built once into ~/.cache/egress-proxies-operator/images, without a registry, a loop device or a
# virtual machine. Prints the path of each, one a line.
#   scripts/lab/image.sh [tiny] [debian]     (tiny)
# tiny     16 MiB: kernel, busybox, a small proxy and a small guest agent (scripts/lab/guest); up in 7 s by emulation
# debian   cloud-init, Squid, qemu-guest-agent; up in 45 s by emulation
# Both are GPT disks in qcow2 that boot by UEFI (a unified kernel image at the fallback path). The name tells the recipe:
# another recipe is another file. LAB_MIRROR: a mirror of Debian 12, where apt has none.
set -euo pipefail
umask 022
cd "$(dirname "$0")/../.."
. scripts/lib.sh
. scripts/lab/lib.sh
exec 3>&1 1>&2
root=$PWD
# The first sector of the EFI partition.
esp=2048
part=77777777-7777-4777-8777-777777777777

recipe() { sha256sum scripts/lab/image.sh scripts/lab/guest/* | sha256sum | cut -c1-12; }
place() { echo "$images/$1-$(recipe).qcow2"; }

# unified NAME: vmlinuz, initrd and cmdline as one EFI program. The sections must not overlap: addresses follow from sizes.
unified() {
  local at=$((0x2000000)) step
  step=$((($(stat -Lc %s vmlinuz) + 0xfffff) / 0x100000 * 0x100000))
  objcopy --add-section .cmdline=cmdline --change-section-vma .cmdline=0x30000 \
    --add-section .linux=vmlinuz --change-section-vma .linux=$at \
    --add-section .initrd=initrd --change-section-vma .initrd=$((at + step)) /usr/lib/systemd/boot/efi/linuxx64.efi.stub boot.efi
}

# disk ROOT_MIB: the partition table, then the file systems at their offsets.
disk() {
  local size
  size=$(($(stat -Lc %s boot.efi) / 1048576 + 34))
  truncate -s $((size + $1 + 2))M disk.raw
  {
    echo 'label: gpt'
    echo "start=$esp, size=${size}M, type=U"
    [ "$1" = 0 ] || echo "start=$((esp + size * 2048)), size=${1}M, type=L, uuid=$part"
  } | sfdisk -q disk.raw
  mkfs.vfat --offset $esp -F 32 -s 1 -n ESP disk.raw $((size * 1024)) >/dev/null 2>&1
  mmd -i disk.raw@@1M ::/EFI ::/EFI/BOOT
  mcopy -i disk.raw@@1M boot.efi ::/EFI/BOOT/BOOTX64.EFI
  [ "$1" = 0 ] || mkfs.ext4 -q -L root -d rootfs -E offset=$(((esp + size * 2048) * 512)) disk.raw "${1}M"
  qemu-img convert -c -O qcow2 disk.raw disk.qcow2
}

tiny() {
  local version module package
  (cd "$root" && need_go && cd scripts/lab/guest && CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o "$work/guest" .)
  package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image\)/\1/p')
  apt-get download -qq "$package" 2>/dev/null || die "apt-get cannot download $package"
  dpkg -x linux-image-*.deb kernel
  version=$(ls kernel/lib/modules)
  depmod -b kernel "$version"
  mkdir -p ram/{bin,lib,proc,sys,dev,seed,etc,tmp}
  cp /bin/busybox ram/bin/
  cp guest "$root/scripts/lab/guest/init" ram/
  cp "$root/scripts/lab/guest/udhcpc" ram/lib/
  for module in virtio_pci virtio_blk virtio_net virtio_console virtio_scsi virtio_balloon sr_mod sd_mod isofs button evdev; do
    modprobe -d kernel -S "$version" --show-depends "$module"
  done | awk '$1 == "insmod" && !seen[$2]++ {print $2}' >order
  while read -r module; do
    cp "$module" ram/lib/
    echo "${module##*/}"
  done <order >ram/lib/order
  (cd ram && find . | cpio -o -H newc --quiet) >initrd
  cp kernel/boot/vmlinuz-* vmlinuz
  echo 'console=ttyS0 quiet panic=5 mitigations=off nokaslr' >cmdline
  unified
  disk 0
}

# Without python3-cffi-backend cloud-init stays unconfigured.
debian() {
  local mirror packages
  mirror=${LAB_MIRROR:-$(apt-get indextargets --format '$(SITE) $(RELEASE)' | awk '$2 == "bookworm" {print $1; exit}')}
  [ -n "$mirror" ] || die "apt has no mirror of Debian 12 here: name one with LAB_MIRROR."
  packages=linux-image-cloud-amd64,cloud-init,python3-cffi-backend,qemu-guest-agent,squid,netplan.io,systemd-sysv
  packages+=,systemd-resolved,dbus,openssh-server,iproute2,zstd
  debootstrap --variant=minbase --include=$packages bookworm rootfs "$mirror" >log 2>&1 || die "debootstrap: $(tail -n 5 log)"
  (
    cd rootfs
    echo 'LABEL=root / ext4 defaults 0 1' >etc/fstab
    echo localhost >etc/hostname
    : >etc/machine-id
    rm -f etc/ssh/ssh_host_* var/lib/dbus/machine-id
    # Emulation is slow: no probing of clouds, one kind of host key, an initrd with only what finds the root.
    # There is no other locale than C.UTF-8, and one that cannot be made is an error of cloud-init's.
    printf '%s\n' 'datasource_list: [NoCloud, None]' 'ssh_genkeytypes: [ed25519]' 'apt: {preserve_sources_list: true}' \
      'locale: C.UTF-8' >etc/cloud/cloud.cfg.d/90_lab.cfg
    echo 'MODULES=list' >etc/initramfs-tools/conf.d/lab
    printf '%s\n' virtio_pci virtio_blk virtio_scsi sd_mod ext4 >>etc/initramfs-tools/modules
    chroot . update-initramfs -u >/dev/null 2>&1
    chroot . systemctl -q disable apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer \
      e2scrub_reap.service dpkg-db-backup.timer logrotate.timer cron.service ssh.service 2>/dev/null || true
    # What a proxy needs no seconds of, each of them.
    chroot . systemctl -q mask getty.target systemd-binfmt.service systemd-update-utmp.service \
      systemd-update-utmp-runlevel.service systemd-fsck-root.service modprobe@{configfs,dm_mod,drm,efi_pstore,fuse,loop}.service
    rm -rf usr/share/doc/* usr/share/man/* usr/share/locale/* usr/share/info/* var/cache/apt/* var/lib/apt/lists/* var/log/*.log
    mv boot/initrd.img-* ../initrd
    cp boot/vmlinuz-* ../vmlinuz
  )
  echo "root=PARTUUID=$part ro console=ttyS0 quiet mitigations=off nokaslr fsck.mode=skip" >cmdline
  unified
  disk 2048
}

[ $# -gt 0 ] || set -- tiny
for name in "$@"; do
  case $name in tiny | debian) ;; *) die "usage: scripts/lab/image.sh [tiny] [debian]" ;; esac
  if [ ! -e "$(place "$name")" ]; then
    [ "$(id -u)" -eq 0 ] && [ "$(uname -m)" = x86_64 ] && command -v apt-get >/dev/null ||
      die "The lab's images are built as root on a Debian machine of x86_64."
    mkdir -p "$images"
    exec 9>"$images/lock"
    flock -n 9 || { note "Another image.sh is building: waiting for it"; flock 9; }
  fi
  if [ ! -e "$(place "$name")" ]; then
    need qemu-img=qemu-utils mcopy=mtools mkfs.vfat=dosfstools sfdisk=fdisk mkfs.ext4=e2fsprogs objcopy=binutils \
      busybox=busybox-static modprobe=kmod cpio=cpio zstd=zstd debootstrap=debootstrap
    need_packages systemd-boot-efi busybox-static
    say "The guest image $name, once, into $images"
    begun=$SECONDS
    work=$(mktemp -d "$images/.$name.XXXXXX")
    trap 'rm -rf --one-file-system "$work"' EXIT
    (cd "$work" && "$name")
    # Moved to its place: what has the name is whole.
    mv "$work/disk.qcow2" "$(place "$name")"
    rm -rf --one-file-system "$work"
    note "$name: $((SECONDS - begun)) s, $(du -h "$(place "$name")" | cut -f1)"
  fi
  place "$name" >&3
done
