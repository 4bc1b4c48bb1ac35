# SPDX-License-Identifier: Apache-2.0
"""The models of the traffic benchmark: Llamas of several sizes, whose weights the engines invent."""

import json
import os
import pathlib

SHAPES = {  # layers, hidden size, intermediate size, heads, heads of keys and values
    "tiny": (8, 1024, 2816, 8, 8),
    "8b": (32, 4096, 14336, 32, 8),
    "32b": (64, 5120, 25600, 64, 8),
}


def model(shape, folder):
    """Returns a folder with the configuration of a Llama of this shape."""
    folder = pathlib.Path(folder, f"model-{shape}")
    folder.mkdir(exist_ok=True)
    layers, hidden, intermediate, heads, kv_heads = SHAPES[shape]
    config = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu", initializer_range=0.02, rms_norm_eps=1e-5,
                  max_position_embeddings=131072, rope_theta=500000.0, attention_bias=False, mlp_bias=False, tie_word_embeddings=False,
                  torch_dtype="bfloat16", bos_token_id=1, eos_token_id=2, vocab_size=128256, head_dim=128, num_hidden_layers=layers,
                  hidden_size=hidden, intermediate_size=intermediate, num_attention_heads=heads, num_key_value_heads=kv_heads)
    unfinished = folder / f"config.json.{os.getpid()}"
    unfinished.write_text(json.dumps(config))
    unfinished.rename(folder / "config.json")
    return str(folder)


def longest_of(load):
    """Returns the tokens of the longest prompt with its answer, and some more."""
    return max(load["first"] + load["turns"] * (load["add"] + load["answer"]) + 64, 1024)
