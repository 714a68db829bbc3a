#!/usr/bin/env bash
# up.sh TARGET NODES: make the cluster what it should be; run again, it mends what has died.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
tf apply -input=false -auto-approve "${vars[@]}" -var "nodes=${2:-3}"
echo "cluster: $cluster_dir   use it: headway run examples/tiny.toml --cluster $cluster_dir"
