#!/usr/bin/env bash
# Follows README as a newcomer does: a new environment without caches, `pip install` of the wheel with the extra
# `serve`, README's first Python block, a model that is exported and answers a request. Prints the seconds of each part,
# and fails if everything after the installation takes more than five minutes.
# Usage: .ci/newcomer_check.sh PYTHON WHEEL
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$1 wheel=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
readme=$PWD/README.md
limit=${LIMIT_SECONDS:-300}
scratch=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$scratch"' EXIT

timed() {  # timed NAME COMMAND...: prints the elapsed seconds and the processor's
  local start=$SECONDS
  TIMEFORMAT="$1: %R s, of them on the processor %U s"
  time "${@:2}"
  total=$((${total:-0} + SECONDS - start))
}

"$python" -m venv "$scratch/venv"
bin=$scratch/venv/bin
# Nothing of this machine's: no caches, no settings, no other packages.
export HOME=$scratch/home XDG_CACHE_HOME=$scratch/cache TF_CPP_MIN_LOG_LEVEL=3
mkdir "$HOME"
unset PYTHONPATH KERAS_BACKEND LMZOO_CACHE LMZOO_PRESETS
cd "$scratch"
timed "pip install" "$bin/python" -m pip --disable-pip-version-check install --quiet --no-cache-dir "${wheel}[serve]"
installed=$total

"$bin/python" - "$readme" <<'PY'
import re, sys
from pathlib import Path

first, *_ = re.findall(r"^```python\n(.*?)^```$", Path(sys.argv[1]).read_text("utf-8"), re.MULTILINE | re.DOTALL)
Path("first.py").write_text(first + 'classifier.save("sentiment.keras")\n', "utf-8")
PY
timed "README's first block" "$bin/python" first.py
timed "lmzoo export" "$bin/lmzoo" export sentiment.keras serving/sentiment

serve_and_ask() {
  "$bin/lmzoo" serve serving/sentiment --port 0 >serve.log 2>&1 &
  server=$!
  "$bin/python" - <<'PY'
import re, sys, time
from pathlib import Path
import requests

for _ in range(600):
    url = re.search(r"http://\S+?:\d+", Path("serve.log").read_text("utf-8"))
    if url:
        break
    time.sleep(0.2)
else:
    sys.exit(Path("serve.log").read_text("utf-8"))
answer = requests.post(f"{url[0]}/v1/models/sentiment:predict", json={"instances": ["What a lovely story."]}, timeout=60)
answer.raise_for_status()
print(answer.json())
PY
}
timed "lmzoo serve, and an answer" serve_and_ask
after=$((total - installed))
echo "installed in $installed s; the first model served $after s later"
[ "$after" -le "$limit" ] || { echo "more than $limit s"; exit 1; }
