# Sourced by lib.sh: KUBERNETES=kubernetes.toml names the API server, VARS=my.tfvars what to create.
pods() { python3 -m headway.console.pods "$@"; }
kept=$cluster_dir/kubernetes.toml
name=${cluster_dir##*/}

target_vars() {
  if [ "$verb" = up ]; then
    KUBERNETES=${KUBERNETES:-$kept}
    [ -f "$KUBERNETES" ] || fail "KUBERNETES is not set" "name a file: make up TARGET=kubernetes KUBERNETES=kubernetes.toml"
    if [ -e "$cluster_dir/cluster.json" ] && ! same_file; then
      fail "$KUBERNETES is not what $cluster_dir was created with" "make down first, or use another CLUSTER_DIR"
    fi
    pods check "$KUBERNETES" || exit 2
    pods keep "$KUBERNETES" "$kept.new" || exit 2
    mv "$kept.new" "$kept"
  fi
  [ -z "${VARS:-}" ] || vars+=("-var-file=$(file_of VARS)")
  [ ! -f "$kept" ] || pods seen "$kept" >"$cluster_dir/seen.json" || exit 1
}

same_file() {
  pods keep "$KUBERNETES" "$kept.new" && cmp -s "$kept.new" "$kept"
}

check_up() { :; } # done already, before anything of the cluster is written

# A claim that `up` has made holds the checkpoints, so that only an explicit word deletes it.
before_down() {
  if tf state list 2>/dev/null | grep -q '^terraform_data.claim' && [ -z "${DELETE_CLAIM:-}" ]; then
    fail "down would delete the claim with the checkpoints of all its runs" "DELETE_CLAIM=1 confirms it"
  fi
  local runs=() run
  for run in "$cluster_dir"/started/*.json; do
    [ ! -e "$run" ] || { run=${run##*/} && runs+=(--run "${run%.json}"); }
  done
  drain_runs
  # while the keys of these runs are still there, so that it can be repeated
  check_gone "runs" "${runs[@]}" --only-runs
}

after_down() {
  check_gone "namespace and claim"
  rm -f "$kept" "$cluster_dir"/{seen.json,namespace.incarnation,claim.incarnation}
}

check_gone() { # WHAT [OPTION...]
  local what=$1 left
  shift
  left=$(pods left "$kept" --cluster "$name" "$@") || {
    echo "error: of the $what this is left on the API server: ${left//$'\n'/, }; see why it is not deleted, then repeat make down" >&2
    exit 1
  }
}

show_logs() { echo "logs belong to a run: \`headway logs RUN\`"; }
open_shell() { fail "a node of Kubernetes is a pod of a run" "kubectl exec -it job/RUN -- sh"; }
