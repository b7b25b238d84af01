#!/usr/bin/env bash
# The first process of the node's namespaces (mount, network, pid): its end is the end of everything in them.
# Started by scripts/node.sh with the folder of the Kubernetes programs; writes `ready` or `failed` into the state folder.
#
#   etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy, containerd with runc and the CNI
#   plugins of the distribution, kubectl; no cluster DNS, no network policies, no way out of the namespace
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/settings.sh"
bin=$1
PATH=$PATH:/usr/sbin:/sbin

fail() { printf '%s\n' "$*" >"$state/failed"; exit 1; }
trap 'fail "line $LINENO: \`$BASH_COMMAND\` failed; the logs are in $logs"' ERR

k() { "$bin/kubectl" --kubeconfig "$kubeconfig" --cache-dir="$state/kubectl" --request-timeout=10s "$@"; }

declare -A pids
start() {
  local name=$1
  shift
  "$@" >"$logs/$name.log" 2>&1 </dev/null &
  pids[$name]=$!
}

# waited NAME SECONDS COMMAND ..: until it succeeds; at once when the program has ended.
waited() {
  local name=$1 end=$((SECONDS + $2))
  shift 2
  until "$@" >/dev/null 2>&1; do
    kill -0 "${pids[$name]}" 2>/dev/null || fail "$name has ended: $(tail -n 8 "$logs/$name.log")"
    [ $SECONDS -lt $end ] || fail "$name: not up in time: $(tail -n 8 "$logs/$name.log")"
    sleep 0.2
  done
}

