/* What a step shows of itself, in one call: lengths of lists of vectors and of the rows of a matrix, and the entropy
   and the largest entry of a distribution. Sums are taken in double, in an order that depends on lengths only. The
   square of a length becomes a float, as it is for torch and for Adam: one that is too large for that is infinite. */

#include <math.h>

#define SUMS 16 /* that are taken side by side */

/* Of x, or of the way from y to x if there is a y. */
static float squares(const float *x, const float *y, long size) {
    double sums[SUMS] = {0}, sum = 0;
    long i = 0;
    for (; i + SUMS <= size; i += SUMS)
        for (long j = 0; j < SUMS; j++) {
            double d = y ? (double)x[i + j] - y[i + j] : x[i + j];
            sums[j] += d * d;
        }
    for (; i < size; i++) {
        double d = y ? (double)x[i] - y[i] : x[i];
        sum += d * d;
    }
    for (long j = 0; j < SUMS; j++) sum += sums[j];
    return (float)sum;
}

/* The mean length of the rows of a matrix. */
static double mean_length(const float *x, long rows, long columns) {
    double sum = 0;
    for (long r = 0; r < rows; r++) sum += sqrt(squares(x + r * columns, 0, columns));
    return sum / rows;
}

/* -sum p log p, where 0 log 0 is 0. */
static double entropy(const float *p, long classes) {
    double sum = 0;
    for (long c = 0; c < classes; c++) sum -= p[c] == 0 ? 0 : p[c] * (double)logf(p[c]);
    return sum;
}

/* What is no number is the largest, as torch has it. */
static double largest(const float *p, long classes) {
    float top = p[0];
    for (long c = 1; c < classes; c++) top = p[c] > top || p[c] != p[c] ? p[c] : top;
    return top;
}

/* What there is to measure. Behind it lie the addresses of `count` vectors, of where their ways begin (of the first
   `still` vectors nowhere), and their sizes: all in one piece, as every argument of a call takes its time. */
typedef struct {
    long still, count;
    const float *logits;
    long rows, columns;
    const float *p;
    long classes;
} Shown;

/* Written are the length of the vectors that are still, taken as one; that of the ways of the others; the mean length
   of a row of logits; the entropy and the largest entry of p. */
void measure(const Shown *shown, double *made) {
    const float *const *x = (const float *const *)(shown + 1), *const *begins = x + shown->count;
    const long *sizes = (const long *)(begins + shown->count);
    double sums[2] = {0};
    for (long i = 0; i < shown->count; i++) sums[i >= shown->still] += squares(x[i], begins[i], sizes[i]);
    made[0] = sqrt(sums[0]);
    made[1] = sqrt(sums[1]);
    made[2] = shown->rows ? mean_length(shown->logits, shown->rows, shown->columns) : 0;
    made[3] = entropy(shown->p, shown->classes);
    made[4] = shown->classes ? largest(shown->p, shown->classes) : 0;
}
