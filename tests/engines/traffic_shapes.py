# SPDX-License-Identifier: Apache-2.0
"""The shapes of models that the traffic benchmark runs with random weights, as configurations of Hugging Face's transformers.

The plain ones are Llamas: one group of layers, whose blocks have 16 tokens. The others are small models of architectures whose caches are
not plain: sliding windows, latent attention, and states of linear attention, Mamba 1 and Mamba 2 beside attention. None has experts.
"""

import json
import os
import pathlib
from typing import NamedTuple

VOCABULARY = 128256
COMMON = dict(initializer_range=0.02, rms_norm_eps=1e-5, max_position_embeddings=131072, attention_bias=False, tie_word_embeddings=False,
              torch_dtype="bfloat16", bos_token_id=1, eos_token_id=2, pad_token_id=0, vocab_size=VOCABULARY)


class Shape(NamedTuple):
    """A shape of a model. `token_bytes` are the bytes of its attention layers' cache for a token and all `kv_heads`, of which each rank has its share.

    A plain shape's GPU cache has the number of blocks that the driver asks for. That of another has the bytes of as many tokens and room for
    states, because vLLM chooses its block size. `options` are further arguments of LLM()."""

    config: dict
    token_bytes: int
    kv_heads: int
    is_plain: bool = False
    options: dict = {}

    def cache_bytes(self, tokens, ranks):
        """Returns the bytes of the GPU cache of a rank for so many tokens, with room for one more block."""
        own = self.token_bytes // self.kv_heads * -(-self.kv_heads // ranks)
        return (tokens + 16) * own + (0 if self.is_plain else 2 << 30)


def llama(layers, hidden, intermediate, heads, kv_heads):
    config = dict(COMMON, architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu", rope_theta=500000.0, mlp_bias=False,
                  head_dim=128, num_hidden_layers=layers, hidden_size=hidden, intermediate_size=intermediate, num_attention_heads=heads,
                  num_key_value_heads=kv_heads)
    return Shape(config, layers * kv_heads * 128 * 2 * 2, kv_heads, is_plain=True)


def window():
    """Returns a shape as of Gemma 3: five layers with a window of 512 tokens for each layer with full attention."""
    layers = 12
    config = dict(COMMON, architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", hidden_activation="gelu_pytorch_tanh",
                  num_hidden_layers=layers, hidden_size=2048, intermediate_size=8192, num_attention_heads=16, num_key_value_heads=8,
                  head_dim=128, query_pre_attn_scalar=128, sliding_window=512, rope_theta=1000000.0, rope_local_base_freq=10000.0,
                  layer_types=["full_attention" if n % 6 == 5 else "sliding_attention" for n in range(layers)])
    return Shape(config, layers * 8 * 128 * 2 * 2, 8)


def latent():
    """Returns a shape as of DeepSeek-V2: multi-head latent attention, one latent of 576 numbers per token and layer for all heads. No layer has experts."""
    layers = 12
    config = dict(COMMON, architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", hidden_act="silu", num_hidden_layers=layers,
                  hidden_size=2048, intermediate_size=8192, num_attention_heads=16, num_key_value_heads=16, q_lora_rank=None,
                  kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, first_k_dense_replace=layers,
                  moe_intermediate_size=1024, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2, moe_layer_freq=1,
                  rope_theta=10000.0)
    return Shape(config, layers * 576 * 2, 1)


