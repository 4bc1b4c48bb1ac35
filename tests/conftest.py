# SPDX-License-Identifier: Apache-2.0
"""What all of the tests by pytest share: the markers of those that run.sh runs alone, since they measure, and of those that a
sanitizer's build leaves out."""

import pytest

from left_out import LEFT_OUT, RUNS_ALL


def pytest_configure(config):
    config.addinivalue_line("markers", "serial: measures time or processor time, or needs what all others have left: runs alone, after them")
    for marker, why in LEFT_OUT.items():
        config.addinivalue_line("markers", f"{marker}: {why}: not with a sanitizer")


def pytest_runtest_setup(item):
    marker = next((marker for marker in LEFT_OUT if item.get_closest_marker(marker)), None)
    if marker and not RUNS_ALL:
        import harness

        if harness.is_sanitized():
            pytest.skip(f"with a sanitizer: it {LEFT_OUT[marker]} (--all)")
