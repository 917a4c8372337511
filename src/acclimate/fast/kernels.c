/* Batch norm and the clamp behind it, over activations that lie in memory pixel by pixel.

   Compiled once with BF16 defined and once without, for elements of bfloat16 and of float. An activation
   is `rows` pixels of `channels` elements. In every loop a row of coefficients or of sums goes with a row
   of elements, which compilers turn into vector instructions by themselves. Sums are taken in float over
   short blocks and in double over the blocks. Threads share the rows in equal parts, so that the same
   number of threads gives the same bits.

   y = scale * x + shift is computed in one place only, so that backward sees the bits that forward saw. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_max_threads(void) { return 1; }
static int omp_get_thread_num(void) { return 0; }
#endif

#define BLOCK 64   /* rows whose sums are taken in float */
#define WIDTH 128  /* elements that a row should have: shorter rows are taken several at a time */
#define SAMPLES 32 /* rows that a first guess of the mean is taken from */
#define BITS 64    /* elements whose bits are made together: bytes first, which are vectors */

#ifdef BF16
typedef uint16_t element;

static inline float load(const element *p) {
    union { uint32_t bits; float value; } u = {(uint32_t)*p << 16};
    return u.value;
}

static inline void store(element *p, float value) {
    union { float value; uint32_t bits; } u = {value};
    uint32_t nearest = (u.bits + 0x7fff + ((u.bits >> 16) & 1)) >> 16;
    *p = (element)(value != value ? 0x7fc0 : nearest);
}
#else
typedef float element;

static inline float load(const element *p) { return *p; }
static inline void store(element *p, float value) { *p = value; }
#endif

static inline float line(float x, float scale, float shift) {
#ifdef __FMA__
    return __builtin_fmaf(x, scale, shift);
#else
    return x * scale + shift;
#endif
}

/* `times` copies of a row of coefficients, one behind the other. */
static float *repeated(const float *row, long channels, long times) {
    float *made = malloc(sizeof(float) * channels * times);
    for (long i = 0; made && i < times; i++) memcpy(made + i * channels, row, sizeof(float) * channels);
    return made;
}

static void add_moments(const element *restrict x, long width, const float *restrict mean,
                        float *restrict first, float *restrict second) {
    for (long c = 0; c < width; c++) {
        float d = load(x + c) - mean[c];
        first[c] += d;
        second[c] += d * d;
    }
}

static void add_products(const element *restrict x, const element *restrict g, long width,
                         const float *restrict mean, const float *restrict scale, const float *restrict shift,
                         float low, float high, float *restrict first, float *restrict second) {
    for (long c = 0; c < width; c++) {
        float v = load(x + c), y = line(v, scale[c], shift[c]);
        float dy = (y > low) & (y < high) ? load(g + c) : 0.0f;
        first[c] += dy;
        second[c] += dy * (v - mean[c]);
    }
}

/* Adds to `sums` two sums over rows of `width` elements, whose channels repeat: of x - mean and its
   square or, with a gradient g, of dy and dy * (x - mean). */
static int add_sums(const element *x, const element *g, long rows, long width, long channels,
                    const float *mean, const float *scale, const float *shift, float low, float high,
                    double *sums) {
    int threads = omp_get_max_threads();
    size_t each = 2 * width;
    double *parts = calloc(threads * each, sizeof(double));
    float *blocks = malloc(threads * each * sizeof(float));
    if (!parts || !blocks) {
        free(parts);
        free(blocks);
        return 1;
    }
#pragma omp parallel num_threads(threads)
    {
        int t = omp_get_thread_num();
        double *part = parts + t * each;
        float *block = blocks + t * each;
        long end = rows * (t + 1) / threads;
        for (long start = rows * t / threads; start < end; start += BLOCK) {
            long stop = start + BLOCK < end ? start + BLOCK : end;
            memset(block, 0, each * sizeof(float));
            for (long r = start * width; r < stop * width; r += width) {
                if (g)
                    add_products(x + r, g + r, width, mean, scale, shift, low, high, block, block + width);
                else
                    add_moments(x + r, width, mean, block, block + width);
            }
            for (size_t c = 0; c < each; c++) part[c] += block[c];
        }
    }
    for (int t = 0; t < threads; t++) {
        for (long c = 0; c < width; c++) {
            sums[c % channels] += parts[t * each + c];
            sums[channels + c % channels] += parts[t * each + width + c];
        }
    }
    free(parts);
    free(blocks);
    return 0;
}

