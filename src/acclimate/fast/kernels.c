/* Batch and group norm, with the addition and the clamp behind it, over activations that lie in memory pixel by pixel.

   Compiled once with BF16 defined and once without, for elements of bfloat16 and of float. An activation
   is `rows` pixels of `channels` elements. In every loop a row of coefficients or of sums goes with a row
   of elements; those rows are as long as a whole number of LANES. Sums are taken in float over short
   blocks and in double over the blocks. Threads share the rows in equal parts, so that the same number of
   threads gives the same bits.

   y = scale * x + shift is computed in one place only (line_of): backward sees the bits that forward saw. */

#include <math.h>
#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_max_threads(void) { return 1; }
static int omp_get_num_threads(void) { return 1; }
static int omp_get_thread_num(void) { return 0; }
#endif

#include "lanes.h"

#define BLOCK 64   /* rows whose sums are taken in float */
#define WIDTH 128  /* elements that a row should have: shorter rows are taken several at a time */
#define SAMPLES 32 /* rows that a first guess of the mean is taken from */
#define PIECE 4096 /* elements that a thread takes at a time: they stay in its cache */
#define FEW 16384  /* elements that one thread is done with before others have woken up */

/* Does what works on `count` elements from `c` on, for a whole row. */
#define ALONG(width, ...) \
    do { \
        long c = 0; \
        for (const long count = LANES; c + LANES <= (width); c += LANES) __VA_ARGS__; \
        for (const long count = (width) - c; c < (width); c += LANES) __VA_ARGS__; \
    } while (0)

static long padded(long width) { return (width + LANES - 1) / LANES * LANES; }

/* Zeros that begin where a register of floats does: across two lines of the cache all loads are slow. */
static void *zeros(size_t bytes) {
    size_t whole = (bytes + 63) / 64 * 64;
    void *made = aligned_alloc(64, whole);
    return made ? memset(made, 0, whole) : NULL;
}

/* Rows of coefficients, side by side. */
typedef struct {
    const float *scale, *shift, *mean;
} Line;

/* What a norm comes down to, each row `times` in a row; `memory` is for the caller to free. */
static Line folded(long channels, long times, const float *weight, const float *bias, const float *mean,
                   const float *var, float eps, float **memory) {
    long width = channels * times, each = padded(width);
    float *made = *memory = zeros(3 * each * sizeof(float));
    for (long c = 0; made && c < channels; c++) {
        float invstd = 1.0f / sqrtf(var[c] + eps), scale = weight ? weight[c] * invstd : invstd;
        made[c] = scale;
        made[each + c] = (bias ? bias[c] : 0.0f) - mean[c] * scale;
        made[2 * each + c] = mean[c];
    }
    for (int row = 0; made && row < 3; row++)
        for (long i = channels; i < width; i++) made[row * each + i] = made[row * each + i - channels];
    return (Line){made, made + each, made + 2 * each};
}

/* y, from `count` elements of x; c is where they are in the row. */
static inline lanes line_of(lanes x, Line line, long c) {
    return times_plus(x, load_floats(line.scale + c), load_floats(line.shift + c));
}

/* A copy of a row that is as long as it needs to be. */
static float *row_of(const float *row, long channels) {
    float *made = zeros(padded(channels) * sizeof(float));
    if (made) memcpy(made, row, sizeof(float) * channels);
    return made;
}

/* Adds to a row of sums that of x - mean, and to another that of its square. */
static inline void add_moments(const element *x, long width, Line line, float *first, float *second) {
    ALONG(width, {
        lanes d = minus(get(x + c, count), load_floats(line.mean + c));
        store_floats(first + c, plus(load_floats(first + c), d));
        store_floats(second + c, times_plus(d, d, load_floats(second + c)));
    });
}

/* Those of dy and of dy * (x - mean); `onto`, if there is one, gets scale * dy more, or that only if it is
   fresh. */
static inline void add_products(const element *x, const element *g, element *onto, int fresh, long width,
                                Line line, float low, float high, float *first, float *second) {
    lanes below = all(low), above = all(high), zero = all(0);
    ALONG(width, {
        lanes v = get(x + c, count);
        lanes dy = where(between(line_of(v, line, c), below, above), get(g + c, count), zero);
        store_floats(first + c, plus(load_floats(first + c), dy));
        v = minus(v, load_floats(line.mean + c));
        store_floats(second + c, times_plus(dy, v, load_floats(second + c)));
        if (onto) {
            lanes before = fresh ? zero : get(onto + c, count);
            put(onto + c, times_plus(load_floats(line.scale + c), dy, before), count);
        }
    });
}