def linear():
    """Returns a shape as of Qwen3.5: three layers of gated delta nets for each layer with full attention."""
    layers = 12
    config = dict(COMMON, architectures=["Qwen3_5ForCausalLM"], model_type="qwen3_5_text", hidden_act="silu", num_hidden_layers=layers,
                  hidden_size=2048, intermediate_size=6144, num_attention_heads=16, num_key_value_heads=4, head_dim=128,
                  linear_num_key_heads=16, linear_num_value_heads=16, linear_key_head_dim=128, linear_value_head_dim=128,
                  linear_conv_kernel_dim=4, attn_output_gate=True, full_attention_interval=4,
                  layer_types=["full_attention" if n % 4 == 3 else "linear_attention" for n in range(layers)],
                  rope_parameters=dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.25))
    return Shape(config, layers // 4 * 4 * 128 * 2 * 2, 4, options=dict(gdn_prefill_backend="triton"))


def mamba2():
    """Returns a shape as of Nemotron-H: layers of Mamba 2, attention and MLP, each alone."""
    pattern = "M-M*-M-M*-M-"
    config = dict(COMMON, architectures=["NemotronHForCausalLM"], model_type="nemotron_h", hybrid_override_pattern=pattern,
                  num_hidden_layers=len(pattern), hidden_size=2048, intermediate_size=8192, num_attention_heads=16, num_key_value_heads=4,
                  head_dim=128, attention_head_dim=128, mlp_hidden_act="relu2", mlp_bias=False, mamba_num_heads=64, mamba_head_dim=64,
                  mamba_hidden_act="silu", ssm_state_size=128, n_groups=8, conv_kernel=4, use_bias=False, use_conv_bias=True,
                  layer_norm_epsilon=1e-5, mamba_proj_bias=False, expand=2, chunk_size=128, use_mamba_kernels=True,
                  mamba_ssm_cache_dtype="float32")
    return Shape(config, pattern.count("*") * 4 * 128 * 2 * 2, 4)


def parallel_mamba2():
    """Returns a shape as of Falcon-H1: Mamba 2 and attention side by side in each layer."""
    layers = 8
    config = dict(COMMON, architectures=["FalconH1ForCausalLM"], model_type="falcon_h1", hidden_act="silu", num_hidden_layers=layers,
                  hidden_size=2048, intermediate_size=4096, num_attention_heads=16, num_key_value_heads=4, head_dim=128, mamba_d_conv=4,
                  mamba_d_head=64, mamba_d_ssm=4096, mamba_d_state=128, mamba_expand=2, mamba_n_groups=1, mamba_n_heads=64,
                  mamba_chunk_size=128, mamba_conv_bias=True, mamba_proj_bias=False, mamba_rms_norm=False, mamba_norm_before_gate=True,
                  rope_theta=1e11)
    return Shape(config, layers * 4 * 128 * 2 * 2, 4)


def mamba1():
    """Returns a shape as of Jamba without experts: one layer with attention for three of Mamba 1."""
    layers = 8
    config = dict(COMMON, architectures=["JambaForCausalLM"], model_type="jamba", hidden_act="silu", num_hidden_layers=layers, hidden_size=2048,
                  intermediate_size=8192, num_attention_heads=16, num_key_value_heads=4, attn_layer_period=4, attn_layer_offset=3,
                  expert_layer_period=2, expert_layer_offset=1, num_experts=1, num_experts_per_tok=1, mamba_d_conv=4, mamba_d_state=16,
                  mamba_dt_rank=128, mamba_expand=2, mamba_conv_bias=True, mamba_proj_bias=False, use_mamba_kernels=True)
    return Shape(config, layers // 4 * 4 * 128 * 2 * 2, 4)


SHAPES = {
    "tiny": llama(8, 1024, 2816, 8, 8),
    "8b": llama(32, 4096, 14336, 32, 8),
    "32b": llama(64, 5120, 25600, 64, 8),
    "window": window(),
    "latent": latent(),
    "linear": linear(),
    "mamba2": mamba2(),
    "parallel-mamba2": parallel_mamba2(),
    "mamba1": mamba1(),
}


def folder_of(shape, folder):
    """Writes the configuration of a shape, and returns the folder in which it is."""
    made = pathlib.Path(folder, f"model-{shape}")
    made.mkdir(exist_ok=True)
    unfinished = made / f"config.json.{os.getpid()}"
    unfinished.write_text(json.dumps(SHAPES[shape].config))
    unfinished.rename(made / "config.json")
    return str(made)


def longest_of(load):
    """Returns the tokens of the longest prompt with its answer, and some more."""
    return max(load["first"] + load["turns"] * (load["add"] + load["answer"]) + 64, 1024)
