/* 3x3 convolutions with stride 1, by Winograd's minimal filtering F(2x2, 3x3), of images that lie pixel by pixel.

   Outputs come in tiles of 2 by 2, each from 4 by 4 inputs d:

       y = A^T [ (G g G^T) * (B^T d B) ] A        (* element by element, summed over the channels)

   which takes 16 products for every pair of channels where the sum itself takes 36. B and A have no entries but 0,
   1 and -1, so that nothing is lost beyond rounding; sums are over `ins` products only, and so more exact than over
   nine times as many. The products are 16 of matrices: tiles by input channels, times input by output channels.

   A tile is computed in the same way wherever it is: results depend neither on the batch nor on threads. Gradients of
   weights are sums over all tiles: the same number of threads gives the same bits. */

#include "products.h"

#define POINTS 16               /* products of a tile */
#define MOST (28 / ROWS * ROWS) /* tiles at a time: what is made of them stays in the cache */
#define ROOM (MOST + REST)      /* for them and for what is multiplied behind the last */
#define FEW (1L << 16)          /* of each point: one thread is done with them before others have woken up */

/* What both numbers of channels must be multiples of. */
long columns(void) { return COLUMNS; }

static const double G[4][3] = {{1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}};

/* G g G^T of weights (outs, ins, 3, 3), as `product` reads it: point, block of output channels, input channel. */
int pack(const float *weight, long outs, long ins, float *packed) {
#pragma omp parallel for schedule(static)
    for (long o = 0; o < outs; o++)
        for (long i = 0; i < ins; i++)
            for (int p = 0; p < POINTS; p++) {
                const float *kernel = weight + (o * ins + i) * 9;
                double sum = 0;
                for (int k = 0; k < 9; k++) sum += G[p / 4][k / 3] * kernel[k] * G[p % 4][k % 3];
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

int convolve(const float *x, long images, long height, long width, long ins, const float *packed, const float *bias,
             float *y, long outs, long up, long left) {
    long high = height + 2 * up - 2, wide = width + 2 * left - 2;
    Shape shape = {height, width, ins, outs, up, left, high, wide, (high + 1) / 2, (wide + 1) / 2};
    long tiles = images * shape.down * shape.across, step = ins + LANES; /* not all rows in the same lines of a cache */
    int threads = tiles * ins * outs > FEW ? omp_get_max_threads() : 1, failed = 0;
    long each = tiles_at_once(tiles, threads);
    float *nothing = zeros(sizeof(float) * ins);
    if (!nothing) return 1;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        /* rows behind the last tile are multiplied, too: they must not be slow, as some numbers are */
        float *v = zeros(sizeof(float) * POINTS * ROOM * step), *m = zeros(sizeof(float) * POINTS * ROOM * outs);
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

/* The gradient of a weight: G^T D G, where D is the sum of (A dy A^T) * (B^T d B) over all tiles.

   D is added up in registers over some tiles, in float over some times as many, and in double over those. */

#define TIMES 8 /* that sums are added up in float */
#if LANES == 16
#define SIDE 8 /* input channels at a time, by two registers of output channels */
#else
#define SIDE 4
#endif

/* A dy A^T, of the channels from c on; its points lie `apart`. */
static inline void spread(const float *const dy[4], long c, float *made, long apart) {
    lanes t[4][2];
#pragma GCC unroll 2
    for (int b = 0; b < 2; b++) {
        lanes above = load(dy[b] + c), below = load(dy[2 + b] + c);
        t[0][b] = above;
        t[1][b] = above + below;
        t[2][b] = above - below;
        t[3][b] = -below;
    }
#pragma GCC unroll 4
    for (int a = 0; a < 4; a++) {
        float *to = made + 4 * a * apart + c;
        store(to, t[a][0]);
        store(to + apart, t[a][0] + t[a][1]);
        store(to + 2 * apart, t[a][0] - t[a][1]);
        store(to + 3 * apart, -t[a][1]);
    }
}

/* Adds the products of so many tiles: SIDE input channels from `v` on, whose tiles are `step` apart, by COLUMNS output
   channels from `m` on. */
static inline void add_products(const float *v, long step, const float *m, long outs, long count, float *sums) {
    lanes sum[SIDE][2];
#pragma GCC unroll 8
    for (int i = 0; i < SIDE; i++) {
        sum[i][0] = load(sums + i * outs);
        sum[i][1] = load(sums + i * outs + LANES);
    }
    for (long t = 0; t < count; t++, v += step, m += outs) {
        lanes first = load(m), second = load(m + LANES);
#pragma GCC unroll 8
        for (int i = 0; i < SIDE; i++) {
            sum[i][0] += first * v[i];
            sum[i][1] += second * v[i];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < SIDE; i++) {
        store(sums + i * outs, sum[i][0]);
        store(sums + i * outs + LANES, sum[i][1]);
    }
}

/* Adds what some tiles are to D (points, ins, outs), and behind it to the sum of dy. */
static void add_tiles(long first, long count, const Shape *s, const float *x, const float *dy, const float *nothing,
                      float *v, long step, float *m, float *sums) {
    long before = ROOM * step, behind = ROOM * s->outs; /* from one point to the next */
    for (long t = 0; t < count; t++) {
        Place place = place_of(first + t, s);
        Patch patch = patch_of(place, s, x, nothing);
        const float *from = dy + ((place.image * s->high + place.row) * s->wide + place.column) * s->outs;
        int right = place.column + 1 < s->wide, below = place.row + 1 < s->high;
        const float *made[4] = {from, right ? from + s->outs : nothing, below ? from + s->wide * s->outs : nothing,
                                right && below ? from + (s->wide + 1) * s->outs : nothing};
        for (long c = 0; c < s->ins; c += LANES) transform(&patch, c, v + t * step, before);
        for (long c = 0; c < s->outs; c += LANES) spread(made, c, m + t * s->outs, behind);
    }
    for (int p = 0; p < POINTS; p++)
        for (long o = 0; o < s->outs; o += COLUMNS)
            for (long i = 0; i < s->ins; i += SIDE)
                add_products(v + p * before + i, step, m + p * behind + o, s->outs, count,
                             sums + (p * s->ins + i) * s->outs + o);
    float *whole = sums + POINTS * s->ins * s->outs, *middle = m + 5 * behind; /* where A dy A^T has the sum of dy */
    for (long t = 0; t < count; t++)
        for (long c = 0; c < s->outs; c += LANES) store(whole + c, load(whole + c) + load(middle + t * s->outs + c));
}

static void move(float *sums, double *totals, long number) {
    for (long i = 0; i < number; i++) totals[i] += sums[i];
    memset(sums, 0, sizeof(float) * number);
}

/* Writes the gradients of a weight (outs, ins, 3, 3) and of a bias. */
int gradients(const float *x, long images, long height, long width, long ins, const float *dy, long outs, long up,
              long left, float *in_weight, float *in_bias) {
    long high = height + 2 * up - 2, wide = width + 2 * left - 2, inner = POINTS * ins * outs, number = inner + outs;
    Shape shape = {height, width, ins, outs, up, left, high, wide, (high + 1) / 2, (wide + 1) / 2};
    long tiles = images * shape.down * shape.across, step = ins + LANES;
    int threads = tiles * ins * outs > FEW ? omp_get_max_threads() : 1, failed = 0;
    long each = tiles_at_once(tiles, threads), pieces = (tiles + each - 1) / each;
    if (pieces < threads) threads = (int)pieces;
    float *nothing = zeros(sizeof(float) * (ins > outs ? ins : outs));
    double *totals = zeros(sizeof(double) * number * threads);
    if (!nothing || !totals) {
        free(nothing);
        free(totals);
        return 1;
    }
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        float *v = zeros(sizeof(float) * POINTS * ROOM * step), *m = zeros(sizeof(float) * POINTS * ROOM * outs);
        float *sums = zeros(sizeof(float) * number);
        double *own = totals + omp_get_thread_num() * number;
        long times = 0;
        failed = !v || !m || !sums;
#pragma omp for schedule(static)
        for (long first = 0; first < tiles; first += each) {
            if (failed) continue;
            add_tiles(first, tiles - first < each ? tiles - first : each, &shape, x, dy, nothing, v, step, m, sums);
            if (++times % TIMES == 0) move(sums, own, number);
        }
        if (!failed) move(sums, own, number);
        free(v);
        free(m);
        free(sums);
    }
    for (int t = 1; t < threads; t++)
        for (long i = 0; i < number; i++) totals[i] += totals[t * number + i];
    for (long o = 0; o < outs; o++) {
        in_bias[o] = (float)totals[inner + o];
        for (long i = 0; i < ins; i++)
            for (int k = 0; k < 9; k++) {
                double sum = 0;
                for (int p = 0; p < POINTS; p++)
                    sum += G[p / 4][k / 3] * totals[(p * ins + i) * outs + o] * G[p % 4][k % 3];
                in_weight[(o * ins + i) * 9 + k] = (float)sum;
            }
    }
    free(nothing);
    free(totals);
    return failed;
}
