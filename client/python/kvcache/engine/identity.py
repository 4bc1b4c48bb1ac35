# SPDX-License-Identifier: Apache-2.0
"""Composes the fingerprint of a namespace from facts about the engine that uses it. Used by all adapters.

A fact is a name and a value on which the bytes of chunks depend. The value is text, a number, or an `Unknown`. A fingerprint is a sorted map of
short printable strings; longer values are replaced by digests. Two engines share a namespace only if their fingerprints are equal. An unknown
fact makes the fingerprint private: it then contains a random text of this start of the engine, so that no other engine can have
the same fingerprint.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import secrets
from collections.abc import Mapping
from typing import NamedTuple

FORMAT = 2  # version of fingerprints; with 1, weights were identified by their modification times
LONGEST = 96  # characters of the longest value that is kept unchanged


class Unknown(str):
    """A fact that could not be established, and the reason. `option`: name of the option by which the user can supply the fact, or empty."""

    reason: str
    option: str

    def __new__(cls, reason: str, option: str = "") -> Unknown:
        self = super().__new__(cls, "unknown")
        self.reason, self.option = reason, option
        return self


class Fingerprint(NamedTuple):
    """A fingerprint, and by name the facts in it that are unknown."""

    fields: dict[str, str]
    unknown: dict[str, Unknown]


def new_start() -> str:
    """Returns a new random text, which makes fingerprints private to one start of an engine."""
    return secrets.token_hex(16)


def printable(value: object) -> str:
    """Returns str(value) as printable ASCII of at most `LONGEST` characters; a longer text is replaced by its digest. Different strings
    stay different."""
    text = re.sub(r"[^ -$&-~]", lambda m: f"%{ord(m[0]):x};", str(value))
    return text if len(text) <= LONGEST else "sha256-" + hashlib.sha256(text.encode()).hexdigest()


def digest_of(value: object) -> str:
    """Returns a digest of a value that JSON can express."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def compose(engine: str, facts: Mapping[str, object], start: str) -> Fingerprint:
    """Returns the fingerprint of these facts. The values None and "unknown" count as unknown facts. `start`: the text of new_start(), which the
    fingerprint contains only if a fact is unknown. Raises ValueError for a fact named "engine", "format" or "private"."""
    fields, unknown = {"engine": engine, "format": str(FORMAT)}, {}
    for name in sorted(facts):
        value = facts[name]
        if name in ("engine", "format", "private"):
            raise ValueError(f"a fact cannot be named {name!r}, which is a field of every fingerprint; choose another name")
        if value is None or value == "unknown":
            unknown[name] = value if isinstance(value, Unknown) else Unknown("the engine does not report it")
        fields[name] = "unknown" if name in unknown else printable(model_name(value) if name == "model" else value)
    if unknown:
        fields["private"] = start
    return Fingerprint(dict(sorted(fields.items())), unknown)


def model_name(model: object) -> str:
    """Returns the last part of a model's name or path, so that engines with the same model in different folders share a namespace."""
    text = str(model).rstrip("/")
    cached = re.search(r"(?:^|/)models--(?:[^/]*--)?([^/]+)/snapshots/[^/]+$", text)
    return cached[1] if cached else text.rsplit("/", 1)[-1]


def model_digest(fields: Mapping[str, object]) -> str:
    """Returns MODEL-DIGEST, a part of a namespace's name: the last part of the model's name and a digest of the fingerprint."""
    model = re.sub(r"[^A-Za-z0-9._-]+", "_", model_name(fields["model"]))[:96]
    return f"{model}-{digest_of(dict(fields))[:16]}"


def warn(log: logging.Logger, fingerprint: Fingerprint) -> None:
    """Logs one warning, if facts of a fingerprint are unknown, with the reason of each and the option that supplies the fact."""
    if not fingerprint.unknown:
        return
    told = "; ".join(f"{name}: {fact.reason}" + (f" (set `{fact.option}`)" if fact.option else "")
                     for name, fact in fingerprint.unknown.items())
    log.warning("the cache is private to this start of the engine, and no other engine finds its chunks, because facts are unknown: %s", told)