/* Adds to `sums` two sums over rows of `width` elements, whose channels repeat: of x - mean and its
   square or, with a gradient g, of dy and dy * (x - mean). Rows of x, and of `onto` if there is one, begin
   `stride` elements apart. */
static int add_sums(const element *x, long stride, const element *g, element *onto, int fresh, long rows,
                    long width, long channels, Line line, float low, float high, double *sums) {
    int threads = omp_get_max_threads();
    size_t row = padded(width), each = 2 * row;
    double *parts = zeros(threads * each * sizeof(double));
    float *blocks = zeros(threads * each * sizeof(float));
    if (!parts || !blocks) {
        free(parts);
        free(blocks);
        return 1;
    }
#pragma omp parallel num_threads(threads) if (rows * width > FEW)
    {
        int t = omp_get_thread_num();
        double *part = parts + t * each;
        float *first = blocks + t * each, *second = first + row;
        int all_threads = omp_get_num_threads(); /* there may be fewer than were asked for */
        long end = rows * (t + 1) / all_threads;
        for (long start = rows * t / all_threads; start < end; start += BLOCK) {
            long stop = start + BLOCK < end ? start + BLOCK : end;
            memset(first, 0, each * sizeof(float));
            for (long r = start; r < stop; r++) {
                const element *from = x + r * stride, *d = g ? g + r * width : g;
                if (!g)
                    add_moments(from, width, line, first, second);
                else if (!onto)
                    add_products(from, d, NULL, 0, width, line, low, high, first, second);
                else if (fresh)
                    add_products(from, d, onto + r * stride, 1, width, line, low, high, first, second);
                else
                    add_products(from, d, onto + r * stride, 0, width, line, low, high, first, second);
            }
            for (size_t c = 0; c < each; c++) part[c] += first[c];
        }
    }
    for (int t = 0; t < threads; t++) {
        for (long c = 0; c < width; c++) {
            sums[c % channels] += parts[t * each + c];
            sums[channels + c % channels] += parts[t * each + row + c];
        }
    }
    free(parts);
    free(blocks);
    return 0;
}

/* The same over all rows; `sums` has two rows of channels. */
static int all_sums(const element *x, long stride, const element *g, element *onto, int fresh, long rows,
                    long channels, const float *weight, const float *bias, const float *mean,
                    const float *var, float eps, float low, float high, double *sums) {
    long times = stride == channels && channels < WIDTH ? WIDTH / channels : 1;
    long whole = rows / times, done = whole * times, width = channels * times;
    float *memory, *more = NULL;
    Line several = folded(channels, times, weight, bias, mean, var, eps, &memory), single = several;
    if (done < rows) single = folded(channels, 1, weight, bias, mean, var, eps, &more);
    int failed = !memory || (done < rows && !more);
    memset(sums, 0, sizeof(double) * 2 * channels);
    if (!failed)
        failed = add_sums(x, times == 1 ? stride : width, g, onto, fresh, whole, width, channels, several, low,
                          high, sums);
    if (!failed && done < rows)
        failed = add_sums(x + done * stride, stride, g ? g + done * channels : g,
                          onto ? onto + done * stride : onto, fresh, rows - done, channels, channels, single,
                          low, high, sums);
    free(memory);
    free(more);
    return failed;
}

static float value_of(const element *p) {
#ifdef BF16
    union { uint32_t bits; float value; } u = {(uint32_t)*p << 16};
    return u.value;
#else
    return *p;
#endif
}

/* As torch interpolates: to the last bit. */
static float lerp(float from, float to, float part) {
    return part < 0.5f ? from + part * (to - from) : to - (to - from) * (1 - part);
}

/* Mean and variance, divided by the number of rows, of every channel. The running ones, if these are not
   NULL, move towards them by `momentum`, the variance divided by one less. */
