#!/usr/bin/env bash
# The product at work on this machine: three Squids made from manifests, one bought proxy, leased and crawled through.
# DEMO_ONCE=1 ends by itself. Leaves nothing behind: the operator deletes its Squids when it ends.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
scripts/setup.sh setsid=util-linux
need_cargo

lease_port=${DEMO_LEASE_PORT:-8090} admin_port=${DEMO_ADMIN_PORT:-8080} echo_port=${DEMO_ECHO_PORT:-8092}
bought_port=31380
for port in "$lease_port" "$admin_port" "$echo_port" "$bought_port"; do
  if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    die "Port $port is in use. Free it, or choose others: DEMO_LEASE_PORT, DEMO_ADMIN_PORT, DEMO_ECHO_PORT."
  fi
done

say "Building"
cargo build --locked
target=$(cargo metadata --locked --no-deps --format-version 1 | jq -r .target_directory)

# Squid gives up root for a user of its own, who must be able to pass here.
work=$(mktemp -d "${TMPDIR:-/tmp}/egress-demo.XXXXXX")
chmod 711 "$work"
operator_pid='' bought_pid=''
end() {
  trap - EXIT INT TERM
  if [ -n "$operator_pid" ]; then
    note "Ending: the operator deletes its Squids."
    kill -TERM "$operator_pid" 2>/dev/null || true
    wait "$operator_pid" 2>/dev/null || true
  fi
  [ -n "$bought_pid" ] && kill -TERM "$bought_pid" 2>/dev/null || true
  rm -rf "$work"
}
trap end EXIT
trap 'exit 130' INT TERM

say "A bought proxy (somebody else's Squid, with a password)"
squid=$(PATH="$PATH:/usr/sbin" command -v squid)
helper=$(find /usr/lib/squid /usr/libexec/squid /usr/lib64/squid -name basic_ncsa_auth 2>/dev/null | head -1 || true)
[ -n "$helper" ] || die "Squid's basic_ncsa_auth helper is missing: install Debian's package squid."
printf 'demo:%s\n' "$(openssl passwd -5 demo-password)" >"$work/bought.passwd"
chmod 644 "$work/bought.passwd"
cat >"$work/bought.conf" <<CONF
http_port 127.0.0.1:$bought_port
auth_param basic program $helper $work/bought.passwd
auth_param basic children 2
acl known proxy_auth REQUIRED
http_access allow known
http_access deny all
pid_filename none
access_log none
cache_log /dev/null
cache deny all
cache_mem 8 MB
max_filedescriptors 1024
shutdown_lifetime 1 seconds
pinger_enable off
CONF
"$squid" -N -n "demo$$" -f "$work/bought.conf" >/dev/null 2>&1 &
bought_pid=$!
note "listens on 127.0.0.1:$bought_port"

say "The operator, on config/samples/standalone"
token=$(openssl rand -hex 16)
# In a session of its own: a Ctrl-C would reach it too, and our own signal would then be the second, which ends it at once
# and leaves its Squids.
DISCOVERY_TOKEN=$token setsid "$target/debug/egress-proxies-operator" \
  --standalone config/samples/standalone --state-dir "$work/state" \
  --providers-config config/samples/providers-standalone.yaml \
  --discovery-addr "127.0.0.1:$lease_port" --admin-addr "127.0.0.1:$admin_port" \
  --echo-addr "127.0.0.1:$echo_port" --probe-target "http://127.0.0.1:$echo_port/echo" \
  --on-exit delete --log-format json >"$work/log" 2>&1 &
operator_pid=$!

api() { curl -sS --max-time 10 -H "Authorization: Bearer $token" "$@"; }
leases="http://127.0.0.1:$lease_port/v1" admin="http://127.0.0.1:$admin_port"

