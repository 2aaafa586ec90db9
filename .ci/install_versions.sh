#!/usr/bin/env bash
# Makes a new environment with lmzoo's dependencies in their lowest or highest allowed versions, without lmzoo; or, as
# `prereleases`, in their newest ones, release candidates included, beyond the upper bounds that lmzoo sets.
# Usage: .ci/install_versions.sh lowest-direct|highest|prereleases PYTHON TOOLS FOLDER
# PYTHON is an interpreter, TOOLS the bin folder of the release tools. FOLDER gets `venv` and `versions.txt`.
# EXTRAS, by default all that users install but torch, are the extras whose dependencies are installed, too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
resolution=$1 python=$2 tools=$3 folder=$4

extras=()
for extra in ${EXTRAS-jax onnx parquet plots scale serve translation}; do extras+=(--extra "$extra"); done
options=(--resolution "$resolution")
if [ "$resolution" = prereleases ]; then
  sed -nE 's/^ +"([a-z-]+>=[0-9.]+),<[0-9.]+",.*/\1/p' pyproject.toml >"$folder/unbounded.txt"
  echo 'keras-nightly; python_version < "3"' >>"$folder/unbounded.txt"  # TensorFlow's candidates want it over keras
  options=(--resolution highest --prerelease allow --override "$folder/unbounded.txt")
fi
# Without wheels, the lowest version is one that nobody gets: pip takes one that has a wheel for this Python.
"$tools/uv" pip compile --quiet --no-header --no-annotate --only-binary :all: "${options[@]}" \
  --python "$python" "${extras[@]}" --output-file "$folder/versions.txt" pyproject.toml >/dev/null
# All versions are given: without --no-deps, packages would refuse pre-releases of each other.
"$tools/uv" venv --quiet --python "$python" "$folder/venv"
"$tools/uv" pip install --quiet --no-deps --python "$folder/venv/bin/python" --requirement "$folder/versions.txt"
