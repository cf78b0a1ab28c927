/* The routed pass of inverted dot-product attention, fused: votes, agreement, softmax over parents, weighted sum.
 *
 *     V_ij = W_ij P_i        a_ij = scale <P_j, V_ij>        r_ij = softmax_j a_ij        s_j = sum_i r_ij V_ij
 *
 * Votes live for one child and a few positions at a time, in the cache; the backward pass forms them again. Letters
 * are those of overlaycaps/kernels/__init__.py: n capsules below, children i = (capsule, row, column of the kernel),
 * J parents, Q and R rows of a parent's and of a child's pose, C columns of both, B batch, H W space.
 *
 * How it is arranged
 *   - LANES samples of the batch form a "tile" and travel through all arithmetic side by side in one vector, so any
 *     layout of the inputs will do: poses are packed into tiles once, and a child is found by address, never gathered.
 *     The last tile is filled up with zeros, which vote for nothing.
 *   - A "slot" is one position of the parents in one tile. Slots are worked on in chunks, all children on each, so that
 *     the parents of a chunk stay in the cache while weights stream by.
 *   - Work is divided into parts by capsules below first, by tiles second. A part owns the gradients of its capsules;
 *     what several parts add to (sums, gradients of parents; gradients of weights when tiles are divided) each adds to
 *     a copy of its own, and the copies are added in the order of the parts. Which thread works on which part is left
 *     open and changes nothing: results depend on the number of parts alone.
 *
 * Source of the method: Tsai et al. 2020 (arXiv 2002.04764), eqs. 1-3.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#define BLOCK_COLUMNS 4 /* accumulators of a block have to fit the registers */
#elif defined(__AVX__)
#define LANES 8
#define BLOCK_COLUMNS 2
#else
#define LANES 4
#define BLOCK_COLUMNS 2
#endif
#define CHUNK_COLUMNS 16 /* vectors side by side in a chunk, about: enough to make up for streaming the weights */
#define CACHE_LINE 64

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4)));
typedef int64_t size;

#define INLINE static inline __attribute__((always_inline))

/* ------------------------------------------------------------------------------------------------ problem */

enum { DIM_CAPSULES, DIM_ROWS, DIM_COLUMNS, DIM_BATCH, DIM_HEIGHT, DIM_WIDTH, NUM_DIMS };

typedef struct { /* a strided tensor (n, R, C, B, H, W) or (J, Q, C, B, H', W'); strides in elements */
    float *data;
    const size *strides;
} Tensor;

typedef struct {
    /* given */
    size n, R, C, B, H, W, J, Q, kernel, stride;
    float scale;
    Tensor poses, parents, sums, grad_sums, grad_poses, grad_parents;
    const float *weight;
    float *grad_weight;
    /* derived */
    size out_h, out_w, tiles, JQ, slots_per_tile, chunk_slots;
    size parts_by_capsule, parts_by_tile, parts;
    /* scratch */
    vec *packed_poses;      /* n H W tiles R C */
    vec *packed_grad_poses; /* the same; backward */
    vec *partial;           /* parts_by_capsule x slots x JQ C: sums, or gradients of the parents */
    float *partial_weight;  /* (parts_by_tile - 1) x size of the weights; backward */
    char *work;             /* parts x work_bytes */
    size work_bytes;
} Pass;

INLINE size minimum(size a, size b) { return a < b ? a : b; }
INLINE size ceil_div(size a, size b) { return (a + b - 1) / b; }
INLINE size round_up(size a, size b) { return ceil_div(a, b) * b; }
INLINE size num_slots(const Pass *p) { return p->tiles * p->slots_per_tile; }
INLINE size weight_of_child(const Pass *p) { return p->JQ * p->R; }
INLINE size num_children(const Pass *p) { return p->n * p->kernel * p->kernel; }

/* ------------------------------------------------------------------------------------------------ threads */

typedef void (*Task)(Pass *, size);
/* GNU OpenMP's own entry point, as torch's copy of the library has it: its threads are the ones torch uses. */
typedef void (*OmpParallel)(void (*)(void *), void *, unsigned, unsigned);

typedef struct {
    Task task;
    Pass *pass;
    size count, next;
} Job;

static void *take_tasks(void *argument) {
    Job *job = argument;
    for (;;) {
        size index = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
        if (index >= job->count) return NULL;
        job->task(job->pass, index);
    }
}

static void take_tasks_omp(void *argument) { take_tasks(argument); }

#define MAX_THREADS 256

