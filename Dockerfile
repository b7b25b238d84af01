# The operator's image: build it with `make image`, `docker build .` or `podman build .`.
#
# Another registry, a base of your own (glibc and libgcc are all that it must have), another toolchain:
#   --build-arg BUILD_IMAGE=.. --build-arg RUNTIME_IMAGE=..     (debian:12-slim works as RUNTIME_IMAGE too)
# The two must have the same glibc. libvirt's client library (Debian's libvirt0) and what it is linked to come from the build image, as
# a runtime without a shell can install nothing: build anew for their security updates.
ARG BUILD_IMAGE=docker.io/library/rust:1.95-bookworm
ARG RUNTIME_IMAGE=gcr.io/distroless/cc-debian12:nonroot

FROM ${BUILD_IMAGE} AS build
# libvirt's headers and library, where the image has none.
RUN pkg-config --exists libvirt || { \
      apt-get update && apt-get install -y --no-install-recommends libvirt-dev pkg-config && rm -rf /var/lib/apt/lists/*; }
WORKDIR /src
COPY . .
# Names of functions stay for backtraces; the tables of lines are most of the file.
ENV CARGO_PROFILE_RELEASE_STRIP=debuginfo CARGO_INCREMENTAL=0
# The caches outlive the layer, and are not in it: what was built must leave by a copy.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --locked --release --bin egress-proxies-operator \
 && install -D -m 0755 target/release/egress-proxies-operator /out/egress-proxies-operator
# All that it is linked to, but for what belongs to the runtime's own loader.
RUN mkdir -p /out/lib \
 && ldd /out/egress-proxies-operator >/tmp/linked \
 && ! grep 'not found' /tmp/linked \
 && awk '$2 == "=>" && $3 ~ /^\// && $1 !~ /^(libc|libm|libgcc_s)\.so/ { print $3 }' /tmp/linked | xargs -I{} cp -L {} /out/lib/ \
 && test -e /out/lib/libvirt.so.0

FROM ${RUNTIME_IMAGE}
LABEL org.opencontainers.image.title="egress-proxies-operator" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/lib/ /usr/local/lib/egress/
ENV LD_LIBRARY_PATH=/usr/local/lib/egress
COPY --from=build /out/egress-proxies-operator /usr/local/bin/egress-proxies-operator
# A number, so that `runAsNonRoot` can tell. The root may be read-only: what is written is in --state-dir and /tmp
# (or TMPDIR: unix sockets for libvirt's library, short-lived and private).
USER 65532:65532
EXPOSE 8090 8080
# The end in order; a second one ends at once.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/egress-proxies-operator"]
