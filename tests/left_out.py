# SPDX-License-Identifier: Apache-2.0
"""Tests that a sanitizer's build leaves out, with the reasons; an environment variable includes them all.

A sanitizer finds errors in code that runs. Running the same code again, for a figure, a document or one more value, finds no more. Such a
test has a marker of LEFT_OUT, and is skipped with a sanitizer unless KVCACHE_TEST_ALL=1 (run.sh --all). A test has no marker if some code of
daemon/, client/ or proto/ would not run without it.
"""

import os

import pytest

# Marker: why a test that has it runs without a sanitizer only.
LEFT_OUT = {
    "figures": "is about hit ratios, shares or rates, and does at length what shorter tests do, too",
    "documents": "is about documents, help, packages or scripts, or about what a browser, a shell or Prometheus makes of what "
                 "programs print that other tests run, too",
    "repeated": "is of code that runs in the same way in another test, or with another value of its parameters",
}
RUNS_ALL = os.environ.get("KVCACHE_TEST_ALL") == "1"


def first_of(values, count=1):
    """Returns the values of a parameter, of which all after the first `count` are `repeated`."""
    return [value if i < count else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.repeated)
            for i, value in enumerate(values)]
