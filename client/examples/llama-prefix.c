/* SPDX-License-Identifier: Apache-2.0 */
/* llama.cpp: continues a prompt, and stores the KV cache of its tokens in the daemon by blocks. The
 * next prompt that begins with the same tokens, in this process or another, then computes only the
 * rest. Copy restore() and keep() to your program; main() shows where to call them. llama.md in
 * this folder explains the program.
 *
 * cc llama-prefix.c $(pkg-config --cflags --libs kvcache llama) -lmd && ./a.out [-s SOCKET]
 * MODEL.gguf 'PROMPT'
 *
 * A block is the KV cells of -b tokens. The cells are copied to a separate sequence (SCRATCH),
 * which needs no additional cells if the cache is unified, and the state of that sequence is the
 * chunk. The key is a hash over all tokens up to the end of the block, so that prompts share
 * their common blocks. Without a daemon, or if it fails, everything is computed. */
#include <errno.h>
#include <kvcache.h>
#include <llama.h>
#include <sha2.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
        SEQ = 0,     /* the sequence that is decoded */
        SCRATCH = 1, /* holds one block while its state is read or written */
        GROUP = 8,   /* maximum number of blocks leased at a time */
};

struct keeper {
        struct kvcache *kv; /* NULL: there is no daemon */
        uint32_t ns;
        unsigned block; /* tokens of a block */
};

/* Computes the keys: keys[i] names tokens [0, (i + 1) * block). */
static void chain_keys(const llama_token *tokens, size_t n_blocks, unsigned block,
                       struct kvcache_key *ret_keys)
{
        static const struct kvcache_key root;

        for (size_t i = 0; i < n_blocks; i++) {
                SHA2_CTX context;

                SHA256Init(&context);
                SHA256Update(&context, i > 0 ? ret_keys[i - 1].bytes : root.bytes,
                             KVCACHE_KEY_BYTES);
                SHA256Update(&context, (const void *)(tokens + i * block), block * sizeof(*tokens));
                SHA256Final(ret_keys[i].bytes, &context);
        }
}

/* Returns whether the sequence's cells are those of the tokens [from, to). With a sliding window,
 * llama.cpp has dropped earlier cells, and a block that lacks some must be neither stored nor used.
 */
static bool holds(struct llama_context *ctx, llama_seq_id seq, size_t from, size_t to)
{
        llama_memory_t memory = llama_get_memory(ctx);

        return llama_memory_seq_pos_min(memory, seq) == (llama_pos)from &&
               llama_memory_seq_pos_max(memory, seq) == (llama_pos)to - 1;
}

/* Adds the cells of the tokens [from, to) to the sequence SEQ. Returns false if the state is
 * malformed or lacks cells. */
static bool load_block(struct llama_context *ctx, const struct kvcache_result *result, size_t from,
                       size_t to)
{
        llama_memory_t memory = llama_get_memory(ctx);
        bool good;

        /* The state is read from the daemon's memory, where the lease keeps the block. */
        good = llama_state_seq_set_data(ctx, result->data, result->length, SCRATCH) ==
                       result->length &&
               holds(ctx, SCRATCH, from, to);
        if (good)
                llama_memory_seq_cp(memory, SCRATCH, SEQ, (llama_pos)from, (llama_pos)to);
        llama_memory_seq_rm(memory, SCRATCH, -1, -1);
        return good;
}

/* Loads blocks into the empty sequence SEQ, from the first up to a missing one. Returns their
 * number. */
static size_t load_run(struct keeper *keeper, struct llama_context *ctx,
                       const struct kvcache_key *keys, size_t run)
{
        for (size_t done = 0; done < run;) {
                struct kvcache_result results[GROUP];
                struct kvcache_lease leases[GROUP];
                struct kvcache_request request;
                size_t count = run - done < GROUP ? run - done : GROUP, n_leases = 0, good = 0;
                bool going = true;

                kvcache_prep_get(&request, keeper->ns, keys + done, count, results);
                request.parent = done > 0 ? keys + done - 1 : NULL;
                if (kvcache_submit_and_wait(keeper->kv, &request, NULL) < 0)
                        return done;
                for (size_t i = 0; i < count; i++) {
                        size_t from = (done + i) * keeper->block;

                        if (!kvcache_status_ok(results[i].status)) {
                                going = false;
                                continue;
                        }
                        going = going && load_block(ctx, &results[i], from, from + keeper->block);
                        good += going;
                        leases[n_leases++] = results[i].lease;
                }
                kvcache_release(keeper->kv, leases, n_leases);
                done += good;
                if (!going)
                        return done;
        }
        return run;
}

