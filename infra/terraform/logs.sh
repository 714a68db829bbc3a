#!/usr/bin/env bash
# logs.sh TARGET [NODE]: the newest lines of the logs of a node, or of all.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
show_logs ${2:+"$2"}
