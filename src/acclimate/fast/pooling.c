/* Pooling of images that lie pixel by pixel. Compiled once with BF16 defined and once without, for elements of
   bfloat16 and of float. */

#include "lanes.h"

#define FEW 16384 /* elements that one thread is done with before others have woken up */

typedef struct {
    long height, width, channels; /* of the input */
    long high, wide;              /* of the output */
    long tall, broad;             /* of a window */
    long down, across;            /* from one window to the next */
    long up, left;                /* padding */
} Shape;

static inline long least(long a, long b) { return a < b ? a : b; }
static inline long most(long a, long b) { return a > b ? a : b; }

/* The largest of each window with its place, row by row of the window, in a byte. As torch has it, the first of equal
   elements is taken, and what is no number is the largest. */
int pooled(const element *x, long images, Shape s, element *y, uint8_t *places) {
    lanes lowest = all(-INFINITY);
#pragma omp parallel for collapse(2) schedule(static) if (images * s.high * s.wide * s.channels > FEW)
    for (long n = 0; n < images; n++) {
        for (long r = 0; r < s.high; r++) {
            long top = r * s.down - s.up, from = most(0, -top), to = least(s.tall, s.height - top);
            for (long q = 0; q < s.wide; q++) {
                long side = q * s.across - s.left, first = most(0, -side), last = least(s.broad, s.width - side);
                const element *corner = x + ((n * s.height + top) * s.width + side) * s.channels;
                long made = ((n * s.high + r) * s.wide + q) * s.channels;
                for (long c = 0; c < s.channels; c += LANES) {
                    long count = least(LANES, s.channels - c);
                    lanes best = lowest, place = all((float)(from * s.broad + first));
                    for (long a = from; a < to; a++)
                        for (long b = first; b < last; b++) {
                            lanes v = get(corner + (a * s.width + b) * s.channels + c, count);
                            flags larger = exceeds(v, best);
                            best = where(larger, v, best);
                            place = where(larger, all((float)(a * s.broad + b)), place);
                        }
                    put(y + made + c, best, count);
                    put_bytes(places + made + c, place, count);
                }
            }
        }
    }
    return 0;
}

/* The gradient of each input: of the outputs, by rows, whose windows it was the largest of. */
int unpooled(const element *g, const uint8_t *places, long images, Shape s, element *dx) {
    lanes zero = all(0);
#pragma omp parallel for collapse(2) schedule(static) if (images * s.height * s.width * s.channels > FEW)
    for (long n = 0; n < images; n++) {
        for (long r = 0; r < s.height; r++) {
            /* windows from the first that ends behind this row to the last that begins before it ends */
            long above = r + s.up - s.tall, first_row = above < 0 ? 0 : above / s.down + 1;
            long last_row = least(s.high - 1, (r + s.up) / s.down);
            for (long q = 0; q < s.width; q++) {
                long before = q + s.left - s.broad, first = before < 0 ? 0 : before / s.across + 1;
                long last = least(s.wide - 1, (q + s.left) / s.across);
                element *to = dx + ((n * s.height + r) * s.width + q) * s.channels;
                for (long c = 0; c < s.channels; c += LANES) {
                    long count = least(LANES, s.channels - c);
                    lanes sum = zero;
                    for (long a = first_row; a <= last_row; a++)
                        for (long b = first; b <= last; b++) {
                            long at = ((n * s.high + a) * s.wide + b) * s.channels + c;
                            long place = (r + s.up - a * s.down) * s.broad + q + s.left - b * s.across;
                            flags here = bytes_equal(places + at, (uint8_t)place, count);
                            sum = plus(sum, where(here, get(g + at, count), zero));
                        }
                    put(to + c, sum, count);
                }
            }
        }
    }
    return 0;
}

/* The mean of each window; windows lie side by side, and all of them within the image. */
int averaged(const element *x, long images, Shape s, element *y) {
    lanes part = all(1.0f / (float)(s.tall * s.broad)), zero = all(0);
#pragma omp parallel for collapse(2) schedule(static) if (images * s.high * s.wide * s.channels > FEW)
    for (long n = 0; n < images; n++) {
        for (long r = 0; r < s.high; r++) {
            for (long q = 0; q < s.wide; q++) {
                const element *corner = x + ((n * s.height + r * s.tall) * s.width + q * s.broad) * s.channels;
                element *to = y + ((n * s.high + r) * s.wide + q) * s.channels;
                for (long c = 0; c < s.channels; c += LANES) {
                    long count = least(LANES, s.channels - c);
                    lanes sum = zero;
                    for (long a = 0; a < s.tall; a++)
                        for (long b = 0; b < s.broad; b++)
                            sum = plus(sum, get(corner + (a * s.width + b) * s.channels + c, count));
                    put(to + c, times_plus(sum, part, zero), count);
                }
            }
        }
    }
    return 0;
}

/* The gradient of each input: its part of that of its window, and nothing behind the last one. */
int spread(const element *g, long images, Shape s, element *dx) {
    lanes part = all(1.0f / (float)(s.tall * s.broad)), zero = all(0);
#pragma omp parallel for collapse(2) schedule(static) if (images * s.height * s.width * s.channels > FEW)
    for (long n = 0; n < images; n++) {
        for (long r = 0; r < s.height; r++) {
            for (long q = 0; q < s.width; q++) {
                long a = r / s.tall, b = q / s.broad;
                int inside = a < s.high && b < s.wide;
                const element *from = g + ((n * s.high + a) * s.wide + b) * s.channels;
                element *to = dx + ((n * s.height + r) * s.width + q) * s.channels;
                for (long c = 0; c < s.channels; c += LANES) {
                    long count = least(LANES, s.channels - c);
                    put(to + c, inside ? times_plus(get(from + c, count), part, zero) : zero, count);
                }
            }
        }
    }
    return 0;
}
