#!/usr/bin/env bash
# down.sh TARGET: stop the runs with a checkpoint, then every node, and remove the cluster.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
headway cluster drain "$cluster_dir"
nodes=$(tf output -json nodes 2>/dev/null | tr -cd '0-9,' | tr ',' '\n' | grep -c . || true)
[ "${nodes:-0}" -gt 0 ] || nodes=1
tf destroy -input=false -auto-approve "${vars[@]}" -var "nodes=$nodes"
rm -rf "$TF_DATA_DIR" "$cluster_dir"/terraform.tfstate* "$cluster_dir/init.log"
rmdir "$cluster_dir" 2>/dev/null || true
