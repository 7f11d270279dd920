/* relu(max_pool2(conv(x))) on one core, in float32, with its gradients: images (B, C, H, W), N output channels.
 *
 * Forwards, the sums of a window's four places stand side by side in vector registers: of few channels those of many
 * windows, else those of many channels. Either way a sum is taken in the weights' order. Only the largest of the four
 * counts, so backwards each window and channel touches one patch: its rows of SIDE weights are vectors of 8, of which
 * the rest is unused. What is read past an image's end stays within a padded copy.
 */

#ifdef __AVX512F__
#include <immintrin.h>
#endif
#include <stdlib.h>
#include <string.h>

#include "cpu.h"

enum { PAD = 2 * WIDE, NONE = 4, FEW = 8 };

/* The largest of a window's four sums, with bias and relu, and which of the places won. */
#define DEFINE_LARGEST(NAME, V, I)                                                                                  \
    INLINE V NAME(const V *sums, const V bias, I *won)                                                              \
    {                                                                                                               \
        const I one = (I){0} + 1, two = one + 1, three = two + 1, none = (I){0} + NONE;                             \
        V best = sums[0];                                                                                           \
        I which = {0}, mask = sums[1] > best;                                                                       \
        best = SELECT(mask, sums[1], best, I, V), which = (mask & one) | (~mask & which);                           \
        mask = sums[2] > best;                                                                                      \
        best = SELECT(mask, sums[2], best, I, V), which = (mask & two) | (~mask & which);                           \
        mask = sums[3] > best;                                                                                      \
        best = SELECT(mask, sums[3], best, I, V), which = (mask & three) | (~mask & which);                         \
        const V sum = sums[0] + sums[1] + sums[2] + sums[3];                                                        \
        mask = sum != sum; /* nan is larger than everything */                                                      \
        best = SELECT(mask, sum, best, I, V) + bias;                                                                \
        mask = best > (V){0};                                                                                       \
        *won = (mask & which) | (~mask & none);                                                                     \
        mask = best < (V){0};                                                                                       \
        return SELECT(mask, (V){0}, best, I, V);                                                                    \
    }

DEFINE_LARGEST(largest, wide, wide_i)
DEFINE_LARGEST(largest16, v16, i16)

typedef signed char c16 __attribute__((vector_size(16)));
typedef signed char wide_c __attribute__((vector_size(WIDE), aligned(1)));

/* Every second value of two vectors, from the first or from the second on. */
#ifdef __AVX512F__
#define EVEN(a, b) SHUFFLED(wide_i, a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
#define ODD(a, b) SHUFFLED(wide_i, a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)
enum { CHANNELS = 6, WINDOWS = 5 }; /* whose sums the registers hold */
#else
#define EVEN(a, b) SHUFFLED(wide_i, a, b, 0, 2, 4, 6, 8, 10, 12, 14)
#define ODD(a, b) SHUFFLED(wide_i, a, b, 1, 3, 5, 7, 9, 11, 13, 15)
enum { CHANNELS = 3, WINDOWS = 2 };
#endif

/* What an image is read through: where each weight's pixel lies from a patch's corner, and the sizes. */
typedef struct {
    const int *offset;
    int weights, W, PH, PW;
} Frame;

/* What a channel's WIDE windows have, of sums of the pixels in their upper and lower rows, two vectors of each. */
INLINE void note_windows(const wide *upper, const wide *lower, float bias, float *y, signed char *won)
{
    const wide sums[4] = {EVEN(upper[0], upper[1]), ODD(upper[0], upper[1]), EVEN(lower[0], lower[1]),
                          ODD(lower[0], lower[1])};
    wide_i which;
    *(wide_u *)y = largest(sums, (wide){0} + bias, &which);
    *(wide_c *)won = __builtin_convertvector(which, wide_c);
}

/* WIDE neighbouring windows of so many channels; values and winners are `apart` from channel to channel. */
INLINE void windows_by_pixels(Frame f, const float *corner, const float *w, const float *bias, float *y,
                              signed char *won, int apart, const int channels)
{
    wide a[CHANNELS][2][2] = {{{{0}}}};
    for (int k = 0; k < f.weights; k++) {
        const wide_u *top = (const wide_u *)(corner + f.offset[k]), *low = (const wide_u *)(corner + f.offset[k] + f.W);
        const wide x[2][2] = {{top[0], top[1]}, {low[0], low[1]}};
#pragma GCC unroll 8
        for (int n = 0; n < channels; n++) {
            const float weight = w[n * f.weights + k];
            a[n][0][0] += weight * x[0][0], a[n][0][1] += weight * x[0][1];
            a[n][1][0] += weight * x[1][0], a[n][1][1] += weight * x[1][1];
        }
    }
#pragma GCC unroll 8
    for (int n = 0; n < channels; n++)
        note_windows(a[n][0], a[n][1], bias[n], y + n * apart, won + n * apart);
}

