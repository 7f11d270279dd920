/* A client's training step, on one core, in float32: its batch, the losses with their slopes, the update of its
 * parameters, and the streams of random bits.
 */

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"

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

/* What is drawn for a batch (null: nothing), for each of its samples. */
typedef struct {
    const short *row, *column, *flip, *angle, *vertical, *brightness, *contrast, *saturation;
    const long *cosines, *sines; /* of all angles */
    int pad, reflect;
} Moves;

/* Where each pixel of sample b comes from in its image, -1 where that is beyond its edge. */
static void find_pixels(const Moves *m, int b, int *from, int H, int W)
{
    const int down = m->row ? m->row[b] - m->pad : 0, right = m->column ? m->column[b] - m->pad : 0;
    const int mirrored = m->flip && m->flip[b], turned = m->vertical && m->vertical[b];
    const long cosine = m->angle ? m->cosines[m->angle[b]] : 0, sine = m->angle ? m->sines[m->angle[b]] : 0;
    for (int to_y = 0; to_y < H; to_y++)
        for (int to_x = 0; to_x < W; to_x++) {
            int y = to_y, x = to_x, inside = 1;
            if (m->angle) {
                const long v = 2 * y - (H - 1), h = 2 * x - (W - 1);
                y = (int)((cosine * v - sine * h + 65536L * (H - 1) + 65536) >> 17);
                x = (int)((sine * v + cosine * h + 65536L * (W - 1) + 65536) >> 17);
                inside = y >= 0 && y < H && x >= 0 && x < W;
            }
            y = (turned ? H - 1 - y : y) + down, x = (mirrored ? W - 1 - x : x) + right;
            if (m->row && m->reflect)
                y = reflected(y, H), x = reflected(x, W);
            inside = inside && y >= 0 && y < H && x >= 0 && x < W;
            from[to_y * W + to_x] = inside ? y * W + x : -1;
        }
}

/* Images taken from the bank by index, turned, flipped, cropped and coloured as drawn (null: not), and normalised.
 * `reflect` is what lies beyond an image's edge: its mirror image, or 0. Angles are in fixed point of 16 bits.
 */
int take_batch(const unsigned char *bank, const long *index, const short *row, const short *column, const short *flip,
               const short *angle, const short *vertical, const short *brightness, const short *contrast,
               const short *saturation, const long *cosines, const long *sines, const float *middle, const float *scale,
               float *out, int B, int C, int H, int W, int pad, int reflect)
{
    const Moves moves = {row, column, flip, angle, vertical, brightness, contrast, saturation, cosines, sines, pad, reflect};
    const int moved = row || column || flip || angle || vertical;
    int *from = malloc(sizeof(int) * (size_t)(H * W));
    unsigned char *coloured = malloc((size_t)(C * H * W));
    const int failed = !from || !coloured;
    for (int b = 0; b < B && !failed; b++) {
        const unsigned char *image = bank + index[b] * C * H * W;
        if (moved)
            find_pixels(&moves, b, from, H, W);
        if (brightness) {
            memcpy(coloured, image, (size_t)(C * H * W));
            for (int i = 0; i < H * W; i++)
                colour(coloured + i, C, H * W, brightness[b], contrast[b], saturation[b]);
            image = coloured;
        }
        for (int c = 0; c < C; c++) {
            const unsigned char *plane = image + c * H * W;
            float *to = out + ((long)b * C + c) * H * W;
            for (int i = 0; i < H * W; i++)
                to[i] = (float)(!moved ? plane[i] : from[i] < 0 ? 0 : plane[from[i]]);
            for (int i = 0; i < H * W; i++)
                to[i] = (to[i] - middle[c]) * scale[c];
        }
    }
    free(from), free(coloured);
    return failed;
}

enum { VECTORS = 4, SIDE_BY_SIDE = 16 * VECTORS }; /* sums that do not wait for each other */

static void add_products(v16 *sums, const float *a, const float *b)
{
    for (int j = 0; j < VECTORS; j++)
        sums[j] += *(const v16u *)(a + 16 * j) * *(const v16u *)(b + 16 * j);
}

