#!/usr/bin/env bash
# ssh.sh TARGET NODE [WORDS...]: open a shell on the machine of a node, or run WORDS there.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
[ -n "${2:-}" ] || fail "NODE is not set" "name one: make ssh TARGET=$target NODE=0"
shift
open_shell "$@"
