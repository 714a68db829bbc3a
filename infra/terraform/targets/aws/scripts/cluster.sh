#!/usr/bin/env bash
# headway-cluster [refresh|drain|runs]: the cluster as `headway run --cluster` takes it, on the head
# node. refresh (the default) fetches the list of machines and makes the cluster anew if it changed.
set -euo pipefail
# shellcheck source=/dev/null
. "${HEADWAY_MACHINE_SETTINGS:-/etc/headway/cluster.env}"
shared=${HEADWAY_SHARED:-/shared}
headway=${HEADWAY:-$shared/src/.venv/bin/headway}
cluster=$shared/cluster

refresh() {
  local fresh=$shared/hosts.toml.new
  "${AWS_CLI:-aws}" s3 cp --quiet "s3://$HEADWAY_BUCKET/hosts.toml" "$fresh"
  if [ -e "$cluster/cluster.json" ] && cmp -s "$fresh" "$shared/hosts.toml"; then
    rm "$fresh"
  else
    # refused while a run is live: its machines stay listed until it has ended
    "$headway" cluster remove "$cluster" --yes
    "$headway" cluster create "$cluster" --hosts "$fresh"
    mv "$fresh" "$shared/hosts.toml"
  fi
}

case ${1:-refresh} in
  refresh)
    refresh
    echo "cd $shared/src && $HEADWAY_RUN_COMMAND"
    ;;
  drain) [ ! -e "$cluster/cluster.json" ] || "$headway" cluster drain "$cluster" --yes ;;
  runs) [ ! -e "$shared/src/runs" ] || "$headway" runs --runs-dir "$shared/src/runs" ;;
  *)
    echo "error: unknown verb '$1'; use refresh, drain or runs" >&2
    exit 2
    ;;
esac
