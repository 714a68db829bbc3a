#!/usr/bin/env bash
# test.sh [PYTEST...]: the checks of this folder: format, `validate` and `terraform test` of every
# target, on a copy, so that nothing stays; then the tests of tests/infra by the words given, which
# start real nodes and machines. What is skipped is printed with the reason.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
command -v terraform >/dev/null || {
  echo "error: no terraform on the PATH; install Terraform 1.9 or newer" >&2
  exit 2
}
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r "$here/." "$copy"
export TF_IN_AUTOMATION=1 TF_CLI_ARGS="-no-color" CHECKPOINT_DISABLE=1
failed=()
step() { # NAME COMMAND...
  local name=$1
  shift
  if "$@" >"$copy/output" 2>&1; then
    echo "ok       $name$(sed -nE 's/^Success! ([0-9]+ passed.*)\.$/: \1/p' "$copy/output")"
  else
    echo "FAILED   $name"
    cat "$copy/output"
    failed+=("$name")
  fi
}
step "format" terraform fmt -check -recursive -diff "$copy"
for folder in "$copy"/targets/*/; do
  name=$(basename "$folder")
  [ -e "$folder/main.tf" ] || continue
  init=(-backend=false -input=false)
  if grep -qs required_providers "$folder"/*.tf; then
    if [ -z "${TF_PLUGIN_DIR:-}" ]; then
      echo "skipped  target $name: it needs a provider, and TF_PLUGIN_DIR names no folder with it"
      continue
    fi
    init+=("-plugin-dir=$TF_PLUGIN_DIR")
  fi
  step "$name: init" terraform "-chdir=$folder" init "${init[@]}"
  step "$name: validate" terraform "-chdir=$folder" validate
  if compgen -G "$folder/tests/*.tftest.hcl" >/dev/null; then
    step "$name: test" terraform "-chdir=$folder" test
  else
    echo "skipped  $name: test: it has none"
  fi
done
if [ $# -gt 0 ]; then
  "$@" || failed+=("$1")
fi
[ ${#failed[@]} -eq 0 ] || {
  echo "failed: ${failed[*]}" >&2
  exit 1
}
