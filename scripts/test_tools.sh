#!/bin/sh
# Installs PgBouncer, which tests need and which is in no wheel. If that fails, its tests are skipped and report it.
PATH="$PATH:/usr/sbin:/sbin"
command -v pgbouncer >/dev/null && exit 0

give_up() {
    echo "test tools: no pgbouncer ($1): the tests behind it will be skipped. On Debian: apt-get install pgbouncer" >&2
    exit 0
}
command -v apt-get >/dev/null || give_up "and no apt-get"
[ "$(id -u)" = 0 ] || give_up "and not root"

# This keeps the package from starting a service, because only the program is needed.
POLICY=/usr/sbin/policy-rc.d
if [ ! -e "$POLICY" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$POLICY" && chmod 755 "$POLICY"
    trap 'rm -f "$POLICY"' EXIT INT TERM
fi
apt() {
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 -o Acquire::Retries=1 -o Acquire::http::Timeout=20 "$@"
}
printed=$({ apt install -y --no-install-recommends pgbouncer || { apt update && apt install -y --no-install-recommends pgbouncer; }; } 2>&1 </dev/null)
command -v pgbouncer >/dev/null || { echo "$printed" | tail -5 >&2; give_up "apt-get could not install it"; }
