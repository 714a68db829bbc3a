# Machines of hosts.toml, which exist already. Sourced by lib.sh.
target_vars() {
  HOSTS=${HOSTS:-}
  if [ "$verb" = up ]; then HOSTS=$(file_of HOSTS); fi
  vars+=(-var "hosts=$HOSTS")
}
# All machines, before anything is created: one that fails is named, and keeps all of it from
# being made or changed. Machines that the list has lost are given up here.
check_up() {
  local number=${NODES:+--nodes $NODES}
  # shellcheck disable=SC2086 - one option
  headway cluster check --hosts "$HOSTS" $number --save "$cluster_dir/machines.json"
  if [ -e "$cluster_dir/cluster.json" ]; then
    # shellcheck disable=SC2086
    headway cluster create "$cluster_dir" --hosts "$HOSTS" $number ${DRAIN:+--drain} >&2
  fi
}
after_up() {
  local network
  network=$(sed -nE 's/.*"network": *"([^"]*)".*/\1/p' "$cluster_dir/machines.json")
  say_run "launch.interface=${network:-eth0}"
}
show_status() {
  headway cluster status "$cluster_dir" --save "$cluster_dir/machines.json"
}
# Before the folder with the keys is removed, so that it can be repeated.
before_down() {
  drain_runs
  check_left
}
