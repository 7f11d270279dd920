/* A chain of small layers on one core, in float32, forwards and backwards in one call each: convolutions with relu and
 * pooling, linear layers with or without relu, and vectors given length 1. Parameters and their gradient are flat
 * vectors; what a layer gives lies in `room`, B values of one layer after those of another.
 */

#include <string.h>

#include "cpu.h"

enum { CONVOLUTION, LINEAR, LINEAR_RELU, UNIT };
enum { BLOCK = 64 };

/* inputs and outputs of an image; where weights and bias are in the flat vector; an image's sides, of a convolution. */
typedef struct {
    int kind, inputs, outputs, weight, bias, channels, height, width, filters, side;
} Layer;

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
 * that before in `z`, unless it is null. `scratch` holds inputs and outputs of the widest layer, of a padded batch.
 */
static int forward(const Layer *layers, const float *params, const float *images, float *room, signed char *won, float *z,
                   float *logits, float *scratch, int count, int B)
{
    int failed = 0;
    const float *x = images;
    for (int place = 0; place < count && !failed; place++) {
        const Layer *l = layers + place;
        float *y = place == count - 1 ? logits : place == count - 2 && z ? z : room;
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

/* Sums (N, outputs of the last of `layers`) by class, and counts (N), of what so many of the bank's images (C, H, W) give,
 * which are taken by index and normalised. `batch` has room for BLOCK images and `outputs` for the last layer's values of
 * them: what is at work stays in the cache.
 */
int chain_class_sums(const Layer *layers, const float *params, const unsigned char *bank, const long *index,
                     const long *labels, const float *middle, const float *scale, float *batch, float *room,
                     float *outputs, float *scratch, double *sums, long *counts, int count, int images, int classes, int C,
                     int H, int W)
{
    int failed = 0;
    for (int first = 0; first < images && !failed; first += BLOCK) {
        const int some = images - first < BLOCK ? images - first : BLOCK;
        failed = take_batch(bank, index + first, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, middle, scale,
                            batch, some, C, H, W, 0, 0);
        failed = failed || forward(layers, params, batch, room, NULL, NULL, outputs, scratch, count, some);
        if (!failed)
            class_sums(outputs, labels + first, NULL, sums, counts, some, classes, layers[count - 1].outputs);
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
