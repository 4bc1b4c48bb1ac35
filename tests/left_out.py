# SPDX-License-Identifier: Apache-2.0
"""Tests that a sanitizer's build leaves out, and why; a value of the environment has all of them.

A sanitizer finds what code does wrong while it runs. It finds nothing more where the same code runs again: for a figure, for a
document, or with one more value. Such a test has a marker of LEFT_OUT, and does not run with a sanitizer unless KVCACHE_TEST_ALL=1
(run.sh --all). A test without which some code of daemon/, client/ or proto/ would not run at all has none.
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
    """The values of a parameter, all but the first `count` of which are `repeated`."""
    return [value if i < count else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.repeated)
            for i, value in enumerate(values)]
