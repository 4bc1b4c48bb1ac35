/* SPDX-License-Identifier: Apache-2.0 */
/* A substitute for libllama: a cell of its KV cache is a hash over all cells before it and its
 * token, and the next token depends on the cells of all positions. One cell that is missing, wrong
 * or at another position therefore changes the generated text.
 *
 * The first byte of the model's file selects its kind: 'w': a window of 100 tokens (earlier cells
 * are dropped); 'r': recurrent; 'l': cells differ in a context of more than 256 tokens; any other:
 * plain. The remaining bytes are its weights. LLAMA_STUB_DAMAGE=N makes the N-th state that is set
 * fail half-way. */
#include "llama.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_SEQ = 2, N_VOCAB = 1000, CELL_BYTES = 1024, WINDOW = 100, ORIGINAL = 256 };

struct cell {
        uint64_t value;
        uint8_t rest[CELL_BYTES - 8];
};
struct llama_model {
        uint64_t weights;
        char kind;
};
struct llama_context {
        const struct llama_model *model;
        uint32_t n_ctx;
        struct cell *cells; /* by position: cells of both sequences are equal, or absent */
        bool *has[N_SEQ];
        float logits[N_VOCAB];
};

static uint64_t mix(uint64_t a, uint64_t b)
{
        a = (a ^ b) * 0x9e3779b97f4a7c15u;
        return a ^ a >> 29;
}

void llama_log_set(void (*log)(enum ggml_log_level, const char *, void *), void *data)
{
        (void)log;
        (void)data;
}
void llama_backend_init(void)
{
}
void llama_backend_free(void)
{
}
struct llama_model_params llama_model_default_params(void)
{
        return (struct llama_model_params){ false };
}
struct llama_context_params llama_context_default_params(void)
{
        return (struct llama_context_params){ .n_ctx = 512,
                                              .n_batch = 50,
                                              .n_seq_max = 1,
                                              .type_k = GGML_TYPE_F16,
                                              .type_v = GGML_TYPE_F16 };
}

struct llama_model *llama_model_load_from_file(const char *path, struct llama_model_params params)
{
        struct llama_model *model = calloc(1, sizeof(*model));
        FILE *f = fopen(path, "re");
        int c;

        (void)params;
        if (!model || !f)
                abort();
        model->kind = (char)fgetc(f);
        while ((c = fgetc(f)) != EOF)
                model->weights = mix(model->weights, (uint64_t)c + 1);
        fclose(f);
        return model;
}
void llama_model_free(struct llama_model *model)
{
        free(model);
}

struct llama_context *llama_init_from_model(struct llama_model *model,
                                            struct llama_context_params params)
{
        struct llama_context *ctx = calloc(1, sizeof(*ctx));

        if (!ctx || params.n_seq_max < N_SEQ || !params.kv_unified)
                abort();
        ctx->model = model;
        ctx->n_ctx = params.n_ctx;
        ctx->cells = calloc(ctx->n_ctx, sizeof(*ctx->cells));
        for (int i = 0; i < N_SEQ; i++)
                ctx->has[i] = calloc(ctx->n_ctx, sizeof(*ctx->has[i]));
        return ctx;
}
void llama_free(struct llama_context *ctx)
{
        if (!ctx)
                return;
        for (int i = 0; i < N_SEQ; i++)
                free(ctx->has[i]);
        free(ctx->cells);
        free(ctx);
}

uint32_t llama_n_batch(const struct llama_context *ctx)
{
        (void)ctx;
        return 50;
}
uint32_t llama_n_ctx(const struct llama_context *ctx)
{
        return ctx->n_ctx;
}
int32_t llama_model_n_ctx_train(const struct llama_model *model)
{
        (void)model;
        return 8192;
}
int32_t llama_model_meta_val_str(const struct llama_model *model, const char *key, char *buffer,
                                 size_t bytes)
{
        if (strcmp(key, "general.architecture") == 0)
                return snprintf(buffer, bytes, "stub");
        if (model->kind == 'l' && strcmp(key, "stub.rope.scaling.original_context_length") == 0)
                return snprintf(buffer, bytes, "%d", ORIGINAL);
        return -1;
}
int32_t llama_model_desc(const struct llama_model *model, char *buffer, size_t bytes)
{
        (void)model;
        return snprintf(buffer, bytes, "stand-in");
}
uint64_t llama_model_n_params(const struct llama_model *model)
{
        (void)model;
        return 1;
}
uint64_t llama_model_size(const struct llama_model *model)
{
        (void)model;
        return 8;
}
bool llama_model_is_recurrent(const struct llama_model *model)
{
        return model->kind == 'r';
}
bool llama_model_is_hybrid(const struct llama_model *model)
{
        (void)model;
        return false;
}
bool llama_model_has_encoder(const struct llama_model *model)
{
        (void)model;
        return false;
}
const struct llama_vocab *llama_model_get_vocab(const struct llama_model *model)
{
        return (const void *)model;
}
int32_t llama_vocab_n_tokens(const struct llama_vocab *vocab)
{
        (void)vocab;
        return N_VOCAB;
}
bool llama_vocab_is_eog(const struct llama_vocab *vocab, llama_token token)
{
        (void)vocab;
        return token < 0;
}
int32_t llama_tokenize(const struct llama_vocab *vocab, const char *text, int32_t length,
                       llama_token *tokens, int32_t room, bool add_special, bool parse_special)
{
        (void)vocab;
        (void)add_special;
        (void)parse_special;
        if (length > room)
                return -length;
        for (int32_t i = 0; i < length; i++)
                tokens[i] = (unsigned char)text[i];
        return length;
}
int32_t llama_token_to_piece(const struct llama_vocab *vocab, llama_token token, char *buffer,
                             int32_t length, int32_t lstrip, bool special)
{
        (void)vocab;
        (void)lstrip;
        (void)special;
        return snprintf(buffer, (size_t)length, "<%d>", token);
}

