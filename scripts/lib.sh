# Shared by the scripts: words for people, and what is missing on this machine.
# shellcheck shell=bash

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
  bold=$'\e[1m' dim=$'\e[2m' green=$'\e[32m' red=$'\e[31m' off=$'\e[0m'
else
  bold='' dim='' green='' red='' off=''
fi

say() { printf '\n%s== %s%s\n' "$bold" "$*" "$off"; }
note() { printf '%s%s%s\n' "$dim" "$*" "$off"; }
die() { printf '%s%s%s\n' "$red" "$*" "$off" >&2; exit 1; }

# need PROGRAM=PACKAGE ...: installs the packages whose programs are missing, or says exactly what to install.
need() {
  local pair program package missing=()
  for pair in "$@"; do
    program=${pair%%=*} package=${pair#*=}
    PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null 2>&1 || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] || apt_install "${missing[@]}"
}

# need_packages PACKAGE ...: the same for packages that bring no program to look for.
need_packages() {
  local package missing=()
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] || apt_install "${missing[@]}"
}

# apt_install PACKAGE ...: installs them, or says what to install.
apt_install() {
  local missing=("$@")
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    die "Missing on this machine: ${missing[*]}
Install them (Debian, Ubuntu: sudo apt-get install --no-install-recommends ${missing[*]}) and run this again."
  fi
  say "Installing ${missing[*]}"
  # A package that starts a service by itself would take Squid's usual port, and nobody asked for it.
  local policy=/usr/sbin/policy-rc.d made=''
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && made=1
  fi
  apt-get update -q >/dev/null || note "apt-get update failed: trying with the lists that are there"
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null
  local status=$?
  [ -n "$made" ] && rm -f "$policy"
  [ $status -eq 0 ] || die "Could not install ${missing[*]}: see above."
}

need_cargo() {
  command -v cargo >/dev/null 2>&1 && return 0
  [ -x "$HOME/.cargo/bin/cargo" ] && { PATH="$HOME/.cargo/bin:$PATH"; export PATH; return 0; }
  die "Rust is missing: install it from https://rustup.rs (version 1.95 or later) and run this again."
}

# need_cargo_tool NAME VERSION: installs a cargo subcommand that is missing.
need_cargo_tool() {
  PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
  command -v "$1" >/dev/null 2>&1 && return 0
  say "Installing $1 $2"
  cargo install --locked --quiet "$1@$2" || die "Could not install $1: run \`cargo install --locked $1@$2\` and this again."
}

# Puts a Go on the PATH that can build tests/kube. Any Go from 1.21 on fetches the exact version that go.mod asks for by
# itself; an older one (Debian 12 has 1.19) fetches it as the module that it is.
need_go() {
  if ! command -v go >/dev/null 2>&1 && [ -x /usr/local/go/bin/go ]; then PATH="$PATH:/usr/local/go/bin"; fi
  need go=golang-go
  local have wanted module toolchain
  have=$(GOTOOLCHAIN=local go env GOVERSION)
  [ "$(printf 'go1.21\n%s\n' "$have" | sort -V | head -1)" = go1.21 ] && return 0
  wanted=$(sed -n 's/^go //p' tests/kube/go.mod)
  module=golang.org/toolchain@v0.0.1-go$wanted.$(go env GOOS)-$(go env GOARCH)
  say "Fetching Go $wanted ($have is too old for Kubernetes)"
  (cd / && go mod download "$module") || die "Go 1.21 or later is needed to build Kubernetes for the tests:
install it from https://go.dev/dl and run this again."
  toolchain=$(go env GOMODCACHE)/$module
  # Modules are read-only and carry no execute bits.
  chmod u+x "$toolchain"/bin/* "$toolchain"/pkg/tool/*/*
  PATH="$toolchain/bin:$PATH"
}
