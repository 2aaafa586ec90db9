#!/usr/bin/env bash
# Builds the wheel, installs it into an empty folder and runs the quickstart from outside the checkout.
# Usage: .ci/wheel_check.sh PYTHON   (an interpreter that has `build` and lmzoo's dependencies)
# That all dependencies are declared is tested elsewhere: tests/test_architecture.py reads the imports, and `make
# test-lowest` and `make test-highest` run the quickstart in environments that have nothing else.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

echo "building the source distribution and, from it, the wheel"
"$python" -m build --outdir "$scratch/dist" . >"$scratch/build.log" 2>&1 || { cat "$scratch/build.log"; exit 1; }
wheel=$(ls "$scratch"/dist/lmzoo-*.whl)
ls -l "$wheel"

# Every file of the newest version of every shipped preset has to be in the wheel, under the package.
"$python" - "$wheel" <<'PY'
import sys, zipfile
from pathlib import Path

inside = set(zipfile.ZipFile(sys.argv[1]).namelist())
files = [path.relative_to("presets") for path in Path("presets").rglob("*") if path.is_file()]
wanted = {f"lmzoo/presets/shipped/{path}" for path in files if "@" not in str(path)}
assert any(name.endswith("manifest.json") for name in wanted), "no shipped preset in presets/"
if missing := sorted(wanted - inside):
    sys.exit(f"not in the wheel: {missing}")
if older := [name for name in inside if "shipped" in name and "@" in name]:
    sys.exit(f"older versions are in the wheel: {older}")
size = sum(entry.file_size for entry in zipfile.ZipFile(sys.argv[1]).infolist() if entry.filename in wanted)
assert size <= 64_000_000, f"the presets have {size:,} bytes, more than 64 MB"
assert "lmzoo/py.typed" in inside, "lmzoo/py.typed is not in the wheel"
print(f"{len(inside)} files, {len(wanted)} of them shipped presets")
PY

echo "installing it into an empty folder"
"$python" -m pip --disable-pip-version-check install --quiet --no-deps --no-compile --target "$scratch/site" "$wheel"

echo "running the quickstart against it"
mkdir "$scratch/elsewhere"
cp -r examples "$scratch/elsewhere/examples"
cd "$scratch/elsewhere"
export PYTHONPATH=$scratch/site
"$python" -c "
import pathlib, lmzoo
assert not pathlib.Path(lmzoo.__file__).is_relative_to('$root'), lmzoo.__file__
assert 'bert_nano_en_uncased' in lmzoo.list_presets()
"
"$python" "$scratch/site/bin/lmzoo" presets
"$python" examples/quickstart.py --epochs 1 --seeds 1
