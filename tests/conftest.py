# SPDX-License-Identifier: Apache-2.0
"""What all of the tests by pytest share: the marker of those that run.sh runs alone, since they measure."""


def pytest_configure(config):
    config.addinivalue_line("markers", "serial: measures time or processor time, or needs what all others have left: runs alone, after them")
