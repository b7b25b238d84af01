# The operator's image: build it with `make image`, `docker build .` or `podman build .`.
#
# Another registry, a base of your own (glibc and libgcc are all that the binary needs), another toolchain:
#   --build-arg BUILD_IMAGE=.. --build-arg RUNTIME_IMAGE=..     (debian:12-slim works as RUNTIME_IMAGE too)
# The two must have the same glibc, or the runtime the newer one.
ARG BUILD_IMAGE=docker.io/library/rust:1.95-bookworm
ARG RUNTIME_IMAGE=gcr.io/distroless/cc-debian12:nonroot

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
COPY . .
# Names of functions stay for backtraces; the tables of lines are most of the file.
ENV CARGO_PROFILE_RELEASE_STRIP=debuginfo CARGO_INCREMENTAL=0
# The caches outlive the layer, and are not in it: what was built must leave by a copy.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --locked --release --bin egress-proxies-operator \
 && install -D -m 0755 target/release/egress-proxies-operator /out/egress-proxies-operator

FROM ${RUNTIME_IMAGE}
LABEL org.opencontainers.image.title="egress-proxies-operator" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/egress-proxies-operator /usr/local/bin/egress-proxies-operator
# A number, so that `runAsNonRoot` can tell. The root may be read-only: what is written is in --state-dir and /tmp.
USER 65532:65532
EXPOSE 8090 8080
# The end in order; a second one ends at once.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/egress-proxies-operator"]
