#!/usr/bin/env bash
# The images of the node, without a registry: each as an archive that containerd takes.
#   scripts/node/images.sh FOLDER      makes FOLDER/{pause,squid,crawler,operator}.tar
# Three are made of programs of this machine with the libraries that they are linked to. The operator's is built from the
# project's own Dockerfile, whose base images are made here too and given as its build arguments:
#   BUILD_IMAGE    an empty root file system with a few links; the compilers, headers and libraries of this machine are
#                  mounted into it, and so are the toolchain and the crates that cargo has fetched
#   RUNTIME_IMAGE  glibc and libgcc, which is what the binary needs
# So the RUN line of the Dockerfile is the one that runs; it builds into a cache that outlives the image.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh
need_cargo
[ $# -eq 1 ] || die "usage: scripts/node/images.sh FOLDER"
out=$1
work=$out/work
cache=${XDG_CACHE_HOME:-$HOME/.cache}/egress-proxies-operator/image
# The programs of the system's administrator.
PATH=$PATH:/usr/sbin:/sbin
# Where buildah keeps what RUN --mount=type=cache asks for.
export TMPDIR=$cache
# Not in the machine's own store of images, and without mounts that could stay.
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
b() { buildah --root "$work/store" --runroot "$work/run" "$@"; }

rm -rf "$work"
mkdir -p "$out" "$work" "$cache"
trap 'rm -rf "$work"' EXIT

# bare ROOT: an empty root file system, as distributions lay it out.
bare() {
  mkdir -p "$1"/{etc,tmp,run,proc,sys,dev,root,var/{log,run,spool},usr/{bin,sbin,lib,lib64}}
  chmod 1777 "$1/tmp"
  ln -sfn usr/bin "$1/bin" && ln -sfn usr/sbin "$1/sbin" && ln -sfn usr/lib "$1/lib" && ln -sfn usr/lib64 "$1/lib64"
  printf 'root:x:0:0:root:/:/bin/false\nproxy:x:13:13:proxy:/:/bin/false\nnobody:x:65534:65534::/:/bin/false\n' >"$1/etc/passwd"
  printf 'root:x:0:\nproxy:x:13:\nnogroup:x:65534:\n' >"$1/etc/group"
}

# linked FILE ...: the libraries that they need, one a line.
linked() { ldd "$@" 2>/dev/null | awk '/^\t/ { file = $2 == "=>" ? $3 : $1; if (file ~ /^\//) print file }' | sort -u; }

# put ROOT FILE ...: files and folders of this machine, at the same paths; programs with their libraries.
put() {
  local root=$1 file
  shift
  for file; do
    [ -e "$file" ] || die "$file is missing on this machine."
    mkdir -p "$root$(dirname "$file")"
    cp -rL "$file" "$root$(dirname "$file")/"
  done
  for file in $(linked "$@"); do
    mkdir -p "$root$(dirname "$file")"
    cp -L "$file" "$root$file"
  done
}

# image NAME ROOT LINE ...: an image of a root file system, with these lines of a Dockerfile.
image() {
  local name=$1 root=$2
  shift 2
  printf '%s\n' 'FROM scratch' 'COPY . /' "$@" >"$work/$name.Dockerfile"
  b build --quiet -f "$work/$name.Dockerfile" -t "localhost/$name:e2e" "$root" >/dev/null
}

archive() {
  rm -f "$out/$1.tar"
  b push --quiet "localhost/$1:e2e" "docker-archive:$out/$1.tar:localhost/$1:e2e"
}

note "pause, squid, crawler"
mkdir -p "$work/pause"
gcc -static -Os -s -o "$work/pause/pause" scripts/node/pause.c
image pause "$work/pause" 'USER 65535:65535' 'ENTRYPOINT ["/pause"]'

bare "$work/squid"
put "$work/squid" /usr/sbin/squid /usr/lib/squid/basic_ncsa_auth /usr/lib/squid/unlinkd /usr/share/squid \
  /etc/squid/errorpage.css
image squid "$work/squid" 'USER 13:13' 'ENTRYPOINT ["/usr/sbin/squid", "-N"]'

bare "$work/crawler"
put "$work/crawler" "$(command -v curl)" /bin/sh /bin/sleep
image crawler "$work/crawler" 'USER 65532:65532' 'CMD ["/bin/sh"]'
for name in pause squid crawler; do archive $name; done

note "operator, from the Dockerfile"
cargo=${CARGO_HOME:-$HOME/.cargo}
toolchain=$(rustc --print sysroot)
cargo fetch --locked --quiet
bare "$work/build"
mkdir -p "$work/build"/{src,toolchain,usr/include,cargo/registry}
image build "$work/build" 'ENV PATH=/toolchain/bin:/usr/bin CARGO_HOME=/cargo CARGO_NET_OFFLINE=true'
bare "$work/runtime"
put "$work/runtime" $(linked "$toolchain/bin/rustc" | grep -E '/(libc|libm|libgcc_s|ld-linux-[^/]*)\.so')
image runtime "$work/runtime" 'USER 65532:65532'

mounts=()
for folder in /usr/bin /usr/lib /usr/lib64 /usr/include; do mounts+=(-v "$folder:$folder:ro"); done
[ -d /usr/libexec ] && mounts+=(-v /usr/libexec:/usr/libexec:ro)
[ -d /etc/alternatives ] && mounts+=(-v /etc/alternatives:/etc/alternatives:ro)
b build --quiet --pull-never -t localhost/operator:e2e "${mounts[@]}" \
  -v "$toolchain:/toolchain:ro" -v "$cargo/registry:/cargo/registry" \
  --build-arg BUILD_IMAGE=localhost/build:e2e --build-arg RUNTIME_IMAGE=localhost/runtime:e2e . >"$work/build.log" 2>&1 ||
  die "$(tail -n 30 "$work/build.log")"
archive operator
