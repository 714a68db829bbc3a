#!/usr/bin/env bash
# down.sh TARGET: stop the runs with a checkpoint, or by force if they are stuck, then every node,
# and remove the cluster. At a terminal it asks once before it stops runs; YES=1 answers in advance.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
[ ! -e "$cluster_dir/cluster.json" ] || headway cluster drain "$cluster_dir" ${YES:+--yes}
nodes=$(tf output -json nodes 2>/dev/null | tr -cd '0-9,' | tr ',' '\n' | grep -c . || true)
[ "${nodes:-0}" -gt 0 ] || nodes=1
tf destroy -input=false -auto-approve "${vars[@]}" -var "nodes=$nodes" </dev/null
rm -rf "$TF_DATA_DIR" "$cluster_dir"/terraform.tfstate* "$cluster_dir/init.log"
rmdir "$cluster_dir" 2>/dev/null || true
