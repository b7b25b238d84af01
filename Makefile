# `make demo` shows the product at work; `make test` proves it. Both set up what is missing on this machine.
.DEFAULT_GOAL := help
CONTAINER_TOOL ?= docker
export IMG CONFIG KUBECTL DEPLOY_TIMEOUT DEPLOY_WAIT PROXIES
.PHONY: help demo test e2e lab-up lab-down lab-long test-hypervisor lint build crds manifests image install deploy undeploy run-dev bench bench-probes bench-scale bench-isolation clean

help: ## This list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

demo: ## Builds, makes 3 Squids, leases one, crawls through it; then keeps serving (DEMO_ONCE=1: ends by itself)
	@scripts/demo.sh

test: ## All tests, on real parts
	@scripts/test.sh

e2e: ## The deployed product on a real node of this machine (root): kubelet, containerd, real Squid pods; E2E_ONLY=handover
	@scripts/e2e.sh

lab-up: ## LAB_HOSTS (2) hypervisor hosts on this machine (root): sshd, libvirtd, QEMU; to be broken by scripts/lab/break.sh
	@scripts/lab/up.sh $(or $(LAB_HOSTS),2)

lab-long: ## The tests on those hosts that take minutes: kills, restarts of libvirtd, Debian by the samples, an image of 2 GiB (root)
	@scripts/lab/long.sh

lab-down: ## And away again, with their guests
	@scripts/lab/down.sh

test-hypervisor: ## The life of one machine on a KVM host of yours, named by HYPERVISOR_ADDRESS and others (scripts/hypervisor.sh)
	@scripts/hypervisor.sh

lint: ## Format, clippy, docs, unused dependencies
	@scripts/lint.sh

build: ## The release binary
	@scripts/setup.sh && cargo build --locked --release

crds: ## Writes config/crd from the types in src/crd
	@scripts/setup.sh && cargo run --locked --quiet --bin crdgen -- config/crd

manifests: crds ## config/crd, and config/install.yaml from config/default
	@scripts/deploy.sh manifests

image: ## The image IMG (egress-proxies-operator:0.1.0), with docker or what CONTAINER_TOOL names
	$(CONTAINER_TOOL) build -t $(or $(IMG),egress-proxies-operator:0.1.0) .

install: ## The CRDs into the cluster of KUBECONFIG
	@scripts/deploy.sh install

deploy: ## The operator into the cluster of KUBECONFIG: IMG=.. CONFIG=config/default DEPLOY_WAIT=no DEPLOY_TIMEOUT=180
	@scripts/deploy.sh up

undeploy: ## And out of it: PROXIES=delete|keep where there are Proxies
	@scripts/deploy.sh down

run-dev: ## The operator on config/samples/standalone, logs as text, state in .demo
	@scripts/setup.sh && cargo run --locked -- --standalone config/samples/standalone --state-dir .demo/state \
		--providers-config config/samples/providers-standalone.yaml --echo-addr 127.0.0.1:8092 \
		--probe-target http://127.0.0.1:8092/echo --log-format text --on-exit delete

bench: ## Criterion: lease book, plan, kit; a message beside bare ractor, a grant by size of the fleet
	@scripts/setup.sh && cargo bench --locked -p egress-actors

bench-probes: ## Probes a second through one Squid, beside a bare loop; memory of an idle Proxy
	@scripts/setup.sh && cargo bench --locked --workspace --bench probes

bench-scale: ## 10,000 Proxies on a real API server, beside a bare client that makes the same writes
	@scripts/setup.sh && scripts/kube-tools.sh && cargo bench --locked --workspace --bench scale

bench-isolation: ## What a stalled host costs the others
	@scripts/setup.sh && cargo bench --locked --workspace --bench isolation

clean: ## Removes what demo and run-dev left (not the build)
	@scripts/clean.sh
