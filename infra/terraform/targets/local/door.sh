# Nodes are processes of this machine. Sourced by lib.sh.
target_vars() {
  NODES=${NODES:-3}
}
check_up() {
  local now
  now=$(grep -o '"nodes": *[0-9]*' "$cluster_dir/cluster.json" 2>/dev/null | tr -cd '0-9' || true)
  [ "$NODES" -ge "${now:-0}" ] ||
    headway cluster create "$cluster_dir" --nodes "$NODES" ${YES:+--yes} ${DRAIN:+--drain} >&2
}
before_down() {
  ids=$(grep -o '"id": *"[0-9a-f]*"' "$cluster_dir/cluster.json" 2>/dev/null | cut -d'"' -f4 || true)
  drain_runs
}
after_down() {
  local python left
  python=$(dirname "$(readlink -f "$(type -P headway)")")/python # that of the installation
  [ -x "$python" ] || python=python
  left=$(printf '["%s"]' "${ids:-}" | "$python" -m headway.launch.machine left)
  [ "$left" = "[]" ] || {
    echo "error: left on this machine: $left" >&2
    exit 1
  }
}