int statistics(const element *x, long rows, long channels, float *mean, float *var, float *running_mean,
               float *running_var, float momentum) {
    long samples = rows < SAMPLES ? rows : SAMPLES;
    double *sums = malloc(sizeof(double) * 2 * channels);
    int failed = !sums;
    if (!failed) memset(sums, 0, sizeof(double) * channels);
    for (long i = 0; !failed && i < samples; i++) {
        const element *row = x + rows * i / samples * channels;
        for (long c = 0; c < channels; c++) sums[c] += value_of(row + c);
    }
    for (long c = 0; !failed && c < channels; c++) {
        mean[c] = (float)(sums[c] / samples);
        var[c] = 1;
    }
    if (!failed)
        failed = all_sums(x, channels, NULL, NULL, 0, rows, channels, NULL, NULL, mean, var, 0, 0, 0, sums);
    for (long c = 0; !failed && c < channels; c++) {
        double off = sums[c] / rows, square = sums[channels + c] / rows - off * off;
        mean[c] = (float)(mean[c] + off);
        var[c] = square < 0 ? 0 : (float)square;
        if (running_mean) {
            running_mean[c] = lerp(running_mean[c], mean[c], momentum);
            running_var[c] = lerp(running_var[c], var[c] * (float)((double)rows / (rows - 1)), momentum);
        }
    }
    free(sums);
    return failed;
}

/* A bit for each element that lies between low and high; `number` of them, from a whole byte on. */
static inline void pack_some(const element *z, long number, uint8_t *bits, lanes low, lanes high) {
    ALONG(number, {
        uint16_t both = bits_of(between(get(z + c, count), low, high));
        bits[c / 8] = both & 0xff;
        if (count > 8) bits[c / 8 + 1] = both >> 8;
    });
}

/* z = y + other, kept between low and high, and a bit for each element that lies between them. Without
   `other` and `bits`, if these are NULL. */
int forward(const element *x, long stride, const element *other, element *z, long rows, long channels,
            const float *weight, const float *bias, const float *mean, const float *var, float eps, float low,
            float high, uint8_t *bits) {
    float *memory;
    Line line = folded(channels, 1, weight, bias, mean, var, eps, &memory);
    if (!memory) return 1;
    lanes below = all(low), above = all(high);
#pragma omp parallel for schedule(static) if (rows * channels > FEW)
    for (long start = 0; start < rows; start += 8) { /* the bits of eight rows are whole bytes */
        long stop = start + 8 < rows ? start + 8 : rows;
        for (long r = start; r < stop; r++) {
            const element *from = x + r * stride, *more = other ? other + r * channels : other;
            element *to = z + r * channels;
            ALONG(channels, {
                lanes y = line_of(get(from + c, count), line, c);
                if (more) y = plus(rounded(y), get(more + c, count));
                put(to + c, clamp(y, below, above), count);
            });
        }
        long done = start * channels;
        if (bits) pack_some(z + done, (stop - start) * channels, bits + done / 8, below, above);
    }
    free(memory);
    return 0;
}

/* With dy the gradient g where low < y < high and 0 elsewhere: the sums of dy and of dy * (x - mean), from
   which the gradients of bias and weight are made. If there is `onto`, which lies as x does, it gets
   scale * dy more; if nothing was written to it yet, which makes it fresh, it gets that only. */
int sums(const element *x, long stride, const element *g, element *onto, int fresh, long rows, long channels,
         const float *weight, const float *bias, const float *mean, const float *var, float eps, float low,
         float high, double *made, float *in_weight, float *in_bias) {
    int failed =
        all_sums(x, stride, g, onto, fresh, rows, channels, weight, bias, mean, var, eps, low, high, made);
    for (long c = 0; !failed && c < channels; c++) {
        in_bias[c] = (float)made[c];
        in_weight[c] = (float)(made[channels + c] / sqrtf(var[c] + eps));
    }
    return failed;
}

/* How a gradient that goes through the statistics depends on x: slope * (x - mean) + constant. `total` are
   the two sums of above, `part` the share of x in the statistics, divided by the number of its rows. */
int rest(const float *var, float eps, const float *weight, long channels, const double *total, double part,
         float *slope, float *constant) {
    for (long c = 0; c < channels; c++) {
        double invstd = 1.0f / sqrtf(var[c] + eps), scale = weight ? weight[c] * invstd : invstd;
        slope[c] = (float)(-scale * part * invstd * invstd * total[channels + c]);
        constant[c] = (float)(-scale * part * total[c]);
    }
    return 0;
}

