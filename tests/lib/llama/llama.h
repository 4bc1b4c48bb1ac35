/* SPDX-License-Identifier: Apache-2.0 */
/* A substitute for llama.cpp's header: the part that client/examples/llama-prefix.c uses, with the
 * names and types of the real one, so that the example is built and tested without llama.cpp. Its
 * "model" is in llama.c. tests/engines builds the same example with the real header and library. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int32_t llama_pos;
typedef int32_t llama_token;
typedef int32_t llama_seq_id;

struct llama_context;
struct llama_model;
struct llama_vocab;
typedef struct llama_memory_i *llama_memory_t;

enum ggml_log_level { GGML_LOG_LEVEL_NONE = 0, GGML_LOG_LEVEL_ERROR = 4 };
enum ggml_type { GGML_TYPE_F16 = 1 };
enum llama_rope_scaling_type { LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED = -1 };

struct llama_model_params {
        bool vocab_only;
};

struct llama_context_params {
        uint32_t n_ctx, n_batch, n_seq_max;
        int32_t n_threads, n_threads_batch;
        enum llama_rope_scaling_type rope_scaling_type;
        float rope_freq_base, rope_freq_scale;
        float yarn_ext_factor, yarn_attn_factor, yarn_beta_fast, yarn_beta_slow;
        uint32_t yarn_orig_ctx;
        enum ggml_type type_k, type_v;
        bool kv_unified;
};

typedef struct llama_batch {
        int32_t n_tokens;
        llama_token *token;
} llama_batch;

void llama_log_set(void (*log)(enum ggml_log_level, const char *, void *), void *data);
void llama_backend_init(void);
void llama_backend_free(void);
struct llama_model_params llama_model_default_params(void);
struct llama_context_params llama_context_default_params(void);
struct llama_model *llama_model_load_from_file(const char *path, struct llama_model_params params);
void llama_model_free(struct llama_model *model);
struct llama_context *llama_init_from_model(struct llama_model *model,
                                            struct llama_context_params params);
void llama_free(struct llama_context *ctx);
uint32_t llama_n_batch(const struct llama_context *ctx);
uint32_t llama_n_ctx(const struct llama_context *ctx);
int32_t llama_model_n_ctx_train(const struct llama_model *model);
int32_t llama_model_meta_val_str(const struct llama_model *model, const char *key, char *buffer,
                                 size_t bytes);
int32_t llama_model_desc(const struct llama_model *model, char *buffer, size_t bytes);
uint64_t llama_model_n_params(const struct llama_model *model);
uint64_t llama_model_size(const struct llama_model *model);
bool llama_model_is_recurrent(const struct llama_model *model);
bool llama_model_is_hybrid(const struct llama_model *model);
bool llama_model_has_encoder(const struct llama_model *model);
const struct llama_vocab *llama_model_get_vocab(const struct llama_model *model);
int32_t llama_vocab_n_tokens(const struct llama_vocab *vocab);
bool llama_vocab_is_eog(const struct llama_vocab *vocab, llama_token token);
int32_t llama_tokenize(const struct llama_vocab *vocab, const char *text, int32_t length,
                       llama_token *tokens, int32_t room, bool add_special, bool parse_special);
int32_t llama_token_to_piece(const struct llama_vocab *vocab, llama_token token, char *buffer,
                             int32_t length, int32_t lstrip, bool special);

llama_memory_t llama_get_memory(const struct llama_context *ctx);
bool llama_memory_seq_rm(llama_memory_t memory, llama_seq_id seq, llama_pos p0, llama_pos p1);
void llama_memory_seq_cp(llama_memory_t memory, llama_seq_id from, llama_seq_id to, llama_pos p0,
                         llama_pos p1);
llama_pos llama_memory_seq_pos_min(llama_memory_t memory, llama_seq_id seq);
llama_pos llama_memory_seq_pos_max(llama_memory_t memory, llama_seq_id seq);
size_t llama_state_seq_get_size(struct llama_context *ctx, llama_seq_id seq);
size_t llama_state_seq_get_data(struct llama_context *ctx, uint8_t *data, size_t bytes,
                                llama_seq_id seq);
size_t llama_state_seq_set_data(struct llama_context *ctx, const uint8_t *data, size_t bytes,
                                llama_seq_id seq);

struct llama_batch llama_batch_get_one(llama_token *tokens, int32_t n_tokens);
int32_t llama_decode(struct llama_context *ctx, struct llama_batch batch);
float *llama_get_logits_ith(struct llama_context *ctx, int32_t i);
