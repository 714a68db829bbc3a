#!/usr/bin/env bash
# down.sh TARGET: stop the runs with a checkpoint, or by force if they are stuck, then every node,
# and remove the cluster. At a terminal it asks once before it stops runs; YES=1 answers in advance.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
prepare
if ! has_cluster; then
  echo "$cluster_dir holds no cluster, nothing to do; \`make up TARGET=$target\` creates one"
  exit 0
fi
before_down
change destroy -input=false -auto-approve "${vars[@]}" </dev/null
after_down