/* slope * (x - mean) + constant, for elements from c on. */
static inline lanes rest_of(lanes x, const float *mean, const float *slope, const float *constant, long c) {
    return times_plus(load_floats(slope + c), minus(x, load_floats(mean + c)), load_floats(constant + c));
}

/* dx = scale * dy + slope * (x - own mean) + constant */
int backward(const element *x, const element *g, element *dx, long rows, long channels, const float *weight,
             const float *bias, const float *mean, const float *var, float eps, float low, float high,
             const float *own, const float *slope, const float *constant) {
    float *memory, *m = row_of(own, channels), *a = row_of(slope, channels), *b = row_of(constant, channels);
    Line line = folded(channels, 1, weight, bias, mean, var, eps, &memory);
    int failed = !memory || !m || !a || !b;
    lanes below = all(low), above = all(high), zero = all(0);
    if (!failed) {
#pragma omp parallel for schedule(static) if (rows * channels > FEW)
        for (long r = 0; r < rows; r++) {
            const element *from = x + r * channels, *upper = g + r * channels;
            element *to = dx + r * channels;
            ALONG(channels, {
                lanes v = get(from + c, count);
                lanes dy = where(between(line_of(v, line, c), below, above), get(upper + c, count), zero);
                put(to + c, times_plus(load_floats(line.scale + c), dy, rest_of(v, m, a, b, c)), count);
            });
        }
    }
    free(memory);
    free(m);
    free(a);
    free(b);
    return failed;
}

/* All gradients of a norm: `sums`, `rest` and, if there is dx, `backward`. */
int gradients(const element *x, const element *g, element *dx, long rows, long channels, const float *weight,
              const float *bias, const float *mean, const float *var, float eps, float low, float high,
              const float *own, double part, float *in_weight, float *in_bias) {
    double *total = malloc(sizeof(double) * 2 * channels);
    float *through = malloc(sizeof(float) * 2 * channels);
    int failed = !total || !through;
    if (!failed)
        failed = sums(x, channels, g, NULL, 0, rows, channels, weight, bias, mean, var, eps, low, high, total,
                      in_weight, in_bias);
    if (!failed && dx) {
        rest(var, eps, weight, channels, total, part, through, through + channels);
        failed = backward(x, g, dx, rows, channels, weight, bias, mean, var, eps, low, high, own, through,
                          through + channels);
    }
    free(total);
    free(through);
    return failed;
}

/* Group norm: of every image, the channels of a group share mean and variance, which are written for each of
   them. Images lie behind each other. */
int group_forward(const element *x, element *z, long images, long pixels, long channels, long groups,
                  const float *weight, const float *bias, float eps, float *mean, float *var) {
    long each = channels / groups, size = pixels * channels;
    int failed = 0;
    for (long n = 0; !failed && n < images; n++, x += size, z += size, mean += channels, var += channels) {
        failed = statistics(x, pixels, channels, mean, var, NULL, NULL, 0);
        for (long start = 0; start < channels; start += each) {
            double middle = 0, spread = 0;
            for (long c = start; c < start + each; c++) middle += mean[c] / (double)each;
            for (long c = start; c < start + each; c++)
                spread += (var[c] + (mean[c] - middle) * (mean[c] - middle)) / each;
            for (long c = start; c < start + each; c++) {
                mean[c] = (float)middle;
                var[c] = (float)spread;
            }
        }
        if (!failed)
            failed = forward(x, channels, NULL, z, pixels, channels, weight, bias, mean, var, eps, -INFINITY,
                             INFINITY, NULL);
    }
    return failed;
}

