# Sourced by up.sh and down.sh: finds terraform, the target's folder and its state.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=${1:-local}
fail() { echo "error: $1; $2" >&2; exit 2; }
command -v terraform >/dev/null || fail "no terraform on the PATH" "install Terraform 1.9 or newer; \`make run\` does not need it"
[ -d "$here/targets/$target" ] || fail "no target '$target'" "use one of: $(ls "$here/targets" | tr '\n' ' ')"
command -v headway >/dev/null || fail "no headway on the PATH" "run \`make setup\` and use make, or activate .venv"
cluster_dir=${CLUSTER_DIR:-$PWD/clusters/$target}
mkdir -p "$cluster_dir"
export TF_DATA_DIR=$cluster_dir/.terraform TF_IN_AUTOMATION=1 TF_CLI_ARGS="-no-color" CHECKPOINT_DISABLE=1
init=(-input=false -reconfigure "-backend-config=path=$cluster_dir/terraform.tfstate")
[ -n "${TF_PLUGIN_DIR:-}" ] && init+=("-plugin-dir=$TF_PLUGIN_DIR")
tf() { terraform "-chdir=$here/targets/$target" "$@"; }
tf init "${init[@]}" >"$cluster_dir/init.log" || { cat "$cluster_dir/init.log" >&2; exit 1; }
vars=(-var "cluster_dir=$cluster_dir")
