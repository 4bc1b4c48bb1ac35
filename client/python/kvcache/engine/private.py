# SPDX-License-Identifier: Apache-2.0
"""Removes private namespaces at the end of an engine.

A namespace is private if its fingerprint has an unknown fact (identity.py). No other start of an engine finds it, so after the engine's end its
chunks, and its place among the user's limited number of namespaces, would be wasted. An adapter therefore removes it when the engine ends
cleanly. A killed engine leaves its private namespaces; `kvcachectl namespace rm --purge` removes them.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from .._errors import Error
from .._library import reason_of

if TYPE_CHECKING:
    from .._namespace import Namespace

log = logging.getLogger("kvcache")

BUSY_S = 0.5    # longest time to wait until the daemon has closed the sessions of this engine's other connections
PAUSE_S = 0.01  # interval between attempts to remove a namespace


def remove(namespaces: Iterable[Namespace], fields: Mapping[str, object]) -> None:
    """Removes these namespaces and their chunks if `fields`, their fingerprint, is private. A namespace that another connection of the engine
    still has open after BUSY_S stays; the last connection removes it. A failure is logged and not raised, because the engine is ending."""
    if "private" not in fields:
        return
    until = time.monotonic() + BUSY_S
    for namespace in namespaces:
        try:
            while (why := namespace.remove()) == errno.EBUSY and time.monotonic() < until:
                time.sleep(PAUSE_S)
        except Error as e:
            log.debug("the private namespace %s could not be removed (%s): remove it with kvcachectl namespace rm --purge %s", namespace.name, e,
                      namespace.name)
            continue
        if why not in (0, errno.ENOENT):
            log.debug("the private namespace %s could not be removed (%s): remove it with kvcachectl namespace rm --purge %s", namespace.name,
                      reason_of(why), namespace.name)
