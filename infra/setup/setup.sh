#!/bin/sh
# Find a Python that Headway runs on and let it install the set named by $1 (run, lab or test).
# Plain sh, because it has to work, or to say why not, on a machine where nothing is installed yet.
set -u

refuse() {
    echo "headway: $1" >&2
    exit 2
}

[ "$(uname -s)" = Linux ] ||
    refuse "Linux is required, this is $(uname -s); use a Linux machine, a container or WSL 2"

# 0: fit for use, 3: has no venv module, anything else: another version, or it does not even start
judge() {
    "$1" - >/dev/null 2>&1 <<'END'
import sys
if not (3, 11) <= sys.version_info[:2] <= (3, 13):
    sys.exit(4)
from importlib.util import find_spec
sys.exit(0 if find_spec("venv") and find_spec("ensurepip") else 3)
END
}

found=
without_venv=
look_at() {
    for candidate; do
        judge "$candidate"
        case $? in
            0) found=$candidate; return ;;
            3) without_venv=${without_venv:-$candidate} ;;
        esac
    done
}
if [ -n "${PYTHON:-}" ]; then
    look_at "$PYTHON"
else
    look_at python3 python3.13 python3.12 python3.11
fi
if [ -z "$found" ] && [ -n "$without_venv" ]; then
    refuse "$without_venv has no venv module; install it (Debian, Ubuntu: apt-get install\
 python3-venv)"
fi
if [ -z "$found" ]; then
    tried=${PYTHON:-python3}
    show='import sys; print("Python %d.%d.%d" % sys.version_info[:3])'
    version=$("$tried" -c "$show" 2>/dev/null) ||
        version="not found or not working"
    refuse "Python 3.11 to 3.13 is required, and $tried is $version; install one (Debian: apt-get\
 install python3 python3-venv) or name it: make PYTHON=/path/to/python3 ..."
fi
exec "$found" "$(dirname "$0")/install.py" "$1"
