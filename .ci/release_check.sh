#!/usr/bin/env bash
# Builds the distributions into dist/, writes next to them a list of what they are installed with today (an SBOM in the
# CycloneDX format), and looks these versions up among the known vulnerabilities. Fails if there is one, or if the
# database cannot be reached.
# Usage: .ci/release_check.sh PYTHON TOOLS
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$1 tools=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

echo "building the distributions"
rm -rf dist
"$tools/python" -m build --outdir dist . >"$scratch/build.log" 2>&1 || { cat "$scratch/build.log"; exit 1; }
"$tools/twine" check --strict dist/*

echo "installing the wheel with the highest versions of its dependencies"
bash .ci/install_versions.sh highest "$python" "$tools" "$scratch"
"$tools/uv" pip install --quiet --python "$scratch/venv/bin/python" --no-deps dist/*.whl

sbom=$(basename dist/*.whl .whl).cdx.json
"$tools/cyclonedx-py" environment --output-reproducible --pyproject pyproject.toml --output-file "dist/$sbom" \
  "$scratch/venv/bin/python"
"$tools/python" - "dist/$sbom" <<'PY'
import json, sys

sbom = json.load(open(sys.argv[1], encoding="utf-8"))
print(f"{sys.argv[1]}: {sbom['metadata']['component']['name']} and {len(sbom['components'])} components")
PY

# Every version is given, so nothing is resolved or installed. --strict: a package that cannot be looked up is an error.
"$tools/pip-audit" --strict --no-deps --disable-pip --requirement "$scratch/versions.txt"
