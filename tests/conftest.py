# SPDX-License-Identifier: Apache-2.0
"""Registers the markers that all tests share, and the plugin of the suite (tests/suite/plugin.py) with tiers, limits and records."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent / "suite"))

import plugin  # noqa: E402
from left_out import LEFT_OUT, RUNS_ALL  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "serial: measures time or processor time, or needs the results of all other tests: nightly, alone, after them")
    config.addinivalue_line("markers", "nightly: takes long and repeats what shorter tests show: not in the submission tier")
    config.addinivalue_line("markers", "smoke: the test of its file that a plain tests/run.sh runs; without one, the file's first")
    config.addinivalue_line("markers", "limit(seconds): may take longer than other tests")
    for marker, why in LEFT_OUT.items():
        config.addinivalue_line("markers", f"{marker}: {why}: not with a sanitizer")
    config.pluginmanager.register(plugin.Plugin(config), "kvcache-suite")


def pytest_runtest_setup(item):
    marker = next((marker for marker in LEFT_OUT if item.get_closest_marker(marker)), None)
    if marker and not RUNS_ALL:
        import harness

        if harness.is_sanitized():
            pytest.skip(f"with a sanitizer: it {LEFT_OUT[marker]} (--all)")