/* All of its gradients; that of x, if there is dx. */
int group_gradients(const element *x, const element *g, element *dx, long images, long pixels, long channels,
                    long groups, const float *weight, const float *bias, const float *mean, const float *var,
                    float eps, float low, float high, float *in_weight, float *in_bias) {
    long each = channels / groups, size = pixels * channels;
    double *total = malloc(sizeof(double) * 2 * channels);
    float *small = malloc(sizeof(float) * 4 * channels);
    int failed = !total || !small;
    memset(in_weight, 0, sizeof(float) * channels);
    memset(in_bias, 0, sizeof(float) * channels);
    for (long n = 0; !failed && n < images; n++, x += size, g += size, mean += channels, var += channels) {
        float *slope = small, *constant = slope + channels, *w = constant + channels, *b = w + channels;
        failed = sums(x, channels, g, NULL, 0, pixels, channels, weight, bias, mean, var, eps, low, high, total,
                      w, b);
        for (long start = 0; start < channels; start += each) {
            double sum = 0, product = 0, invstd = 1.0f / sqrtf(var[start] + eps);
            for (long c = start; c < start + each; c++) {
                double scale = weight ? weight[c] : 1;
                sum += scale * total[c];
                product += scale * total[channels + c];
                in_weight[c] += w[c];
                in_bias[c] += b[c];
            }
            for (long c = start; c < start + each; c++) {
                slope[c] = (float)(-invstd * invstd * invstd * product / (pixels * each));
                constant[c] = (float)(-invstd * sum / (pixels * each));
            }
        }
        if (!failed && dx)
            failed = backward(x, g, dx + n * size, pixels, channels, weight, bias, mean, var, eps, low, high,
                              mean, slope, constant);
    }
    free(total);
    free(small);
    return failed;
}

/* dx = g + slope * (x - mean) + constant; rows of x and of g begin `stride` elements apart. */
int finished(const element *x, const element *g, long stride, element *dx, long rows, long channels,
             const float *mean, const float *slope, const float *constant) {
    float *m = row_of(mean, channels), *a = row_of(slope, channels), *b = row_of(constant, channels);
    int failed = !m || !a || !b;
    if (!failed) {
#pragma omp parallel for schedule(static) if (rows * channels > FEW)
        for (long r = 0; r < rows; r++) {
            const element *from = x + r * stride, *d = g + r * stride;
            element *to = dx + r * channels;
            ALONG(channels, {
                put(to + c, plus(get(d + c, count), rest_of(get(from + c, count), m, a, b, c)), count);
            });
        }
    }
    free(m);
    free(a);
    free(b);
    return failed;
}

/* Rows that lie side by side, to where they begin `stride` elements apart. */
int place(const element *x, element *to, long stride, long rows, long channels) {
#pragma omp parallel for schedule(static) if (rows * channels > FEW)
    for (long r = 0; r < rows; r++) memcpy(to + r * stride, x + r * channels, sizeof(element) * channels);
    return 0;
}

/* One bit for each element: whether it lies between low and high. */
int pack(const element *z, long number, uint8_t *bits, float low, float high) {
    lanes below = all(low), above = all(high);
#pragma omp parallel for schedule(static) if (number > FEW)
    for (long start = 0; start < number; start += PIECE)
        pack_some(z + start, number - start < PIECE ? number - start : PIECE, bits + start / 8, below, above);
    return 0;
}

/* The same, and z is kept between them. */
int clamped(element *z, long number, uint8_t *bits, float low, float high) {
    lanes below = all(low), above = all(high);
#pragma omp parallel for schedule(static) if (number > FEW)
    for (long start = 0; start < number; start += PIECE) {
        long length = number - start < PIECE ? number - start : PIECE;
        element *from = z + start;
        ALONG(length, put(from + c, clamp(get(from + c, count), below, above), count));
        pack_some(z + start, length, bits + start / 8, below, above);
    }
    return 0;
}

/* made = g where the bit is set, and slope * g elsewhere. */
int masked(const element *g, const uint8_t *bits, element *made, long number, float slope) {
    lanes less = all(slope), zero = all(0);
#pragma omp parallel for schedule(static) if (number > FEW)
    for (long start = 0; start < number; start += PIECE) {
        long length = number - start < PIECE ? number - start : PIECE;
        const element *from = g + start;
        const uint8_t *some = bits + start / 8;
        element *to = made + start;
        ALONG(length, {
            uint16_t both = count > 8 ? (uint16_t)(some[c / 8] | some[c / 8 + 1] << 8) : some[c / 8];
            lanes v = get(from + c, count), outside = slope == 0.0f ? zero : times_plus(less, v, zero);
            put(to + c, where(flags_of(both), v, outside), count);
        });
    }
    return 0;
}
