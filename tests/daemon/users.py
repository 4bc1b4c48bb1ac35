# SPDX-License-Identifier: Apache-2.0
"""Connections as other users, which the daemon sees by SO_PEERCRED. Only root can make them."""

import contextlib
import os


@contextlib.contextmanager
def user(uid, gid=None, groups=()):
    """Makes this process connect as that user until the end of the block."""
    before = os.getgroups()
    os.setgroups(list(groups))
    os.setegid(uid if gid is None else gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)


def client_as(daemon, uid, gid=None, groups=(), **how):
    with user(uid, gid, groups):
        return daemon.client(**how)