static void run_tasks(Task task, Pass *pass, size count, size threads, OmpParallel omp) {
    Job job = {task, pass, count, 0};
    threads = minimum(minimum(threads, count), MAX_THREADS);
    if (threads <= 1) {
        take_tasks(&job);
    } else if (omp) {
        omp(take_tasks_omp, &job, (unsigned)threads, 0);
    } else {
        pthread_t others[MAX_THREADS];
        size started = 0;
        while (started < threads - 1 && pthread_create(&others[started], NULL, take_tasks, &job) == 0) started++;
        take_tasks(&job);
        for (size k = 0; k < started; k++) pthread_join(others[k], NULL);
    }
}

/* ---------------------------------------------------------------------------------------------- arithmetic */

INLINE vec spread(float x) { return (vec){0} + x; }
INLINE vec choose(ivec where, vec a, vec b) { return (vec)((where & (ivec)a) | (~where & (ivec)b)); }

/* exp for x <= 0 (and NaN): 2^k times the Taylor series to degree 7 on |r| <= ln(2) / 2, where it errs by 5e-9. */
INLINE vec exp_negative(vec x) {
    const vec shift = spread(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
    const vec lowest = spread(-87.0f);
    ivec tiny = x < lowest;
    x = choose(tiny, lowest, x);
    vec shifted = x * 1.44269504088896341f + shift;
    vec k = shifted - shift;
    vec r = x - k * 0.693359375f; /* ln 2 in two parts, the first exact in few bits */
    r = r - k * -2.12194440054690583e-4f;
    vec y = r * (1.0f / 5040) + 1.0f / 720;
    y = y * r + 1.0f / 120;
    y = y * r + 1.0f / 24;
    y = y * r + 1.0f / 6;
    y = y * r + 0.5f;
    y = y * r + 1.0f;
    y = y * r + 1.0f;
    ivec exponent = (ivec)shifted - (ivec)shift;
    vec result = (vec)((ivec)y + (exponent << 23));
    return choose(tiny, (vec){0}, result);
}

/* out (M x N) = A (M x K) B (K x N): A of scalars with strides, B and out of vectors, N vectors in a row.
 * Rows and columns are constants after inlining, so that the accumulators are registers. */
INLINE void multiply_block(const size rows, const size columns, size K, const float *a, size a_row, size a_k,
                           const vec *b, size N, vec *out) {
    vec sum[8][4];
#pragma GCC unroll 8
    for (size m = 0; m < rows; m++)
#pragma GCC unroll 4
        for (size c = 0; c < columns; c++) sum[m][c] = (vec){0};
    for (size k = 0; k < K; k++) {
        vec right[4];
#pragma GCC unroll 4
        for (size c = 0; c < columns; c++) right[c] = b[k * N + c];
#pragma GCC unroll 8
        for (size m = 0; m < rows; m++) {
            const vec left = spread(a[m * a_row + k * a_k]);
#pragma GCC unroll 4
            for (size c = 0; c < columns; c++) sum[m][c] += left * right[c];
        }
    }
#pragma GCC unroll 8
    for (size m = 0; m < rows; m++)
#pragma GCC unroll 4
        for (size c = 0; c < columns; c++) out[m * N + c] = sum[m][c];
}

INLINE void multiply_columns(const size rows, const size columns, size M, size N, size K, const float *a, size a_row,
                             size a_k, const vec *b, vec *out) {
    size m = 0;
    for (; m + rows <= M; m += rows) multiply_block(rows, columns, K, a + m * a_row, a_row, a_k, b, N, out + m * N);
    for (; m < M; m++) multiply_block(1, columns, K, a + m * a_row, a_row, a_k, b, N, out + m * N);
}

static void multiply(size M, size N, size K, const float *a, size a_row, size a_k, const vec *b, vec *out) {
    size c = 0;
#if BLOCK_COLUMNS == 4
    for (; c + 4 <= N; c += 4) multiply_columns(4, 4, M, N, K, a, a_row, a_k, b + c, out + c);
#endif
    for (; c + 2 <= N; c += 2) multiply_columns(4, 2, M, N, K, a, a_row, a_k, b + c, out + c);
    for (; c < N; c++) multiply_columns(8, 1, M, N, K, a, a_row, a_k, b + c, out + c);
}

/* Lane sums of several vectors at once, by halving: each step adds the halves of two vectors and puts the results side
 * by side, so that after log2(LANES) steps LANES vectors have become one with their sums in order. */
#if defined(__clang__)
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (ivec){__VA_ARGS__})
#endif
#define LOW(k, h) ((k) / (h) * 2 * (h) + (k) % (h))
#define LOW4(k, h) LOW(k, h), LOW(k + 1, h), LOW(k + 2, h), LOW(k + 3, h)
#define HIGH4(k, h) LOW(k, h) + h, LOW(k + 1, h) + h, LOW(k + 2, h) + h, LOW(k + 3, h) + h
#if LANES == 16
#define LOWS(h) LOW4(0, h), LOW4(4, h), LOW4(8, h), LOW4(12, h)
#define HIGHS(h) HIGH4(0, h), HIGH4(4, h), HIGH4(8, h), HIGH4(12, h)
#elif LANES == 8
#define LOWS(h) LOW4(0, h), LOW4(4, h)
#define HIGHS(h) HIGH4(0, h), HIGH4(4, h)
#else
#define LOWS(h) LOW4(0, h)
#define HIGHS(h) HIGH4(0, h)
#endif
#define FOLD(a, b, h) (PICK(a, b, LOWS(h)) + PICK(a, b, HIGHS(h)))

