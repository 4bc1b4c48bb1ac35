# SPDX-License-Identifier: Apache-2.0
"""Stands in for vllm.config."""


class KVTransferConfig:
    def __init__(self, *, kv_connector, kv_role, kv_connector_extra_config):
        assert kv_connector in ("OffloadingConnector", "LMCacheMPConnector") and kv_role == "kv_both"
        self.kv_connector = kv_connector
        self.kv_connector_extra_config = kv_connector_extra_config
