#!/usr/bin/env bash
# Once a minute on a node: without a run on it for HEADWAY_IDLE_MIN minutes, the node powers itself
# off, which stops the instance. Every process of a run has HEADWAY_RUN_ID in its environment.
set -euo pipefail
settings=${HEADWAY_MACHINE_SETTINGS:-/etc/headway/cluster.env}
# shellcheck source=/dev/null
[ ! -r "$settings" ] || . "$settings"
mark=${HEADWAY_IDLE_MARK:-/run/headway-last-run} # gone after a boot, so the time starts anew
variable=${HEADWAY_IDLE_VARIABLE:-HEADWAY_RUN_ID}
if [ ! -e "$mark" ] || grep -qsz "^$variable=" /proc/[0-9]*/environ; then
  touch "$mark"
elif [ -n "$(find "$mark" -mmin "+$HEADWAY_IDLE_MIN")" ]; then
  /opt/headway/log "no run for $HEADWAY_IDLE_MIN minutes: stopping" || true
  ${HEADWAY_POWER_OFF:-systemctl poweroff}
fi
