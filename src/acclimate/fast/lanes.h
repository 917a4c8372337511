/* Sixteen elements at a time: in one register where the processor has such, in two of AVX2, else in a loop that
   compilers turn into vector instructions by themselves, more or less well. Elements are float or, with BF16
   defined, bfloat16; all arithmetic is in float. Fewer than sixteen, at the end of a row, come with zeros behind
   them. All forms give the same bits where there is a fused multiplication and addition, but for what AVX-512
   rounds to bfloat16 otherwise: numbers that are denormal, and what is no number. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16

#ifdef BF16
typedef uint16_t element;
#else
typedef float element;
#endif

#if defined(__AVX512F__) && (!defined(BF16) || defined(__AVX512BF16__))
#include <immintrin.h>

typedef __m512 lanes;
typedef __mmask16 flags;

static inline lanes all(float value) { return _mm512_set1_ps(value); }
static inline lanes plus(lanes a, lanes b) { return _mm512_add_ps(a, b); }
static inline lanes minus(lanes a, lanes b) { return _mm512_sub_ps(a, b); }
static inline lanes times_plus(lanes a, lanes b, lanes c) { return _mm512_fmadd_ps(a, b, c); }
static inline flags between(lanes x, lanes low, lanes high) {
    return _mm512_cmp_ps_mask(x, low, _CMP_GT_OQ) & _mm512_cmp_ps_mask(x, high, _CMP_LT_OQ);
}
/* Also if a is no number. */
static inline flags exceeds(lanes a, lanes b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) | _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}
static inline lanes where(flags f, lanes a, lanes b) { return _mm512_mask_blend_ps(f, b, a); }
/* Both give the second operand if one is not a number. */
static inline lanes clamp(lanes x, lanes low, lanes high) {
    return _mm512_min_ps(high, _mm512_max_ps(low, x));
}
static inline uint16_t bits_of(flags f) { return f; }
static inline flags flags_of(uint16_t bits) { return bits; }

static inline void store_bytes(uint8_t *p, lanes x) {
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(x)));
}
static inline flags equal_bytes(const uint8_t *p, uint8_t value) {
    __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm512_cmpeq_epi32_mask(wide, _mm512_set1_epi32(value));
}

static inline lanes load_floats(const float *p) { return _mm512_loadu_ps(p); }
static inline void store_floats(float *p, lanes x) { _mm512_storeu_ps(p, x); }
#ifdef BF16
static inline lanes load(const element *p) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
static inline void store(element *p, lanes x) {
    _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(x));
}
#endif

#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

/* The first eight and the last eight. A flag is a lane of ones. */
typedef struct { __m256 a, b; } lanes;
typedef struct { __m256 a, b; } flags;

static inline lanes all(float value) { return (lanes){_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
static inline lanes plus(lanes x, lanes y) { return (lanes){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
static inline lanes minus(lanes x, lanes y) { return (lanes){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
static inline lanes times_plus(lanes x, lanes y, lanes z) {
    return (lanes){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
static inline __m256 half_between(__m256 x, __m256 low, __m256 high) {
    return _mm256_and_ps(_mm256_cmp_ps(x, low, _CMP_GT_OQ), _mm256_cmp_ps(x, high, _CMP_LT_OQ));
}
static inline flags between(lanes x, lanes low, lanes high) {
    return (flags){half_between(x.a, low.a, high.a), half_between(x.b, low.b, high.b)};
}
static inline __m256 half_exceeds(__m256 x, __m256 y) {
    return _mm256_or_ps(_mm256_cmp_ps(x, y, _CMP_GT_OQ), _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
static inline flags exceeds(lanes x, lanes y) { return (flags){half_exceeds(x.a, y.a), half_exceeds(x.b, y.b)}; }
static inline lanes where(flags f, lanes x, lanes y) {
    return (lanes){_mm256_blendv_ps(y.a, x.a, f.a), _mm256_blendv_ps(y.b, x.b, f.b)};
}
static inline lanes clamp(lanes x, lanes low, lanes high) {
    return (lanes){_mm256_min_ps(high.a, _mm256_max_ps(low.a, x.a)),
                   _mm256_min_ps(high.b, _mm256_max_ps(low.b, x.b))};
}
static inline uint16_t bits_of(flags f) {
    return (uint16_t)(_mm256_movemask_ps(f.a) | _mm256_movemask_ps(f.b) << 8);
}
static inline __m256 half_of(__m256i bits, int first) {
    __m256i each = _mm256_slli_epi32(_mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128), first);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(bits, each), each));
}
static inline flags flags_of(uint16_t bits) {
    __m256i both = _mm256_set1_epi32(bits);
    return (flags){half_of(both, 0), half_of(both, 8)};
}

/* Two registers of whole numbers in half the width; the instruction takes turns between their halves. */
static inline __m256i narrowed(__m256i a, __m256i b) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
}
static inline void store_bytes(uint8_t *p, lanes x) {
    __m256i words = narrowed(_mm256_cvttps_epi32(x.a), _mm256_cvttps_epi32(x.b));
    __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)p, bytes);
}
static inline flags equal_bytes(const uint8_t *p, uint8_t value) {
    __m128i same = _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)p), _mm_set1_epi8((char)value));
    return (flags){_mm256_castsi256_ps(_mm256_cvtepi8_epi32(same)),
                   _mm256_castsi256_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(same, 8)))};
}