INLINE vec sum_lanes(vec *v) {
#if LANES == 16
    for (int k = 0; k < 8; k++) v[k] = FOLD(v[2 * k], v[2 * k + 1], 8);
#endif
#if LANES >= 8
    for (int k = 0; k < 4; k++) v[k] = FOLD(v[2 * k], v[2 * k + 1], 4);
#endif
    for (int k = 0; k < 2; k++) v[k] = FOLD(v[2 * k], v[2 * k + 1], 2);
    return FOLD(v[0], v[1], 1);
}

/* A block of LANES vectors, transposed: zipping its two halves moves the bits of an element's index round by one, so
 * log2(LANES) times makes the row the column. */
#define ZIP(k) ((k) / 2 + (k) % 2 * LANES)
#define ZIP4(k, from) ZIP(k) + from, ZIP(k + 1) + from, ZIP(k + 2) + from, ZIP(k + 3) + from
#if LANES == 16
#define ZIPS(from) ZIP4(0, from), ZIP4(4, from), ZIP4(8, from), ZIP4(12, from)
#elif LANES == 8
#define ZIPS(from) ZIP4(0, from), ZIP4(4, from)
#else
#define ZIPS(from) ZIP4(0, from)
#endif

INLINE void transpose(vec *block) {
    for (size step = 1; step < LANES; step *= 2) {
        vec zipped[LANES];
        for (size k = 0; k < LANES / 2; k++) {
            zipped[2 * k] = PICK(block[k], block[k + LANES / 2], ZIPS(0));
            zipped[2 * k + 1] = PICK(block[k], block[k + LANES / 2], ZIPS(LANES / 2));
        }
        memcpy(block, zipped, sizeof zipped);
    }
}

/* out (M x K), scalars, += A (M x N) B (K x N) transposed, N running over vectors and their lanes. */
INLINE void multiply_transposed_block(const size rows, const size columns, size N, const vec *a, const vec *b,
                                      float *out, size K) {
    vec sum[16];
#pragma GCC unroll 16
    for (size k = 0; k < 16; k++) sum[k] = (vec){0};
    for (size n = 0; n < N; n++)
#pragma GCC unroll 4
        for (size m = 0; m < rows; m++)
#pragma GCC unroll 4
            for (size k = 0; k < columns; k++) sum[m * 4 + k] += a[m * N + n] * b[k * N + n];
#pragma GCC unroll 4
    for (size first = 0; first < rows * 4; first += LANES) {
        vec sums = sum_lanes(sum + first);
#pragma GCC unroll 16
        for (size lane = 0; lane < LANES; lane++)
            if (first + lane < rows * 4 && (lane & 3) < columns)
                out[(first + lane) / 4 * K + (lane & 3)] += sums[lane];
    }
}

static void multiply_transposed(size M, size K, size N, const vec *a, const vec *b, float *out) {
    for (size k = 0; k < K; k += 4) {
        size m = 0;
        if (k + 4 <= K) {
            for (; m + 4 <= M; m += 4) multiply_transposed_block(4, 4, N, a + m * N, b + k * N, out + m * K + k, K);
            for (; m < M; m++) multiply_transposed_block(1, 4, N, a + m * N, b + k * N, out + m * K + k, K);
        } else {
            for (size rest = k; rest < K; rest++) {
                for (m = 0; m + 4 <= M; m += 4)
                    multiply_transposed_block(4, 1, N, a + m * N, b + rest * N, out + m * K + rest, K);
                for (; m < M; m++) multiply_transposed_block(1, 1, N, a + m * N, b + rest * N, out + m * K + rest, K);
            }
        }
    }
}

/* ------------------------------------------------------------------------------------------------- packing */

