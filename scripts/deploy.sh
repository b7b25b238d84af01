#!/usr/bin/env bash
# The operator into a cluster and out of it, with kubectl. `make deploy`, `make undeploy`, `make install`, `make manifests`.
#   scripts/deploy.sh up        applies CONFIG with IMG, makes the token once, waits until a replica leads
#   scripts/deploy.sh down      takes it all away again, Proxies first or not at all
#   scripts/deploy.sh install   the CRDs only
#   scripts/deploy.sh render    what `up` would apply, to stdout
#   scripts/deploy.sh manifests writes config/install.yaml
# Environment:
#   IMG             the image, as the nodes can pull it (default: that of config/manager, for images loaded by hand)
#   CONFIG          a kustomization (default config/default; config/large, config/namespaced, your own overlay)
#   KUBECTL         kubectl to use; KUBECONFIG and its current context say which cluster
#   FORCE           `yes` takes back what others have changed since (kubectl edit, rollout undo, apply of install.yaml)
#   DEPLOY_TIMEOUT  seconds to wait for each thing (180); DEPLOY_WAIT=no waits for nothing
#   PROXIES         for `down` where there are Proxies: `delete` them and their instances first, or `keep` them
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

NAME=egress-proxies-operator
SECRET=$NAME-tokens
config=${CONFIG:-config/default}
limit=${DEPLOY_TIMEOUT:-180}
compgen -G "$config/[Kk]ustomization*" >/dev/null || die "CONFIG is no kustomization: there is no $config/kustomization.yaml"
case ${PROXIES:-delete} in delete | keep) ;; *) die "PROXIES is \`delete\` or \`keep\`, not \`$PROXIES\`" ;; esac
[[ $limit =~ ^[0-9]+$ ]] || die "DEPLOY_TIMEOUT is seconds, not \`$limit\`"

# No call hangs; what may take longer has --timeout.
kube() { "${kubectl[@]}" --request-timeout=30s "$@"; }

find_kubectl() {
  kubectl=("${KUBECTL:-kubectl}")
  command -v "${kubectl[0]}" >/dev/null 2>&1 ||
    die "kubectl is missing: install it (https://kubernetes.io/docs/tasks/tools), or pass KUBECTL=/path/to/it."
}

# The version that the tests have: another writes the same things in another order.
find_pinned_kubectl() {
  local built
  built=$(scripts/kube-tools.sh)
  kubectl=("$built/kubectl")
  [ -x "${kubectl[0]}" ] || kubectl=("$KUBEBUILDER_ASSETS/kubectl")
}

render() {
  if [ -n "${IMG:-}" ]; then
    [[ $IMG =~ ^[A-Za-z0-9._:/@-]+$ ]] || die "IMG is no image: \`$IMG\`"
    "${kubectl[@]}" kustomize "$config" | sed -E "s#^( *-? *image: )$NAME:.*#\1$IMG#"
  else
    "${kubectl[@]}" kustomize "$config"
  fi
}

# documents is|isnt KIND[|KIND]: those documents of a stream of YAML, on stdin.
documents() {
  awk -v want="$1" -v kinds="^($2)$" '
    function flush() { if (doc != "" && ((kind ~ kinds) == (want == "is"))) printf "---\n%s", doc; doc = kind = "" }
    /^---$/ { flush(); next }
    /^kind: / { kind = $2 }
    { doc = doc $0 "\n" }
    END { flush() }'
}

# The namespace of our Deployment.
own_namespace() {
  documents is Deployment | awk '/^  namespace: / { print $2; exit }'
}

where() {
  printf '%s' "$(kube config view --minify -o 'jsonpath={.clusters[0].cluster.server}' 2>/dev/null || true)"
}

