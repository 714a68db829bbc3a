#!/usr/bin/env bash
# machine fence NAME: power a machine of this cluster off; exit code 0 confirms that it is off.
# machine replace NAME REASON: stop it and start it, which gives it other hardware at its address.
# The hooks of hosts.toml, on each machine. They find instances by the cluster's tag and their name,
# and AWS allows them no others.
set -euo pipefail
settings=${HEADWAY_MACHINE_SETTINGS:-/etc/headway/cluster.env}
# shellcheck source=/dev/null
[ ! -r "$settings" ] || . "$settings"
verb=${1:-} name=${2:-} reason=${3:-}
limit_s=${MACHINE_LIMIT_S:-840} every_s=${MACHINE_EVERY_S:-2} # the driver waits 900 s for replace

fail() { echo "error: $1; $2" >&2; exit 1; }
ec2() { "${AWS_CLI:-aws}" ec2 --output text "$@"; }

# "i-0123 running" of the one instance with that name that has not been terminated.
instance() {
  ec2 describe-instances \
    --filters "Name=tag:headway-cluster,Values=$HEADWAY_CLUSTER" "Name=tag:Name,Values=$name" \
    "Name=instance-state-name,Values=pending,running,stopping,stopped" \
    --query 'Reservations[].Instances[].[InstanceId,State.Name]'
}

state() {
  ec2 describe-instances --instance-ids "$id" --query 'Reservations[].Instances[].State.Name'
}

wait_for() {
  local now
  until now=$(state) && [ "$now" = "$1" ]; do
    [ "$SECONDS" -lt "$limit_s" ] || # since the start of this script
      fail "$name is $now and not $1 after $limit_s s" "look at it in the EC2 console"
    sleep "$every_s"
  done
}

power_off() {
  case ${found##*[[:space:]]} in
    stopped) ;;
    stopping) wait_for stopped ;;
    *)
      # --force: what it still has to write is not wanted any more
      ec2 stop-instances --instance-ids "$id" --force >/dev/null
      wait_for stopped
      ;;
  esac
}

[ -n "${HEADWAY_CLUSTER:-}" ] || fail "HEADWAY_CLUSTER is not set" "write it into $settings"
[ -n "$name" ] || fail "no machine was named" "use: machine fence NAME"
found=$(instance)
[ -n "$found" ] ||
  fail "cluster $HEADWAY_CLUSTER has no machine $name" "\`make up TARGET=aws\` makes it again"
[ "$(wc -l <<<"$found")" = 1 ] ||
  fail "cluster $HEADWAY_CLUSTER has several machines $name" "terminate all but one"
id=${found%%[[:space:]]*}
case $verb in
  fence)
    power_off
    echo "$name ($id) is off"
    ;;
  replace)
    power_off
    ec2 start-instances --instance-ids "$id" >/dev/null
    wait_for running
    echo "$name ($id) runs again${reason:+, replaced because: $reason}"
    ;;
  *) fail "unknown verb '$verb'" "use fence or replace" ;;
esac
