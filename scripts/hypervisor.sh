#!/usr/bin/env bash
# The life of one machine on a real hypervisor host: made, Ready, leased, crawled through, deleted. `make test-hypervisor`.
# Prints the operator's calls to libvirt. Leaves nothing behind, also when it fails or is interrupted (Ctrl-C, SIGTERM).
#   HYPERVISOR_ADDRESS      host or host:port of its sshd
#   HYPERVISOR_USER         a user of the group libvirt there
#   HYPERVISOR_KEY_FILE     its private key, without a passphrase
#   HYPERVISOR_KNOWN_HOSTS  a file with the host's key
#   HYPERVISOR_IMAGE_URL    a cloud image, qcow2 or raw, not compressed
# Beside these, with what they are if not given:
#   HYPERVISOR_IMAGE_SHA256 (unchecked)   HYPERVISOR_POOL (default)     HYPERVISOR_NETWORK (default)   HYPERVISOR_TYPE (kvm) or kvm2
#   HYPERVISOR_VIRT_TYPE (kvm) or qemu    HYPERVISOR_FIRMWARE (uefi)    HYPERVISOR_MEMORY (1Gi)        HYPERVISOR_PORT (3128)
#   HYPERVISOR_SOCKET (the usual ones)
#   HYPERVISOR_CLOUD_INIT   a file that makes the proxy (the Squid of config/samples/proxy-kvm2.yaml, opened for the target)
#   HYPERVISOR_PROBE_TARGET what is fetched through the proxy (the operator's own echo on this machine, as the host sees it)
#   HYPERVISOR_READY_WITHIN seconds (900), the transfer of the image included
#   HYPERVISOR_KEEP_BASE    yes: the base image stays in the pool, for the next run
#   HYPERVISOR_TRACE        a file for every single call; on the terminal, calls that repeat themselves are told once
#   HYPERVISOR_OPERATOR     a built operator, instead of building it
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

missing=()
for name in ADDRESS USER KEY_FILE KNOWN_HOSTS IMAGE_URL; do
  variable=HYPERVISOR_$name
  [ -n "${!variable:-}" ] || missing+=("$variable")
done
[ ${#missing[@]} -eq 0 ] || die "Not set: ${missing[*]}. What each means: the header of scripts/hypervisor.sh, or docs/testing.md."
for variable in HYPERVISOR_KEY_FILE HYPERVISOR_KNOWN_HOSTS ${HYPERVISOR_CLOUD_INIT:+HYPERVISOR_CLOUD_INIT}; do
  [ -r "${!variable}" ] || die "$variable: ${!variable} cannot be read."
done
kind=${HYPERVISOR_TYPE:-kvm} virt=${HYPERVISOR_VIRT_TYPE:-kvm} pool=${HYPERVISOR_POOL:-default} network=${HYPERVISOR_NETWORK:-default}
port=${HYPERVISOR_PORT:-3128} limit=${HYPERVISOR_READY_WITHIN:-900} sha256=${HYPERVISOR_IMAGE_SHA256:-}
[[ $kind =~ ^kvm2?$ ]] || die "HYPERVISOR_TYPE is kvm or kvm2, not $kind."
[[ $virt =~ ^(kvm|qemu)$ ]] || die "HYPERVISOR_VIRT_TYPE is kvm or qemu, not $virt."
[[ -z $sha256 || $sha256 =~ ^[0-9a-f]{64}$ ]] || die "HYPERVISOR_IMAGE_SHA256 is not 64 small hexadecimal digits: $sha256"
[[ $limit =~ ^[0-9]+$ ]] || die "HYPERVISOR_READY_WITHIN is a number of seconds, not $limit."
key_file=$(realpath "$HYPERVISOR_KEY_FILE") known_hosts=$(realpath "$HYPERVISOR_KNOWN_HOSTS")
case $HYPERVISOR_ADDRESS in
  \[*\]) host=$HYPERVISOR_ADDRESS host_port=22 ;;
  \[*\]:* | *[!:]:[0-9]*[!:]) host=${HYPERVISOR_ADDRESS%:*} host_port=${HYPERVISOR_ADDRESS##*:} ;;
  *) host=$HYPERVISOR_ADDRESS host_port=22 ;;
