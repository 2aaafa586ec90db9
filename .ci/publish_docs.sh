#!/usr/bin/env bash
# Publishes the site as a version of the branch gh-pages: `dev` for a branch, a number and `latest` for a tag.
# Usage: .ci/publish_docs.sh branch|tag NAME
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
kind=$1 name=$2
make .venv/.installed-docs
mike=.venv/bin/mike
git config user.name github-actions
git config user.email github-actions@users.noreply.github.com
if [ "$kind" = tag ]; then
  "$mike" deploy --push --update-aliases "${name#v}" latest
  "$mike" set-default --push latest
else
  "$mike" deploy --push dev
fi
