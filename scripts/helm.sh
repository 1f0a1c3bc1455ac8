#!/usr/bin/env bash
# Builds Helm with Go into a cache, once, for the tests of the chart. tests/install/helm.py reads the same cache.
set -euo pipefail
cd "$(dirname "$0")/../testcluster/helm"

VERSION=$(awk '$1 == "helm.sh/helm/v4" {print substr($2, 2)}' go.mod)
GO_NEEDED=$(awk '$1 == "go" {print $2}' go.mod)
CACHE=${HOLDFAST_KUBE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/holdfast}/helm-$VERSION

say() { echo "helm: $*"; }
fail() { echo "helm: $*" >&2; exit 1; }

[ -n "$VERSION" ] || fail "testcluster/helm/go.mod names no version of helm.sh/helm/v4"
[ ! -x "$CACHE/helm" ] || { say "Helm $VERSION is in $CACHE: nothing to do"; exit 0; }

mkdir -p "$CACHE"
exec 9>"$CACHE/.lock"
flock -n 9 || { say "another build into $CACHE is under way: waiting for it"; flock 9; }
[ ! -x "$CACHE/helm" ] || { say "Helm $VERSION is in $CACHE now"; exit 0; }

have=$(go env GOVERSION 2>/dev/null) || fail "building Helm $VERSION needs Go $GO_NEEDED or newer, and there is none on the PATH"
[ "$(printf '%s\n' "$GO_NEEDED" "${have#go}" | sort -V | head -1)" = "$GO_NEEDED" ] ||
    fail "building Helm $VERSION needs Go $GO_NEEDED or newer, not ${have#go}"

work=$(mktemp -d "$CACHE/.work-XXXXXX")  # on the same file system, so that the finished program can be renamed into its place
trap 'rm -rf "$work"' EXIT
say "Helm $VERSION into $CACHE; the first time this takes some minutes"
# Without this variable Helm reports a development version, and refuses charts that require a released version.
GOFLAGS=-mod=readonly CGO_ENABLED=0 nice -n 10 go build -trimpath -o "$work/helm" \
    -ldflags "-s -w -X helm.sh/helm/v4/internal/version.version=v$VERSION" helm.sh/helm/v4/cmd/helm
mv "$work/helm" "$CACHE/helm"
say "ready after $SECONDS s"