static inline lanes load_floats(const float *p) { return (lanes){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void store_floats(float *p, lanes x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
#ifdef BF16
static inline __m256 widened(__m128i half) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
static inline lanes load(const element *p) {
    return (lanes){widened(_mm_loadu_si128((const __m128i *)p)), widened(_mm_loadu_si128((const __m128i *)p + 1))};
}
/* To the nearest, and of two to the even one. */
static inline __m256i nearest(__m256 x) {
    __m256i bits = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i made = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i none = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(made, 16), _mm256_set1_epi32(0x7fc0), none);
}
static inline void store(element *p, lanes x) {
    _mm256_storeu_si256((__m256i *)p, narrowed(nearest(x.a), nearest(x.b)));
}
#endif

#else

typedef struct { float v[LANES]; } lanes;
typedef struct { uint32_t v[LANES]; } flags;
#define EACH for (int i = 0; i < LANES; i++)

static inline lanes all(float value) { lanes r; EACH r.v[i] = value; return r; }
static inline lanes plus(lanes a, lanes b) { EACH a.v[i] += b.v[i]; return a; }
static inline lanes minus(lanes a, lanes b) { EACH a.v[i] -= b.v[i]; return a; }
static inline lanes times_plus(lanes a, lanes b, lanes c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    EACH c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
#else
    EACH c.v[i] += a.v[i] * b.v[i];
#endif
    return c;
}
static inline flags between(lanes x, lanes low, lanes high) {
    flags r;
    EACH r.v[i] = (x.v[i] > low.v[i]) & (x.v[i] < high.v[i]);
    return r;
}
static inline flags exceeds(lanes a, lanes b) {
    flags r;
    EACH r.v[i] = (a.v[i] > b.v[i]) | (a.v[i] != a.v[i]);
    return r;
}
static inline lanes where(flags f, lanes a, lanes b) { EACH a.v[i] = f.v[i] ? a.v[i] : b.v[i]; return a; }
static inline lanes clamp(lanes x, lanes low, lanes high) {
    EACH x.v[i] = x.v[i] < low.v[i] ? low.v[i] : x.v[i];
    EACH x.v[i] = x.v[i] > high.v[i] ? high.v[i] : x.v[i];
    return x;
}
static inline uint16_t bits_of(flags f) {
    uint16_t r = 0;
    EACH r |= (uint16_t)(f.v[i] << i);
    return r;
}
static inline flags flags_of(uint16_t bits) { flags r; EACH r.v[i] = bits >> i & 1; return r; }

static inline void store_bytes(uint8_t *p, lanes x) { EACH p[i] = (uint8_t)x.v[i]; }
static inline flags equal_bytes(const uint8_t *p, uint8_t value) {
    flags r;
    EACH r.v[i] = p[i] == value;
    return r;
}

static inline lanes load_floats(const float *p) { lanes r; EACH r.v[i] = p[i]; return r; }
static inline void store_floats(float *p, lanes x) { EACH p[i] = x.v[i]; }
#ifdef BF16
static inline lanes load(const element *p) {
    lanes r;
    EACH {
        union { uint32_t bits; float value; } u = {(uint32_t)p[i] << 16};
        r.v[i] = u.value;
    }
    return r;
}
static inline void store(element *p, lanes x) { /* to the nearest, and of two to the even one */
    EACH {
        union { float value; uint32_t bits; } u = {x.v[i]};
        uint32_t nearest = (u.bits + 0x7fff + (u.bits >> 16 & 1)) >> 16;
        p[i] = (element)(x.v[i] != x.v[i] ? 0x7fc0 : nearest);
    }
}
#endif
#endif

#ifdef BF16
static inline lanes rounded(lanes x) { /* as if it had been stored and loaded */
    element stored[LANES];
    store(stored, x);
    return load(stored);
}
#else
static inline lanes load(const element *p) { return load_floats(p); }
static inline void store(element *p, lanes x) { store_floats(p, x); }
static inline lanes rounded(lanes x) { return x; }
#endif

/* The first `count` of a row, if there are not enough. */
static inline lanes get(const element *p, long count) {
    if (count >= LANES) return load(p);
    element some[LANES] = {0};
    memcpy(some, p, sizeof(element) * count);
    return load(some);
}

static inline void put(element *p, lanes x, long count) {
    if (count >= LANES) {
        store(p, x);
        return;
    }
    element some[LANES];
    store(some, x);
    memcpy(p, some, sizeof(element) * count);
}

/* Whole numbers of less than 256. */
static inline void put_bytes(uint8_t *p, lanes x, long count) {
    if (count >= LANES) {
        store_bytes(p, x);
        return;
    }
    uint8_t some[LANES];
    store_bytes(some, x);
    memcpy(p, some, count);
}

/* Which of `count` bytes are these; beyond them it may be any. */
static inline flags bytes_equal(const uint8_t *p, uint8_t value, long count) {
    if (count >= LANES) return equal_bytes(p, value);
    uint8_t some[LANES] = {0};
    memcpy(some, p, count);
    return equal_bytes(some, value);
}
