#!/usr/bin/env bash
# up.sh TARGET NODES: make the cluster what it should be; run again, it restarts what has died.
# Terraform asks nobody, so nodes that end are given up here: a live run that uses one is a refusal,
# or DRAIN=1 stops it first, with a checkpoint.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
wanted=${2:-3}
current=$(grep -o '"nodes": *[0-9]*' "$cluster_dir/cluster.json" 2>/dev/null | tr -cd '0-9' || true)
if [ "$wanted" -lt "${current:-0}" ] 2>/dev/null; then
  headway cluster create "$cluster_dir" --nodes "$wanted" ${YES:+--yes} ${DRAIN:+--drain} >&2
fi
tf apply -input=false -auto-approve "${vars[@]}" -var "nodes=$wanted"
printf 'cluster: %s   use it: headway run examples/tiny.toml --cluster %q\n' "$cluster_dir" "$cluster_dir"
