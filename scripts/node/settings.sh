# Shared by scripts/node.sh and what it calls: where everything of the node is.
# shellcheck shell=bash disable=SC2034

# One at a time on a machine, so a fixed place: whoever comes next finds what a killed one has left.
state=${EGRESS_NODE_DIR:-/var/tmp/egress-node}
images=$state/images
logs=$state/log
kubeconfig=$state/pki/admin.kubeconfig
# Our cgroups, in every hierarchy.
cgroup=egress-node
socket=/run/egress-node/containerd.sock

# In a network namespace of its own these collide with nobody's.
node=node-1
bridge=egress0
gateway=10.244.0.1
pods=10.244.0.0/24
services=10.96.0.0/16
first_service=10.96.0.1