/* Fills the empty sequence with the longest prefix of the tokens that the daemon has. The last
 * token is never restored, because it must be decoded for its logits. Returns how many tokens need
 * not be decoded. */
static size_t restore(struct keeper *keeper, struct llama_context *ctx, const llama_token *tokens,
                      size_t n_tokens)
{
        size_t n_blocks = n_tokens > 0 ? (n_tokens - 1) / keeper->block : 0, loaded = 0;
        struct kvcache_request request;
        struct kvcache_key *keys;
        uint64_t run = 0;

        if (!keeper->kv || n_blocks == 0)
                return 0;
        keys = malloc(n_blocks * sizeof(*keys));
        if (!keys)
                return 0;
        chain_keys(tokens, n_blocks, keeper->block, keys);
        kvcache_prep_match(&request, keeper->ns, keys, n_blocks);
        if (kvcache_submit_and_wait(keeper->kv, &request, &run) >= 0)
                loaded = load_run(keeper, ctx, keys, run);
        free(keys);
        /* The sliding window may have advanced while the blocks were loaded. */
        if (loaded > 0 && !holds(ctx, SEQ, 0, loaded * keeper->block)) {
                llama_memory_seq_rm(llama_get_memory(ctx), SEQ, -1, -1);
                loaded = 0;
        }
        return loaded * keeper->block;
}

/* Puts one block, copied from the sequence's cells to staging memory. Returns 0 or -errno. */
static int keep_block(struct keeper *keeper, struct llama_context *ctx,
                      const struct kvcache_key *keys, size_t i)
{
        llama_memory_t memory = llama_get_memory(ctx);
        size_t from = i * keeper->block, to = from + keeper->block, bytes;
        struct kvcache_entry entry = { .key = keys[i] };
        struct kvcache_request request;
        struct kvcache_result result;
        int r = -EIO;

        llama_memory_seq_cp(memory, SEQ, SCRATCH, (llama_pos)from, (llama_pos)to);
        if (!holds(ctx, SCRATCH, from, to))
                goto out;
        bytes = llama_state_seq_get_size(ctx, SCRATCH);
        r = kvcache_staging_acquire(keeper->kv, bytes, &entry.data);
        if (r < 0)
                goto out;
        entry.length = llama_state_seq_get_data(ctx, entry.data, bytes, SCRATCH);
        kvcache_prep_put(&request, keeper->ns, &entry, 1, KVCACHE_ACCEPTED, &result);
        request.parent = i > 0 ? keys + i - 1 : NULL;
        r = entry.length > 0 ? kvcache_submit_and_wait(keeper->kv, &request, NULL) : -EIO;
        kvcache_staging_release(keeper->kv, entry.data);
        if (r >= 0 && !kvcache_status_ok(result.status))
                r = result.status == KVCACHE_TOO_LARGE ? -E2BIG : -ENOSPC;
out:
        llama_memory_seq_rm(memory, SCRATCH, -1, -1);
        if (r == -E2BIG)
                fprintf(stderr,
                        "a block of %u tokens is too large for the daemon; use a smaller number "
                        "with -b\n",
                        keeper->block);
        return r;
}

/* Stores the whole blocks of the sequence that the daemon lacks. The sequence's cells are those of
 * `tokens`. Returns how many were put. */
