/* A chain of small layers on one core, in float32, forwards and backwards in one call each: convolutions with relu and
 * pooling, linear layers with or without relu, and vectors given length 1. Parameters and their gradient are flat
 * vectors; what a layer gives lies in `room`, B values of one layer after those of another.
 */

#include <stdlib.h>
#include <string.h>

#include "cpu.h"

enum { CONVOLUTION, LINEAR, LINEAR_RELU, UNIT };
enum { ROWS = WIDE == 16 ? 8 : 4, BLOCK = 64 };

/* inputs and outputs of an image; where weights and bias are in the flat vector; an image's sides, of a convolution. */
typedef struct {
    int kind, inputs, outputs, weight, bias, channels, height, width, filters, side;
} Layer;

/* Where the elements of a matrix are: row r, step s. */
typedef struct {
    const float *at;
    long row, step;
} Matrix;

/* Where the next WIDE of so many begin: the last ones may be taken again. */
static int tile_at(int place, int count)
{
    return place + WIDE <= count ? place : count - WIDE;
}

/* c[r][v] = start[r] + sum over s of a[r][s] b[s][v], of so many rows and vectors. */
INLINE void block(float *c, long c_row, Matrix a, const float *b, long b_row, const float *start, int steps,
                  const int rows, const int vectors)
{
    wide sums[ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        sums[r][0] = sums[r][1] = (wide){0} + (start ? start[r] : 0);
    for (int s = 0; s < steps; s++) {
        const wide_u *from = (const wide_u *)(b + s * b_row);
        const wide first = from[0], second = vectors > 1 ? from[1] : first;
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const float factor = a.at[r * a.row + s * a.step];
            sums[r][0] += factor * first;
            if (vectors > 1)
                sums[r][1] += factor * second;
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        wide_u *to = (wide_u *)(c + r * c_row);
        to[0] = sums[r][0];
        if (vectors > 1)
            to[1] = sums[r][1];
    }
}

/* The same of all columns, fewer than WIDE ones one by one; the last vectors may take columns again. */
INLINE void band(float *c, long c_row, Matrix a, const float *b, long b_row, const float *start, int columns, int steps,
                 const int rows)
{
    if (columns < WIDE)
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < columns; v++) {
                float sum = start ? start[r] : 0;
                for (int s = 0; s < steps; s++)
                    sum += a.at[r * a.row + s * a.step] * b[s * b_row + v];
                c[r * c_row + v] = sum;
            }
    else if (columns < 2 * WIDE)
        for (int v = 0; v < columns; v += WIDE) {
            const int at = tile_at(v, columns);
            block(c + at, c_row, a, b + at, b_row, start, steps, rows, 1);
        }
    else
        for (int v = 0; v < columns; v += 2 * WIDE) {
            const int at = v + 2 * WIDE <= columns ? v : columns - 2 * WIDE;
            block(c + at, c_row, a, b + at, b_row, start, steps, rows, 2);
        }
}

/* c = start + a b, where c has so many rows and columns. A last row alone is taken with the one before it: by itself a
 * compiler may round it differently.
 */
static void product(float *c, long c_row, Matrix a, const float *b, long b_row, const float *start, int rows,
                    int columns, int steps)
{
    for (int r = 0; r < rows;) {
        r -= r > 0 && r == rows - 1;
        const int left = rows - r, now = left >= ROWS ? ROWS : left >= 4 ? 4 : left >= 2 ? 2 : 1;
        const Matrix own = {a.at + r * a.row, a.row, a.step};
        float *to = c + r * c_row;
        const float *from = start ? start + r : NULL;
        if (now == ROWS)
            band(to, c_row, own, b, b_row, from, columns, steps, ROWS);
        else if (now == 4)
            band(to, c_row, own, b, b_row, from, columns, steps, 4);
        else if (now == 2)
            band(to, c_row, own, b, b_row, from, columns, steps, 2);
        else
            band(to, c_row, own, b, b_row, from, columns, steps, 1);
        r += now;
    }
}

static int padded(int count)
{
    return (count + WIDE - 1) / WIDE * WIDE;
}

#ifdef __AVX512F__
#define LOW(a, b) SHUFFLED(wide_i, a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH(a, b) SHUFFLED(wide_i, a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#else
#define LOW(a, b) SHUFFLED(wide_i, a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH(a, b) SHUFFLED(wide_i, a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#endif

