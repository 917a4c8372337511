/* 3x3 convolutions with stride 1 and padding 1 to or from the few channels of an image, of what lies pixel by pixel.

   To few channels: a pixel times the weights of all nine places comes first, as a product of matrices; an output is
   then the sum of what nine pixels gave it. Outputs depend neither on the batch nor on threads.

   The gradient of a weight is a sum over pixels, of a pixel of many channels times the nine pixels of few channels
   around it: whether those came in or went out. It is taken in float along a row and in double over the rows; the same
   number of threads gives the same bits. */

#include "products.h"

#define PLACES 9
#define MOST 4            /* channels that are few */
#define BAND 16           /* rows that one thread makes: it needs what one more above and below gives */
#define FEW (1L << 18)    /* products: one thread is done with them before others have woken up */

typedef float four __attribute__((vector_size(16), aligned(4), may_alias));

/* What the many channels must be a multiple of. */
long columns(void) { return COLUMNS; }

/* Of a pixel's products: a number for each place and each of the few. */
static long blocks_of(long few) { return (PLACES * few + COLUMNS - 1) / COLUMNS; }

static void row_of_products(const float *x, long width, long ins, const float *packed, long blocks, float *made) {
    long apart = blocks * COLUMNS;
    for (long b = 0; b < blocks; b++, packed += ins * COLUMNS, made += COLUMNS) {
        long q = 0;
        for (; q + ROWS <= width; q += ROWS) product(x + q * ins, ins, packed, ins, made + q * apart, apart);
        for (; q + REST <= width; q += REST) rest_of_product(x + q * ins, ins, packed, ins, made + q * apart, apart);
        for (; q < width; q++) last_of_product(x + q * ins, ins, packed, ins, made + q * apart, apart);
    }
}

/* The sum of what the pixels of three rows give, each with another one before the first and behind the last. */
static void row_of_sums(float *const rows[3], long width, long apart, long outs, const float *bias, float *y) {
    four shift = {0};
    for (long o = 0; bias && o < outs; o++) shift[o] = bias[o];
    for (long q = 0; q < width; q++, y += outs) {
        four sum = shift;
        for (int place = 0; place < PLACES; place++)
            sum += *(const four *)(rows[place / 3] + (q + place % 3) * apart + place * outs);
        if ((width - q) * outs >= 4)
            *(four *)y = sum; /* what is too much is written over by the next */
        else
            memcpy(y, &sum, sizeof(float) * outs);
    }
}

static void pack(const float *weight, long outs, long ins, float *packed) {
    for (long o = 0; o < outs; o++)
        for (long i = 0; i < ins; i++)
            for (int place = 0; place < PLACES; place++) {
                long column = place * outs + o;
                packed[(column / COLUMNS * ins + i) * COLUMNS + column % COLUMNS] = weight[(o * ins + i) * PLACES + place];
            }
}

/* To few channels. */
int convolve(const float *x, long images, long height, long width, long ins, const float *weight, const float *bias,
             float *y, long outs) {
    long blocks = blocks_of(outs), apart = blocks * COLUMNS, bands = (height + BAND - 1) / BAND;
    int threads = images * height * width * ins * apart > FEW ? omp_get_max_threads() : 1, failed = 0;
    float *packed = zeros(sizeof(float) * ins * apart);
    if (!packed) return 1;
    pack(weight, outs, ins, packed);
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        /* of four rows: those around an output, and zeros for what is outside */
        long each = (width + 2) * apart;
        float *room = zeros(sizeof(float) * 4 * each);
        failed = !room;
#pragma omp for schedule(static)
        for (long band = 0; band < images * bands; band++) {
            if (failed) continue;
            long image = band / bands, first = band % bands * BAND, end = first + BAND < height ? first + BAND : height;
            for (long r = first ? first - 1 : 0; r <= end; r++) {
                if (r < height)
                    row_of_products(x + (image * height + r) * width * ins, width, ins, packed, blocks,
                                    room + r % 3 * each + apart);
                long made = r - 1; /* for which all is there now */
                if (made < first || made >= end) continue;
                float *outside = room + 3 * each;
                float *rows[3] = {made ? room + (made - 1) % 3 * each : outside, room + made % 3 * each,
                                  r < height ? room + r % 3 * each : outside};
                row_of_sums(rows, width, apart, outs, bias, y + (image * height + made) * width * outs);
            }
        }
        free(room);
    }
    free(packed);
    return failed;
}

/* Along a row: LANES of many channels, `step` apart, times the three pixels of `few` channels around each; and the sum of
   the many, if it is wanted. */
static inline __attribute__((always_inline)) void add_row(const float *many, long step, const float *around, long width,
                                                          const long few, double *sums, long apart, double *whole) {
    lanes sum[3 * MOST], all = {0};
#pragma GCC unroll 12
    for (int k = 0; k < 3 * few; k++) sum[k] = (lanes){0};
    for (long q = 0; q < width; q++, many += step, around += few) {
        lanes v = load(many);
        all += v;
#pragma GCC unroll 12
        for (int k = 0; k < 3 * few; k++) sum[k] += v * around[k];
    }
    for (int k = 0; k < 3 * few; k++)
        for (int c = 0; c < LANES; c++) sums[k * apart + c] += sum[k][c];
    for (int c = 0; whole && c < LANES; c++) whole[c] += all[c];
}

static void add_rows(const float *many, long channels, const float *around, long width, long few, double *sums,
                     double *whole) {
    for (long c = 0; c < channels; c += LANES) {
        double *own = whole ? whole + c : NULL;
        switch (few) { /* the compiler keeps all sums in registers if it knows how many there are */
        case 1: add_row(many + c, channels, around, width, 1, sums + c, channels, own); break;
        case 2: add_row(many + c, channels, around, width, 2, sums + c, channels, own); break;
        case 3: add_row(many + c, channels, around, width, 3, sums + c, channels, own); break;
        case MOST: add_row(many + c, channels, around, width, MOST, sums + c, channels, own);
        }
    }
}

/* Writes sums (9, few, channels): of pixels of many channels times those of few channels at each place around; and
   behind them the sum of the pixels of many channels. */
int products(const float *many, long channels, const float *less, long few, long images, long height, long width,
             float *made) {
    long each = few * channels, inner = PLACES * each, number = inner + channels, rows = images * height;
    int threads = rows * width * inner > FEW ? omp_get_max_threads() : 1, failed = 0;
    double *totals = zeros(sizeof(double) * number * threads);
    if (!totals) return 1;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        float *around = zeros(sizeof(float) * (width + 2) * few); /* a row, and a pixel of zeros at both ends */
        double *own = totals + omp_get_thread_num() * number;
        failed = !around;
#pragma omp for schedule(static)
        for (long row = 0; row < rows; row++)
            for (long place = 0; !failed && place < 3; place++) {
                long at = row % height + place - 1;
                if (at < 0 || at >= height) continue;
                memcpy(around + few, less + (row + place - 1) * width * few, sizeof(float) * width * few);
                add_rows(many + row * width * channels, channels, around, width, few, own + place * 3 * each,
                         place == 1 ? own + inner : NULL);
            }
        free(around);
    }
    for (int t = 1; t < threads; t++)
        for (long i = 0; i < number; i++) totals[i] += totals[t * number + i];
    for (long i = 0; i < number; i++) made[i] = (float)totals[i];
    free(totals);
    return failed;
}
