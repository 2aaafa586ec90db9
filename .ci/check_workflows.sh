#!/usr/bin/env bash
# Checks what GitHub reads: workflows with zizmor (security) and against GitHub's schemas, forms, dependabot.yml and
# CITATION.cff. Needs no network: hashes of actions are checked online by dependabot, which proposes newer ones.
# Usage: .ci/check_workflows.sh TOOLS
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools=$1

"$tools/zizmor" --offline --no-progress --persona=pedantic .github/workflows .github/dependabot.yml

check() {
  echo "$1: ${*:2}"
  "$tools/check-jsonschema" --quiet --builtin-schema "vendor.$1" "${@:2}"
}
check github-workflows .github/workflows/*.yml
check dependabot .github/dependabot.yml
check github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
check github-issue-config .github/ISSUE_TEMPLATE/config.yml
"$tools/check-jsonschema" --quiet --builtin-schema vendor.citation-file-format --force-filetype yaml CITATION.cff
echo "CITATION.cff"