/* Whether the numbers of a pose lie in a row. */
INLINE int is_compact(Tensor t, size C) {
    return t.strides[DIM_ROWS] == C && (C == 1 || t.strides[DIM_COLUMNS] == 1);
}

/* One capsule at one position in one tile, from a strided tensor to (rows, columns) vectors. Sample by sample: their
 * poses lie so far apart, often by a multiple of the cache's period, that they would evict each other. */
INLINE void load_capsule(const Pass *p, Tensor from, size capsule, size rows, size h, size w, size tile, vec *to,
                         size to_row) {
    const size *s = from.strides;
    const size C = p->C, first = tile * LANES, lanes = minimum(LANES, p->B - first);
    const float *base = from.data + capsule * s[DIM_CAPSULES] + h * s[DIM_HEIGHT] + w * s[DIM_WIDTH];
    base += first * s[DIM_BATCH];
    size done = 0;
    if (lanes == LANES && is_compact(from, C))
        for (; done + LANES <= rows * C; done += LANES) {
            vec block[LANES];
            for (size lane = 0; lane < LANES; lane++)
                memcpy(&block[lane], base + lane * s[DIM_BATCH] + done, sizeof(vec));
            transpose(block);
            for (size k = 0; k < LANES; k++) to[(done + k) / C * to_row + (done + k) % C] = block[k];
        }
    for (size k = done; k < rows * C; k++) {
        const float *source = base + k / C * s[DIM_ROWS] + k % C * s[DIM_COLUMNS];
        float values[LANES] = {0};
        for (size lane = 0; lane < lanes; lane++) values[lane] = source[lane * s[DIM_BATCH]];
        memcpy(&to[k / C * to_row + k % C], values, sizeof(vec));
    }
}

/* The way back, from (rows, columns) vectors without gaps. */
INLINE void store_capsule(const Pass *p, Tensor to, size capsule, size rows, size h, size w, size tile,
                          const vec *from) {
    const size *s = to.strides;
    const size C = p->C, first = tile * LANES, lanes = minimum(LANES, p->B - first);
    float *base = to.data + capsule * s[DIM_CAPSULES] + h * s[DIM_HEIGHT] + w * s[DIM_WIDTH];
    base += first * s[DIM_BATCH];
    size done = 0;
    if (is_compact(to, C))
        for (; done + LANES <= rows * C; done += LANES) {
            vec block[LANES];
            memcpy(block, from + done, sizeof block);
            transpose(block);
            for (size lane = 0; lane < lanes; lane++)
                memcpy(base + lane * s[DIM_BATCH] + done, &block[lane], sizeof(vec));
        }
    for (size k = done; k < rows * C; k++)
        for (size lane = 0; lane < lanes; lane++)
            base[lane * s[DIM_BATCH] + k / C * s[DIM_ROWS] + k % C * s[DIM_COLUMNS]] = from[k][lane];
}

INLINE vec *pose_at(const Pass *p, vec *packed, size capsule, size h, size w, size tile) {
    return packed + (((capsule * p->H + h) * p->W + w) * p->tiles + tile) * p->R * p->C;
}

static void pack_poses(Pass *p, size row) { /* a task for every capsule and row of the map */
    const size capsule = row / p->H, h = row % p->H;
    for (size w = 0; w < p->W; w++)
        for (size tile = 0; tile < p->tiles; tile++)
            load_capsule(p, p->poses, capsule, p->R, h, w, tile, pose_at(p, p->packed_poses, capsule, h, w, tile), p->C);
}

static void unpack_grad_poses(Pass *p, size row) {
    const size capsule = row / p->H, h = row % p->H;
    for (size w = 0; w < p->W; w++)
        for (size tile = 0; tile < p->tiles; tile++)
            store_capsule(p, p->grad_poses, capsule, p->R, h, w, tile,
                          pose_at(p, p->packed_grad_poses, capsule, h, w, tile));
}

/* ---------------------------------------------------------------------------------------------- one chunk */

typedef struct { /* slots of one part that are worked on together */
    size first_tile, num_tiles; /* of the part */
    size first, count;          /* slots, counted within the part */
    size N;                     /* count x C vectors side by side */
} Chunk;

typedef struct {
    size tile, h, w, index; /* index: among all slots of the pass */
} Slot;

INLINE Slot slot_at(const Pass *p, const Chunk *chunk, size k) {
    const size within = chunk->first + k;
    const size position = within / chunk->num_tiles, tile = chunk->first_tile + within % chunk->num_tiles;
    return (Slot){tile, position / p->out_w, position % p->out_w, position * p->tiles + tile};
}