/* The sum of products of n pairs. */
static float dot(const float *a, const float *b, int n)
{
    v16 sums[VECTORS] = {{0}};
    int i = 0;
    for (; i + SIDE_BY_SIDE <= n; i += SIDE_BY_SIDE)
        add_products(sums, a + i, b + i);
    if (i < n) {
        float last[2][SIDE_BY_SIDE] = {{0}};
        memcpy(last[0], a + i, sizeof(float) * (size_t)(n - i));
        memcpy(last[1], b + i, sizeof(float) * (size_t)(n - i));
        add_products(sums, last[0], last[1]);
    }
    v16 s = (sums[0] + sums[2]) + (sums[1] + sums[3]);
    s += SHUFFLED(i16, s, s, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    s += SHUFFLED(i16, s, s, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3);
    s += SHUFFLED(i16, s, s, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1);
    return s[0] + s[1];
}

float unit(const float *vector, float *to, int n)
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

enum { SOME = 64 }; /* features at a time */

/* Adds the directions (K, Q), of which each pulls so much, of so many features. */
INLINE void pulled(float *sums, const float *pulls, const float *directions, int K, int Q, const int some)
{
    for (int k = 0; k < K; k++)
        for (int i = 0; i < some; i++)
            sums[i] += pulls[k] * directions[(long)k * Q + i];
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
    int failed = !directions || !own || !cosines || !powers ? NO_MEMORY : 0;
    *left_out = 0;
    for (int b = 0; b < B && !failed; b++)
        failed = labels[b] < 0 || labels[b] >= K ? NO_CLASS : 0;
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
        loss[b] = logf(total) + (top - score);
        for (int k = 0; k < K; k++) {
            powers[k] = (powers[k] / total - (k == label)) / tau;
            along += powers[k] * cosines[k];
        }
        for (int q = 0; q < Q; q += SOME) {
            float sums[SOME] = {0};
            const int some = Q - q < SOME ? Q - q : SOME;
            if (some == SOME)
                pulled(sums, powers, directions + q, K, Q, SOME);
            else
                pulled(sums, powers, directions + q, K, Q, some);
            for (int i = 0; i < some; i++)
                to[q + i] = (sums[i] - along * own[q + i]) / length;
        }
    }
    free(directions), free(own), free(cosines), free(powers);
    return failed;
}

/* What a step makes of losses (B), of which so many count, and of their slopes (B, n): slopes of the weighted mean, 0 where
 * the weight is, whatever the mean is. The weighted mean is added to sums[0], the mean itself to sums[term].
 */
static void weigh(const float *loss, float *slope, int B, int counted, int n, float weight, double *sums, int term)
{
    double total = 0;
    for (int b = 0; b < B; b++)
        total += loss[b];
    const float mean = (float)(total / (counted ? counted : 1)), factor = counted ? weight / (float)counted : 0;
    sums[0] += weight == 0 ? 0 : (double)(weight * mean);
    sums[term] += mean;
    for (long i = 0; i < (long)B * n; i++)
        slope[i] = weight == 0 ? 0 : factor * slope[i];
}

/* Cross-entropies (B) of logits (B, K), plus an offset (K) unless it is null, and their slopes (B, K). */
int cross_entropies(const float *logits, const long *labels, const float *offset, float *loss, float *slope, int B, int K)
{
    for (int b = 0; b < B; b++) {
        float *to = slope + (long)b * K, top = -INFINITY, total = 0;
        if (labels[b] < 0 || labels[b] >= K)
            return NO_CLASS;
        for (int k = 0; k < K; k++) {
            to[k] = logits[(long)b * K + k] + (offset ? offset[k] : 0);
            top = to[k] > top || to[k] != to[k] ? to[k] : top;
        }
        const float score = to[labels[b]];
        for (int k = 0; k < K; k++)
            total += to[k] = expf(to[k] - top);
        loss[b] = logf(total) + (top - score);
        for (int k = 0; k < K; k++)
            to[k] = to[k] / total - (k == labels[b]);
    }
    return 0;
}

/* Slopes (B, K) of weight times their mean, which goes into `sums`. */
int cross_entropy_mean(const float *logits, const long *labels, const float *offset, float *slope, double *sums, int term,
                       int B, int K, float weight)
{
    float *loss = malloc(sizeof(float) * (size_t)B);
    const int failed = loss ? cross_entropies(logits, labels, offset, loss, slope, B, K) : NO_MEMORY;
    if (!failed)
        weigh(loss, slope, B, B, K, weight, sums, term);
    free(loss);
    return failed;
}

/* Slopes (B, Q) of weight times the mean of the contrasts that count; the loss goes into `sums`. */
int contrast_mean(const float *z, const long *labels, const float *prototypes, const unsigned char *known,
                  const float *offset, float *slope, double *sums, int term, int B, int K, int Q, float tau, float weight)
{
    float *loss = malloc(sizeof(float) * (size_t)B);
    unsigned char *counted = malloc((size_t)B);
    int left_out = 0;
    const int failed = loss && counted ? contrast(z, labels, prototypes, known, offset, loss, counted, slope, &left_out, B,
                                                  K, Q, tau)
                                       : NO_MEMORY;
    if (!failed)
        weigh(loss, slope, B, B - left_out, Q, weight, sums, term);
    free(loss), free(counted);
    return failed;
}

/* Adds z (B, Q) to the sums (K, Q) of their classes, and to the counts (K); of a mask (null: none) those it has. */
int class_sums(const float *z, const long *labels, const unsigned char *mask, double *sums, long *counts, int B, int K,
               int Q)
{
    for (int b = 0; b < B; b++) {
        if ((mask && !mask[b]) || labels[b] < 0 || labels[b] >= K)
            continue;
        const float *from = z + (long)b * Q;
        double *to = sums + labels[b] * Q;
        for (int q = 0; q < Q; q++)
            to[q] += from[q];
        counts[labels[b]]++;
    }
    return 0;
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