esac
[[ $HYPERVISOR_ADDRESS != *:*:* || $HYPERVISOR_ADDRESS = \[* ]] || die "HYPERVISOR_ADDRESS: write an IPv6 address in brackets: [$HYPERVISOR_ADDRESS]"
host=${host#[} host=${host%]}

need curl=curl jq=jq ssh=openssh-client ip=iproute2 setsid=util-linux openssl=openssl
operator=${HYPERVISOR_OPERATOR:-}
if [ -z "$operator" ]; then
  scripts/setup.sh
  need_cargo
  say "Building"
  cargo build --locked
  operator=$(cargo metadata --locked --no-deps --format-version 1 | jq -r .target_directory)/debug/egress-proxies-operator
fi

run=$(openssl rand -hex 4) token=$(openssl rand -hex 16)
proxy=t-$run owner=hypervisor-test-$run domain=px-hvtest-t-$run key=hvtest-$run
[ "${HYPERVISOR_KEEP_BASE:-}" != yes ] || key=hvtest-$(printf %s "$HYPERVISOR_IMAGE_URL $sha256" | sha256sum | cut -c1-8)
[ "$kind" = kvm ] && base=base-$key || base=base-hvtest-$key

# Our address, as packets for the host have it: what a guest there can reach.
peer=$(getent ahosts "$host" | awk '{print $1; exit}')
[ -n "$peer" ] || die "HYPERVISOR_ADDRESS: $host has no address."
own=$(ip -o route get "$peer" 2>/dev/null | sed -n 's/.* src \([^ ]*\).*/\1/p')
[ -n "$own" ] || die "There is no route to $host ($peer)."
free() { while :; do p=$((20000 + RANDOM % 10000)); (exec 3<>"/dev/tcp/127.0.0.1/$p") 2>/dev/null || { echo $p; return; }; done; }
lease_port=$(free) admin_port=$(free) echo_port=$(free)
[[ $own = *:* ]] && at="[$own]" || at=$own
target=${HYPERVISOR_PROBE_TARGET:-http://$at:$echo_port/echo}

work=$(mktemp -d "${TMPDIR:-/tmp}/egress-hypervisor.XXXXXX")
mkdir "$work/manifests"
# The sample's Squid, which refuses private addresses: this machine may use it, and the target may be reached.
squid() {
  awk '/^      inline: \|/ {on = 1; next} on && !/^        / && NF {exit} on {print substr($0, 9)}' config/samples/proxy-kvm2.yaml |
    awk -v own="$own" -v port="$port" -v opened="$1" '
      /^ *http_port / {sub(/3128/, port)}
      /^ *acl clients / {$0 = $0 " " own}
      /^ *http_access deny refused/ && opened {
        at = $0; sub(/http_access.*/, "", at); print at "acl opened dst " opened; print at "http_access allow opened clients"
      }
      {print}'
}
# Of an address only: a name's would be those that the guest finds.
opened=$(sed -nE 's#^https?://\[([0-9a-fA-F:.]+)\](:[0-9]+)?(/.*)?$#\1#p; s#^https?://([0-9.]+)(:[0-9]+)?(/.*)?$#\1#p' <<<"$target")
[ -z "${HYPERVISOR_CLOUD_INIT:-}" ] && squid "$opened" >"$work/user-data" || cp "$HYPERVISOR_CLOUD_INIT" "$work/user-data"
jq -n --arg name "hvtest" --arg kind "$kind" --arg user "$HYPERVISOR_USER" --arg key "$key_file" --arg known "$known_hosts" \
  --arg address "$([[ $host = *:* ]] && echo "[$host]" || echo "$host"):$host_port" --arg pool "$pool" --arg network "$network" \
  --arg virt "$virt" --arg image "$key" --arg url "$HYPERVISOR_IMAGE_URL" --arg sha256 "$sha256" \
  --arg firmware "${HYPERVISOR_FIRMWARE:-uefi}" --arg memory "${HYPERVISOR_MEMORY:-1Gi}" --arg socket "${HYPERVISOR_SOCKET:-}" \
  '{providers: [{name: $name, type: $kind, ssh: {user: $user, keyFile: $key, knownHostsFile: $known},
     hosts: [{name: "host", address: $address, pool: $pool, network: $network} + if $socket == "" then {} else {socket: $socket} end],
     virtType: $virt, images: {($image): ({url: $url, firmware: $firmware} + if $sha256 == "" then {} else {sha256: $sha256} end)},
     sizes: {small: {cpus: 1, memory: $memory, disk: "4Gi"}}}]}' >"$work/providers.yaml"
