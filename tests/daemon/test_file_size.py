# SPDX-License-Identifier: Apache-2.0
"""A limit on the size of files (RLIMIT_FSIZE, as batch systems set it) does not kill the daemon without a message."""

import resource

import pytest

from harness import MIB, items, put_all, wait_until


@pytest.mark.parametrize("limit", [4096, MIB, 8 * MIB, 64 * MIB])
def test_a_file_size_limit_is_an_error_with_a_message(make_daemon, limit):
    """The daemon runs and refuses puts for which its files would have to grow, or ends with a status and the reason."""
    daemon = make_daemon(settings={"store.limit": "256MiB"})
    daemon.deprive.append(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    daemon.spawn()
    wait_until(daemon.has_ended_or_answers, "the daemon answers or ends", 60)
    if daemon.process.poll() is not None:
        assert daemon.wait_exit() > 0
        assert "File too large" in daemon.log()
        return
    with daemon.client() as c:
        put_all(c, c.namespace("n"), items("x", 40, MIB), timeout_ms=1000)
        c.ping()
    assert daemon.process.poll() is None
