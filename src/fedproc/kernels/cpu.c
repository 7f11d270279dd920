/* A client's training step, on one core, in float32: its batch, relu(max_pool2(conv(x))) with its gradients for
 * images (B, C, H, W) and N output channels, the contrast with prototypes, and the update of its parameters.
 *
 * Forwards, the channels out of one window's four places are accumulated side by side in vector registers. Only the
 * largest of the four counts, so backwards each window and channel touches one patch: its rows of SIDE weights are
 * vectors of 8, of which the rest is unused. What is read or written past a row stays within padded copies.
 */

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef float v8 __attribute__((vector_size(32)));
typedef float v16 __attribute__((vector_size(64)));
typedef float v8u __attribute__((vector_size(32), aligned(4)));
typedef int i8 __attribute__((vector_size(32)));
typedef int i16 __attribute__((vector_size(64)));

enum { PAD = 8, NONE = 4 };

#define SELECT(mask, a, b, I, V) ((V)(((mask) & (I)(a)) | (~(mask) & (I)(b))))

/* WINDOWS neighbours at once: the four sums of all channels, then the largest, its place, bias and relu. */
#define DEFINE_WINDOWS(NAME, V, I, WINDOWS)                                                                         \
    static void NAME(const float *corner, const V *w, const V bias, float *y, signed char *won, const int *offset,  \
                     int weights, int W, int stride, int channels)                                                  \
    {                                                                                                               \
        const I one = (I){0} + 1, two = one + 1, three = two + 1, none = (I){0} + NONE;                             \
        V a[WINDOWS][4] = {{{0}}};                                                                                  \
        for (int k = 0; k < weights; k++) {                                                                         \
            const float *p = corner + offset[k];                                                                    \
            const V weight = w[k];                                                                                  \
            _Pragma("GCC unroll 4") for (int i = 0; i < WINDOWS; i++)                                               \
            {                                                                                                       \
                a[i][0] += weight * p[2 * i];                                                                       \
                a[i][1] += weight * p[2 * i + 1];                                                                   \
                a[i][2] += weight * p[2 * i + W];                                                                   \
                a[i][3] += weight * p[2 * i + W + 1];                                                               \
            }                                                                                                       \
        }                                                                                                           \
        _Pragma("GCC unroll 4") for (int i = 0; i < WINDOWS; i++)                                                   \
        {                                                                                                           \
            V best = a[i][0];                                                                                       \
            I which = {0}, mask = a[i][1] > best;                                                                   \
            best = SELECT(mask, a[i][1], best, I, V), which = (mask & one) | (~mask & which);                       \
            mask = a[i][2] > best;                                                                                  \
            best = SELECT(mask, a[i][2], best, I, V), which = (mask & two) | (~mask & which);                       \
            mask = a[i][3] > best;                                                                                  \
            best = SELECT(mask, a[i][3], best, I, V), which = (mask & three) | (~mask & which);                     \
            const V sum = a[i][0] + a[i][1] + a[i][2] + a[i][3];                                                    \
            mask = sum != sum; /* nan is larger than everything */                                                  \
            best = SELECT(mask, sum, best, I, V) + bias;                                                            \
            mask = best > (V){0};                                                                                   \
            which = (mask & which) | (~mask & none);                                                                \
            mask = best < (V){0};                                                                                   \
            best = SELECT(mask, (V){0}, best, I, V);                                                                \
            for (int n = 0; n < channels; n++)                                                                      \
                y[n * stride + i] = best[n];                                                                        \
            for (int n = 0; won && n < channels; n++)                                                               \
                won[n * stride + i] = (signed char)which[n];                                                        \
        }                                                                                                           \
    }

#define DEFINE_FORWARD(NAME, V, I)                                                                                  \
    DEFINE_WINDOWS(NAME##_one, V, I, 1)                                                                             \
    DEFINE_WINDOWS(NAME##_two, V, I, 2)                                                                             \
    static void NAME(const float *x, const V *w, const V bias, float *y, signed char *won, const int *offset,       \
                     int weights, int W, int PH, int PW, int channels)                                              \
    {                                                                                                               \
        for (int row = 0; row < PH; row++) {                                                                        \
            const float *line = x + 2 * row * W;                                                                    \
            float *to = y + row * PW;                                                                               \
            signed char *who = won ? won + row * PW : NULL;                                                         \
            int c = 0;                                                                                              \
            for (; c + 1 < PW; c += 2)                                                                              \
                NAME##_two(line + 2 * c, w, bias, to + c, who ? who + c : NULL, offset, weights, W, PH * PW,          \
                           channels);                                                                               \
            if (c < PW)                                                                                             \
                NAME##_one(line + 2 * c, w, bias, to + c, who ? who + c : NULL, offset, weights, W, PH * PW,          \
                           channels);                                                                               \
        }                                                                                                           \
    }

