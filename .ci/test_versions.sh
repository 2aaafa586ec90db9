#!/usr/bin/env bash
# Runs some of the tests, and the quickstart, with the lowest or highest allowed version of each direct dependency, or
# with pre-releases.
# Usage: .ci/test_versions.sh lowest-direct|highest|prereleases PYTHON TOOLS
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
resolution=$1 python=$2 tools=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

echo "installing the versions of '$resolution' for $("$python" --version)"
bash .ci/install_versions.sh "$resolution" "$python" "$tools" "$scratch"
"$tools/uv" pip install --quiet --python "$scratch/venv/bin/python" "pytest>=8.3" "pytest-xdist>=3.6"
"$tools/uv" pip install --quiet --python "$scratch/venv/bin/python" --no-deps --editable .
paste -sd ' ' "$scratch/versions.txt"

# What each dependency is used for: files and hubs, tokenizers, tables and scores, checkpoints, exports and the server.
parts=(tests/files tests/presets tests/text tests/data tests/evaluation tests/cli tests/serving tests/parallel
  tests/checkpoints/test_{hdf5,safetensors}_files.py tests/checkpoints/test_tensorflow_checkpoint.py
  tests/checkpoints/test_keras_hub_{heads,texts,tokenizers}.py)
# An old library may deprecate what it uses of a newer one; every other warning is an error.
options=(--quiet --numprocesses "${WORKERS:-auto}" -p no:cacheprovider -m "not slow" -W ignore::DeprecationWarning)

echo "tests on TensorFlow"
KERAS_BACKEND=tensorflow "$scratch/venv/bin/python" -m pytest "${options[@]}" "${parts[@]}"
for backend in tensorflow jax; do
  echo "conformance of one family on $backend"
  KERAS_BACKEND=$backend "$scratch/venv/bin/python" -m pytest "${options[@]}" tests/conformance/test_conformance.py \
    -k "not elmo and not albert and not roberta and not distilbert"
done

echo "the quickstart"
cp -r examples "$scratch/examples"
cd "$scratch"
"$scratch/venv/bin/python" examples/quickstart.py
