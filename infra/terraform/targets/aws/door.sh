# AWS, sourced by lib.sh. VARS=FILE.tfvars describes the cluster; docs/howto/aws.md shows what to
# write. A copy of the target and of VARS is in the cluster's folder, so that status, down and logs
# see what was made. AWS_CLI names another aws command.
aws_cli=${AWS_CLI:-aws}
work=$cluster_dir/target
kept=$cluster_dir/cluster.tfvars
kept_nodes=$cluster_dir/nodes.tfvars        # there if NODES was given
state_file=$cluster_dir/bucket.s3.tfbackend # there once the state is in the bucket
leaks_file=$cluster_dir/leaks.txt           # there if `down` has left something
tag=headway-cluster
known=

tf() { terraform "-chdir=$work" "$@" 9>&-; }
call() { "$aws_cli" --region "$region" --output text "$@"; }
# The first message of Terraform's errors, without frame, source lines and advice on Terraform.
message() {
  sed -E 's/^[│╷╵] ?//' | awk '
    /^Error:/ { seen = 1; title = substr($0, 8); next }
    seen && /^[^ ]/ { text = text (text ? " " : "") $0; next }
    seen && /^ *$/ && text { exit }
    END { print text ? text : title }'
}

# ---- before anything ---------------------------------------------------------------------------
target_init() {
  rm -rf "$work"/*.tf "$work"/scripts
  mkdir -p "$work"
  cp -r "$here/targets/aws"/*.tf "$here/targets/aws/types.json" "$here/targets/aws/scripts" "$work"
  [ ! -e "$work/errored.tfstate" ] || fail "Terraform could not store its last state" \
    "TF_DATA_DIR=$TF_DATA_DIR terraform -chdir=$work state push errored.tfstate, then remove that file"
  [ ! -e "$state_file" ] || use_bucket "$state_file"
}

use_bucket() { # CONFIG
  printf 'terraform {\n  backend "s3" {}\n}\n' >"$work/backend_override.tf"
  init=(-input=false -reconfigure "-backend-config=$1")
  [ -z "${TF_PLUGIN_DIR:-}" ] || init+=("-plugin-dir=$TF_PLUGIN_DIR")
}

target_vars() {
  local refused file=$kept
  if [ "$verb" = up ]; then
    file=$kept.new # what an existing cluster was made of stays known until this one is accepted
    file_of VARS >/dev/null
    cp "$(file_of VARS)" "$file"
  elif [ ! -e "$kept" ]; then
    echo "$cluster_dir holds no cluster; \`make up TARGET=aws VARS=my.tfvars\` creates one"
    [ "$verb" = down ] || exit 1
    exit 0
  fi
  vars=(-var-file "$file")
  [ "$verb" = up ] || [ ! -e "$kept_nodes" ] || vars+=(-var-file "$kept_nodes")
  command -v "$aws_cli" >/dev/null ||
    fail "no $aws_cli on the PATH" "install the AWS command line, version 1 or 2"
  region=${AWS_REGION:-us-east-1}
  refused=$(call sts get-caller-identity 2>&1 >/dev/null) ||
    fail "AWS refuses your credentials: $(grep . <<<"$refused" | tail -n 1)" \
      "run \`aws configure\`, or set AWS_PROFILE"
}

# What the variables say, from them alone; a wrong one is refused here.
facts() {
  local found errors=$cluster_dir/variables.log
  [ -z "$known" ] || return 0
  if [[ "${vars[*]}" != *"$kept"* ]]; then # `make logs` and `make ssh`, perhaps during an `up`
    if [ -d "$TF_DATA_DIR" ]; then all_vars; else prepare; fi
  fi
  # Its exit code is 0 after some errors too.
  found=$(echo 'join("|", [var.name, var.region, var.user, var.nodes, local.kind, local.place, local.cost])' |
    tf console "${vars[@]}" 2>"$errors") || true
  ! grep -q 'Error:' "$errors" || fail "$(message <"$errors")" "nothing was changed"
  IFS='|' read -r name region user nodes kind place cost <<<"${found//\"/}"
  known=1
}

# A state that cannot be read is a cluster: what it names costs money.
has_cluster() {
  local listed errors=$cluster_dir/state.log
  [ ! -e "$leaks_file" ] || return 0
  if ! listed=$(tf state list 2>"$errors"); then
    ! grep -q "No state file was found" "$errors" || return 1
    fail "Terraform's state cannot be read: $(message <"$errors")" "see $errors"
  fi
  [ -n "$listed" ]
}

# Nothing stays of a command that made no cluster, or has removed it. What lib.sh's own would remove
# while the state is in the bucket is made again.
tidy() {
  local state=$cluster_dir/terraform.tfstate
  [ ! -e "$state_file" ] && [ ! -e "$leaks_file" ] && [ ! -e "$work/errored.tfstate" ] || return 0
  [ ! -e "$state" ] || grep -q '"resources": \[\]' "$state" || return 0
  rm -rf "$TF_DATA_DIR" "$work" "$kept"* "$kept_nodes" "$cluster_dir"/terraform.tfstate* \
    "$cluster_dir"/{hosts.toml,init.log,plan.log,up.vars,up.lock,state.log,variables.log}
  rmdir "$cluster_dir" 2>/dev/null || true
}

confirm() {
  [ "${YES:-}" != 1 ] || return 0
  [ -t 0 ] || fail "nobody was asked: $1" "run it at a terminal, or set YES=1"
  read -rp "$1 [y/N] " answer
  [[ $answer = [yY]* ]] || fail "not confirmed" "nothing was changed"
}

# ---- up ----------------------------------------------------------------------------------------
check_up() {
  local current ended=
  facts
  echo "$cost"
  current=$(tf state list 2>/dev/null | grep -c '^aws_instance\.node\[' || true)
  if [ "${current:-0}" -gt 0 ]; then
    [ "$(tf output -raw place)" = "$place" ] ||
      fail "the cluster is $(tf output -raw place) and not $place" \
        "undo that, or \`make down TARGET=aws\` first, which deletes /shared"
    [ "$nodes" -ge "$current" ] || ended="nodes $nodes to $((current - 1)) would end"
    [ "$(tf output -raw kind)" = "$kind" ] || ended="all nodes would be made anew ($kind)"
  fi
  [ -z "$ended" ] || [ -n "${DRAIN:-}" ] ||
    fail "$ended" "DRAIN=1 stops all runs with a checkpoint first"
  confirm "create or change cluster $name in $region?"
  if [ -n "$ended" ]; then
    on_head "headway-cluster drain" ||
      fail "the head node did not stop the runs" "stop them there, then repeat"
  fi
  cp "$kept.new" "$kept"
  rm -f "$kept_nodes"
  [ -z "${NODES:-}" ] || echo "nodes = $NODES" >"$kept_nodes"
}

after_up() {
  tf output -raw hosts_toml >"$cluster_dir/hosts.toml"
  [ -e "$state_file" ] || state_to_bucket
  echo "cluster $name: $cluster_dir/hosts.toml; boot messages: make logs TARGET=aws"
  echo "on the head node (make ssh TARGET=aws NODE=head) run \`headway-cluster\`, then:"
  tf output -raw run
  echo
}

# The first `up` has no bucket yet, so its state is local. From then on it is locked in the bucket.
state_to_bucket() {
  [ "${STATE:-bucket}" = bucket ] || return 0
  facts
  printf 'bucket = "%s"\nkey = "terraform/%s.tfstate"\nregion = "%s"\nuse_lockfile = true\n' \
    "$(tf output -raw bucket)" "$name" "$region" >"$state_file.new"
  use_bucket "$state_file.new"
  if ! move_state; then
    rm -f "$state_file.new" "$work/backend_override.tf"
    fail "the state could not be moved to the bucket, see $cluster_dir/init.log" \
      "repeat \`make up\`; STATE=local keeps it in $cluster_dir"
  fi
  mv "$state_file.new" "$state_file" # from here on the bucket counts
  rm -f "$cluster_dir"/terraform.tfstate "$cluster_dir"/terraform.tfstate.backup
}

move_state() {
  local moved=()
  for word in "${init[@]}"; do [ "$word" = -reconfigure ] || moved+=("$word"); done
  tf init "${moved[@]}" -migrate-state -force-copy >>"$cluster_dir/init.log" 2>&1
}

# ---- down --------------------------------------------------------------------------------------
before_down() {
  facts
  local bucket others
  bucket=$(tf output -raw bucket 2>/dev/null) || bucket=
  if [[ $bucket = "$name"-* ]]; then
    others=$(call s3api list-objects-v2 --bucket "$bucket" --prefix data/ \
      --query 'length(Contents || `[]`)')
    [ "$others" = 0 ] || [ -n "${EMPTY:-}" ] ||
      fail "bucket $bucket holds $others objects below data/" \
        "copy what you need, then EMPTY=1 deletes them"
  fi
  confirm "delete cluster $name with /shared, so all its runs and checkpoints?"
  on_head "headway-cluster drain" ||
    echo "warning: the head node did not stop the runs; they end now" >&2
  [ ! -e "$state_file" ] || state_to_folder
  [ -z "$bucket" ] || empty_bucket "$bucket"
}

# The bucket that is about to go cannot hold the state of its own end.
state_to_folder() {
  rm -f "$work/backend_override.tf"
  init=(-input=false "-backend-config=path=$cluster_dir/terraform.tfstate")
  [ -z "${TF_PLUGIN_DIR:-}" ] || init+=("-plugin-dir=$TF_PLUGIN_DIR")
  move_state ||
    fail "the state could not be fetched from the bucket, see $cluster_dir/init.log" \
      "repeat \`make down\`"
  rm -f "$state_file"
}

# Every version of what was asked to go: the state, and with EMPTY=1 data/ too.
empty_bucket() {
  local batch prefix
  for prefix in terraform/ ${EMPTY:+data/}; do
    while batch=$("$aws_cli" --region "$region" --output json s3api list-object-versions \
      --bucket "$1" --prefix "$prefix" --max-items 500 \
      --query '{Objects: [Versions, DeleteMarkers][] | [].{Key: Key, VersionId: VersionId}}') &&
      grep -q VersionId <<<"$batch"; do
      call s3api delete-objects --bucket "$1" --delete "$batch" >/dev/null
    done
  done
}

after_down() {
  local left deadline=$((SECONDS + ${LEAK_WAIT_S:-120}))
  until left=$(leaks) && [ -z "$left" ]; do
    if [ "$SECONDS" -ge "$deadline" ]; then
      echo "$left" >"$leaks_file"
      echo "error: left of cluster $name; delete it or repeat \`make down\`, it costs money:" >&2
      echo "$left" >&2
      exit 1
    fi
    sleep 5
  done
  rm -f "$leaks_file"
  echo "nothing with the tag $tag=$name is left"
}

# What still has the tag, one per line. AWS lists machines and gateways for an hour after their end.
leaks() {
  local found gone
  found=$(
    call ec2 describe-tags --filters "Name=key,Values=$tag" "Name=value,Values=$name" \
      --query 'Tags[].[ResourceId]' &&
      call resourcegroupstaggingapi get-resources --tag-filters "Key=$tag,Values=$name" \
        --query 'ResourceTagMappingList[?!contains(ResourceARN, `:ec2:`)].[ResourceARN]' &&
      call iam list-roles --path-prefix "/headway/$name/" --query 'Roles[].[Arn]'
  ) || { echo "unknown: AWS did not answer" && return; }
  gone=$(
    call ec2 describe-instances --filters "Name=tag:$tag,Values=$name" \
      Name=instance-state-name,Values=terminated --query 'Reservations[].Instances[].[InstanceId]'
    call ec2 describe-nat-gateways --filter "Name=tag:$tag,Values=$name" Name=state,Values=deleted \
      --query 'NatGateways[].[NatGatewayId]'
  )
  sort -u <<<"$found" | grep -vxF -e None -e "" ${gone:+-f <(echo "$gone")} || true
}

# ---- looking -----------------------------------------------------------------------------------
show_status() {
  local columns='Tags[?Key==`Name`]|[0].Value, State.Name, PrivateIpAddress, InstanceId'
  facts
  echo "machines of cluster $name:"
  call ec2 describe-instances --filters "Name=tag:$tag,Values=$name" \
    --query "Reservations[].Instances[].[$columns]" | sort
  on_head "headway-cluster runs" || echo "the head node does not answer; its runs are not known"
}

show_logs() {
  facts
  call logs filter-log-events --log-group-name "/headway/$name" \
    ${1:+--log-stream-names "$(machine "$1")"} \
    --query 'events[].[timestamp, logStreamName, message]' | sort
}

# The name of node 2, or of "head".
machine() { facts && echo "$name-$1"; }

open_shell() { # NODE or head [WORDS...]
  facts
  local command="sudo -iu $user" node=$1
  shift
  [ "$node" = head ] || command+=" ssh $(machine "$node")"
  "$aws_cli" --region "$region" ssm start-session --target "$(tf output -raw head)" \
    --document-name AWS-StartInteractiveCommand --parameters "command=$command $*"
}

# Run a command on the head node as its user, and print what it printed.
on_head() {
  local head id
  head=$(tf output -raw head 2>/dev/null) || return 0 # there is none yet
  id=$(call ssm send-command --instance-ids "$head" --document-name AWS-RunShellScript \
    --parameters "commands=[\"sudo -iu $user $1\"]" \
    --query Command.CommandId 2>/dev/null) || return 1
  call ssm wait command-executed --instance-id "$head" --command-id "$id" || return 1
  call ssm get-command-invocation --instance-id "$head" --command-id "$id" \
    --query StandardOutputContent
}