typedef struct { /* what a part needs for a chunk; JQ x N vectors unless said otherwise */
    vec *children;      /* R x N */
    vec *grad_children; /* R x N */
    vec *votes, *parents, *sums, *grad_sums;
    vec *routing, *grad_routing; /* J x chunk_slots */
} Work;

INLINE size work_vectors(const Pass *p) {
    const size columns = p->chunk_slots * p->C;
    return 2 * p->R * columns + 4 * p->JQ * columns + 2 * p->J * p->chunk_slots;
}

INLINE Work work_of(const Pass *p, size part) {
    const size columns = p->chunk_slots * p->C;
    vec *next = (vec *)(p->work + part * p->work_bytes);
    Work work;
    work.children = next, next += p->R * columns;
    work.grad_children = next, next += p->R * columns;
    work.votes = next, next += p->JQ * columns;
    work.parents = next, next += p->JQ * columns;
    work.sums = next, next += p->JQ * columns;
    work.grad_sums = next, next += p->JQ * columns;
    work.routing = next, next += p->J * p->chunk_slots;
    work.grad_routing = next;
    return work;
}

INLINE void load_parents(const Pass *p, const Chunk *chunk, Tensor from, vec *to) {
    for (size k = 0; k < chunk->count; k++) {
        const Slot slot = slot_at(p, chunk, k);
        for (size j = 0; j < p->J; j++)
            load_capsule(p, from, j, p->Q, slot.h, slot.w, slot.tile, to + j * p->Q * chunk->N + k * p->C, chunk->N);
    }
}

INLINE void load_children(const Pass *p, const size C, const Chunk *chunk, size capsule, size ky, size kx, vec *to) {
    for (size k = 0; k < chunk->count; k++) {
        const Slot slot = slot_at(p, chunk, k);
        const vec *from =
            pose_at(p, p->packed_poses, capsule, slot.h * p->stride + ky, slot.w * p->stride + kx, slot.tile);
        for (size r = 0; r < p->R; r++)
            for (size c = 0; c < C; c++) to[r * chunk->N + k * C + c] = from[r * C + c];
    }
}

INLINE void add_grad_children(const Pass *p, const size C, const Chunk *chunk, size capsule, size ky, size kx,
                              const vec *from) {
    for (size k = 0; k < chunk->count; k++) {
        const Slot slot = slot_at(p, chunk, k);
        vec *to =
            pose_at(p, p->packed_grad_poses, capsule, slot.h * p->stride + ky, slot.w * p->stride + kx, slot.tile);
        for (size r = 0; r < p->R; r++)
            for (size c = 0; c < C; c++) to[r * C + c] += from[r * chunk->N + k * C + c];
    }
}

/* <a_j, b_j> for all parents and slots: (JQ x N), (JQ x N) -> (J x count). */
INLINE void dot_capsules(const Pass *p, const size C, const Chunk *chunk, const vec *a, const vec *b, vec *out) {
    const size N = chunk->N;
    for (size j = 0; j < p->J; j++)
        for (size k = 0; k < chunk->count; k++) {
            vec even = {0}, odd = {0};
            for (size q = 0; q < p->Q; q++) {
                const size at = (j * p->Q + q) * N + k * C;
                size c = 0;
                for (; c + 2 <= C; c += 2) {
                    even += a[at + c] * b[at + c];
                    odd += a[at + c + 1] * b[at + c + 1];
                }
                if (c < C) {
                    vec product = a[at + c] * b[at + c];
                    if (q & 1) odd += product;
                    else even += product;
                }
            }
            out[j * chunk->count + k] = even + odd;
        }
}

/* Routing coefficients of one child, from its votes: softmax over the parents of the scaled agreement. */
INLINE void route_child(const Pass *p, const size C, const Chunk *chunk, const Work *work) {
    const size count = chunk->count;
    vec *routing = work->routing;
    dot_capsules(p, C, chunk, work->votes, work->parents, routing);
    for (size k = 0; k < count; k++) {
        vec highest = routing[k] * p->scale;
        for (size j = 0; j < p->J; j++) {
            vec agreement = routing[j * count + k] * p->scale;
            routing[j * count + k] = agreement;
            highest = choose(agreement > highest, agreement, highest);
        }
        vec total = {0};
        for (size j = 0; j < p->J; j++) {
            vec unnormalized = exp_negative(routing[j * count + k] - highest);
            routing[j * count + k] = unnormalized;
            total += unnormalized;
        }
        vec share = 1.0f / total;
        for (size j = 0; j < p->J; j++) routing[j * count + k] *= share;
    }
}

INLINE const float *weight_at(const Pass *p, const float *weight, size capsule, size ky, size kx) {
    return weight + ((capsule * p->kernel + ky) * p->kernel + kx) * weight_of_child(p);
}

