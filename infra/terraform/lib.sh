# Sourced by up.sh, down.sh, status.sh, logs.sh and ssh.sh, with the target as the first argument:
# finds Terraform, the target's folder and its state, and defines what a target's door.sh may
# redefine.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
verb=${0##*/}
verb=${verb%.sh}
target=${1:-local}
fail() {
  echo "error: $1; $2" >&2
  exit 2
}
command -v terraform >/dev/null || fail "no terraform on the PATH" "install Terraform 1.9 or newer; \`make run\` does not need it"
[ -d "$here/targets/$target" ] || fail "no target '$target'" "use one of: $(ls "$here/targets" | tr '\n' ' ')"
command -v headway >/dev/null || fail "no headway on the PATH" "run \`make setup\` and use make, or activate .venv"
cluster_dir=${CLUSTER_DIR:-clusters/$target}
[[ $cluster_dir == /* ]] || cluster_dir=$PWD/$cluster_dir
export TF_DATA_DIR=$cluster_dir/.terraform TF_IN_AUTOMATION=1 TF_CLI_ARGS="-no-color" CHECKPOINT_DISABLE=1
# 9 is the lock of `up` and `down`, which nothing that they start may keep.
tf() { terraform "-chdir=$here/targets/$target" "$@" 9>&-; }
headway() { command headway "$@" 9>&-; }

# ---- what a target may redefine in its door.sh ---------------------------------------------------
target_init() { :; }                                     # append to the array init
target_vars() { :; }                                     # append to vars; refuse what is wrong
check_up() { :; }                                        # before anything is created
after_up() { say_run; }                                  # its last line is the command to run next
before_down() { drain_runs; }
after_down() { :; }                                      # exits 1 and lists what is left
show_status() { headway cluster status "$cluster_dir"; } # 2: something drifted
show_logs() { headway cluster logs "$cluster_dir" ${1:+--node "$1"}; }
open_shell() { # NODE [WORDS...]
  local words
  words=$(headway cluster reach "$cluster_dir" --node "$1" -- "${@:2}")
  eval "exec $words"
}

# ---- steps that several targets have in common ---------------------------------------------------
say_run() { # [SETTING...]
  printf 'cluster: %s; the next line starts a run on it\n' "$cluster_dir"
  printf 'headway run examples/tiny.toml --cluster %q' "$cluster_dir"
  [ $# -eq 0 ] || printf ' --set %q' "$@"
  echo
}
drain_runs() {
  [ ! -e "$cluster_dir/cluster.json" ] || headway cluster drain "$cluster_dir" ${YES:+--yes}
}
# What runs that are over have left on machines; they are known as long as the cluster is.
check_left() {
  [ -e "$cluster_dir/cluster.json" ] && [ -z "${FORCE:-}" ] || return 0
  headway cluster left "$cluster_dir" && return
  echo "error: the lines above are left; end it and repeat \`make down\`, or FORCE=1 skips this check" >&2
  exit 1
}
has_cluster() {
  [ -e "$cluster_dir/cluster.json" ] || [ -n "$(tf state list 2>/dev/null)" ]
}
# The file that the user must have named.
file_of() { # VARIABLE
  local path=${!1:-}
  [ -n "$path" ] || fail "$1 is not set" "name a file: make $verb TARGET=$target $1=FILE"
  [ -f "$path" ] || fail "$1=$path does not exist" "name an existing file"
  printf '%s' "$path"
}
# Terraform commands that take the state lock; the second of two gets one clear line.
change() {
  local errors code=0
  errors=$(mktemp)
  tf "$@" 2>"$errors" || code=$?
  if [ "$code" -ne 0 ] && grep -q "acquiring the state lock" "$errors" && grep -qE "$held" "$errors"; then
    local id
    id=$(sed -nE 's/.*ID: +([0-9a-f-]+).*/\1/p' "$errors" | head -n 1)
    rm -f "$errors"
    busy "$id"
  fi
  cat "$errors" >&2
  rm -f "$errors"
  [ "$code" -eq 0 ] || exit 1
}
# What Terraform says of a lock that somebody holds; other reasons, such as a full disk, are shown.
held="temporarily unavailable|PreconditionFailed|ConditionalRequestConflict|already locked"
busy() { # [ID]
  fail "another \`make up\` or \`make down\` changes $cluster_dir" "wait until it has ended; a lock that a killed one has left in a bucket is removed by \`terraform force-unlock ${1:-ID}\`"
}
# The settings of the last `up` hold for the other commands, so that they need none of them.
remember() {
  local name
  for name in HOSTS SLURM VARS NODES; do
    [ -z "${!name:-}" ] || printf '%s=%s\n' "$name" "${!name}"
  done >"$cluster_dir/up.vars"
}
recall() {
  local name value
  [ -f "$cluster_dir/up.vars" ] || return 0
  while IFS='=' read -r name value; do
    [ "$verb $name" != "up NODES" ] || continue # none is: as many as the file or the target says
    [ -n "${!name:-}" ] || export "$name=$value"
  done <"$cluster_dir/up.vars"
}
# Nothing stays of a command that made no cluster, or has removed it.
tidy() {
  [ ! -e "$cluster_dir/cluster.json" ] || return 0
  local state=$cluster_dir/terraform.tfstate
  [ ! -e "$state" ] || grep -q '"resources": \[\]' "$state" || return 0
  rm -rf "$TF_DATA_DIR" "$state"* "$cluster_dir"/{init.log,plan.log,up.lock,up.vars}
  rm -f "$cluster_dir"/{machines.json,incarnation,server.toml,owner,seen.json}
  rm -f "$cluster_dir"/{namespace,claim}.incarnation
  rmdir "$cluster_dir" 2>/dev/null || true
}

# All variables of the target: those of its door.sh, then the number of nodes if one is asked for.
all_vars() {
  target_vars
  [ -z "${NODES:-}" ] || vars+=(-var "nodes=$NODES")
}
# The same, and have Terraform know the target's backend.
prepare() {
  mkdir -p "$cluster_dir"
  trap tidy EXIT
  all_vars
  target_init
  tf init "${init[@]}" >"$cluster_dir/init.log" 2>&1 || {
    cat "$cluster_dir/init.log" >&2
    exit 1
  }
}

# ---- one change at a time ------------------------------------------------------------------------
recall
for name in HOSTS SLURM VARS; do
  [ -z "${!name:-}" ] || [[ ${!name} == /* ]] || export "$name=$PWD/${!name}"
done
[ -z "${NODES:-}" ] || [[ $NODES =~ ^[1-9][0-9]{0,4}$ ]] ||
  fail "NODES=$NODES is not a number of nodes" "use a whole number from 1 on"
# Until this script has ended: after Ctrl-C it waits for Terraform, which may take minutes to stop.
if [[ $verb == up || $verb == down ]] && command -v flock >/dev/null; then
  mkdir -p "$cluster_dir"
  exec 9>"$cluster_dir/up.lock" # inits lock the folder itself
  flock -n 9 || busy
  trap 'tidy' EXIT
fi

# ---- the target ----------------------------------------------------------------------------------
init=(-input=false -reconfigure "-backend-config=path=$cluster_dir/terraform.tfstate")
[ -n "${TF_PLUGIN_DIR:-}" ] && init+=("-plugin-dir=$TF_PLUGIN_DIR")
vars=(-var "cluster_dir=$cluster_dir")
# shellcheck source=/dev/null
[ ! -e "$here/targets/$target/door.sh" ] || source "$here/targets/$target/door.sh"