reachable() {
  local why
  why=$(kube get --raw /version 2>&1 >/dev/null) || die "The cluster does not answer (${why##*$'\n'}).
Look at KUBECONFIG and \`kubectl config current-context\`; for a cluster on this machine: kind create cluster."
}

apply() {
  local force=()
  [ "${FORCE:-}" = yes ] && force=(--force-conflicts)
  kube apply --server-side --field-manager="$NAME-deploy" "${force[@]}" -f - || die "Not everything is applied. Where it says \`conflict\`, somebody else has changed that field since the last
make deploy: FORCE=yes makes it again what $config says. A new or an older image is IMG=.. of make deploy."
}

# scoped: one line for each right among those documents, as `kind name namespace`.
scoped() {
  documents is 'ClusterRole|ClusterRoleBinding|Role|RoleBinding' |
    awk '/^kind: /{ if (kind) print kind, name, space; kind = $2; name = space = "-"; meta = 0 }
      /^[a-z]/ { meta = ($1 == "metadata:") }
      meta && /^  name: / { name = $2 }
      meta && /^  namespace: / { space = $2 }
      END { if (kind) print kind, name, space }'
}

# revoke NAMESPACE: rights of our ServiceAccount there that another variant of config/ has left, and those documents do not
# have: what was given once would be kept without a word. Rights that you have given it yourself, and those of an operator in
# another namespace, stay: ours are the cluster-wide ones by their name, and what `make deploy` has applied.
revoke() {
  local has found kind name space role_kind role
  has=$(scoped)
  found=$(kube get clusterrolebindings,rolebindings -A --no-headers -o "custom-columns=KIND:.kind,NAME:.metadata.name,\
SPACE:.metadata.namespace,WHO:.subjects[*].name,WHERE:.subjects[*].namespace,ROLEKIND:.roleRef.kind,ROLE:.roleRef.name,\
BY:.metadata.managedFields[*].manager")
  awk -v us="$NAME" -v here="$1" '
    $4 == us && $5 == here && (($1 == "ClusterRoleBinding" && index($2, us) == 1) || index("," $8 ",", "," us "-deploy,")) {
      print $1, $2, ($3 == "<none>" ? "-" : $3), $6, $7 }' <<<"$found" |
    while read -r kind name space role_kind role; do
      # The role first: a binding that is left finds it again.
      [[ $role == "$NAME"* ]] && gone "$has" "$role_kind" "$role" "$([ "$role_kind" = Role ] && echo "$space" || echo -)"
      gone "$has" "$kind" "$name" "$space"
    done
}

# gone HAS KIND NAME NAMESPACE|-: deletes it unless it is among those.
gone() {
  if grep -qxF "$2 $3 $4" <<<"$1"; then return 0; fi
  note "Rights of another variant: $2 $3 goes."
  if [ "$4" = - ]; then kube delete "$2" "$3" --ignore-not-found; else kube -n "$4" delete "$2" "$3" --ignore-not-found; fi
}

# Made once: crawlers have it, so that a new one would lock them out.
token() {
  if kube -n "$1" get secret "$SECRET" >/dev/null 2>&1; then
    note "The Secret $SECRET is there already: the token stays as it is."
    return
  fi
  need openssl=openssl
  # By stdin: arguments can be seen by everybody on this machine.
  openssl rand -hex 32 | tr -d '\n' | kube -n "$1" create secret generic "$SECRET" --from-file=DISCOVERY_TOKEN=/dev/stdin
}

waited() {
  local namespace=$1
  if ! "${kubectl[@]}" -n "$namespace" rollout status "deployment/$NAME" --timeout="${limit}s"; then
    kube -n "$namespace" get pods -o wide >&2 || true
    kube -n "$namespace" get events --sort-by=.metadata.creationTimestamp 2>/dev/null | tail -n 8 >&2 || true
    die "The operator is applied and not up after $limit s. What its pods say is above, and:
  kubectl -n $namespace describe pods
  kubectl -n $namespace logs deployment/$NAME --tail=20
Often the nodes cannot get the image: pass IMG=.., or load it (kind load docker-image ..). DEPLOY_WAIT=no does not wait."
  fi
  "${kubectl[@]}" -n "$namespace" wait pod -l "app.kubernetes.io/name=$NAME,crawl.example.com/role=leader" --for=condition=Ready \
    --timeout="${limit}s" || die "The pods are up and none leads after $limit s: kubectl -n $namespace logs deployment/$NAME"
}

next() {
  local namespace=$1
  say "What next"
  cat <<TEXT
  kubectl apply -k config/samples/cluster        # Proxies of every kind, in the namespace crawl
  kubectl get px -A                              # what became of them; kubectl describe px -n crawl says why
  kubectl get ph                                 # whether the providers are well
  kubectl -n $namespace port-forward service/egress-discovery 8090 &
  token=\$(kubectl -n $namespace get secret $SECRET -o jsonpath='{.data.DISCOVERY_TOKEN}' | base64 -d)
  curl -X POST 'http://127.0.0.1:8090/v1/leases?tier=dc&ttl=60' -H "Authorization: Bearer \$token" -H 'Accept: text/plain'
TEXT
  note "A lease's address is that of a pod: a crawler in the cluster reaches it, this machine most likely does not."
}

up() {
  local rendered namespace
  rendered=$(render)
  namespace=$(own_namespace <<<"$rendered")
  [ -n "$namespace" ] || die "$config has no Deployment with a namespace: it is no overlay of config/default."
  reachable
  say "$NAME into the namespace $namespace of $(where)"
  documents is Namespace <<<"$rendered" | apply
  token "$namespace"
  documents isnt Namespace <<<"$rendered" | apply
  revoke "$namespace" <<<"$rendered"
  if [ "${DEPLOY_WAIT:-yes}" = no ]; then
    note "Not waiting: kubectl -n $namespace rollout status deployment/$NAME"
  else
    say "Waiting until it runs"
    waited "$namespace"
  fi
  next "$namespace"
}

runs() { [ -n "$(kube -n "$1" get deployment "$NAME" --ignore-not-found -o 'jsonpath={.status.availableReplicas}')" ]; }

# Is there a Proxy with our finalizer? It goes only where an operator takes it away.
holds() {
  local all
  all=$(kube get proxies.crawl.example.com -A -o 'jsonpath={.items[*].metadata.finalizers}')
  [[ $all == *crawl.example.com/* ]]
}

install() {
  reachable
  say "The CRDs into $(where)"
  "${kubectl[@]}" kustomize config/crd | apply
}

# The pods first, while they have the rights to end in order. A namespace with pods that are ending would also take longer
# to go than they do: it is looked at again only after half of their grace.
stop_pods() {
  local wait=(--timeout="${limit}s")
  [ "${DEPLOY_WAIT:-yes}" = no ] && wait=(--wait=false)
  "${kubectl[@]}" -n "$1" delete deployment "$NAME" --cascade=foreground --ignore-not-found "${wait[@]}"
}

down() {
  local rendered namespace proxies wait=(--timeout="${limit}s")
  [ "${DEPLOY_WAIT:-yes}" = no ] && wait=(--wait=false)
  rendered=$(render)
  namespace=$(own_namespace <<<"$rendered")
  reachable
  proxies=0
  if kube get crd proxies.crawl.example.com -o name >/dev/null 2>&1; then
    proxies=$(kube get proxies.crawl.example.com -A -o name | wc -l)
  fi
  say "$NAME out of the namespace $namespace of $(where)"
  case ${PROXIES:-}:$proxies in
    delete:0 | :0) ;;
    delete:*)
      runs "$namespace" || ! holds ||
        die "No operator runs in $namespace: nobody would remove the instances of the $proxies Proxies. Nothing was removed.
  make deploy                                                        starts one
  kubectl annotate px -A --all crawl.example.com/skip-cleanup=true   an operator then gives the instances up
  make undeploy PROXIES=keep                                      leaves Proxies and instances as they are"
      note "$proxies Proxies first, while the operator is there to remove their instances"
      "${kubectl[@]}" delete proxies.crawl.example.com --all --all-namespaces --timeout="${limit}s" ||
        die "Not all Proxies are gone after $limit s: \`kubectl get px -A -o wide\` says why. Nothing else was removed."
      ;;
    keep:*)
      stop_pods "$namespace"
      revoke "$namespace" <<<"$rendered"
      # The CRDs hold the Proxies, the namespaces hold the pods and the token.
      documents isnt 'Namespace|CustomResourceDefinition' <<<"$rendered" |
        "${kubectl[@]}" delete --ignore-not-found "${wait[@]}" -f -
      note "Kept: $proxies Proxies and their instances, the CRDs, the namespaces, the token. \`make deploy\` takes them up again."
      return
      ;;
    *)
      die "$proxies Proxies are there. Without the operator their instances would be nobody's, and the Proxies could not be deleted.
  make undeploy PROXIES=delete   deletes them and their instances first
  make undeploy PROXIES=keep     removes the operator only; make deploy takes them up again"
      ;;
  esac
  stop_pods "$namespace"
  revoke "$namespace" <<<"$rendered"
  # What is in a namespace first, and what holds things last.
  documents isnt 'Namespace|CustomResourceDefinition' <<<"$rendered" |
    "${kubectl[@]}" delete --ignore-not-found "${wait[@]}" -f -
  documents is 'Namespace|CustomResourceDefinition' <<<"$rendered" |
    "${kubectl[@]}" delete --ignore-not-found "${wait[@]}" -f - || die "Not everything is gone after $limit s: see above."
}

manifests() {
  local part=config/.install.yaml.part
  {
    printf '# %s\n' "Written by 'make manifests' from config/default: do not edit. It needs the Secret" \
      "$SECRET in the namespace egress-system, with the key DISCOVERY_TOKEN (README.md)." \
      "The pods wait for it."
    "${kubectl[@]}" kustomize config/default
  } >"$part"
  mv "$part" config/install.yaml
}

case ${1:-} in
  up | down | install | render) find_kubectl && "$1" ;;
  manifests) find_pinned_kubectl && manifests ;;
  *) die "usage: scripts/deploy.sh up|down|install|render|manifests" ;;
esac
