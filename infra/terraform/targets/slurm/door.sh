# Machines that Slurm gives to each run. Sourced by lib.sh.
target_vars() {
  SLURM=${SLURM:-}
  if [ "$verb" = up ]; then SLURM=$(file_of SLURM); fi
  vars+=(-var "slurm=$SLURM")
}
# Slurm itself; with NODES so many machines too, by a job of a few seconds, unless the cluster exists:
# its runs may have them. NODES is also the most that a run may have, so that a smaller number may
# concern a live run.
check_up() {
  local number=${NODES:+--nodes $NODES}
  # shellcheck disable=SC2086 - one option
  if [ -e "$cluster_dir/cluster.json" ]; then
    headway cluster check --slurm "$SLURM"
    headway cluster create "$cluster_dir" --slurm "$SLURM" $number ${DRAIN:+--drain} >&2
  else
    headway cluster check --slurm "$SLURM" $number
  fi
}
# Before the folder with the keys is removed, so that it can be repeated.
before_down() {
  drain_runs
  check_left
}