/* Turns up to WIDE rows of WIDE values; so many columns are written, with 0 for rows that are not there. */
static void turn_tile(const float *from, long from_row, float *to, long to_row, int rows, int columns)
{
    wide now[WIDE], next[WIDE];
    for (int r = 0; r < WIDE; r++)
        now[r] = r < rows ? *(const wide_u *)(from + r * from_row) : (wide){0};
    for (int round = 1; round < WIDE; round *= 2) { /* each brings one bit of a value's row among those of its column */
#pragma GCC unroll 8
        for (int i = 0; i < WIDE / 2; i++) {
            next[2 * i] = LOW(now[i], now[i + WIDE / 2]);
            next[2 * i + 1] = HIGH(now[i], now[i + WIDE / 2]);
        }
        memcpy(now, next, sizeof(now));
    }
    for (int c = 0; c < columns; c++)
        *(wide_u *)(to + c * to_row) = now[c];
}

/* x (B, K) as `to` (K, apart): samples side by side, and 0 from B on. */
static void turn(const float *x, float *to, int B, int K, int apart)
{
    for (int b = 0; b < B; b += WIDE)
        for (int k = 0; k < K && K >= WIDE; k += WIDE) {
            const int at = tile_at(k, K);
            turn_tile(x + (long)b * K + at, K, to + (long)at * apart + b, apart, B - b, WIDE);
        }
    for (int k = 0; k < K && K < WIDE; k++)
        for (int b = 0; b < apart; b++)
            to[(long)k * apart + b] = b < B ? x[(long)b * K + k] : 0;
}

/* `from` (N, apart) as y (B, N). */
static void turn_back(const float *from, float *y, int B, int N, int apart)
{
    for (int b = 0; b < B; b += WIDE)
        for (int n = 0; n < N && N >= WIDE; n += WIDE) {
            const int at = tile_at(n, N);
            turn_tile(from + (long)at * apart + b, apart, y + (long)b * N + at, N, WIDE, B - b < WIDE ? B - b : WIDE);
        }
    for (int b = 0; b < B && N < WIDE; b++)
        for (int n = 0; n < N; n++)
            y[(long)b * N + n] = from[(long)n * apart + b];
}

/* y (B, N) of x (B, K). Samples lie side by side in the vectors, so each one's sums are the same in every batch. */
static void linear(const Layer *l, const float *params, const float *x, float *y, float *scratch, int B)
{
    const int N = l->outputs, K = l->inputs, apart = padded(B);
    float *turned = scratch, *sums = scratch + (long)K * apart;
    turn(x, turned, B, K, apart);
    product(sums, apart, (Matrix){params + l->weight, K, 1}, turned, apart, params + l->bias, N, apart, K);
    for (long i = 0; l->kind == LINEAR_RELU && i < (long)N * apart; i++)
        sums[i] = sums[i] < 0 ? 0 : sums[i];
    turn_back(sums, y, B, N, apart);
}

/* Gradients of weights and bias, and dx (B, K) unless it is null; g (B, N) loses what relu does not let through. */
static void linear_backward(const Layer *l, const float *params, float *gradient, const float *x, const float *y,
                            float *g, float *dx, int B)
{
    const int N = l->outputs, K = l->inputs;
    float *db = gradient + l->bias;
    for (long i = 0; l->kind == LINEAR_RELU && i < (long)B * N; i++)
        g[i] = y[i] <= 0 ? 0 : g[i];
    memset(db, 0, sizeof(float) * (size_t)N);
    for (int b = 0; b < B; b++)
        for (int n = 0; n < N; n++)
            db[n] += g[(long)b * N + n];
    product(gradient + l->weight, K, (Matrix){g, 1, N}, x, K, NULL, N, K, B);
    if (dx)
        product(dx, K, (Matrix){g, N, 1}, params + l->weight, K, NULL, B, K, N);
}

/* dx (B, Q) of vectors that were divided by their lengths. */
static void unit_backward(const Layer *l, const float *x, const float *y, const float *g, float *dx, int B)
{
    const int Q = l->outputs;
    for (int b = 0; b < B; b++) {
        const float *own = y + (long)b * Q, *from = g + (long)b * Q;
        float *to = dx + (long)b * Q;
        float along = 0;
        const float length = unit(x + (long)b * Q, to, Q);
        for (int q = 0; q < Q; q++)
            along += from[q] * own[q];
        for (int q = 0; q < Q; q++)
            to[q] = (from[q] - along * own[q]) / length;
    }
}