DEFINE_FORWARD(forward8, v8, i8)
DEFINE_FORWARD(forward16, v16, i16)

/* y (B, N, PH, PW), and which of a window's four places won, for the gradients; null where none are wanted. */
int conv_relu_pool(const float *x, const float *w, const float *bias, float *y, signed char *won, int B, int C, int H,
                   int W, int N, int SIDE)
{
    const int weights = C * SIDE * SIDE, PH = (H - SIDE + 1) / 2, PW = (W - SIDE + 1) / 2;
    const int wide = N <= 8 ? 8 : 16, blocks = (N + wide - 1) / wide;
    int *offset = malloc(sizeof(int) * (size_t)weights);
    float *packed = aligned_alloc(64, sizeof(float) * (size_t)(blocks * (weights + 1) * wide));
    if (!offset || !packed) {
        free(offset), free(packed);
        return 1;
    }
    for (int k = 0; k < weights; k++)
        offset[k] = k / (SIDE * SIDE) * H * W + k % (SIDE * SIDE) / SIDE * W + k % SIDE;
    for (int block = 0; block < blocks; block++)
        for (int k = 0; k <= weights; k++)
            for (int n = 0; n < wide; n++) {
                const int out = block * wide + n;
                const float value = out >= N ? 0 : k < weights ? w[out * weights + k] : bias[out];
                packed[(block * (weights + 1) + k) * wide + n] = value;
            }
    for (int b = 0; b < B; b++)
        for (int block = 0; block < blocks; block++) {
            const int left = N - block * wide, channels = left < wide ? left : wide;
            const long at = ((long)b * N + block * wide) * PH * PW;
            const float *image = x + (long)b * C * H * W, *mine = packed + block * (weights + 1) * wide;
            signed char *who = won ? won + at : NULL;
            if (wide == 8)
                forward8(image, (const v8 *)mine, ((const v8 *)mine)[weights], y + at, who, offset, weights, W, PH, PW,
                         channels);
            else
                forward16(image, (const v16 *)mine, ((const v16 *)mine)[weights], y + at, who, offset, weights, W, PH,
                          PW, channels);
        }
    free(offset), free(packed);
    return 0;
}

/* Adds gradient times patch to `sums`, ROWS rows of 8, for each of `count` patches. */
#define DEFINE_PATCHES(NAME, CHANNELS, SIDE)                                                                        \
    static void NAME(v8 *sums, const float *x, const int *places, const float *gradients, int count, int H, int W)  \
    {                                                                                                               \
        v8 acc[CHANNELS * SIDE];                                                                                    \
        for (int r = 0; r < CHANNELS * SIDE; r++)                                                                   \
            acc[r] = sums[r];                                                                                       \
        for (int i = 0; i < count; i++) {                                                                           \
            const float *patch = x + places[i];                                                                     \
            const float gradient = gradients[i];                                                                    \
            _Pragma("GCC unroll 8") for (int c = 0; c < CHANNELS; c++)                                              \
                _Pragma("GCC unroll 8") for (int r = 0; r < SIDE; r++)                                              \
                    acc[c * SIDE + r] += gradient * *(const v8u *)(patch + c * H * W + r * W);                      \
        }                                                                                                           \
        for (int r = 0; r < CHANNELS * SIDE; r++)                                                                   \
            sums[r] = acc[r];                                                                                       \
    }

DEFINE_PATCHES(patches_1_5, 1, 5)
DEFINE_PATCHES(patches_3_5, 3, 5)
DEFINE_PATCHES(patches_6_5, 6, 5)

static void patches(v8 *sums, const float *x, const int *places, const float *gradients, int count, int H, int W, int C,
                    int SIDE)
{
    for (int i = 0; i < count; i++)
        for (int c = 0; c < C; c++)
            for (int r = 0; r < SIDE; r++)
                sums[c * SIDE + r] += gradients[i] * *(const v8u *)(x + places[i] + c * H * W + r * W);
}