/* Put the sums of a chunk where the part's copy of them lies. */
INLINE void keep_partial(const Pass *p, const Chunk *chunk, size part_by_capsule, const vec *from) {
    vec *copy = p->partial + part_by_capsule * num_slots(p) * p->JQ * p->C;
    for (size k = 0; k < chunk->count; k++) {
        vec *to = copy + slot_at(p, chunk, k).index * p->JQ * p->C;
        for (size jq = 0; jq < p->JQ; jq++)
            for (size c = 0; c < p->C; c++) to[jq * p->C + c] = from[jq * chunk->N + k * p->C + c];
    }
}

/* Add the parts' copies in order, and unpack: a task for every slot. */
INLINE void add_partials(const Pass *p, size index, Tensor to) {
    const size tile = index % p->tiles, position = index / p->tiles;
    const size vectors = p->JQ * p->C, step = num_slots(p) * vectors;
    vec *total = p->partial + index * vectors;
    for (size part = 1; part < p->parts_by_capsule; part++)
        for (size k = 0; k < vectors; k++) total[k] += total[part * step + k];
    for (size j = 0; j < p->J; j++)
        store_capsule(p, to, j, p->Q, position / p->out_w, position % p->out_w, tile, total + j * p->Q * p->C);
}

typedef struct {
    size by_capsule, by_tile, first_capsule, last_capsule, first_tile, num_tiles;
} Part;

INLINE Part part_at(const Pass *p, size index) {
    Part part;
    part.by_capsule = index % p->parts_by_capsule;
    part.by_tile = index / p->parts_by_capsule;
    part.first_capsule = part.by_capsule * p->n / p->parts_by_capsule;
    part.last_capsule = (part.by_capsule + 1) * p->n / p->parts_by_capsule;
    part.first_tile = part.by_tile * p->tiles / p->parts_by_tile;
    part.num_tiles = (part.by_tile + 1) * p->tiles / p->parts_by_tile - part.first_tile;
    return part;
}

/* ------------------------------------------------------------------------------------------------- forward */

INLINE void forward_part_with(Pass *p, size index, const size C) {
    const Part part = part_at(p, index);
    const Work work = work_of(p, index);
    const size slots = part.num_tiles * p->slots_per_tile;
    for (size first = 0; first < slots; first += p->chunk_slots) {
        const size count = minimum(p->chunk_slots, slots - first);
        const Chunk chunk = {part.first_tile, part.num_tiles, first, count, count * p->C};
        const size N = chunk.N;
        load_parents(p, &chunk, p->parents, work.parents);
        memset(work.sums, 0, (size_t)(p->JQ * N) * sizeof(vec));
        for (size capsule = part.first_capsule; capsule < part.last_capsule; capsule++)
            for (size ky = 0; ky < p->kernel; ky++)
                for (size kx = 0; kx < p->kernel; kx++) {
                    load_children(p, C, &chunk, capsule, ky, kx, work.children);
                    multiply(p->JQ, N, p->R, weight_at(p, p->weight, capsule, ky, kx), p->R, 1, work.children,
                             work.votes);
                    route_child(p, C, &chunk, &work);
                    for (size jq = 0; jq < p->JQ; jq++)
                        for (size k = 0; k < count; k++) {
                            const vec routing = work.routing[jq / p->Q * count + k];
                            for (size c = 0; c < C; c++)
                                work.sums[jq * N + k * C + c] += routing * work.votes[jq * N + k * C + c];
                        }
                }
        keep_partial(p, &chunk, part.by_capsule, work.sums);
    }
}

/* The columns of a pose are a constant in the loops for the pose sizes that are common. */
#define FOR_COMMON_COLUMNS(function, p, index)        \
    switch ((p)->C) {                                 \
    case 1: function(p, index, 1); break;             \
    case 4: function(p, index, 4); break;             \
    case 8: function(p, index, 8); break;             \
    default: function(p, index, (p)->C);              \
    }

static void forward_part(Pass *p, size index) { FOR_COMMON_COLUMNS(forward_part_with, p, index) }

static void finish_sums(Pass *p, size slot) { add_partials(p, slot, p->sums); }

/* ------------------------------------------------------------------------------------------------ backward */

/* With g_j the gradient of s_j: dr_ij = <g_j, V_ij>, da_ij = scale r_ij (dr_ij - sum_j' r_ij' dr_ij'),
 * dP_j = sum_i da_ij V_ij, dV_ij = r_ij g_j + da_ij P_j, dP_i = sum_j W_ij^T dV_ij, dW_ij = dV_ij P_i^T. */