#ifdef __AVX512F__
enum { AND_A_HALF = 3 * WIDE / 4, FEWER = 3 }; /* windows of a row with so many vectors of pixels; channels that fit then */

/* The second half of a row's second vector of pixels, and the first half of the next row's. */
INLINE wide halves(const float *row, const float *next)
{
    const __m512d low = _mm512_castpd256_pd512(_mm256_loadu_pd((const double *)(row + WIDE)));
    return (wide)_mm512_insertf64x4(low, _mm256_loadu_pd((const double *)next), 1);
}

/* Two rows of AND_A_HALF windows of FEWER channels: the pixels of both fill three vectors. */
static void rows_by_pixels(Frame f, const float *corner, const float *w, const float *bias, float *y, signed char *won,
                           int apart)
{
    wide a[FEWER][2][3] = {{{{0}}}};
    for (int k = 0; k < f.weights; k++) {
        wide x[2][3];
#pragma GCC unroll 8
        for (int part = 0; part < 2; part++) {
            const float *row = corner + f.offset[k] + part * f.W, *next = row + 2 * f.W;
            x[part][0] = *(const wide_u *)row;
            x[part][1] = halves(row, next);
            x[part][2] = *(const wide_u *)(next + WIDE / 2);
        }
#pragma GCC unroll 8
        for (int n = 0; n < FEWER; n++) {
            const float weight = w[n * f.weights + k];
#pragma GCC unroll 8
            for (int i = 0; i < 3; i++)
                a[n][0][i] += weight * x[0][i], a[n][1][i] += weight * x[1][i];
        }
    }
#pragma GCC unroll 8
    for (int n = 0; n < FEWER; n++) {
        const wide upper[2] = {a[n][0][2], a[n][0][2]}, lower[2] = {a[n][1][2], a[n][1][2]};
        note_windows(a[n][0], a[n][1], bias[n], y + n * apart, won + n * apart);
        note_windows(upper, lower, bias[n], y + n * apart + WIDE, won + n * apart + WIDE); /* the second half is not wanted */
    }
}
#endif

/* All windows of so many channels of an image; what a row of windows writes past its end the next one writes again. */
INLINE void image_by_pixels(Frame f, const float *x, const float *w, const float *bias, float *y, signed char *won,
                            int apart, const int channels)
{
    for (int row = 0; row < f.PH; row++)
        for (int c = 0; c < f.PW; c += WIDE)
            windows_by_pixels(f, x + 2 * row * f.W + 2 * c, w, bias, y + row * f.PW + c, won + row * f.PW + c, apart,
                              channels);
}

/* The same; gives how many channels, of `left` ones. */
static int some_by_pixels(Frame f, const float *x, const float *w, const float *bias, float *y, signed char *won, int apart,
                          int left)
{
#ifdef __AVX512F__
    if (f.PW == AND_A_HALF && f.PH % 2 == 0 && left >= FEWER) {
        for (int row = 0; row < f.PH; row += 2)
            rows_by_pixels(f, x + 2 * row * f.W, w, bias, y + row * f.PW, won + row * f.PW, apart);
        return FEWER;
    }
#endif
    if (left >= CHANNELS)
        image_by_pixels(f, x, w, bias, y, won, apart, CHANNELS);
    else
        image_by_pixels(f, x, w, bias, y, won, apart, 1);
    return left >= CHANNELS ? CHANNELS : 1;
}

static void by_pixels(Frame f, const float *x, const float *w, const float *bias, float *y, signed char *won, int N,
                      float *values, signed char *winners)
{
    const int windows = f.PH * f.PW, apart = windows + WIDE;
    for (int n = 0; n < N;) {
        const int channels = some_by_pixels(f, x, w + n * f.weights, bias + n, values, winners, apart, N - n);
        for (int i = 0; i < channels; i++, n++) {
            memcpy(y + n * windows, values + i * apart, sizeof(float) * (size_t)windows);
            if (won)
                memcpy(won + n * windows, winners + i * apart, (size_t)windows);
        }
    }
}