static size_t keep(struct keeper *keeper, struct llama_context *ctx, const llama_token *tokens,
                   size_t n_tokens)
{
        size_t n_blocks = n_tokens / keeper->block, put = 0;
        struct kvcache_result *results;
        struct kvcache_request request;
        struct kvcache_key *keys;

        if (!keeper->kv || n_blocks == 0)
                return 0;
        keys = malloc(n_blocks * sizeof(*keys));
        results = malloc(n_blocks * sizeof(*results));
        if (keys && results) {
                chain_keys(tokens, n_blocks, keeper->block, keys);
                kvcache_prep_exists(&request, keeper->ns, keys, n_blocks, results);
                if (kvcache_submit_and_wait(keeper->kv, &request, NULL) >= 0)
                        for (size_t i = 0; i < n_blocks; i++)
                                if (!kvcache_status_ok(results[i].status)) {
                                        if (keep_block(keeper, ctx, keys, i) < 0)
                                                break;
                                        put++;
                                }
        }
        free(keys);
        free(results);
        return put;
}

static int hash_file(const char *path, char ret_hex[2 * SHA256_DIGEST_LENGTH + 1])
{
        return SHA256File(path, ret_hex) ? 0 : -errno;
}

/* Returns whether the context is longer than the one that the model was first trained with. Some
 * models (LongRoPE) have other RoPE factors for longer contexts, which affect all cells. */
static bool is_long(const struct llama_context *ctx, const struct llama_model *model)
{
        long original = llama_model_n_ctx_train(model);
        char arch[64], key[128], value[32];

        if (llama_model_meta_val_str(model, "general.architecture", arch, sizeof(arch)) > 0) {
                snprintf(key, sizeof(key), "%s.rope.scaling.original_context_length", arch);
                if (llama_model_meta_val_str(model, key, value, sizeof(value)) > 0)
                        original = strtol(value, NULL, 10);
        }
        return (long)llama_n_ctx(ctx) > original;
}

/* Connects, and opens a namespace whose fingerprint has all that determines the cells, except the
 * tokens: another model, other types or other positions use another namespace. `params`: as passed
 * when the context was created. Returns 0, also without a daemon, and keeper->kv is NULL; -EINVAL
 * if the fingerprint is too long. */
static int open_keeper(struct keeper *keeper, const char *socket_path, const char *model_id,
                       const struct llama_context *ctx, const struct llama_model *model,
                       const struct llama_context_params *params)
{
        struct kvcache_options options = { .size = sizeof(options), .socket_path = socket_path };
        struct kvcache_namespace_options ns_options = { .size = sizeof(ns_options) };
        char fingerprint[1024], desc[128] = "", name[48], hash[2 * SHA256_DIGEST_LENGTH + 1],
                                why[256];
        int r;

        llama_model_desc(model, desc, sizeof(desc));
        r = snprintf(fingerprint, sizeof(fingerprint),
                     "block_tokens=%u\ndesc=%s\nengine=llama.cpp\nlong=%d\nmodel=%s\nparams=%llu\n"
                     "rope_base=%a\nrope_scale=%a\nrope_scaling=%d\ntype_k=%d\ntype_v=%d\n"
                     "weights_bytes=%llu\nyarn=%a,%a,%a,%a,%u\n",
                     keeper->block, desc, is_long(ctx, model), model_id,
                     (unsigned long long)llama_model_n_params(model), params->rope_freq_base,
                     params->rope_freq_scale, (int)params->rope_scaling_type, (int)params->type_k,
                     (int)params->type_v, (unsigned long long)llama_model_size(model),
                     params->yarn_ext_factor, params->yarn_attn_factor, params->yarn_beta_fast,
                     params->yarn_beta_slow, params->yarn_orig_ctx);
        if (r < 0 || (size_t)r >= sizeof(fingerprint)) {
                fprintf(stderr, "the model's identifier is too long: use a shorter -m\n");
                return -EINVAL;
        }
        SHA256Data((const uint8_t *)fingerprint, (size_t)r, hash);
        snprintf(name, sizeof(name), "llama.cpp/%.32s", hash);
        ns_options.name = name;
        ns_options.fingerprint = fingerprint;

        r = kvcache_connect(&keeper->kv, &options, why, sizeof(why));
        if (r < 0) {
                fprintf(stderr,
                        "cannot connect to the daemon, so the whole prompt is computed: %s\n", why);
                keeper->kv = NULL;
                return 0;
        }
        r = kvcache_namespace_open(keeper->kv, &ns_options, &keeper->ns);
        if (r < 0) {
                fprintf(stderr, "cannot open the namespace, so the whole prompt is computed: %s\n",
                        kvcache_error(keeper->kv));
                kvcache_close(keeper->kv);
                keeper->kv = NULL;
        }
        return 0;
}

