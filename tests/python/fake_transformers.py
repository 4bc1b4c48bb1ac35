# SPDX-License-Identifier: Apache-2.0
"""The caches of transformers 5.17, as recorded from it (test_python_transformers.py holds the record against the package where
that is installed), over fake_torch."""

import fake_torch as torch


class DynamicLayer:
    def __init__(self):
        self.keys = self.values = None

    def update(self, keys, values):
        self.keys = keys.clone() if self.keys is None else torch.cat([self.keys, keys], dim=2)
        self.values = values.clone() if self.values is None else torch.cat([self.values, values], dim=2)


class DynamicSlidingWindowLayer(DynamicLayer):
    pass


class DynamicCache:
    def __init__(self, config):
        kind = DynamicSlidingWindowLayer if config.sliding_window else DynamicLayer
        self.layers = [kind() for _ in range(config.num_hidden_layers)]

    def update(self, key_states, value_states, layer_idx):
        self.layers[layer_idx].update(key_states, value_states)


class LlamaConfig:
    def __init__(self, **more):
        self.num_hidden_layers, self.num_attention_heads, self.num_key_value_heads = 3, 4, 2
        self.hidden_size, self.head_dim, self.sliding_window, self.rope_theta = 16, None, None, 10000.0
        self.__dict__.update(more)

    def to_dict(self):
        return dict(self.__dict__, transformers_version="5.17.0")
