/* Products of rows, some at a time, and a block of packed columns, with all sums in registers; and what else the
   convolutions of ours share. */

#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_max_threads(void) { return 1; }
static int omp_get_thread_num(void) { return 0; }
#endif

/* A product takes ROWS rows by two registers of columns: as many sums as there are registers for. */
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
#define REST 4 /* rows behind the last ROWS come so many at a time */
#define COLUMNS (2 * LANES)

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline lanes load(const float *p) { return *(const lanes *)p; }
static inline void store(float *p, lanes x) { *(lanes *)p = x; }

/* Some rows of `ins`, `step` apart, times a packed block of columns, to where rows are `outs` apart: written once for
   each number of rows, so that all sums stay in registers. */
#define PRODUCT(name, rows) \
    static inline void name(const float *from, long step, const float *packed, long ins, float *made, long outs) { \
        lanes sum[rows][2]; \
        _Pragma("GCC unroll 16") for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = (lanes){0}; \
        for (long i = 0; i < ins; i++, packed += COLUMNS) { \
            lanes first = load(packed), second = load(packed + LANES); \
            _Pragma("GCC unroll 16") for (int r = 0; r < rows; r++) { \
                float one = from[r * step + i]; \
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
PRODUCT(last_of_product, 1)

/* Zeros that begin where a register of floats does; NULL without memory for them. */
static void *zeros(size_t bytes) {
    size_t whole = (bytes + 63) / 64 * 64;
    void *made = aligned_alloc(64, whole);
    return made ? memset(made, 0, whole) : NULL;
}