static int decode(struct llama_context *ctx, llama_token *tokens, size_t count)
{
        size_t most = llama_n_batch(ctx);

        for (size_t i = 0; i < count; i += most) {
                size_t n = count - i < most ? count - i : most;

                if (llama_decode(ctx, llama_batch_get_one(tokens + i, (int32_t)n)) != 0)
                        return -EIO;
        }
        return 0;
}

static llama_token likeliest(struct llama_context *ctx, int32_t n_vocab)
{
        const float *logits = llama_get_logits_ith(ctx, -1);
        llama_token best = 0;

        for (llama_token i = 1; i < n_vocab; i++)
                if (logits[i] > logits[best])
                        best = i;
        return best;
}

struct arguments {
        const char *socket_path, *model_id, *model, *prompt;
        unsigned block, n_ctx, n_predict, n_threads;
        bool ids; /* the prompt and the answer are token ids */
};

/* Tokenizes the prompt into at most `room` tokens. Returns their number, or 0 if the prompt has no
 * tokens, has more than `room`, or is malformed. */
static size_t tokenize(const struct arguments *arguments, const struct llama_vocab *vocab,
                       int32_t n_vocab, llama_token *ret_tokens, size_t room)
{
        const char *p = arguments->prompt;
        size_t n = 0;

        if (!arguments->ids) {
                int32_t got = llama_tokenize(vocab, p, (int32_t)strlen(p), ret_tokens,
                                             (int32_t)room, true, true);

                return got > 0 ? (size_t)got : 0;
        }
        while (*p) {
                char *end;
                long id = strtol(p, &end, 10);

                if (end == p || id < 0 || id >= n_vocab || n == room)
                        return 0;
                ret_tokens[n++] = (llama_token)id;
                p = end + strspn(end, ", ");
        }
        return n;
}

static void print_token(const struct arguments *arguments, const struct llama_vocab *vocab,
                        llama_token token)
{
        char piece[256];
        int32_t n;

        if (arguments->ids) {
                printf("%d ", token);
                return;
        }
        n = llama_token_to_piece(vocab, token, piece, sizeof(piece), 0, false);
        if (n > 0)
                fwrite(piece, 1, (size_t)n, stdout);
}

static int run(const struct arguments *arguments, struct keeper *keeper, struct llama_context *ctx,
               const struct llama_vocab *vocab)
{
        int32_t n_vocab = llama_vocab_n_tokens(vocab);
        size_t room = arguments->n_ctx, n, restored, put;
        llama_token *tokens = malloc(room * sizeof(*tokens));
        int r = -EINVAL;

        if (!tokens)
                return -ENOMEM;
        n = tokenize(arguments, vocab, n_vocab, tokens, room);
        if (n == 0 || n + arguments->n_predict > room) {
                fprintf(stderr,
                        "the prompt is empty, is no list of the model's token ids, or does not fit "
                        "with -n into the context of %u tokens (-c)\n",
                        arguments->n_ctx);
                goto out;
        }
        restored = restore(keeper, ctx, tokens, n);
        r = decode(ctx, tokens + restored, n - restored);
        if (r < 0) {
                fprintf(stderr, "llama_decode() failed for the tokens of the prompt\n");
                goto out;
        }
        for (unsigned i = 0; i < arguments->n_predict; i++) {
                llama_token token = likeliest(ctx, n_vocab);

                if (llama_vocab_is_eog(vocab, token))
                        break;
                print_token(arguments, vocab, token);
                tokens[n] = token;
                r = decode(ctx, tokens + n, 1);
                if (r < 0)
                        break;
                n++;
        }
        put = keep(keeper, ctx, tokens, n);
        printf("\n");
        fprintf(stderr, "%zu tokens, %zu restored, %zu blocks kept\n", n, restored, put);
out:
        free(tokens);
        return r;
}

