#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Plants bugs and says which test catches which: tests/mutants/run.sh [NAME...]. See README.md and mutants.py.
exec python3 "$(dirname "$0")/mutants.py" "$@"