/* What `layers` give of images, one layer's (B, outputs) after the other's in `room`, but the last one's in `logits` and
 * that before in `z`. `scratch` holds inputs and outputs of the widest layer, of a padded batch.
 */
static int forward(const Layer *layers, const float *params, const float *images, float *room, signed char *won, float *z,
                   float *logits, float *scratch, int count, int B)
{
    int failed = 0;
    const float *x = images;
    for (int place = 0; place < count && !failed; place++) {
        const Layer *l = layers + place;
        float *y = place == count - 1 ? logits : place == count - 2 ? z : room;
        if (l->kind == CONVOLUTION) {
            failed = conv_relu_pool(x, params + l->weight, params + l->bias, y, won, B, l->channels, l->height, l->width,
                                    l->filters, l->side);
            won += won ? (long)B * l->outputs : 0;
        } else if (l->kind == UNIT)
            for (int b = 0; b < B; b++)
                unit(x + (long)b * l->inputs, y + (long)b * l->outputs, l->outputs);
        else
            linear(l, params, x, y, scratch, B);
        room += (long)B * l->outputs;
        x = y;
    }
    return failed;
}

/* z (B, Q) and logits (B, K). `won` has room for which places won in the convolutions; where it is
 * null no gradient is wanted, and images go through BLOCK at a time, so that what layers give stays in the cache.
 */
int chain_forward(const Layer *layers, const float *params, const float *images, float *room, signed char *won, float *z,
                  float *logits, float *scratch, int count, int B)
{
    const Layer *classifier = layers + count - 1;
    int failed = 0;
    for (int first = 0; first < B && !failed;) {
        const int some = won || B - first < BLOCK ? B - first : BLOCK;
        failed = forward(layers, params, images + (long)first * layers->inputs, room, won,
                         z + (long)first * classifier->inputs, logits + (long)first * classifier->outputs, scratch,
                         count, some);
        first += some;
    }
    return failed;
}

/* The gradient of what was made of z and logits, of which those by z and by logits are given (null: none), after a
 * forward pass of the same batch. `scratch` holds twice the widest layer's values of the batch.
 */
int chain_backward(const Layer *layers, const float *params, const float *images, const float *room,
                   const signed char *won, const float *z, float *by_logits, const float *by_z, float *gradient,
                   float *scratch, int count, int widest, int B)
{
    const Layer *classifier = layers + count - 1;
    float *g = scratch, *next = scratch + (long)B * widest;
    const long features = (long)B * classifier->inputs;
    memset(g, 0, sizeof(float) * (size_t)features);
    if (by_logits)
        linear_backward(classifier, params, gradient, z, NULL, by_logits, g, B);
    else {
        memset(gradient + classifier->weight, 0, sizeof(float) * (size_t)(classifier->inputs * classifier->outputs));
        memset(gradient + classifier->bias, 0, sizeof(float) * (size_t)classifier->outputs);
    }
    for (long i = 0; by_z && i < features; i++)
        g[i] += by_z[i];
    for (int place = 0; place < count - 1; place++) {
        room += (long)B * layers[place].outputs;
        won += layers[place].kind == CONVOLUTION ? (long)B * layers[place].outputs : 0;
    }
    int failed = 0;
    for (int place = count - 2; place >= 0 && !failed; place--) {
        const Layer *l = layers + place;
        room -= (long)B * l->outputs;
        const float *y = place == count - 2 ? z : room, *x = place ? room - (long)B * l->inputs : images;
        float *dx = place ? next : NULL;
        if (l->kind == CONVOLUTION) {
            won -= (long)B * l->outputs;
            failed = conv_relu_pool_backward(x, params + l->weight, g, won, gradient + l->weight, gradient + l->bias, dx, B,
                                             l->channels, l->height, l->width, l->filters, l->side);
        } else if (l->kind == UNIT)
            unit_backward(l, x, y, g, next, B);
        else
            linear_backward(l, params, gradient, x, y, g, dx, B);
        next = g, g = dx;
    }
    return failed;
}
