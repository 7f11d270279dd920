/* Products of small matrices on one core, in float32, and matrices turned so that their vectors lie as a product wants. */

#include <string.h>

#include "cpu.h"

enum { ROWS = WIDE == 16 ? 8 : 4 };

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

/* A last row alone is taken with the one before it: by itself a compiler may round it differently. */
void product(float *c, long c_row, Matrix a, const float *b, long b_row, const float *start, int rows, int columns,
             int steps)
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

void turn(const float *x, float *to, int B, int K, int apart)
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

void turn_back(const float *from, float *y, int B, int N, int apart)
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