INLINE void backward_part_with(Pass *p, size index, const size C) {
    const Part part = part_at(p, index);
    const Work work = work_of(p, index);
    const size slots = part.num_tiles * p->slots_per_tile;
    float *grad_weight = p->grad_weight;
    if (part.by_tile > 0)
        grad_weight = p->partial_weight + (part.by_tile - 1) * num_children(p) * weight_of_child(p);
    for (size first = 0; first < slots; first += p->chunk_slots) {
        const size count = minimum(p->chunk_slots, slots - first);
        const Chunk chunk = {part.first_tile, part.num_tiles, first, count, count * p->C};
        const size N = chunk.N;
        load_parents(p, &chunk, p->parents, work.parents);
        load_parents(p, &chunk, p->grad_sums, work.grad_sums);
        vec *grad_parents = work.sums;
        memset(grad_parents, 0, (size_t)(p->JQ * N) * sizeof(vec));
        for (size capsule = part.first_capsule; capsule < part.last_capsule; capsule++)
            for (size ky = 0; ky < p->kernel; ky++)
                for (size kx = 0; kx < p->kernel; kx++) {
                    const float *weight = weight_at(p, p->weight, capsule, ky, kx);
                    load_children(p, C, &chunk, capsule, ky, kx, work.children);
                    multiply(p->JQ, N, p->R, weight, p->R, 1, work.children, work.votes);
                    route_child(p, C, &chunk, &work);
                    dot_capsules(p, C, &chunk, work.votes, work.grad_sums, work.grad_routing);
                    for (size k = 0; k < count; k++) {
                        vec inner = {0};
                        for (size j = 0; j < p->J; j++)
                            inner += work.routing[j * count + k] * work.grad_routing[j * count + k];
                        for (size j = 0; j < p->J; j++) {
                            vec *grad = work.grad_routing + j * count + k;
                            *grad = (*grad - inner) * work.routing[j * count + k] * p->scale;
                        }
                    }
                    for (size jq = 0; jq < p->JQ; jq++)
                        for (size k = 0; k < count; k++) {
                            const vec routing = work.routing[jq / p->Q * count + k];
                            const vec grad_agreement = work.grad_routing[jq / p->Q * count + k];
                            for (size c = 0; c < C; c++) {
                                const size at = jq * N + k * C + c;
                                grad_parents[at] += grad_agreement * work.votes[at];
                                work.votes[at] = routing * work.grad_sums[at] + grad_agreement * work.parents[at];
                            }
                        }
                    const vec *grad_votes = work.votes;
                    multiply(p->R, N, p->JQ, weight, 1, p->R, grad_votes, work.grad_children);
                    add_grad_children(p, C, &chunk, capsule, ky, kx, work.grad_children);
                    multiply_transposed(p->JQ, p->R, N, grad_votes, work.children,
                                        (float *)weight_at(p, grad_weight, capsule, ky, kx));
                }
        keep_partial(p, &chunk, part.by_capsule, grad_parents);
    }
}

static void backward_part(Pass *p, size index) { FOR_COMMON_COLUMNS(backward_part_with, p, index) }

static void finish_grad_parents(Pass *p, size slot) { add_partials(p, slot, p->grad_parents); }

static void finish_grad_weight(Pass *p, size child) {
    const size count = weight_of_child(p), step = num_children(p) * count;
    float *to = p->grad_weight + child * count;
    for (size part = 1; part < p->parts_by_tile; part++) {
        const float *from = p->partial_weight + (part - 1) * step + child * count;
        for (size k = 0; k < count; k++) to[k] += from[k];
    }
}

/* --------------------------------------------------------------------------------------------------- entry */

enum { SIZE_KERNEL = NUM_DIMS, SIZE_STRIDE, SIZE_PARENTS, SIZE_PARENT_ROWS };

static Pass describe(const size *sizes, float scale, const float *weight, size threads) {
    Pass p;
    memset(&p, 0, sizeof p);
    p.n = sizes[DIM_CAPSULES], p.R = sizes[DIM_ROWS], p.C = sizes[DIM_COLUMNS];
    p.B = sizes[DIM_BATCH], p.H = sizes[DIM_HEIGHT], p.W = sizes[DIM_WIDTH];
    p.kernel = sizes[SIZE_KERNEL], p.stride = sizes[SIZE_STRIDE];
    p.J = sizes[SIZE_PARENTS], p.Q = sizes[SIZE_PARENT_ROWS];
    p.scale = scale, p.weight = weight;
    p.out_h = (p.H - p.kernel) / p.stride + 1, p.out_w = (p.W - p.kernel) / p.stride + 1;
    p.tiles = ceil_div(p.B, LANES), p.JQ = p.J * p.Q, p.slots_per_tile = p.out_h * p.out_w;
    p.parts_by_capsule = minimum(threads, p.n);
    p.parts_by_tile = minimum(threads / p.parts_by_capsule, p.tiles);
    p.parts = p.parts_by_capsule * p.parts_by_tile;
    const size slots_of_part = ceil_div(p.tiles, p.parts_by_tile) * p.slots_per_tile;
    p.chunk_slots = minimum(ceil_div(CHUNK_COLUMNS, p.C), slots_of_part);
    p.work_bytes = round_up(work_vectors(&p) * (size)sizeof(vec), CACHE_LINE);
    return p;
}