/* The same over all rows; `sums` has two rows of channels. */
static int all_sums(const element *x, const element *g, long rows, long channels, const float *mean,
                    const float *scale, const float *shift, float low, float high, double *sums) {
    long times = channels < WIDTH ? WIDTH / channels : 1, whole = rows / times;
    float *m = repeated(mean, channels, times), *a = repeated(scale, channels, times);
    float *b = repeated(shift, channels, times);
    memset(sums, 0, sizeof(double) * 2 * channels);
    int failed = !m || !a || !b;
    if (!failed) failed = add_sums(x, g, whole, channels * times, channels, m, a, b, low, high, sums);
    long done = whole * times * channels;
    if (!failed && whole * times < rows)
        failed = add_sums(x + done, g ? g + done : g, rows - whole * times, channels, channels, m, a, b, low,
                          high, sums);
    free(m);
    free(a);
    free(b);
    return failed;
}

/* Mean and variance, divided by the number of rows, of every channel. */
int statistics(const element *x, long rows, long channels, float *mean, float *var) {
    long samples = rows < SAMPLES ? rows : SAMPLES;
    for (long c = 0; c < channels; c++) {
        double sum = 0;
        for (long i = 0; i < samples; i++) sum += load(x + rows * i / samples * channels + c);
        mean[c] = (float)(sum / samples);
    }
    double *sums = malloc(sizeof(double) * 2 * channels);
    int failed = !sums || all_sums(x, NULL, rows, channels, mean, mean, mean, 0, 0, sums);
    for (long c = 0; !failed && c < channels; c++) {
        double off = sums[c] / rows, square = sums[channels + c] / rows - off * off;
        mean[c] = (float)(mean[c] + off);
        var[c] = square < 0 ? 0 : (float)square;
    }
    free(sums);
    return failed;
}

/* z = y, kept between low and high. */
int forward(const element *x, element *z, long rows, long channels, const float *restrict scale,
            const float *restrict shift, float low, float high) {
#pragma omp parallel for schedule(static)
    for (long r = 0; r < rows; r++) {
        const element *restrict from = x + r * channels;
        element *restrict to = z + r * channels;
        for (long c = 0; c < channels; c++) {
            float y = line(load(from + c), scale[c], shift[c]);
            y = y < low ? low : y;
            store(to + c, y > high ? high : y);
        }
    }
    return 0;
}

/* With dy the gradient g where low < y < high and 0 elsewhere: the sums of dy and of dy * (x - mean). */
int sums(const element *x, const element *g, long rows, long channels, const float *scale,
         const float *shift, const float *mean, float low, float high, double *made) {
    return all_sums(x, g, rows, channels, mean, scale, shift, low, high, made);
}

/* dx = scale * dy + slope * (x - mean) + constant */
int backward(const element *x, const element *g, element *dx, long rows, long channels,
             const float *restrict scale, const float *restrict shift, const float *restrict mean,
             const float *restrict slope, const float *restrict constant, float low, float high) {
#pragma omp parallel for schedule(static)
    for (long r = 0; r < rows; r++) {
        const element *restrict from = x + r * channels, *restrict d = g + r * channels;
        element *restrict to = dx + r * channels;
        for (long c = 0; c < channels; c++) {
            float v = load(from + c), y = line(v, scale[c], shift[c]);
            float dy = (y > low) & (y < high) ? load(d + c) : 0.0f;
            store(to + c, scale[c] * dy + (slope[c] * (v - mean[c]) + constant[c]));
        }
    }
    return 0;
}

/* One bit for each element: whether it lies between low and high. */
int pack(const element *z, long count, uint8_t *bits, float low, float high) {
#pragma omp parallel for schedule(static)
    for (long start = 0; start < count; start += BITS) {
        long length = count - start < BITS ? count - start : BITS;
        uint8_t inside[BITS] = {0};
        for (long i = 0; i < length; i++) {
            float v = load(z + start + i);
            inside[i] = (v > low) & (v < high);
        }
        for (long i = 0; i < length; i += 8) {
            uint64_t eight;
            memcpy(&eight, inside + i, 8);
            bits[(start + i) / 8] = (uint8_t)(eight * 0x0102040810204080u >> 56);
        }
    }
    return 0;
}

/* made = g where the bit is set, and slope * g elsewhere. */
int masked(const element *g, const uint8_t *bits, element *made, long count, float slope) {
#pragma omp parallel for schedule(static)
    for (long start = 0; start < count; start += BITS) {
        long length = count - start < BITS ? count - start : BITS;
        uint8_t inside[BITS];
        for (long i = 0; i < length; i += 8) {
            uint64_t eight = bits[(start + i) / 8] * 0x0101010101010101u & 0x8040201008040201u;
            memcpy(inside + i, &eight, 8);
        }
        for (long i = 0; i < length; i++) {
            float v = load(g + start + i), outside = slope == 0.0f ? 0.0f : slope * v;
            store(made + start + i, inside[i] ? v : outside);
        }
    }
    return 0;
}
