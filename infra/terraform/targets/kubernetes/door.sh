# Sourced by lib.sh: KUBERNETES=kubernetes.toml names the API server, VARS=my.tfvars what to create.
pods() { python3 -m headway.console.pods "$@"; }
kept=$cluster_dir/server.toml # a user's own kubernetes.toml may be in the same folder
owner_file=$cluster_dir/owner

target_vars() {
  [ -z "${NODES:-}" ] || fail "NODES=$NODES: a run gets as many pods as its configuration says" "leave NODES out"
  if [ "$verb" = up ]; then
    KUBERNETES=${KUBERNETES:-$kept}
    [ -f "$KUBERNETES" ] || fail "KUBERNETES is not set" "name a file: make up TARGET=kubernetes KUBERNETES=kubernetes.toml"
    if [ -e "$cluster_dir/cluster.json" ] && ! same_file; then
      fail "$KUBERNETES is not what $cluster_dir was created with" "make down first, or use another CLUSTER_DIR"
    fi
    pods check "$KUBERNETES" || exit 2
    pods keep "$KUBERNETES" "$kept.new" || exit 2
    mv "$kept.new" "$kept"
    [ -e "$owner_file" ] || od -An -N4 -tx1 /dev/urandom | tr -d ' ' >"$owner_file"
  fi
  [ -z "${VARS:-}" ] || vars+=("-var-file=$(file_of VARS)")
  [ ! -f "$owner_file" ] || vars+=(-var "owner=$(owner)")
  [ ! -f "$kept" ] || pods seen "$kept" >"$cluster_dir/seen.json" || exit 1
}

owner() { cat "$owner_file"; }

same_file() {
  pods keep "$KUBERNETES" "$kept.new" && cmp -s "$kept.new" "$kept"
}

check_up() { :; } # done already, before anything of the cluster is written

# While the keys of the cluster's runs are there, so that all of it can be repeated.
before_down() {
  [ -f "$owner_file" ] && [ -f "$kept" ] || fail "$owner_file or $kept is missing" \
    "restore it from a backup, or delete by hand what has the label app.kubernetes.io/name=headway-cluster"
  local runs=() run
  for run in "$cluster_dir"/started/*.*; do
    [ ! -e "$run" ] || { run=${run##*/} && runs+=(--run "${run%.*}"); }
  done
  pods removable "$kept" --cluster "$(owner)" "${runs[@]}" || exit 2
  drain_runs
  pods clear "$kept" --cluster "$(owner)" "${runs[@]}" || exit 1
}

after_down() {
  local left
  left=$(pods left "$kept" --cluster "$(owner)") || {
    echo "error: still on the API server: ${left//$'\n'/, }; find out why, then repeat make down" >&2
    exit 1
  }
}

show_logs() { echo "logs belong to a run: \`headway logs RUN\`"; }
open_shell() { fail "a node of Kubernetes is a pod of a run" "kubectl exec -it job/RUN -- sh"; }