/* Gradients of w and bias, and of x where dx is not null; g and won are (B, N, PH, PW). */
int conv_relu_pool_backward(const float *x, const float *w, const float *g, const signed char *won, float *dw, float *db,
                            float *dx, int B, int C, int H, int W, int N, int SIDE)
{
    const int PH = (H - SIDE + 1) / 2, PW = (W - SIDE + 1) / 2, rows = C * SIDE, image = C * H * W;
    v8 *sums = aligned_alloc(32, sizeof(v8) * (size_t)(N * rows)), *taps = aligned_alloc(32, sizeof(v8) * (size_t)(N * rows));
    float *padded = calloc((size_t)(image + PAD), sizeof(float)), *slope = calloc((size_t)(image + PAD), sizeof(float));
    float *gradients = malloc(sizeof(float) * (size_t)(PH * PW + 1));
    int *places = malloc(sizeof(int) * (size_t)(PH * PW + 1));
    const int failed = !sums || !taps || !padded || !slope || !gradients || !places || SIDE > 8;
    if (!failed) {
        memset(sums, 0, sizeof(v8) * (size_t)(N * rows));
        memset(taps, 0, sizeof(v8) * (size_t)(N * rows));
        memset(db, 0, sizeof(float) * (size_t)N);
        for (int r = 0; r < N * rows; r++)
            for (int s = 0; s < SIDE; s++)
                taps[r][s] = w[r * SIDE + s];
    }
    for (int b = 0; b < B && !failed; b++) {
        memcpy(padded, x + (long)b * image, sizeof(float) * (size_t)image);
        if (dx)
            memset(slope, 0, sizeof(float) * (size_t)(image + PAD));
        for (int n = 0; n < N; n++) {
            const float *mine = g + ((long)b * N + n) * PH * PW;
            const signed char *which = won + ((long)b * N + n) * PH * PW;
            int count = 0;
            for (int p = 0; p < PH * PW; p++) {
                places[count] = (2 * (p / PW) + which[p] / 2) * W + 2 * (p % PW) + which[p] % 2;
                gradients[count] = mine[p];
                count += which[p] != NONE;
            }
            for (int i = 0; i < count; i++)
                db[n] += gradients[i];
            v8 *sum = sums + n * rows;
            if (SIDE == 5 && C == 1)
                patches_1_5(sum, padded, places, gradients, count, H, W);
            else if (SIDE == 5 && C == 3)
                patches_3_5(sum, padded, places, gradients, count, H, W);
            else if (SIDE == 5 && C == 6)
                patches_6_5(sum, padded, places, gradients, count, H, W);
            else
                patches(sum, padded, places, gradients, count, H, W, C, SIDE);
            if (!dx)
                continue;
            for (int i = 0; i < count; i++)
                for (int c = 0; c < C; c++)
                    for (int r = 0; r < SIDE; r++) {
                        v8u *to = (v8u *)(slope + places[i] + c * H * W + r * W);
                        *to += gradients[i] * taps[n * rows + c * SIDE + r];
                    }
        }
        if (dx)
            memcpy(dx + (long)b * image, slope, sizeof(float) * (size_t)image);
    }
    for (int r = 0; r < N * rows && !failed; r++)
        for (int s = 0; s < SIDE; s++)
            dw[r * SIDE + s] = sums[r][s];
    free(sums), free(taps), free(padded), free(slope), free(gradients), free(places);
    return failed;
}

static int reflected(int place, int size)
{
    place = place < 0 ? -place : place;
    return place >= size ? 2 * (size - 1) - place : place;
}

static int spread(int value, int about, int factor)
{
    const int hundredths = 100 * about + (value - about) * factor + 50;
    const int rounded = (hundredths < 0 ? 0 : hundredths) / 100;
    return rounded > 255 ? 255 : rounded;
}

/* The bytes of one pixel, C of them `apart`, with factors of 80 hundredths and more (data/augment.py says how). */
static void colour(unsigned char *pixel, int C, int apart, int brightness, int contrast, int saturation)
{
    for (int c = 0; c < C; c++) {
        const int bright = (pixel[c * apart] * (80 + brightness) + 50) / 100;
        pixel[c * apart] = (unsigned char)spread(bright > 255 ? 255 : bright, 128, 80 + contrast);
    }
    if (C != 3)
        return;
    const int grey = (77 * pixel[0] + 150 * pixel[apart] + 29 * pixel[2 * apart] + 128) >> 8;
    for (int c = 0; c < 3; c++)
        pixel[c * apart] = (unsigned char)spread(pixel[c * apart], grey, 80 + saturation);
}