/* So many neighbouring windows of 16 channels, whose weights lie side by side. */
INLINE void windows_by_channels(Frame f, const float *corner, const v16 *w, float *y, signed char *won,
                                const int windows)
{
    v16 a[WINDOWS][4] = {{{0}}};
    for (int k = 0; k < f.weights; k++) {
        const float *p = corner + f.offset[k];
        const v16 weight = w[k];
#pragma GCC unroll 8
        for (int i = 0; i < windows; i++) {
            a[i][0] += weight * p[2 * i], a[i][1] += weight * p[2 * i + 1];
            a[i][2] += weight * p[2 * i + f.W], a[i][3] += weight * p[2 * i + f.W + 1];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < windows; i++) {
        i16 which;
        *(v16u *)(y + 16 * i) = largest16(a[i], w[f.weights], &which);
        *(c16 *)(won + 16 * i) = __builtin_convertvector(which, c16);
    }
}

/* `from` (windows, 16) as `to` (channels, windows). */
static void turn_bytes(const signed char *from, signed char *to, int channels, int windows)
{
    for (int i = 0; i < windows && windows >= 16; i += 16) {
        const int at = i + 16 <= windows ? i : windows - 16;
        c16 now[16], next[16];
        memcpy(now, from + 16 * at, sizeof(now));
        for (int round = 1; round < 16; round *= 2) { /* as in turn_tile */
#pragma GCC unroll 8
            for (int r = 0; r < 8; r++) {
                next[2 * r] = SHUFFLED(c16, now[r], now[r + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
                next[2 * r + 1] = SHUFFLED(c16, now[r], now[r + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
            }
            memcpy(now, next, sizeof(now));
        }
        for (int n = 0; n < channels; n++)
            memcpy(to + (long)n * windows + at, now + n, 16);
    }
    for (int n = 0; n < channels && windows < 16; n++)
        for (int i = 0; i < windows; i++)
            to[n * windows + i] = from[16 * i + n];
}

static void by_channels(Frame f, const float *x, const v16 *w, float *y, signed char *won, int channels, float *values,
                        signed char *winners)
{
    const int windows = f.PH * f.PW;
    for (int row = 0; row < f.PH; row++)
        for (int c = 0; c < f.PW;) {
            const float *corner = x + 2 * row * f.W + 2 * c;
            float *to = values + 16 * (row * f.PW + c);
            signed char *who = winners + 16 * (row * f.PW + c);
            const int left = f.PW - c, now = left < WINDOWS ? left : WINDOWS;
            if (now == 5)
                windows_by_channels(f, corner, w, to, who, WINDOWS < 5 ? WINDOWS : 5);
            else if (now == 4)
                windows_by_channels(f, corner, w, to, who, WINDOWS < 4 ? WINDOWS : 4);
            else if (now == 3)
                windows_by_channels(f, corner, w, to, who, WINDOWS < 3 ? WINDOWS : 3);
            else if (now == 2)
                windows_by_channels(f, corner, w, to, who, 2);
            else
                windows_by_channels(f, corner, w, to, who, 1);
            c += now;
        }
    turn_back(values, y, channels, windows, 16);
    if (won)
        turn_bytes(winners, won, channels, windows);
}

/* Weights of 16 channels side by side, with the bias behind them, for each 16 of the N. */
static void pack(const float *w, const float *bias, float *packed, int N, int weights)
{
    for (int block = 0; block * 16 < N; block++)
        for (int k = 0; k <= weights; k++)
            for (int n = 0; n < 16; n++) {
                const int out = block * 16 + n;
                const float value = out >= N ? 0 : k < weights ? w[out * weights + k] : bias[out];
                packed[(block * (weights + 1) + k) * 16 + n] = value;
            }
}

/* Image b of B, with room to be read behind it: in its place where enough images follow, else as a copy whose end is 0. */
static const float *with_room(const float *x, int b, int B, int image, float *copy)
{
    if ((long)(B - 1 - b) * image >= PAD)
        return x + (long)b * image;
    memset(copy + image, 0, sizeof(float) * PAD);
    return memcpy(copy, x + (long)b * image, sizeof(float) * (size_t)image);
}

/* y (B, N, PH, PW), and which of a window's four places won, for the gradients; null where none are wanted. */
int conv_relu_pool(const float *x, const float *w, const float *bias, float *y, signed char *won, int B, int C, int H,
                   int W, int N, int SIDE)
{
    const int weights = C * SIDE * SIDE, PH = (H - SIDE + 1) / 2, PW = (W - SIDE + 1) / 2, windows = PH * PW;
    const int blocks = N > FEW ? (N + 15) / 16 : 0, image = C * H * W, room = 16 * (windows + WIDE);
    int *offset = malloc(sizeof(int) * (size_t)weights);
    float *packed = aligned_alloc(64, sizeof(float) * 16 * (size_t)(blocks * (weights + 1) + 1));
    float *last = malloc(sizeof(float) * (size_t)(image + PAD)), *values = malloc(sizeof(float) * (size_t)room);
    signed char *winners = malloc((size_t)room);
    const int failed = !offset || !packed || !last || !values || !winners;
    if (!failed) {
        for (int k = 0; k < weights; k++)
            offset[k] = k / (SIDE * SIDE) * H * W + k % (SIDE * SIDE) / SIDE * W + k % SIDE;
        pack(w, bias, packed, blocks ? N : 0, weights);
    }
    const Frame frame = {offset, weights, W, PH, PW};
    for (int b = 0; b < B && !failed; b++) {
        const float *from = with_room(x, b, B, image, last);
        float *to = y + (long)b * N * windows;
        signed char *who = won ? won + (long)b * N * windows : NULL;
        if (!blocks)
            by_pixels(frame, from, w, bias, to, who, N, values, winners);
        for (int block = 0; block < blocks; block++) {
            const int n = 16 * block, channels = N - n < 16 ? N - n : 16;
            by_channels(frame, from, (const v16 *)packed + block * (weights + 1), to + n * windows,
                        who ? who + n * windows : NULL, channels, values, winners);
        }
    }
    free(offset), free(packed), free(last), free(values), free(winners);
    return failed;
}

/* A batch's gradient on the way back: the patches that won in one channel, of one image. */
typedef struct {
    int *places;
    float *gradients;
    int count;
} Patches;

static void find_patches(Patches *found, const float *g, const signed char *won, int W, int PH, int PW)
{
    const int away[NONE + 1] = {0, 1, W, W + 1, 0};
    int count = 0;
    for (int row = 0; row < PH; row++)
        for (int c = 0; c < PW; c++) {
            const int which = won[row * PW + c];
            found->places[count] = 2 * row * W + 2 * c + away[which];
            found->gradients[count] = g[row * PW + c];
            count += which != NONE;
        }
    found->count = count;
}

/* Adds gradient times patch to `sums`, C x SIDE rows of 8. */
INLINE void add_patches(v8 *sums, const float *x, const Patches *p, int H, int W, const int C, const int SIDE)
{
    v8 acc[30];
    for (int r = 0; r < C * SIDE; r++)
        acc[r] = sums[r];
    for (int i = 0; i < p->count; i++) {
        const float *patch = x + p->places[i], gradient = p->gradients[i];
#pragma GCC unroll 8
        for (int c = 0; c < C; c++)
#pragma GCC unroll 8
            for (int r = 0; r < SIDE; r++)
                acc[c * SIDE + r] += gradient * *(const v8u *)(patch + c * H * W + r * W);
    }
    for (int r = 0; r < C * SIDE; r++)
        sums[r] = acc[r];
}

static void weight_gradient(v8 *sums, const float *x, const Patches *p, int H, int W, int C, int SIDE)
{
    if (SIDE == 5 && C == 1)
        add_patches(sums, x, p, H, W, 1, 5);
    else if (SIDE == 5 && C == 3)
        add_patches(sums, x, p, H, W, 3, 5);
    else if (SIDE == 5 && C == 6)
        add_patches(sums, x, p, H, W, 6, 5);
    else
        for (int i = 0; i < p->count; i++)
            for (int c = 0; c < C; c++)
                for (int r = 0; r < SIDE; r++)
                    sums[c * SIDE + r] += p->gradients[i] * *(const v8u *)(x + p->places[i] + c * H * W + r * W);
}

/* A row of weights between zeros, so that it can be read as it stands for the left or the right half of a window. */
enum { TAP = 16 };

static void lay_taps(const float *w, float *taps, int N, int C, int SIDE)
{
    memset(taps, 0, sizeof(float) * (size_t)(N * C * (SIDE + 2) * TAP));
    for (int nc = 0; nc < N * C; nc++)
        for (int r = 0; r < SIDE; r++)
            for (int s = 0; s < SIDE; s++)
                taps[(nc * (SIDE + 2) + r + 1) * TAP + s + 1] = w[(nc * SIDE + r) * SIDE + s];
}

/* Adds to the slope of x what one window has from all channels: SIDE + 1 rows of 8 for each of `some` of C channels. */
INLINE void add_window(float *slope, const float *taps, const Patches *p, int H, int W, const int some, const int SIDE)
{
    v8 acc[3][8] = {{{0}}};
    for (int i = 0; i < p->count; i++) {
        const float *tap = taps + p->places[i], gradient = p->gradients[i];
#pragma GCC unroll 8
        for (int c = 0; c < some; c++)
#pragma GCC unroll 8
            for (int r = 0; r <= SIDE; r++)
                acc[c][r] += gradient * *(const v8u *)(tap + (c * (SIDE + 2) + r) * TAP);
    }
#pragma GCC unroll 8
    for (int c = 0; c < some; c++)
#pragma GCC unroll 8
        for (int r = 0; r <= SIDE; r++) {
            v8u *to = (v8u *)(slope + c * H * W + r * W);
            *to += acc[c][r];
        }
}

/* The slope of x (C, H, W), with room behind it, of one image's g and won (N, PH, PW). */
static void input_gradient(float *slope, const float *taps, const float *g, const signed char *won, Patches *p, int C,
                           int H, int W, int N, int SIDE)
{
    const int PH = (H - SIDE + 1) / 2, PW = (W - SIDE + 1) / 2;
    memset(slope, 0, sizeof(float) * (size_t)(C * H * W + PAD));
    for (int row = 0; row < PH; row++)
        for (int c = 0; c < PW; c++) {
            p->count = 0;
            for (int n = 0; n < N; n++) {
                const int which = won[(n * PH + row) * PW + c];
                p->places[p->count] = (n * C * (SIDE + 2) + 1 - which / 2) * TAP + 1 - which % 2;
                p->gradients[p->count] = g[(n * PH + row) * PW + c];
                p->count += which != NONE;
            }
            float *to = slope + 2 * row * W + 2 * c;
            if (SIDE == 5 && C % 3 == 0)
                for (int each = 0; each < C; each += 3)
                    add_window(to + each * H * W, taps + each * (SIDE + 2) * TAP, p, H, W, 3, 5);
            else
                for (int each = 0; each < C; each++)
                    add_window(to + each * H * W, taps + each * (SIDE + 2) * TAP, p, H, W, 1, SIDE);
        }
}

/* Gradients of w and bias, and of x where dx is not null; g and won are (B, N, PH, PW). SIDE is at most 7. */
int conv_relu_pool_backward(const float *x, const float *w, const float *g, const signed char *won, float *dw, float *db,
                            float *dx, int B, int C, int H, int W, int N, int SIDE)
{
    const int PH = (H - SIDE + 1) / 2, PW = (W - SIDE + 1) / 2, windows = PH * PW, rows = C * SIDE, image = C * H * W;
    const int most = windows > N ? windows : N;
    v8 *sums = aligned_alloc(32, sizeof(v8) * (size_t)(N * rows));
    float *taps = aligned_alloc(64, sizeof(float) * TAP * (size_t)(N * C * (SIDE + 2) + 1));
    float *last = malloc(sizeof(float) * (size_t)(image + PAD)), *slope = malloc(sizeof(float) * (size_t)(image + PAD));
    Patches p = {malloc(sizeof(int) * (size_t)(most + 1)), malloc(sizeof(float) * (size_t)(most + 1)), 0};
    const int failed = !sums || !taps || !last || !slope || !p.places || !p.gradients;
    if (!failed) {
        memset(sums, 0, sizeof(v8) * (size_t)(N * rows));
        memset(db, 0, sizeof(float) * (size_t)N);
        if (dx)
            lay_taps(w, taps, N, C, SIDE);
    }
    for (int b = 0; b < B && !failed; b++) {
        const float *from = with_room(x, b, B, image, last), *mine = g + (long)b * N * windows;
        const signed char *which = won + (long)b * N * windows;
        for (int n = 0; n < N; n++) {
            find_patches(&p, mine + n * windows, which + n * windows, W, PH, PW);
            for (int i = 0; i < p.count; i++)
                db[n] += p.gradients[i];
            weight_gradient(sums + n * rows, from, &p, H, W, C, SIDE);
        }
        if (!dx)
            continue;
        input_gradient(slope, taps, mine, which, &p, C, H, W, N, SIDE);
        memcpy(dx + (long)b * image, slope, sizeof(float) * (size_t)image);
    }
    for (int r = 0; r < N * rows && !failed; r++)
        for (int s = 0; s < SIDE; s++)
            dw[r * SIDE + s] = sums[r][s];
    free(sums), free(taps), free(last), free(slope), free(p.places), free(p.gradients);
    return failed;
}