static int allocate(void **to, size bytes) { return posix_memalign(to, CACHE_LINE, (size_t)(bytes > 0 ? bytes : 1)); }

static void release(Pass *p) {
    free(p->packed_poses), free(p->packed_grad_poses), free(p->partial), free(p->partial_weight), free(p->work);
}

static int allocate_scratch(Pass *p, int backward) {
    const size pose_bytes = p->n * p->H * p->W * p->tiles * p->R * p->C * (size)sizeof(vec);
    const size weight_bytes = num_children(p) * weight_of_child(p) * (size)sizeof(float);
    const size partial_bytes = p->parts_by_capsule * num_slots(p) * p->JQ * p->C * (size)sizeof(vec);
    int failed = allocate((void **)&p->packed_poses, pose_bytes);
    failed |= allocate((void **)&p->partial, partial_bytes);
    failed |= allocate((void **)&p->work, p->parts * p->work_bytes);
    if (backward) {
        failed |= allocate((void **)&p->packed_grad_poses, pose_bytes);
        failed |= allocate((void **)&p->partial_weight, (p->parts_by_tile - 1) * weight_bytes);
        if (!failed) {
            memset(p->packed_grad_poses, 0, (size_t)pose_bytes);
            memset(p->partial_weight, 0, (size_t)((p->parts_by_tile - 1) * weight_bytes));
            memset(p->grad_weight, 0, (size_t)weight_bytes);
        }
    }
    return failed;
}

/* For tests, which compile all widths that their machine can run. */
int overlaycaps_lanes(void) { return LANES; }

/* Returns 0, or 1 if there is not enough memory. Sizes: n R C B H W, kernel, stride, J, Q. */
int overlaycaps_forward(const size *sizes, float scale, float *poses, const size *pose_strides, const float *weight,
                        float *parents, const size *parent_strides, float *sums, const size *sum_strides, size threads,
                        OmpParallel omp) {
    Pass p = describe(sizes, scale, weight, threads);
    p.poses = (Tensor){poses, pose_strides};
    p.parents = (Tensor){parents, parent_strides};
    p.sums = (Tensor){sums, sum_strides};
    int failed = allocate_scratch(&p, 0);
    if (!failed) {
        run_tasks(pack_poses, &p, p.n * p.H, threads, omp);
        run_tasks(forward_part, &p, p.parts, threads, omp);
        run_tasks(finish_sums, &p, num_slots(&p), threads, omp);
    }
    release(&p);
    return failed;
}

int overlaycaps_backward(const size *sizes, float scale, float *poses, const size *pose_strides, const float *weight,
                         float *parents, const size *parent_strides, float *grad_sums, const size *grad_sum_strides,
                         float *grad_poses, const size *grad_pose_strides, float *grad_weight, float *grad_parents,
                         const size *grad_parent_strides, size threads, OmpParallel omp) {
    Pass p = describe(sizes, scale, weight, threads);
    p.poses = (Tensor){poses, pose_strides};
    p.parents = (Tensor){parents, parent_strides};
    p.grad_sums = (Tensor){grad_sums, grad_sum_strides};
    p.grad_poses = (Tensor){grad_poses, grad_pose_strides};
    p.grad_parents = (Tensor){grad_parents, grad_parent_strides};
    p.grad_weight = grad_weight;
    int failed = allocate_scratch(&p, 1);
    if (!failed) {
        run_tasks(pack_poses, &p, p.n * p.H, threads, omp);
        run_tasks(backward_part, &p, p.parts, threads, omp);
        run_tasks(finish_grad_parents, &p, num_slots(&p), threads, omp);
        if (p.parts_by_tile > 1) run_tasks(finish_grad_weight, &p, num_children(&p), threads, omp);
        run_tasks(unpack_grad_poses, &p, p.n * p.H, threads, omp);
    }
    release(&p);
    return failed;
}
