/* What a client's training step has around its network and losses, on one core, in float32: its batch, the update of its
 * parameters, and the streams of random bits.
 */

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