own_view_of_the_machine() {
  # Containers see mounts that are made later, and nobody outside of here does.
  mount --make-rshared /
  mount -t tmpfs -o mode=755 run /run
  mkdir -p "$(dirname "$socket")" /run/lock
  local name
  for name in lib log; do
    mkdir -p "$state/var/$name" "$state/var/$name.work"
    mount -t overlay -o "lowerdir=/var/$name,upperdir=$state/var/$name,workdir=$state/var/$name.work" overlay "/var/$name"
  done
  # The kubelet insists on these settings of the whole machine. It finds what it wants to see, and changes nothing.
  local at value
  while read -r at value; do
    [ -e "/proc/sys/$at" ] || continue
    name=$state/sysctl/${at//\//.}
    mkdir -p "$state/sysctl"
    printf '%s\n' "$value" >"$name"
    mount --bind "$name" "/proc/sys/$at"
  done <<'SYSCTLS'
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
SYSCTLS
}

network() {
  ip link set lo up
  # A fixed address, as it would change with the first port. It is the node, the API server and the pods' gateway.
  ip link add $bridge address 02:00:0a:f4:00:01 type bridge
  ip addr add $gateway/24 dev $bridge
  ip link set $bridge up
  # So that there is a route to a Service before it is translated; nothing else is out there.
  ip route add $services dev $bridge
  sysctl -qw net.ipv4.ip_forward=1
  [ ! -e /proc/sys/net/bridge/bridge-nf-call-iptables ] || sysctl -qw net.bridge.bridge-nf-call-iptables=1
}

cgroups() {
  local hierarchy
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mkdir -p "/sys/fs/cgroup/$cgroup"
    return
  fi
  for hierarchy in /sys/fs/cgroup/*/; do
    # The second version of cgroups beside the first has nothing that the kubelet looks for.
    [ ! -e "$hierarchy/cgroup.controllers" ] || continue
    mkdir -p "$hierarchy$cgroup"
    if [ -e "$hierarchy/cpuset.cpus" ]; then
      cat "$hierarchy/cpuset.cpus" >"$hierarchy$cgroup/cpuset.cpus"
      cat "$hierarchy/cpuset.mems" >"$hierarchy$cgroup/cpuset.mems"
    fi
  done
}

certificates() {
  mkdir -p "$state/pki"
  cd "$state/pki"
  key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key" 2>/dev/null; }
  signed() {
    local name=$1 subject=$2
    shift 2
    key "$name"
    printf '%s\n' basicConstraints=CA:FALSE "$@" >"$name.ext"
    openssl req -new -key "$name.key" -subj "$subject" |
      openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile "$name.ext" -out "$name.crt" 2>/dev/null
  }
  key ca
  openssl req -x509 -new -key ca.key -days 30 -subj /CN=node-ca -out ca.crt -addext keyUsage=critical,keyCertSign,cRLSign
  local server=extendedKeyUsage=serverAuth client=extendedKeyUsage=clientAuth name
  signed apiserver /CN=kube-apiserver $server \
    "subjectAltName=IP:$gateway,IP:$first_service,IP:127.0.0.1,DNS:localhost,DNS:kubernetes.default.svc"
  signed kubelet-server "/CN=$node" $server "subjectAltName=IP:$gateway,DNS:$node"
  signed to-kubelet /CN=kube-apiserver-kubelet-client $client
  signed admin /O=system:masters/CN=admin $client
  signed kubelet "/O=system:nodes/CN=system:node:$node" $client
  signed controllers /CN=system:kube-controller-manager $client
  signed scheduler /CN=system:kube-scheduler $client
  signed proxy /CN=system:kube-proxy $client
  openssl genrsa -out accounts.key 2048 2>/dev/null
  openssl rsa -in accounts.key -pubout -out accounts.pub 2>/dev/null
  for name in admin kubelet controllers scheduler proxy; do
    cat >$name.kubeconfig <<YAML
apiVersion: v1
kind: Config
clusters: [{name: node, cluster: {server: "https://$gateway:6443", certificate-authority-data: $(base64 -w0 ca.crt)}}]
users: [{name: $name, user: {client-certificate-data: $(base64 -w0 $name.crt), client-key-data: $(base64 -w0 $name.key)}}]
contexts: [{name: node, context: {cluster: node, user: $name}}]
current-context: node
YAML
  done
  cd /
}

configuration() {
  mkdir -p "$state"/{conf,cni,kubelet,containerd,opt,plugins,pods}
  cat >"$state/cni/10-bridge.conflist" <<JSON
{"cniVersion": "1.0.0", "name": "egress-node", "plugins": [
  {"type": "bridge", "bridge": "$bridge", "isGateway": true, "isDefaultGateway": true, "hairpinMode": true, "ipMasq": false,
   "ipam": {"type": "host-local", "dataDir": "$state/cni-leases", "ranges": [[{"subnet": "$pods", "rangeStart": "10.244.0.10"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}]}
JSON
  # Whether AppArmor, hugepages and the right to lower one's OOM score are there differs between machines: not needed.
  cat >"$state/conf/containerd.toml" <<TOML
version = 2
root = "$state/containerd"
state = "/run/egress-node/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "$socket"
[plugins."io.containerd.internal.v1.opt"]
  path = "$state/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:e2e"
  disable_apparmor = true
  restrict_oom_score_adj = true
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$state/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
TOML
  printf 'nameserver %s\n' $gateway >"$state/conf/resolv.conf"
  cat >"$state/conf/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $gateway
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $state/pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $state/pki/kubelet-server.crt
tlsPrivateKeyFile: $state/pki/kubelet-server.key
containerRuntimeEndpoint: unix://$socket
cgroupDriver: cgroupfs
cgroupRoot: /$cgroup
failCgroupV1: false
failSwapOn: false
resolvConf: $state/conf/resolv.conf
clusterDNS: ["$gateway"]
clusterDomain: cluster.local
podLogsDir: $state/pods
volumePluginDir: $state/plugins
# A share of a disk that is full of other things says nothing: scripts/node.sh looks for room before.
evictionHard: {memory.available: 50Mi}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
YAML
  cat >"$state/conf/proxy.yaml" <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
bindAddress: $gateway
clientConnection: {kubeconfig: $state/pki/proxy.kubeconfig}
clusterCIDR: $pods
hostnameOverride: $node
healthzBindAddress: 127.0.0.1:10256
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
iptables: {localhostNodePorts: false}
YAML
}

images_in() {
  local image
  for image in "$images"/*.tar; do
    ctr --address "$socket" --namespace k8s.io images import "$image" >/dev/null
  done
}

mkdir -p "$logs"
own_view_of_the_machine
network
cgroups
configuration
start containerd containerd --config "$state/conf/containerd.toml"
start etcd "$bin/etcd" --data-dir "$state/etcd" --unsafe-no-fsync --log-level warn
certificates
start kube-apiserver "$bin/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --advertise-address=$gateway \
  --bind-address=0.0.0.0 --cert-dir="$state/pki/made" --client-ca-file="$state/pki/ca.crt" \
  --tls-cert-file="$state/pki/apiserver.crt" --tls-private-key-file="$state/pki/apiserver.key" \
  --kubelet-client-certificate="$state/pki/to-kubelet.crt" --kubelet-client-key="$state/pki/to-kubelet.key" \
  --kubelet-certificate-authority="$state/pki/ca.crt" --kubelet-preferred-address-types=InternalIP \
  --service-account-issuer=https://kubernetes.default.svc.cluster.local \
  --service-account-key-file="$state/pki/accounts.pub" --service-account-signing-key-file="$state/pki/accounts.key" \
  --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --service-cluster-ip-range=$services \
  --allow-privileged
waited containerd 20 ctr --address "$socket" version
images_in &
importing=$!
waited kube-apiserver 60 k get --raw /readyz
k create clusterrolebinding to-kubelet --clusterrole=system:kubelet-api-admin --user=kube-apiserver-kubelet-client >/dev/null
start kube-controller-manager "$bin/kube-controller-manager" --kubeconfig="$state/pki/controllers.kubeconfig" \
  --leader-elect=false --bind-address=127.0.0.1 --cert-dir="$state/pki/made" --use-service-account-credentials \
  --service-account-private-key-file="$state/pki/accounts.key" --root-ca-file="$state/pki/ca.crt"
start kube-scheduler "$bin/kube-scheduler" --kubeconfig="$state/pki/scheduler.kubeconfig" --leader-elect=false \
  --bind-address=127.0.0.1 --cert-dir="$state/pki/made"
start kubelet "$bin/kubelet" --config="$state/conf/kubelet.yaml" --kubeconfig="$state/pki/kubelet.kubeconfig" \
  --root-dir="$state/kubelet" --cert-dir="$state/pki/made" --hostname-override=$node --node-ip=$gateway
start kube-proxy "$bin/kube-proxy" --config="$state/conf/proxy.yaml"
waited kubelet 60 k get node $node
waited kubelet 60 k wait --for=condition=Ready "node/$node" --timeout=2s
waited kube-controller-manager 60 k -n default get serviceaccount default
waited kube-proxy 60 curl -fsm 2 --cacert "$state/pki/ca.crt" "https://$first_service/healthz"
wait $importing
touch "$state/ready"

# Takes what is left behind by those that end, and tells when a part of the node does.
while :; do
  for name in "${!pids[@]}"; do
    kill -0 "${pids[$name]}" 2>/dev/null || fail "$name has ended: $(tail -n 8 "$logs/$name.log")"
  done
  sleep 1 &
  wait $!
done
