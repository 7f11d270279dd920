/* What a batch's losses come to, with their slopes, on one core, in float32: cross-entropies of logits, contrasts of z with
 * prototypes; and sums of z by class.
 */

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"

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
    const float factor = 1 / divisor;
    for (i = 0; i < n; i++)
        to[i] = vector[i] * factor;
    return divisor;
}

/* The cross-entropy of K powers, which become its slopes; what has the power -infinity does not count. */
static float cross_entropy(float *powers, int label, int K)
{
    float top = -INFINITY, total = 0;
    for (int k = 0; k < K; k++)
        top = powers[k] > top || powers[k] != powers[k] ? powers[k] : top;
    const float score = powers[label];
    for (int k = 0; k < K; k++)
        total += powers[k] = expf(powers[k] - top);
    for (int k = 0; k < K; k++)
        powers[k] = powers[k] / total - (k == label);
    return logf(total) + (top - score);
}

/* Cross-entropies of the cosines of z (B, Q) with prototypes (K, Q) over tau, plus an offset (K) if there is one, among
 * the known classes; whether each sample's class is known, and of how many it is not; the slopes (B, Q) of the losses.
 */
int contrast(const float *z, const long *labels, const float *prototypes, const unsigned char *known,
             const float *offset, float *loss, unsigned char *counted, float *slope, int *left_out, int B, int K, int Q,
             float tau)
{
    const int apart = padded(K);
    float *room = malloc(sizeof(float) * ((size_t)(K + B) * Q + (size_t)(Q + 2 * B) * apart + B));
    float *directions = room, *own = directions + (long)K * Q, *turned = own + (long)B * Q;
    float *cosines = turned + (long)Q * apart, *pulls = cosines + (long)B * apart, *lengths = pulls + (long)B * apart;
    int failed = room ? 0 : NO_MEMORY;
    *left_out = 0;
    for (int b = 0; b < B && !failed; b++)
        failed = labels[b] < 0 || labels[b] >= K ? NO_CLASS : 0;
    if (failed) {
        free(room);
        return failed;
    }
    for (int k = 0; k < K; k++)
        unit(prototypes + (long)k * Q, directions + (long)k * Q, Q);
    turn(directions, turned, K, Q, apart);
    for (int b = 0; b < B; b++)
        lengths[b] = unit(z + (long)b * Q, own + (long)b * Q, Q);
    product(cosines, apart, (Matrix){own, Q, 1}, turned, apart, NULL, B, apart, Q);
    for (int b = 0; b < B; b++) {
        const int label = (int)labels[b];
        float *pull = pulls + (long)b * apart, *cosine = cosines + (long)b * apart;
        counted[b] = known[label];
        *left_out += !counted[b];
        for (int k = 0; k < K; k++)
            pull[k] = known[k] ? cosine[k] / tau + (offset ? offset[k] : 0) : -INFINITY;
        loss[b] = counted[b] ? cross_entropy(pull, label, K) : 0;
        for (int k = 0; k < K; k++)
            pull[k] /= tau;
    }
    product(slope, Q, (Matrix){pulls, apart, 1}, directions, Q, NULL, B, Q, K);
    for (int b = 0; b < B; b++) {
        const float *pull = pulls + (long)b * apart, *cosine = cosines + (long)b * apart, *unit_z = own + (long)b * Q;
        float *to = slope + (long)b * Q, along = 0;
        const float factor = 1 / lengths[b];
        for (int k = 0; k < K; k++)
            along += pull[k] * cosine[k];
        for (int q = 0; q < Q; q++)
            to[q] = counted[b] ? (to[q] - along * unit_z[q]) * factor : 0;
    }
    free(room);
    return 0;
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
        float *to = slope + (long)b * K;
        if (labels[b] < 0 || labels[b] >= K)
            return NO_CLASS;
        for (int k = 0; k < K; k++)
            to[k] = logits[(long)b * K + k] + (offset ? offset[k] : 0);
        loss[b] = cross_entropy(to, (int)labels[b], K);
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