static void quiet(enum ggml_log_level level, const char *text, void *data)
{
        (void)data;
        if (level == GGML_LOG_LEVEL_ERROR)
                fputs(text, stderr);
}

static int load_and_run(const struct arguments *arguments)
{
        struct llama_context_params params = llama_context_default_params();
        struct keeper keeper = { .block = arguments->block };
        struct llama_context *ctx = NULL;
        struct llama_model *model;
        int r = -EIO;

        model = llama_model_load_from_file(arguments->model, llama_model_default_params());
        if (!model) {
                fprintf(stderr, "%s: llama.cpp cannot load the model\n", arguments->model);
                return -EIO;
        }
        params.n_ctx = arguments->n_ctx;
        params.n_seq_max = 2;     /* SEQ and SCRATCH */
        params.kv_unified = true; /* both sequences share cells */
        if (arguments->n_threads > 0)
                params.n_threads = params.n_threads_batch = (int32_t)arguments->n_threads;
        ctx = llama_init_from_model(model, params);
        if (!ctx) {
                fprintf(stderr,
                        "llama.cpp cannot create a context of %u tokens: use a smaller -c\n",
                        arguments->n_ctx);
                goto out;
        }
        if (llama_model_is_recurrent(model) || llama_model_is_hybrid(model) ||
            llama_model_has_encoder(model))
                fprintf(stderr, "this model's state cannot be divided into blocks of tokens, so "
                                "the whole prompt is computed\n");
        else if (open_keeper(&keeper, arguments->socket_path, arguments->model_id, ctx, model,
                             &params) < 0)
                goto out;
        r = run(arguments, &keeper, ctx, llama_model_get_vocab(model));
out:
        kvcache_close(keeper.kv);
        llama_free(ctx);
        llama_model_free(model);
        return r;
}

static bool number(const char *text, unsigned least, unsigned most, unsigned *ret)
{
        char *end;
        unsigned long value = strtoul(text, &end, 10);

        *ret = (unsigned)value;
        return *end == '\0' && end != text && value >= least && value <= most;
}

int main(int argc, char **argv)
{
        struct arguments arguments = { .block = 64, .n_ctx = 4096, .n_predict = 32 };
        char hash[2 * SHA256_DIGEST_LENGTH + 1];
        bool good = true;
        int c, r;

        while ((c = getopt(argc, argv, "s:m:b:c:n:j:t")) != -1)
                switch (c) {
                case 's':
                        arguments.socket_path = optarg;
                        break;
                case 'm':
                        arguments.model_id = optarg;
                        break;
                case 'b':
                        good &= number(optarg, 1, 65536, &arguments.block);
                        break;
                case 'c':
                        good &= number(optarg, 1, 1 << 24, &arguments.n_ctx);
                        break;
                case 'n':
                        good &= number(optarg, 0, 1 << 20, &arguments.n_predict);
                        break;
                case 'j':
                        good &= number(optarg, 0, 1024, &arguments.n_threads);
                        break;
                case 't':
                        arguments.ids = true;
                        break;
                default:
                        good = false;
                }
        if (!good || argc - optind != 2) {
                fprintf(stderr,
                        "usage: %s [-s SOCKET] [-m MODEL-ID] [-b BLOCK-TOKENS] [-c CONTEXT-TOKENS] "
                        "[-n TOKENS-TO-PREDICT] [-j THREADS] [-t] MODEL.gguf PROMPT\n-m: "
                        "identifies the model (default: the SHA-256 of MODEL.gguf); -t: PROMPT is "
                        "a list of token ids, and so is the answer\n",
                        argv[0]);
                return 2;
        }
        arguments.model = argv[optind];
        arguments.prompt = argv[optind + 1];
        if (!arguments.model_id) {
                r = hash_file(arguments.model, hash);
                if (r < 0) {
                        fprintf(stderr, "%s: %s\n", arguments.model, strerror(-r));
                        return 1;
                }
                arguments.model_id = hash;
        }
        llama_log_set(quiet, NULL);
        llama_backend_init();
        r = load_and_run(&arguments);
        llama_backend_free();
        return r < 0;
}
