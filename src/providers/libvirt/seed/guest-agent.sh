#!/bin/sh
# Installs, enables and starts the QEMU guest agent, which tells the hypervisor this machine's address.
# Written by egress-proxies-operator as vendor-data. It never fails the boot, and waits for nothing for ever.
set -u

PACKAGE=qemu-guest-agent

say() {
    echo "egress-guest-agent: $*"
}

# Seconds since the boot: the clock may jump at a first boot.
uptime() {
    read -r up _ </proc/uptime
    echo "${up%%.*}"
}

# Old busybox has no -k.
hard=
timeout -k 1 9 true 2>/dev/null && hard="-k 10"

# within SECONDS COMMAND...
within() {
    seconds=$1
    shift
    if command -v timeout >/dev/null 2>&1; then
        # shellcheck disable=SC2086
        timeout $hard "$seconds" "$@" </dev/null
    else
        "$@" </dev/null
    fi
}

installed() {
    command -v qemu-ga >/dev/null 2>&1 || [ -x /usr/sbin/qemu-ga ] || [ -x /usr/bin/qemu-ga ]
}

apt() {
    within 300 env DEBIAN_FRONTEND=noninteractive apt-get -q -y \
        -o DPkg::Lock::Timeout=120 -o Acquire::http::Timeout=30 -o Acquire::https::Timeout=30 "$@"
}

install_once() {
    if command -v apt-get >/dev/null 2>&1; then
        apt update
        apt install --no-install-recommends "$PACKAGE"
    elif command -v dnf >/dev/null 2>&1; then
        within 300 dnf -q -y install "$PACKAGE"
    elif command -v yum >/dev/null 2>&1; then
        within 300 yum -q -y install "$PACKAGE"
    elif command -v zypper >/dev/null 2>&1; then
        within 300 zypper --non-interactive install --no-recommends "$PACKAGE"
    elif command -v apk >/dev/null 2>&1; then
        within 300 apk add --no-progress "$PACKAGE"
    elif command -v pacman >/dev/null 2>&1; then
        within 300 pacman -Sy --noconfirm --needed "$PACKAGE"
    else
        say "no package manager that is known"
        return 1
    fi
}

# The user's own scripts come after this one, and may want the package manager too: so neither in the background nor long.
attempt=1
started=$(uptime)
while ! installed; do
    say "installing $PACKAGE, attempt $attempt of 5"
    install_once
    installed && break
    if [ "$attempt" -ge 5 ] || [ $(($(uptime) - started)) -ge 600 ]; then
        say "$PACKAGE could not be installed; the address is known by the DHCP lease only"
        exit 0
    fi
    # A lock that is held, a network or a mirror that is not there yet.
    sleep $((attempt * 15))
    attempt=$((attempt + 1))
done

if command -v systemctl >/dev/null 2>&1; then
    # The unit hangs on the channel's device, which udev must have seen with the package's rule.
    if command -v udevadm >/dev/null 2>&1; then
        within 30 udevadm control --reload
        within 30 udevadm trigger --subsystem-match=virtio-ports
    fi
    # Where udev starts it there is nothing to enable.
    within 60 systemctl enable "$PACKAGE" >/dev/null 2>&1
    # Not waited for: it may be ordered after the very service that runs this script.
    within 60 systemctl --no-block start "$PACKAGE"
elif command -v rc-service >/dev/null 2>&1; then
    within 60 rc-update add "$PACKAGE" default
    within 60 rc-service "$PACKAGE" start
else
    say "no service manager that is known"
fi
exit 0
