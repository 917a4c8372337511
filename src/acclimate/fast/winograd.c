/* 3x3 convolutions with stride 1, by Winograd's minimal filtering F(2x2, 3x3), of images that lie pixel by pixel.

   Outputs come in tiles of 2 by 2, each from 4 by 4 inputs d:

       y = A^T [ (G g G^T) * (B^T d B) ] A        (* element by element, summed over the channels)

   which takes 16 products for every pair of channels where the sum itself takes 36. B and A have no entries but 0,
   1 and -1, so that nothing is lost beyond rounding; sums are over `ins` products only, and so more exact than over
   nine times as many. The products are 16 of matrices: tiles by input channels, times input by output channels.

   A tile is computed in the same way wherever it is: results depend neither on the batch nor on threads. */

#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_max_threads(void) { return 1; }
#endif

/* A product takes ROWS tiles by two registers of output channels: as many sums as there are registers for. */
#if defined(__AVX512F__)
#define LANES 16
#define ROWS 14
#elif defined(__AVX__)
#define LANES 8
#define ROWS 6
#else
#define LANES 4
#define ROWS 6
#endif
#define REST 4 /* tiles behind the last ROWS come so many at a time */
#define COLUMNS (2 * LANES)
#define POINTS 16               /* products of a tile */
#define MOST (28 / ROWS * ROWS) /* tiles at a time: what is made of them stays in the cache */
#define ROOM (MOST + REST)      /* for them and for what is multiplied behind the last */
#define FEW (1L << 16)          /* of each point: one thread is done with them before others have woken up */

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline lanes load(const float *p) { return *(const lanes *)p; }
static inline void store(float *p, lanes x) { *(lanes *)p = x; }

/* What both numbers of channels must be multiples of. */
long columns(void) { return COLUMNS; }

/* G g G^T of weights (outs, ins, 3, 3), as `product` reads it: point, block of output channels, input channel. */
int pack(const float *weight, long outs, long ins, float *packed) {
    static const double g[4][3] = {{1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}};
#pragma omp parallel for schedule(static)
    for (long o = 0; o < outs; o++)
        for (long i = 0; i < ins; i++)
            for (int p = 0; p < POINTS; p++) {
                const float *kernel = weight + (o * ins + i) * 9;
                double sum = 0;
                for (int k = 0; k < 9; k++) sum += g[p / 4][k / 3] * kernel[k] * g[p % 4][k % 3];
                long block = p * (outs / COLUMNS) + o / COLUMNS;
                packed[(block * ins + i) * COLUMNS + o % COLUMNS] = (float)sum;
            }
    return 0;
}

/* Where the 16 inputs of a tile are; outside of the image there are zeros. */
typedef struct {
    const float *from[POINTS];
} Patch;

/* B^T d B, of the channels from c on; its points lie `apart`. */
static inline void transform(const Patch *d, long c, float *made, long apart) {
    lanes t[4][4];
#pragma GCC unroll 4
    for (int b = 0; b < 4; b++) {
        lanes d0 = load(d->from[b] + c), d1 = load(d->from[4 + b] + c);
        lanes d2 = load(d->from[8 + b] + c), d3 = load(d->from[12 + b] + c);
        t[0][b] = d0 - d2;
        t[1][b] = d1 + d2;
        t[2][b] = d2 - d1;
        t[3][b] = d1 - d3;
    }
#pragma GCC unroll 4
    for (int a = 0; a < 4; a++) {
        float *to = made + 4 * a * apart + c;
        store(to, t[a][0] - t[a][2]);
        store(to + apart, t[a][1] + t[a][2]);
        store(to + 2 * apart, t[a][2] - t[a][1]);
        store(to + 3 * apart, t[a][1] - t[a][3]);
    }
}

/* Some tiles, `step` apart, times the packed weights of a block of output channels: written once for each number of
   tiles, so that all sums stay in registers. */
#define PRODUCT(name, rows) \
    static inline void name(const float *tiles, long step, const float *packed, long ins, float *made, long outs) { \
        lanes sum[rows][2]; \
        _Pragma("GCC unroll 16") for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = (lanes){0}; \
        for (long i = 0; i < ins; i++, packed += COLUMNS) { \
            lanes first = load(packed), second = load(packed + LANES); \
            _Pragma("GCC unroll 16") for (int r = 0; r < rows; r++) { \
                float one = tiles[r * step + i]; \
                sum[r][0] += first * one; \
                sum[r][1] += second * one; \
            } \
        } \
        _Pragma("GCC unroll 16") for (int r = 0; r < rows; r++) { \
            store(made + r * outs, sum[r][0]); \
            store(made + r * outs + LANES, sum[r][1]); \
        } \
    }
PRODUCT(product, ROWS)
PRODUCT(rest_of_product, REST)

/* A^T m A, of the channels from c on: the four outputs of a tile. */
static inline void outputs(const float *m, long apart, long c, lanes y[4]) {
    lanes t[2][4];
#pragma GCC unroll 4
    for (int b = 0; b < 4; b++) {
        const float *p = m + b * apart + c;
        lanes m1 = load(p + 4 * apart), m2 = load(p + 8 * apart);
        t[0][b] = load(p) + m1 + m2;
        t[1][b] = m1 - m2 - load(p + 12 * apart);
    }
#pragma GCC unroll 2
    for (int a = 0; a < 2; a++) {
        y[2 * a] = t[a][0] + t[a][1] + t[a][2];
        y[2 * a + 1] = t[a][1] - t[a][2] - t[a][3];
    }
}

