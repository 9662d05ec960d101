#!/usr/bin/env bash
# All tests, or those whose names contain one of the words given: `scripts/test.sh --help`.
set -euo pipefail
cd "$(dirname "$0")/.."
export QUELL_CACHE=${QUELL_CACHE:-$PWD/.cache}
exec "${CARGO:-cargo}" run -q --locked -p quell-testing -- "$@"
