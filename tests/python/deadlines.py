# SPDX-License-Identifier: Apache-2.0
"""The deadlines of the engines' adapters.

An adapter gives up a lookup after some hundredths of a second, so that an engine does not wait for a daemon. On a busy machine a healthy
daemon sometimes takes longer, and the adapter then finds nothing. Only tests marked `deadlines` use the adapters' own deadlines; all others
use PATIENT_S.
"""

import importlib

PATIENT_S = 60.0
DEADLINES = {
    "kvcache.sglang.link": ("LOOKUP_S", "SEARCH_S", "PROBE_S"),
    "kvcache.sglang.pages": ("LOOKUP_S",),
    "kvcache.vllm.mover": ("OPEN_S", "STORE_S", "CHECK_S"),
    "kvcache.vllm.policy": ("LONGEST_SEARCH_S", "LEAST_FETCH_S"),
    "kvcache.vllm.promises": ("ADVICE_S", "LOOKUP_S", "OPEN_S", "SILENT_S"),
    "kvcache.vllm.shared": ("ASK_S",),
    "kvcache.vllm.transfers": ("LOOKUP_S", "STALL_S"),
}
CONNECTS = ("kvcache.sglang.link", "kvcache.vllm.mover", "kvcache.vllm.promises", "kvcache.vllm.shared", "kvcache.vllm.transfers")


def lengthen(set_attribute=setattr):
    """Sets all deadlines to PATIENT_S, those of connecting included. `set_attribute` may be monkeypatch.setattr()."""
    import kvcache

    class PatientClient(kvcache.Client):
        def __init__(self, *arguments, connect_timeout, **options):
            super().__init__(*arguments, connect_timeout=PATIENT_S, **options)

    for name, deadlines in DEADLINES.items():
        module = importlib.import_module(name)
        for deadline in deadlines:
            assert isinstance(getattr(module, deadline), float), f"{name}.{deadline} is no deadline"
            set_attribute(module, deadline, PATIENT_S)
    for name in CONNECTS:
        set_attribute(importlib.import_module(name), "Client", PatientClient)