jq -n --arg name "$proxy" --argjson port "$port" --rawfile data "$work/user-data" \
  '{apiVersion: "crawl.example.com/v1alpha1", kind: "Proxy", metadata: {name: $name, namespace: "hvtest"},
    spec: {managed: {provider: "hvtest", port: $port, cloudInit: {inline: $data}}, maxLeases: 1,
           healthCheck: {interval: "5s", timeout: "5s"}}}' >"$work/proxy.yaml"

api() { curl -sS --max-time 10 -H "Authorization: Bearer $token" "http://127.0.0.1:$lease_port/v1/$1" "${@:2}"; }
# What the lease API says of it, or nothing.
row() { api proxies 2>/dev/null | jq -r --arg name "hvtest/$proxy" '.proxies[]? | select(.name == $name) | [.phase, .message] | @tsv' 2>/dev/null || true; }
on_host() {
  timeout 30 ssh -F none -n -o BatchMode=yes -o IdentitiesOnly=yes -o ConnectTimeout=10 -o UserKnownHostsFile="$known_hosts" \
    -i "$key_file" -p "$host_port" "$HYPERVISOR_USER@$host" "$@" 2>/dev/null
}
virsh_on_host() { on_host virsh -q -c qemu:///system "$@"; }
elapsed() { printf '%4d s' $((SECONDS - begun)); }

trace() {
  local calls='select(.msg == "libvirt call") | [.ts[11:23], .lane, .rpc, .about, ((.durationMs * 10 | round) / 10 | tostring),
    if .libvirtError then "error \(.libvirtCode): \(.libvirtError | gsub("\\s+"; " ") | .[:60])" else "" end] | @tsv'
  jq -rR "fromjson? | $calls" "$work/log" >"$work/calls"
  [ -z "${HYPERVISOR_TRACE:-}" ] || cp "$work/calls" "$HYPERVISOR_TRACE"
  say "Calls to libvirt: $(wc -l <"$work/calls"), each that repeats itself told once, with its longest"
  awk -F '\t' '{
      key = $2 FS $3 FS $4 FS $6
      if (!(key in n)) {order[++count] = key; at[key] = $1}
      n[key]++; if ($5 + 0 > most[key]) most[key] = $5 + 0
    } END {
      for (i = 1; i <= count; i++) {
        split(order[i], word, FS)
        printf "  %s  %-8s %-32s %-44s %9.1f ms %s%s\n", at[order[i]], word[1], word[2], substr(word[3], 1, 44), most[order[i]],
          (n[order[i]] > 1 ? "x" n[order[i]] : ""), (word[4] == "" ? "" : "  " word[4])
      }
    }' "$work/calls"
}

