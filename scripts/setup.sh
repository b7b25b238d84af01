#!/usr/bin/env bash
# Makes this machine ready to build, run and test the project. Does nothing that is done already.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
need_cargo
need squid=squid curl=curl jq=jq cc=gcc openssl=openssl pkg-config=pkg-config "$@"
# libvirt's client library, with its headers.
pkg-config --exists libvirt || need_packages libvirt-dev
