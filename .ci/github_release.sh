#!/usr/bin/env bash
# Makes a release on GitHub of a tag, with its section of the changelog and the files of FOLDER: distributions and SBOM.
# Needs GitHub's `gh` and its token in GH_TOKEN.
# Usage: .ci/github_release.sh v1.2.3 FOLDER
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tag=$1 folder=$2
awk -v title="## [${tag#v}]" 'index($0, "## [") == 1 {shown = index($0, title) == 1; next} shown' CHANGELOG.md |
  gh release create "$tag" --verify-tag --title "lmzoo ${tag#v}" --notes-file - "$folder"/*
