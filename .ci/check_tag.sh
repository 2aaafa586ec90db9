#!/usr/bin/env bash
# Checks that a tag may be released: the version in the code, the changelog, CITATION.cff and the models saved for later
# versions are of the same version, the changelog and CITATION.cff have the same date, and the pages say that it is on
# PyPI.
# Usage: .ci/check_tag.sh v1.2.3
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=${1#v}

require() {  # require FILE PATTERN REASON
  grep -qE "$2" "$1" || { echo "$1: $3"; exit 1; }
}
[ "$1" = "v$version" ] || { echo "the tag must be v and a version, got $1"; exit 1; }
escaped=${version//./\\.}
require lmzoo/version.py "^__version__ = \"$escaped\"$" "the version is not $version"
require CHANGELOG.md "^## \[$escaped\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" "there is no section '## [$version] - DATE'"
require CITATION.cff "^version: $escaped$" "the version is not $version"
date=$(sed -nE "s/^## \[$escaped\] - (.*)$/\1/p" CHANGELOG.md)
require CITATION.cff "^date-released: $date$" "date-released is not $date, the date in CHANGELOG.md"
require pyproject.toml "^on-pypi = true$" "set on-pypi = true and run 'make registry'"
[ -d "tests/saved_models/$version" ] || { echo "tests/saved_models/$version is missing: run tests/saved_models/save.py"; exit 1; }
echo "$1 can be released"