shown=''
for _ in $(seq 1 240); do
  kill -0 "$operator_pid" 2>/dev/null || { tail -n 5 "$work/log" >&2; die "The operator ended: its last words are above."; }
  rows=$(api "$leases/proxies" 2>/dev/null | jq -r '.proxies[]? | "\(.name)\t\(.phase)\t\(.endpoint // "-")\t\(.message)"' || true)
  if [ "$rows" != "$shown" ]; then
    shown=$rows
    printf '%s\n' "$rows" | awk -F '\t' '{printf "  %-16s %-13s %-26s %s\n", $1, $2, $3, substr($4, 1, 70)}'
    echo
  fi
  [ "$(printf '%s\n' "$rows" | awk -F '\t' '$2 == "Ready"' | wc -l)" -eq 4 ] && break
  sleep 0.25
done
[ "$(printf '%s\n' "$shown" | awk -F '\t' '$2 == "Ready"' | wc -l)" -eq 4 ] || {
  tail -n 20 "$work/log" >&2
  die "Not all four proxies became Ready within a minute: the last log lines are above."
}
printf '%s  all four are Ready: each let a real request through%s\n' "$green" "$off"

say "Lease one, in one line"
note "curl -H \"Authorization: Bearer \$TOKEN\" -X POST '$leases/leases?tier=dc&target=shop.example&ttl=60' -H 'Accept: text/plain'"
url=$(api -X POST -H 'Accept: text/plain' "$leases/leases?tier=dc&target=shop.example&ttl=60")
printf '  %s\n' "$(printf '%s' "$url" | sed -E 's#://([^:]+):[^@]+@#://\1:********@#')"

say "Crawl through it: a tunnel (CONNECT) to the echo target"
curl -sS --max-time 10 -o /dev/null -D - -p -x "$url" "http://127.0.0.1:$echo_port/echo" | sed 's/^/  /'

say "What it must not reach: this machine's admin port"
refused=$(curl -sS --max-time 10 -o /dev/null -w '%{http_connect}' -p -x "$url" "$admin/livez" 2>/dev/null || true)
printf '  CONNECT 127.0.0.1:%s -> %s\n' "$admin_port" "$refused"
[ "$refused" = 403 ] || die "The generated Squid let a private address through."

say "Lease the residential one, report a ban, ask again"
lease=$(api -X POST -H 'Content-Type: application/json' "$leases/leases" \
  -d '{"selectors":[{"tier":"residential"}],"target":"shop.example","ttlSeconds":300,"owner":"demo"}')
id=$(jq -r '.leases[0].id' <<<"$lease")
printf '  lease %s on %s, exit %s\n' "$id" "$(jq -r '.leases[0].proxy.name' <<<"$lease")" "$(jq -r '.leases[0].exitIp // "unknown"' <<<"$lease")"
api -X POST -H 'Content-Type: application/json' "$leases/leases/$id/report" \
  -d '{"outcome":"banned","httpStatus":403,"release":true}' -o /dev/null -w '  report banned, release -> %{http_code}\n'
api -X POST "$leases/leases?tier=residential&target=shop.example" -w '\n%{http_code}' >"$work/answer"
code=$(tail -n 1 "$work/answer")
printf '  the same again -> %s\n' "$code"
head -n -1 "$work/answer" | jq . | sed 's/^/  /'
[ "$code" = 409 ] || die "A banned pair was leased."
note "(for another target it is free: the ban is of the pair, not of the proxy)"

say "The actor tree"
curl -sS --max-time 10 -H 'Accept: text/plain' "$admin/admin/actors" | sed 's/^/  /'

if [ -n "${DEMO_ONCE:-}" ]; then
  printf '\n%sThat is all.%s\n' "$green" "$off"
  exit 0
fi

say "It keeps serving: try"
cat <<TRY
  export TOKEN=$token
  curl -X POST '$leases/leases?tier=dc&ttl=60' -H "Authorization: Bearer \$TOKEN" -H 'Accept: text/plain'
  curl '$leases/proxies' -H "Authorization: Bearer \$TOKEN" | jq
  curl '$leases/explain?tier=dc&region=us' -H "Authorization: Bearer \$TOKEN" | jq
  curl -H 'Accept: text/plain' $admin/admin/actors
  curl '$admin/readyz?verbose'
  tail -f $work/log | jq -c
TRY
note "Ctrl-C ends it, and deletes what it made."
# From here on that is the end which everybody is told of, and no failure of `make`.
trap 'exit 0' INT TERM
wait "$operator_pid"
