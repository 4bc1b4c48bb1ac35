# SPDX-License-Identifier: Apache-2.0
"""Stands in for vllm.config."""


class KVTransferConfig:
    def __init__(self, *, kv_connector, kv_role, kv_connector_extra_config):
        assert (kv_connector, kv_role) == ("OffloadingConnector", "kv_both")
        self.kv_connector_extra_config = kv_connector_extra_config
