#!/usr/bin/env bash
# Builds the Kubernetes that the tests run against, once: etcd, kube-apiserver, kube-controller-manager and kubectl from
# the Go modules pinned in tests/kube, into a cache outside of the checkout. Prints where they are as its last line.
#   scripts/kube-tools.sh          what `make test` needs
#   scripts/kube-tools.sh node     also kubelet, kube-scheduler and kube-proxy, for a real node
# KUBEBUILDER_ASSETS comes first: what is there is not built. Two that run at once build once.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
exec 3>&1 1>&2

# As in tests/kube/go.mod; the server tells it to its clients.
VERSION=v1.36.3

programs=(etcd kube-apiserver kubectl kube-controller-manager)
case ${1:-} in
  '') ;;
  node) programs+=(kubelet kube-scheduler kube-proxy) ;;
  *) die "usage: scripts/kube-tools.sh [node]" ;;
esac

# The tests compute the same name (tests/cluster/plane/binaries.rs).
key=$(cat tests/kube/go.sum tests/kube/etcd/go.sum | sha256sum | cut -c1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/egress-proxies-operator/kube
out=$cache/$key

missing() {
  local program
  for program in "${programs[@]}"; do
    [ -n "${KUBEBUILDER_ASSETS:-}" ] && [ -x "$KUBEBUILDER_ASSETS/$program" ] && continue
    [ -x "$out/$program" ] || printf '%s\n' "$program"
  done
}

if [ -z "$(missing)" ]; then
  printf '%s\n' "$out" >&3
  exit 0
fi

need_go
mkdir -p "$out"
exec 9>"$cache/lock"
flock -n 9 || { note "Another kube-tools.sh is building: waiting for it"; flock 9; }

first=yes
for program in $(missing); do
  [ -n "$first" ] && say "Kubernetes $VERSION for the tests, once, into $out (10 minutes or more on two cores)"
  first=''
  note "$program ..."
  begun=$SECONDS
  # Built beside its place and moved there: what has the name is whole.
  part=$(mktemp "$out/.$program.XXXXXX")
  trap 'rm -f "$part"' EXIT
  if [ "$program" = etcd ]; then
    (cd tests/kube/etcd && go build -ldflags="-s -w" -o "$part" go.etcd.io/etcd/server/v3)
  else
    IFS=. read -r major minor _ <<<"${VERSION#v}"
    v=k8s.io/component-base/version
    flags="-s -w -X $v.gitVersion=$VERSION -X $v.gitMajor=$major -X $v.gitMinor=$minor"
    (cd tests/kube && go build -ldflags="$flags" -o "$part" "k8s.io/kubernetes/cmd/$program")
  fi
  chmod 755 "$part"
  mv "$part" "$out/$program"
  note "$program: $((SECONDS - begun)) s"
done
printf '%s\n' "$out" >&3
