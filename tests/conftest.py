# SPDX-License-Identifier: Apache-2.0
"""What all of the tests by pytest share: the markers of those that run.sh runs alone, since they measure, and of those that a
sanitizer's build leaves out."""

import pytest


def pytest_configure(config):
    config.addinivalue_line("markers", "serial: measures time or processor time, or needs what all others have left: runs alone, after them")
    config.addinivalue_line("markers", "figures: is about hit ratios, shares or rates over minutes of what shorter tests do, too: not under a sanitizer")


def pytest_runtest_setup(item):
    if item.get_closest_marker("figures"):
        import harness

        if harness.is_sanitized():
            pytest.skip("its figures are the same with a sanitizer, and what it runs is in shorter tests")