# away: what was made goes, in order; looked for on the host itself.
away() {
  local code=$? left='' names
  trap - EXIT
  set +e
  # Once is enough: what is under way here has its own end.
  trap 'note "Still removing what was made."' INT TERM HUP
  if [ -n "$operator_pid" ]; then
    say "Away with it"
    rm -f "$work/manifests/$proxy.yaml"
    for _ in $(seq 1 180); do
      kill -0 "$operator_pid" 2>/dev/null || break
      [ "$(api proxies 2>/dev/null | jq '.proxies | length' 2>/dev/null)" != 0 ] || break
      sleep 1 || true
    done
    row | sed 's/^/  still there: /'
    kill -TERM "$operator_pid" 2>/dev/null || true
    while kill -0 "$operator_pid" 2>/dev/null; do wait "$operator_pid" 2>/dev/null || true; done
    note "$(elapsed)  the operator has ended"
    trace
    say "What is left on the host"
    if names=$(virsh_on_host list --all --name); then
      names+=$'\n'$(virsh_on_host vol-list "$pool" | awk '{print $1}')
      if [ "${HYPERVISOR_KEEP_BASE:-}" != yes ]; then
        for volume in $(grep -xE "$base\.(qcow2|raw)(\.ok)?" <<<"$names" | sort -r); do
          virsh_on_host vol-delete "$volume" --pool "$pool" >/dev/null || left+=" $volume"
        done
      fi
      left+=$(grep -E "^$domain-" <<<"$names" | sed 's/^/ /' | tr -d '\n') || true
      [ -z "$left" ] && note "nothing$([ "${HYPERVISOR_KEEP_BASE:-}" != yes ] || echo " but $base")" || note "still there:$left"
    else
      note "There is no virsh for $HYPERVISOR_USER on $host, so nobody looked, and the base image stays: in pool $pool, $base.*"
    fi
  fi
  [ "$code" = 0 ] || [ "$code" -ge 128 ] || { say "The operator's last words"; grep -v '"debug"' "$work/log" 2>/dev/null | tail -n 8 | cut -c1-400; }
  rm -rf "$work"
  [ -z "$left" ] || code=1
  exit "$code"
}

begun=$SECONDS operator_pid=''
trap away EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
say "The operator $owner, on $HYPERVISOR_USER@$host:$host_port"
# In a session of its own: a Ctrl-C is for us, and the operator is to delete first.
DISCOVERY_TOKEN=$token setsid "$operator" --standalone "$work/manifests" --state-dir "$work/state" \
  --providers-config "$work/providers.yaml" --operator-id "$owner" --discovery-addr "127.0.0.1:$lease_port" \
  --admin-addr "127.0.0.1:$admin_port" --echo-addr "0.0.0.0:$echo_port" --probe-target "$target" --allow-mass-removal \
  --on-exit delete --log-format json --log-level info,egress_operator::providers::libvirt=debug >"$work/log" 2>&1 &
operator_pid=$!
alive() { kill -0 "$operator_pid" 2>/dev/null || die "The operator ended."; }
within_seconds() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    alive
    [ $SECONDS -lt $end ] || return 1
    sleep 1
  done
}
up() { curl -fsS --max-time 5 "http://127.0.0.1:$admin_port/readyz" >/dev/null 2>&1; }
within_seconds 60 up || die "The operator is not ready after a minute."

say "A machine of type $kind, from $HYPERVISOR_IMAGE_URL"
cp "$work/proxy.yaml" "$work/manifests/$proxy.yaml"
shown=''
ready() {
  local now
  now=$(jq -rR 'fromjson? | select(.msg == "a manifest is not right") | .error' "$work/log")
  [ -z "$now" ] || die "$now"
  now=$(row)
  if [ "$now" != "$shown" ]; then
    shown=$now
    note "$(elapsed)  $now"
  fi
  case $now in Ready$'\t'*) return 0 ;; Failed$'\t'*) die "It cannot be made: ${now#*$'\t'}" ;; *) return 1 ;; esac
}
within_seconds "$limit" ready || die "It is not Ready after $limit s."

say "Leased, and a tunnel (CONNECT) to $target"
lease=$(api leases -X POST -H 'Content-Type: application/json' -d '{"selectors":[{}],"ttlSeconds":300}')
url=$(jq -er '.leases[0].proxy.url' <<<"$lease") || die "No lease: $lease"
answer=$(curl -sS --max-time 20 -p -x "$url" -D - -o /dev/null "$target") || die "No answer through $url: $answer"
sed 's/^/  /' <<<"$answer"
api "leases/$(jq -r '.leases[0].id' <<<"$lease")" -X DELETE -o /dev/null -w '  released: %{http_code}\n'
