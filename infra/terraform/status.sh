#!/usr/bin/env bash
# status.sh TARGET: what differs from what `up` has made, and the runs; exit code 2 if something
# does. It changes nothing and takes no lock.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
if [ -d "$TF_DATA_DIR" ]; then all_vars; else prepare; fi
if ! has_cluster; then
  echo "error: $cluster_dir holds no cluster; \`make up TARGET=$target\` creates one" >&2
  exit 1
fi
drifted=
code=0
show_status || code=$?
case $code in 0) ;; 2) drifted=1 ;; *) exit "$code" ;; esac

code=0
log=$cluster_dir/plan.log
tf plan -input=false -lock=false -detailed-exitcode "${vars[@]}" >"$log" 2>&1 || code=$?
case $code in
0) ;;
2)
  drifted=1
  # "  # NAME must be replaced", "... is tainted, so it must be replaced", "... has been deleted"
  sed -nE 's/^  # (.+) ((must|will) be .+|has been deleted|has changed)$/drift: \1 \2/p' "$log"
  ;;
*)
  cat "$log" >&2
  exit 1
  ;;
esac
[ -z "$drifted" ] || echo "repair: make up TARGET=$target${NODES:+ NODES=$NODES}"
[ -z "$drifted" ] || exit 2