/* All of a convolution but where its images are. */
typedef struct {
    long height, width, ins, outs; /* of the input, and channels */
    long up, left;                 /* padding */
    long high, wide;               /* of the output */
    long down, across;             /* tiles of an image */
} Shape;

/* Which image a tile is of, and the output that it begins with. */
typedef struct {
    long image, row, column;
} Place;

static inline Place place_of(long tile, const Shape *s) {
    long each = s->down * s->across, rest = tile % each;
    return (Place){tile / each, 2 * (rest / s->across), 2 * (rest % s->across)};
}

static inline Patch patch_of(Place place, const Shape *s, const float *x, const float *nothing) {
    Patch made;
    for (int p = 0; p < POINTS; p++) {
        long row = place.row - s->up + p / 4, column = place.column - s->left + p % 4;
        int inside = row >= 0 && row < s->height && column >= 0 && column < s->width;
        made.from[p] = inside ? x + ((place.image * s->height + row) * s->width + column) * s->ins : nothing;
    }
    return made;
}

/* The outputs of a tile, plus the bias, if it is not NULL, to where they belong; some may be outside. */
static inline void write(Place place, const Shape *s, const float *m, long apart, const float *bias, float *y) {
    float *to = y + ((place.image * s->high + place.row) * s->wide + place.column) * s->outs;
    long right = place.column + 1 < s->wide ? s->outs : -1, below = place.row + 1 < s->high ? s->wide * s->outs : -1;
    for (long c = 0; c < s->outs; c += LANES) {
        lanes made[4], more = bias ? load(bias + c) : (lanes){0};
        outputs(m, apart, c, made);
        store(to + c, made[0] + more);
        if (right > 0) store(to + right + c, made[1] + more);
        if (below > 0) store(to + below + c, made[2] + more);
        if (right > 0 && below > 0) store(to + right + below + c, made[3] + more);
    }
}

/* Tiles from `first` on; `v` and `m` are for what is made of their inputs and for their products. */
static void some_tiles(long first, long count, const Shape *s, const float *x, const float *nothing,
                       const float *packed, const float *bias, float *y, float *v, long step, float *m) {
    long before = ROOM * step, behind = ROOM * s->outs; /* from one point to the next */
    for (long t = 0; t < count; t++) {
        Patch patch = patch_of(place_of(first + t, s), s, x, nothing);
        for (long c = 0; c < s->ins; c += LANES) transform(&patch, c, v + t * step, before);
    }
    for (int p = 0; p < POINTS; p++)
        for (long o = 0; o < s->outs; o += COLUMNS, packed += s->ins * COLUMNS) {
            const float *from = v + p * before;
            float *to = m + p * behind + o;
            long t = 0;
            for (; t + ROWS <= count; t += ROWS)
                product(from + t * step, step, packed, s->ins, to + t * s->outs, s->outs);
            for (; t < count; t += REST)
                rest_of_product(from + t * step, step, packed, s->ins, to + t * s->outs, s->outs);
        }
    for (long t = 0; t < count; t++)
        write(place_of(first + t, s), s, m + t * s->outs, behind, bias, y);
}

/* Tiles that are taken at a time: so that each thread has about equally many, and where there are many whole ROWS. */
static long tiles_at_once(long tiles, int threads) {
    long share = (tiles + threads - 1) / threads, times = (share + MOST - 1) / MOST;
    long each = (share + times - 1) / times;
    return times < 4 ? each : (each + ROWS - 1) / ROWS * ROWS;
}

static float *zeros(long number) {
    size_t bytes = (sizeof(float) * number + 63) / 64 * 64;
    float *made = aligned_alloc(64, bytes);
    return made ? memset(made, 0, bytes) : NULL;
}

int convolve(const float *x, long images, long height, long width, long ins, const float *packed, const float *bias,
             float *y, long outs, long up, long left) {
    long high = height + 2 * up - 2, wide = width + 2 * left - 2;
    Shape shape = {height, width, ins, outs, up, left, high, wide, (high + 1) / 2, (wide + 1) / 2};
    long tiles = images * shape.down * shape.across, step = ins + LANES; /* not all rows in the same lines of a cache */
    int threads = tiles * ins * outs > FEW ? omp_get_max_threads() : 1, failed = 0;
    long each = tiles_at_once(tiles, threads);
    float *nothing = zeros(ins);
    if (!nothing) return 1;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        /* rows behind the last tile are multiplied, too: they must not be slow, as some numbers are */
        float *v = zeros(POINTS * ROOM * step), *m = zeros(POINTS * ROOM * outs);
        failed = !v || !m;
#pragma omp for schedule(static)
        for (long first = 0; first < tiles; first += each)
            if (!failed)
                some_tiles(first, tiles - first < each ? tiles - first : each, &shape, x, nothing, packed, bias, y, v,
                           step, m);
        free(v);
        free(m);
    }
    free(nothing);
    return failed;
}
