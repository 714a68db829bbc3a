#!/usr/bin/env bash
# up.sh TARGET [NODES]: make the cluster what it should be; run again, it restarts what has died.
# Terraform asks nobody, so nodes that end are given up before: a live run that uses one is a
# refusal, or DRAIN=1 stops it first, with a checkpoint.
[ -z "${2:-}" ] || export NODES=$2
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
prepare
check_up
remember
change apply -input=false -auto-approve "${vars[@]}"
after_up
