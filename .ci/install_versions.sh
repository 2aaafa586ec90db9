#!/usr/bin/env bash
# Makes a new environment with lmzoo's dependencies in their lowest or highest allowed versions, without lmzoo.
# Usage: .ci/install_versions.sh lowest-direct|highest PYTHON TOOLS FOLDER
# PYTHON is an interpreter, TOOLS the bin folder of the release tools. FOLDER gets `venv` and `versions.txt`.
# EXTRAS, by default all that users install but torch, are the extras whose dependencies are installed, too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
resolution=$1 python=$2 tools=$3 folder=$4

extras=()
for extra in ${EXTRAS-jax onnx parquet plots scale serve translation}; do extras+=(--extra "$extra"); done
# Without wheels, the lowest version is one that nobody gets: pip takes one that has a wheel for this Python.
"$tools/uv" pip compile --quiet --no-header --no-annotate --only-binary :all: --resolution "$resolution" \
  --python "$python" "${extras[@]}" --output-file "$folder/versions.txt" pyproject.toml >/dev/null
"$tools/uv" venv --quiet --python "$python" "$folder/venv"
"$tools/uv" pip install --quiet --python "$folder/venv/bin/python" --requirement "$folder/versions.txt"
