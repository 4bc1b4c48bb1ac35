# SPDX-License-Identifier: Apache-2.0
"""The end of private namespaces.

No other start of an engine finds a private namespace (identity.py), so its chunks and its place among the user's namespaces are lost when
the engine ends. An adapter removes it at a clean end. A killed engine leaves it, and `kvcachectl namespace rm --purge` removes it.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from .._errors import Error

if TYPE_CHECKING:
    from .._namespace import Namespace

log = logging.getLogger("kvcache")

BUSY_S = 0.5  # until the daemon has seen the end of this engine's other connections
PAUSE_S = 0.01


def remove(namespaces: Iterable[Namespace], fields: Mapping[str, object]) -> None:
    """Removes namespaces with this fingerprint and their chunks if it is private. Never raises: the engine ends. Namespaces that another
    connection of the engine has open stay, and the last connection removes them."""
    if "private" not in fields:
        return
    until = time.monotonic() + BUSY_S
    for namespace in namespaces:
        try:
            while (why := namespace.remove()) == errno.EBUSY and time.monotonic() < until:
                time.sleep(PAUSE_S)
        except Error as e:
            log.debug("%s is not removed: %s", namespace.name, e)
            continue
        if why not in (0, errno.ENOENT):
            log.debug("%s is not removed: errno %d", namespace.name, why)
