/* What the C files share: vectors, as many values as a register holds, and the names of what one calls of another. */

#ifndef FEDPROC_CPU_H
#define FEDPROC_CPU_H

typedef float v8 __attribute__((vector_size(32)));
typedef float v8u __attribute__((vector_size(32), aligned(4)));
typedef int i8 __attribute__((vector_size(32)));
typedef float v16 __attribute__((vector_size(64)));
typedef float v16u __attribute__((vector_size(64), aligned(4)));
typedef int i16 __attribute__((vector_size(64)));

enum { NO_MEMORY = 1, NO_CLASS = 2 }; /* what a function gives that could not do its work: a label is none of the classes */

#ifdef __AVX512F__
enum { WIDE = 16 };
typedef v16 wide;
typedef v16u wide_u;
typedef i16 wide_i;
#else
enum { WIDE = 8 };
typedef v8 wide;
typedef v8u wide_u;
typedef i8 wide_i;
#endif

/* Places of two vectors, those of the second counted on. */
#ifdef __clang__
#define SHUFFLED(I, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLED(I, a, b, ...) __builtin_shuffle(a, b, (I){__VA_ARGS__})
#endif

#define INLINE static inline __attribute__((always_inline))
#define SELECT(mask, a, b, I, V) ((V)(((mask) & (I)(a)) | (~(mask) & (I)(b))))

/* Where the elements of a matrix are: row r, step s. */
typedef struct {
    const float *at;
    long row, step;
} Matrix;

static inline int padded(int count)
{
    return (count + WIDE - 1) / WIDE * WIDE;
}

#pragma GCC visibility push(hidden) /* from what Python calls */

/* c = start + a b, where c has so many rows and columns; no start (null) is 0. */
void product(float *c, long c_row, Matrix a, const float *b, long b_row, const float *start, int rows, int columns,
             int steps);

/* x (B, K) as `to` (K, apart): samples side by side, and 0 from B on. */
void turn(const float *x, float *to, int B, int K, int apart);

/* `from` (N, apart) as y (B, N). */
void turn_back(const float *from, float *y, int B, int N, int apart);

/* `to` is `vector` with length 1, or 0 where it has none; gives the length, in double, where squares of floats fit. */
float unit(const float *vector, float *to, int n);

#pragma GCC visibility pop

int conv_relu_pool(const float *x, const float *w, const float *bias, float *y, signed char *won, int B, int C, int H,
                   int W, int N, int SIDE);
int conv_relu_pool_backward(const float *x, const float *w, const float *g, const signed char *won, float *dw, float *db,
                            float *dx, int B, int C, int H, int W, int N, int SIDE);

int take_batch(const unsigned char *bank, const long *index, const short *row, const short *column, const short *flip,
               const short *angle, const short *vertical, const short *brightness, const short *contrast,
               const short *saturation, const long *cosines, const long *sines, const float *middle, const float *scale,
               float *out, int B, int C, int H, int W, int pad, int reflect);
int class_sums(const float *z, const long *labels, const unsigned char *mask, double *sums, long *counts, int B, int K,
               int Q);

#endif
