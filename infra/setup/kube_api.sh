#!/usr/bin/env bash
# kube_api.sh FOLDER: build kube-apiserver 1.20.2 and unpack etcd there, for the tests that use a
# real API server (HEADWAY_KUBE_API=FOLDER). Everything comes from Debian's packages, nothing is
# installed, and the machine's apt settings stay as they are. Built once: five minutes of two cores
# and 1.5 GB while it builds, 130 MB afterwards. FOLDER must be a path without spaces.
set -euo pipefail
fail() { echo "error: $1; $2" >&2; exit 1; }
[ $# = 1 ] || fail "usage: kube_api.sh FOLDER" "name a folder, such as ~/.cache/headway/kube-api"
mkdir -p "$1"
folder=$(cd "$1" && pwd)
[ -x "$folder/kube-apiserver" ] && [ -x "$folder/etcd" ] && exit 0
command -v apt-get >/dev/null && command -v dpkg >/dev/null ||
    fail "no apt-get and dpkg here" "build it on Debian 12 and copy the folder"
work=$folder/build
rm -rf "$work" # what an interrupted build left may be incomplete
mkdir -p "$work/apt/parts" "$work/apt/lists/partial" "$work/apt/cache/archives/partial" "$work/src/k8s.io"
cd "$work"

# this machine's sources, with source packages, in lists of their own
shopt -s nullglob
for sources in /etc/apt/sources.list.d/debian*.sources; do
    sed -E 's/^Types: deb$/Types: deb deb-src/' "$sources" >"apt/parts/${sources##*/}"
done
for sources in /etc/apt/sources.list; do
    [ ! -s "$sources" ] || sed -E '/^deb /{p;s/^deb /deb-src /}' "$sources" >apt/parts/main.list
done
apt=(-qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$work/apt/parts"
    -o "Dir::State::lists=$work/apt/lists" -o "Dir::Cache=$work/apt/cache" -o APT::Sandbox::User=root)
apt-get "${apt[@]}" update
apt-get "${apt[@]}" --download-only source kubernetes
apt-get "${apt[@]}" download golang-1.19-go golang-1.19-src etcd-server
for package in *.deb; do dpkg -x "$package" root; done
tar xf kubernetes_*.orig.tar.gz
mv kubernetes-1.20.2 src/k8s.io/kubernetes

export GOROOT=$work/root/usr/lib/go-1.19 GOPATH=$work GOCACHE=$work/cache
export GO111MODULE=off GOPROXY=off CGO_ENABLED=0 GOFLAGS=
export PATH=$GOROOT/bin:$PATH
cd src/k8s.io/kubernetes
# The source package lacks one generated file.
go build -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
mapfile -t inputs < <(
    grep -rl '+k8s:openapi-gen=' --include='*.go' vendor/k8s.io/ staging/src/k8s.io pkg |
        xargs -n1 dirname | sed 's#^staging/src/#vendor/#' | sort -u |
        grep -vE 'code-generator|sample-apiserver|kube-openapi/test|apiextensions-apiserver/examples' |
        sed 's#^#k8s.io/kubernetes/#'
)
"$work/openapi-gen" --logtostderr -i "$(IFS=,; echo "${inputs[*]}")" \
    -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
    -h hack/boilerplate/boilerplate.generatego.txt -r "$work/violations"
go build -p 2 -ldflags "-s -w" -o "$work/kube-apiserver" ./cmd/kube-apiserver
mv "$work/root/usr/bin/etcd" "$folder/etcd"
mv "$work/kube-apiserver" "$folder/kube-apiserver"
chmod -R u+w "$work" # Go's cache of sources is read-only
rm -rf "$work"