/* Images taken from the bank by index, turned, flipped, cropped and coloured as drawn (null: not), and normalised.
 * `reflect` is what lies beyond an image's edge: its mirror image, or 0. Angles are in fixed point of 16 bits.
 */
int take_batch(const unsigned char *bank, const long *index, const short *row, const short *column, const short *flip,
               const short *angle, const short *vertical, const short *brightness, const short *contrast,
               const short *saturation, const long *cosines, const long *sines, const float *middle, const float *scale,
               float *out, int B, int C, int H, int W, int pad, int reflect)
{
    float *levels = malloc(sizeof(float) * (size_t)(C * 256));
    int *from = malloc(sizeof(int) * (size_t)(H * W));
    unsigned char *coloured = brightness ? malloc((size_t)(C * H * W)) : NULL;
    const int failed = !levels || !from || (brightness && !coloured);
    for (int i = 0; i < C * 256 && !failed; i++)
        levels[i] = ((float)(i % 256) - middle[i / 256]) * scale[i / 256];
    const int moved = row || column || flip || angle || vertical;
    for (int i = 0; i < H * W && !failed && !moved; i++)
        from[i] = i;
    for (int b = 0; b < B && !failed; b++) {
        const int down = row ? row[b] - pad : 0, right = column ? column[b] - pad : 0, mirrored = flip && flip[b];
        for (int i = 0; moved && i < H * W; i++) {
            int y = i / W, x = i % W, inside = 1;
            if (angle) {
                const long cosine = cosines[angle[b]], sine = sines[angle[b]], v = 2 * y - (H - 1), h = 2 * x - (W - 1);
                y = (int)((cosine * v - sine * h + 65536L * (H - 1) + 65536) >> 17);
                x = (int)((sine * v + cosine * h + 65536L * (W - 1) + 65536) >> 17);
                inside = y >= 0 && y < H && x >= 0 && x < W;
            }
            y = (vertical && vertical[b] ? H - 1 - y : y) + down, x = (mirrored ? W - 1 - x : x) + right;
            if (row && reflect)
                y = reflected(y, H), x = reflected(x, W);
            inside = inside && y >= 0 && y < H && x >= 0 && x < W;
            from[i] = inside ? y * W + x : -1;
        }
        const unsigned char *image = bank + index[b] * C * H * W;
        if (brightness) {
            memcpy(coloured, image, (size_t)(C * H * W));
            for (int i = 0; i < H * W; i++)
                colour(coloured + i, C, H * W, brightness[b], contrast[b], saturation[b]);
            image = coloured;
        }
        for (int c = 0; c < C; c++) {
            const unsigned char *plane = image + c * H * W;
            const float *level = levels + c * 256;
            float *to = out + ((long)b * C + c) * H * W;
            for (int i = 0; i < H * W; i++)
                to[i] = level[from[i] < 0 ? 0 : plane[from[i]]];
        }
    }
    free(levels), free(from), free(coloured);
    return failed;
}

enum { SIDE_BY_SIDE = 64 }; /* sums that do not wait for each other */

/* The sum of products of n pairs. */
static float dot(const float *a, const float *b, int n)
{
    float sums[SIDE_BY_SIDE] = {0};
    int i = 0;
    for (; i + SIDE_BY_SIDE <= n; i += SIDE_BY_SIDE)
        for (int j = 0; j < SIDE_BY_SIDE; j++)
            sums[j] += a[i + j] * b[i + j];
    for (int j = 0; i + j < n; j++)
        sums[j] += a[i + j] * b[i + j];
    for (int half = SIDE_BY_SIDE / 2; half; half /= 2)
        for (int j = 0; j < half; j++)
            sums[j] += sums[j + half];
    return sums[0];
}

/* `to` is `vector` with length 1, or 0 where it has none; gives the length, in double, where squares of floats fit. */
static float unit(const float *vector, float *to, int n)
{
    double sums[16] = {0}, total = 0;
    int i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++)
            sums[j] += (double)vector[i + j] * vector[i + j];
    for (; i < n; i++)
        sums[i % 16] += (double)vector[i] * vector[i];
    for (int j = 0; j < 16; j++)
        total += sums[j];
    const double length = sqrt(total);
    const float divisor = length < FLT_MIN ? INFINITY : (float)length;
    for (i = 0; i < n; i++)
        to[i] = vector[i] / divisor;
    return divisor;
}

