#!/bin/sh
# Install what the tests of Slurm, ssh and the browser need, where that is possible: as root, with
# apt-get. It never fails: without these packages such tests are skipped, and say why.
set -u

packages="slurmctld slurmd slurm-client munge openssh-server iproute2 chromium fonts-liberation"
policy="${POLICY:-/usr/sbin/policy-rc.d}" # asked before a package starts a service

[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && command -v dpkg-query >/dev/null || exit 0
absent=
for package in $packages; do
    case "$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null)" in
    *"ok installed") ;;
    *) absent="$absent $package" ;;
    esac
done
[ -n "$absent" ] || exit 0

if [ ! -e "$policy" ]; then # the bed starts its own daemons; this machine needs none
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 - a list of words
if said=$({ apt-get -qq update && apt-get -qq -y --no-install-recommends install $absent; } 2>&1); then
    echo "installed for tests:$absent"
else
    echo "not installed, so the tests that need them are skipped:$absent"
    echo "$said" | tail -n 3
fi
exit 0
