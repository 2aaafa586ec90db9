#!/usr/bin/env bash
# Runs some of the tests, and the quickstart, with the lowest or highest allowed version of each direct dependency.
# Usage: .ci/test_versions.sh lowest-direct|highest PYTHON TOOLS
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
resolution=$1 python=$2 tools=$3
root=$PWD
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

echo "installing the versions of '$resolution' for $("$python" --version)"
bash .ci/install_versions.sh "$resolution" "$python" "$tools" "$scratch"
"$tools/uv" pip install --quiet --python "$scratch/venv/bin/python" "pytest>=8.3"
"$tools/uv" pip install --quiet --python "$scratch/venv/bin/python" --no-deps --editable .
paste -sd ' ' "$scratch/versions.txt"

for backend in tensorflow jax; do
  echo "running tests on $backend"
  KERAS_BACKEND=$backend "$scratch/venv/bin/python" -m pytest --quiet -p no:cacheprovider -m "not slow" -k "$VERSION_TESTS_K" $VERSION_TESTS
done
echo "running the quickstart"
cp -r examples "$scratch/examples"
cd "$scratch"
"$scratch/venv/bin/python" examples/quickstart.py