/* Cross-entropies of the cosines of z (B, Q) with prototypes (K, Q) over tau, plus an offset (K) if there is one, among
 * the known classes; whether each sample's class is known, and of how many it is not; the slopes (B, Q) of the losses.
 */
int contrast(const float *z, const long *labels, const float *prototypes, const unsigned char *known,
             const float *offset, float *loss, unsigned char *counted, float *slope, int *left_out, int B, int K, int Q,
             float tau)
{
    float *directions = malloc(sizeof(float) * (size_t)(K * Q)), *own = malloc(sizeof(float) * (size_t)Q);
    float *cosines = malloc(sizeof(float) * (size_t)K), *powers = malloc(sizeof(float) * (size_t)K);
    const int failed = !directions || !own || !cosines || !powers;
    *left_out = 0;
    for (int k = 0; k < K && !failed; k++)
        unit(prototypes + (long)k * Q, directions + (long)k * Q, Q);
    for (int b = 0; b < B && !failed; b++) {
        float *to = slope + (long)b * Q;
        const float length = unit(z + (long)b * Q, own, Q);
        const int label = (int)labels[b];
        counted[b] = known[label];
        loss[b] = 0;
        memset(to, 0, sizeof(float) * (size_t)Q);
        *left_out += !counted[b];
        if (!counted[b])
            continue;
        float top = -INFINITY, total = 0, along = 0;
        for (int k = 0; k < K; k++) {
            cosines[k] = dot(own, directions + (long)k * Q, Q);
            powers[k] = known[k] ? cosines[k] / tau + (offset ? offset[k] : 0) : -INFINITY;
            top = powers[k] > top || powers[k] != powers[k] ? powers[k] : top;
        }
        const float score = powers[label];
        for (int k = 0; k < K; k++)
            total += powers[k] = expf(powers[k] - top);
        loss[b] = logf(total) + top - score;
        for (int k = 0; k < K; k++) {
            const float pull = (powers[k] / total - (k == label)) / tau, *direction = directions + (long)k * Q;
            along += pull * cosines[k];
            for (int q = 0; q < Q; q++)
                to[q] += pull * direction[q];
        }
        for (int q = 0; q < Q; q++)
            to[q] = (to[q] - along * own[q]) / length;
    }
    free(directions), free(own), free(cosines), free(powers);
    return failed;
}

/* SGD with momentum and weight decay, rounded where torch.optim.SGD rounds: its product with the momentum is, so here
 * the compiler must not fuse product and sum.
 */
#ifndef __clang__
__attribute__((optimize("fp-contract=off")))
#endif
int sgd(float *params, const float *gradient, float *velocity, int count, float lr, float momentum, float decay)
{
#ifdef __clang__
#pragma clang fp contract(off)
#endif
    for (int i = 0; i < count; i++) {
        const float slope = __builtin_fmaf(params[i], decay, gradient[i]);
        const float carried = velocity[i] * momentum;
        velocity[i] = carried + slope;
        params[i] = __builtin_fmaf(velocity[i], -lr, params[i]);
    }
    return 0;
}

static unsigned long mixed(unsigned long word)
{
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9UL;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBUL;
    return word ^ (word >> 31);
}

static unsigned long folded(unsigned long key, unsigned long value)
{
    const unsigned long golden = 0x9E3779B97F4A7C15UL;
    return mixed((mixed(value + golden) ^ key) + golden);
}

/* The streams' 64 bits at (key, epoch, position), for S epochs and positions 0 to B - 1. */
int hash_bits(const long *epochs, long *out, unsigned long key, int S, int B)
{
    for (long s = 0; s < S; s++) {
        const unsigned long at = folded(key, (unsigned long)epochs[s]);
        for (long b = 0; b < B; b++)
            out[s * B + b] = (long)folded(at, (unsigned long)b);
    }
    return 0;
}

/* Integers below `below` at (key, epoch, position), for S epochs and positions (S, B). */
int hash_draws(const long *epochs, const long *positions, short *out, unsigned long key, int S, int B, int below)
{
    for (long s = 0; s < S; s++) {
        const unsigned long at = folded(key, (unsigned long)epochs[s]);
        for (long b = 0; b < B; b++)
            out[s * B + b] = (short)(((folded(at, (unsigned long)positions[s * B + b]) >> 32) * (unsigned long)below) >> 32);
    }
    return 0;
}