llama_memory_t llama_get_memory(const struct llama_context *ctx)
{
        return (llama_memory_t)(uintptr_t)ctx;
}
bool llama_memory_seq_rm(llama_memory_t memory, llama_seq_id seq, llama_pos p0, llama_pos p1)
{
        struct llama_context *ctx = (void *)memory;

        for (llama_pos p = p0 < 0 ? 0 : p0; p < (p1 < 0 ? (llama_pos)ctx->n_ctx : p1); p++)
                ctx->has[seq][p] = false;
        return true;
}
void llama_memory_seq_cp(llama_memory_t memory, llama_seq_id from, llama_seq_id to, llama_pos p0,
                         llama_pos p1)
{
        struct llama_context *ctx = (void *)memory;

        for (llama_pos p = p0; p < p1; p++)
                ctx->has[to][p] |= ctx->has[from][p];
}
llama_pos llama_memory_seq_pos_min(llama_memory_t memory, llama_seq_id seq)
{
        struct llama_context *ctx = (void *)memory;

        for (uint32_t p = 0; p < ctx->n_ctx; p++)
                if (ctx->has[seq][p])
                        return (llama_pos)p;
        return -1;
}
llama_pos llama_memory_seq_pos_max(llama_memory_t memory, llama_seq_id seq)
{
        struct llama_context *ctx = (void *)memory;

        for (uint32_t p = ctx->n_ctx; p-- > 0;)
                if (ctx->has[seq][p])
                        return (llama_pos)p;
        return -1;
}

/* Returns the size of a sequence's state, which is its cells with their positions. */
size_t llama_state_seq_get_size(struct llama_context *ctx, llama_seq_id seq)
{
        size_t n = 0;

        for (uint32_t p = 0; p < ctx->n_ctx; p++)
                n += ctx->has[seq][p];
        return n * (sizeof(uint32_t) + sizeof(struct cell));
}
size_t llama_state_seq_get_data(struct llama_context *ctx, uint8_t *data, size_t bytes,
                                llama_seq_id seq)
{
        uint8_t *to = data;

        if (bytes < llama_state_seq_get_size(ctx, seq))
                return 0;
        for (uint32_t p = 0; p < ctx->n_ctx; p++)
                if (ctx->has[seq][p]) {
                        memcpy(to, &p, sizeof(p));
                        memcpy(to + sizeof(p), &ctx->cells[p], sizeof(struct cell));
                        to += sizeof(p) + sizeof(struct cell);
                }
        return (size_t)(to - data);
}
size_t llama_state_seq_set_data(struct llama_context *ctx, const uint8_t *data, size_t bytes,
                                llama_seq_id seq)
{
        static int calls;
        const char *damage = getenv("LLAMA_STUB_DAMAGE");
        const size_t one = sizeof(uint32_t) + sizeof(struct cell);
        size_t end = damage && ++calls == atoi(damage) ? bytes / one / 2 * one : bytes;
        uint32_t p;

        llama_memory_seq_rm((void *)ctx, seq, -1, -1);
        for (size_t i = 0; i + one <= end; i += one) {
                memcpy(&p, data + i, sizeof(p));
                if (p >= ctx->n_ctx)
                        return 0;
                memcpy(&ctx->cells[p], data + i + sizeof(p), sizeof(struct cell));
                ctx->has[seq][p] = true;
        }
        return end == bytes ? bytes : 0;
}

struct llama_batch llama_batch_get_one(llama_token *tokens, int32_t n_tokens)
{
        return (struct llama_batch){ n_tokens, tokens };
}

static uint64_t over_all(const struct llama_context *ctx, llama_pos end)
{
        uint64_t sum = ctx->model->weights + (ctx->model->kind == 'l' && ctx->n_ctx > ORIGINAL);

        for (llama_pos p = 0; p < end; p++)
                if (ctx->has[0][p])
                        sum = mix(sum, mix(ctx->cells[p].value, (uint64_t)p));
        return sum;
}

int32_t llama_decode(struct llama_context *ctx, struct llama_batch batch)
{
        llama_pos p = llama_memory_seq_pos_max((void *)ctx, 0) + 1;

        for (int32_t i = 0; i < batch.n_tokens; i++, p++) {
                if (p >= (llama_pos)ctx->n_ctx)
                        return 1;
                ctx->cells[p].value = mix(over_all(ctx, p), (uint64_t)batch.token[i]);
                memset(ctx->cells[p].rest, batch.token[i], sizeof(ctx->cells[p].rest));
                ctx->has[0][p] = true;
                if (ctx->model->kind == 'w' && p >= WINDOW)
                        ctx->has[0][p - WINDOW] = false;
        }
        memset(ctx->logits, 0, sizeof(ctx->logits));
        ctx->logits[over_all(ctx, p) % N_VOCAB] = 1;
        return 0;
}
float *llama_get_logits_ith(struct llama_context *ctx, int32_t i)
{
        (void)i;
        return ctx->logits;
}
