#!/usr/bin/env bash
# up.sh TARGET NODES: make the cluster what it should be; run again, it restarts what has died.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
tf apply -input=false -auto-approve "${vars[@]}" -var "nodes=${2:-3}"
printf 'cluster: %s   use it: headway run examples/tiny.toml --cluster %q\n' "$cluster_dir" "$cluster_dir"
