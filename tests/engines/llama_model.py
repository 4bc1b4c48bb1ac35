# SPDX-License-Identifier: Apache-2.0
"""Writes a small GGUF model of the llama architecture with random weights and no vocabulary: tokens are numbers.

    llama_model.py FILE SEED
"""

import sys

import gguf
import numpy

LAYERS, WIDTH, HEADS, KV_HEADS, HIDDEN, VOCABULARY = 4, 256, 8, 4, 512, 1024


def main():
    path, seed = sys.argv[1], int(sys.argv[2])
    random = numpy.random.default_rng(seed)
    out = gguf.GGUFWriter(path, "llama")
    out.add_name("random")
    out.add_context_length(4096)
    out.add_embedding_length(WIDTH)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(HIDDEN)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KV_HEADS)
    out.add_rope_dimension_count(WIDTH // HEADS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_vocab_size(VOCABULARY)
    out.add_file_type(gguf.LlamaFileType.ALL_F32)
    out.add_tokenizer_model("no_vocab")

    def tensor(name, *shape):
        # The weights are large enough that attention is not flat, so that the next token depends on the content of the cells.
        out.add_tensor(name, (random.standard_normal(shape) * 2 / shape[-1] ** 0.5).astype(numpy.float32))

    def ones(name):
        out.add_tensor(name, numpy.ones(WIDTH, dtype=numpy.float32))

    tensor("token_embd.weight", VOCABULARY, WIDTH)
    tensor("output.weight", VOCABULARY, WIDTH)
    ones("output_norm.weight")
    for i in range(LAYERS):
        kv = WIDTH // HEADS * KV_HEADS
        ones(f"blk.{i}.attn_norm.weight")
        ones(f"blk.{i}.ffn_norm.weight")
        tensor(f"blk.{i}.attn_q.weight", WIDTH, WIDTH)
        tensor(f"blk.{i}.attn_k.weight", kv, WIDTH)
        tensor(f"blk.{i}.attn_v.weight", kv, WIDTH)
        tensor(f"blk.{i}.attn_output.weight", WIDTH, WIDTH)
        tensor(f"blk.{i}.ffn_gate.weight", HIDDEN, WIDTH)
        tensor(f"blk.{i}.ffn_up.weight", HIDDEN, WIDTH)
        tensor(f"blk.{i}.ffn_down.weight", WIDTH, HIDDEN)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


if __name__ == "__main__":
    main()
