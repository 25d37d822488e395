/* The mean of gradients in rank order, each of which may be the mean of several terms, and a plain step of SGD
 * with it, in one pass over memory; such a step with one gradient, which makes the copy that a worker reads, too;
 * a step of Adam from one memory into another; the look for values that are not finite, and that copy alone.
 *
 * Each product, sum and quotient is rounded as torch rounds it, so results are the same to the bit;
 * kernels.py compares them before anything uses this. Those that tell return 1 if all was finite. They touch
 * no Python object: they are called without the interpreter's lock.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

#define VECTOR 8  /* floats */
#define LINE 16   /* floats of a cache line: streaming stores fill whole ones */
#define TARGET __attribute__((target("avx2,fma")))
#define INLINE static inline __attribute__((always_inline)) TARGET

int ps_supported(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

/* Division by a power of two is a product, to the bit, also of what is denormal. */
static int is_power_of_two(size_t count)
{
    return (count & (count - 1)) == 0;
}

/* A division by a number of terms. */
struct quotient {
    int multiplies;
    float by;
    __m256 by_all;
};

INLINE struct quotient quotient_of(size_t count)
{
    struct quotient made;
    made.multiplies = is_power_of_two(count);
    made.by = made.multiplies ? 1.0f / (float)count : (float)count;
    made.by_all = _mm256_set1_ps(made.by);
    return made;
}

INLINE __m256 divided_vector(__m256 sum, const struct quotient *all)
{
    return all->multiplies ? _mm256_mul_ps(sum, all->by_all) : _mm256_div_ps(sum, all->by_all);
}

INLINE float divided_scalar(float sum, const struct quotient *all)
{
    return all->multiplies ? sum * all->by : sum / all->by;
}

INLINE __m256 gradient_vector(const float *const *terms, size_t ranks, size_t at, const struct quotient *all)
{
    __m256 sum = _mm256_loadu_ps(terms[0] + at);
    for (size_t rank = 1; rank < ranks; rank++)
        sum = _mm256_add_ps(sum, _mm256_loadu_ps(terms[rank] + at));
    return ranks == 1 ? sum : divided_vector(sum, all);
}

INLINE float gradient_scalar(const float *const *terms, size_t ranks, size_t at, const struct quotient *all)
{
    float sum = terms[0][at];
    for (size_t rank = 1; rank < ranks; rank++)
        sum += terms[rank][at];
    return ranks == 1 ? sum : divided_scalar(sum, all);
}

INLINE __m256 mean_vector(const float *const *terms, size_t count, size_t ranks, size_t at,
                          const struct quotient *all, const struct quotient *each)
{
    __m256 sum = gradient_vector(terms, ranks, at, each);
    for (size_t worker = 1; worker < count; worker++)
        sum = _mm256_add_ps(sum, gradient_vector(terms + worker * ranks, ranks, at, each));
    return divided_vector(sum, all);
}

INLINE float mean_scalar(const float *const *terms, size_t count, size_t ranks, size_t at,
                         const struct quotient *all, const struct quotient *each)
{
    float sum = gradient_scalar(terms, ranks, at, each);
    for (size_t worker = 1; worker < count; worker++)
        sum += gradient_scalar(terms + worker * ranks, ranks, at, each);
    return divided_scalar(sum, all);
}

/* All elements of `count` gradients, each the mean of `ranks` terms that lie one behind the other; both are
 * constants where this is inlined for what is commonest. `weights` may be null: then `out` gets the mean.
 * `kept` may be null: else it gets what `out` gets.
 * `streams`: past the caches, for memory that nobody here reads soon. */
INLINE int pass(const float *const *terms, size_t count, size_t ranks, const float *weights, float rate, float *kept,
                float *out, size_t elements, int streams)
{
    const struct quotient all = quotient_of(count), each = quotient_of(ranks);
    const __m256 rates = _mm256_set1_ps(-rate), zero = _mm256_setzero_ps();
    __m256 spoilt = zero; /* 0 * x is NaN where x is not finite, and stays it in a sum */
    float spoilt_alone = 0.0f;
    size_t at = 0, head = 0;
    if (streams) {
        head = ((64 - ((uintptr_t)out & 63)) & 63) / sizeof(float);
        if (head > elements)
            head = elements;
    }
    const int keeps_past = streams && !(((uintptr_t)kept ^ (uintptr_t)out) & 31);
    for (; at < head; at++) {
        float mean = mean_scalar(terms, count, ranks, at, &all, &each);
        spoilt_alone += 0.0f * mean;
        out[at] = weights ? __builtin_fmaf(-rate, mean, weights[at]) : mean;
        if (kept)
            kept[at] = out[at];
    }
    for (; at + LINE <= elements; at += LINE) {
        __m256 low = mean_vector(terms, count, ranks, at, &all, &each);
        __m256 high = mean_vector(terms, count, ranks, at + VECTOR, &all, &each);
        spoilt = _mm256_add_ps(spoilt, _mm256_mul_ps(zero, low));
        spoilt = _mm256_add_ps(spoilt, _mm256_mul_ps(zero, high));
        if (weights) {
            low = _mm256_fmadd_ps(rates, low, _mm256_loadu_ps(weights + at));
            high = _mm256_fmadd_ps(rates, high, _mm256_loadu_ps(weights + at + VECTOR));
        }
        if (kept && keeps_past) {
            _mm256_stream_ps(kept + at, low);
            _mm256_stream_ps(kept + at + VECTOR, high);
        } else if (kept) {
            _mm256_storeu_ps(kept + at, low);
            _mm256_storeu_ps(kept + at + VECTOR, high);
        }
        if (streams) {
            _mm256_stream_ps(out + at, low);
            _mm256_stream_ps(out + at + VECTOR, high);
        } else {
            _mm256_storeu_ps(out + at, low);
            _mm256_storeu_ps(out + at + VECTOR, high);
        }
    }
    for (; at < elements; at++) {
        float mean = mean_scalar(terms, count, ranks, at, &all, &each);
        spoilt_alone += 0.0f * mean;
        out[at] = weights ? __builtin_fmaf(-rate, mean, weights[at]) : mean;
        if (kept)
            kept[at] = out[at];
    }
    if (streams)
        _mm_sfence();
    return _mm256_movemask_ps(_mm256_cmp_ps(spoilt, spoilt, _CMP_UNORD_Q)) == 0 && spoilt_alone == spoilt_alone;
}

/* mean[i] = ((g0[i] + g1[i]) + ...) / count, with g0[i] = ((t0[i] + t1[i]) + ...) / ranks */
TARGET int ps_rank_mean(const float *const *terms, size_t count, size_t ranks, float *mean, size_t elements)
{
    if (ranks > 1)
        return pass(terms, count, ranks, NULL, 0.0f, NULL, mean, elements, 0);
    if (count == 2)
        return pass(terms, 2, 1, NULL, 0.0f, NULL, mean, elements, 0);
    return pass(terms, count, 1, NULL, 0.0f, NULL, mean, elements, 0);
}

/* out[i] = weights[i] - rate * mean[i], product and sum rounded once */
TARGET int ps_rank_mean_step(const float *const *terms, size_t count, size_t ranks, const float *weights, float rate,
                        float *out, size_t elements, int streams)
{
    if (ranks > 1)
        return pass(terms, count, ranks, weights, rate, NULL, out, elements, streams);
    if (count == 2 && streams)
        return pass(terms, 2, 1, weights, rate, NULL, out, elements, 1);
    return pass(terms, count, 1, weights, rate, NULL, out, elements, streams);
}

/* kept[i] = copy[i] = weights[i] - rate * gradient[i], product and sum rounded once */
TARGET int ps_step_copy(const float *gradient, const float *weights, float rate, float *kept, float *copy,
                        size_t elements, int streams)
{
    if (streams)
        return pass(&gradient, 1, 1, weights, rate, kept, copy, elements, 1);
    return pass(&gradient, 1, 1, weights, rate, kept, copy, elements, 0);
}

TARGET int ps_finite(const float *values, size_t elements)
{
    const __m256 zero = _mm256_setzero_ps();
    __m256 low = zero, high = zero;
    float alone = 0.0f;
    size_t at = 0;
    for (; at + LINE <= elements; at += LINE) {
        low = _mm256_add_ps(low, _mm256_mul_ps(zero, _mm256_loadu_ps(values + at)));
        high = _mm256_add_ps(high, _mm256_mul_ps(zero, _mm256_loadu_ps(values + at + VECTOR)));
    }
    for (; at < elements; at++)
        alone += 0.0f * values[at];
    low = _mm256_add_ps(low, high);
    return _mm256_movemask_ps(_mm256_cmp_ps(low, low, _CMP_UNORD_Q)) == 0 && alone == alone;
}

/* A step of Adam or AdamW (Kingma and Ba, arXiv:1412.6980; Loshchilov and Hutter, arXiv:1711.05101), each
 * operation in the order and with the rounding of torch's fused kernel, which does vectors and the last few
 * elements differently. `first` and `second` are the moments, changed in place; `out` is no memory of
 * `weights`. `l2` is added to the gradient times the weight, `keep` multiplies the weight; `first_share` is
 * 1 - beta1, less than a half; `root` is the square root of the bias correction of the second moment. */
TARGET static void adam(const float *gradient, const float *weights, float *out, float *first, float *second,
                        size_t elements, float first_share, float second_kept, float second_share, float rate,
                        float root, float eps, float l2, float keep, int streams)
{
    const __m256 first_shares = _mm256_set1_ps(first_share), kept = _mm256_set1_ps(second_kept);
    const __m256 second_shares = _mm256_set1_ps(second_share), rates = _mm256_set1_ps(-rate);
    const __m256 roots = _mm256_set1_ps(root), epsilons = _mm256_set1_ps(eps);
    const __m256 l2s = _mm256_set1_ps(l2), keeps = _mm256_set1_ps(keep);
    size_t at = 0;
    if ((uintptr_t)out & 31)
        streams = 0;
    for (; at + VECTOR <= elements; at += VECTOR) {
        __m256 g = _mm256_loadu_ps(gradient + at), w = _mm256_loadu_ps(weights + at);
        __m256 m = _mm256_loadu_ps(first + at), v = _mm256_loadu_ps(second + at);
        if (l2 != 0.0f)
            g = _mm256_fmadd_ps(w, l2s, g);
        if (keep != 1.0f)
            w = _mm256_mul_ps(w, keeps);
        m = _mm256_fmadd_ps(first_shares, _mm256_sub_ps(g, m), m);
        v = _mm256_fmadd_ps(_mm256_mul_ps(second_shares, g), g, _mm256_mul_ps(v, kept));
        __m256 below = _mm256_add_ps(_mm256_div_ps(_mm256_sqrt_ps(v), roots), epsilons);
        w = _mm256_add_ps(w, _mm256_div_ps(_mm256_mul_ps(rates, m), below));
        _mm256_storeu_ps(first + at, m);
        _mm256_storeu_ps(second + at, v);
        if (streams)
            _mm256_stream_ps(out + at, w);
        else
            _mm256_storeu_ps(out + at, w);
    }
    for (; at < elements; at++) {
        float g = gradient[at], w = weights[at], m = first[at], v = second[at];
        if (l2 != 0.0f)
            g = __builtin_fmaf(w, l2, g);
        if (keep != 1.0f)
            w *= keep;
        m = __builtin_fmaf(first_share, g - m, m);
        v = __builtin_fmaf(v, second_kept, second_share * g * g);
        first[at] = m;
        second[at] = v;
        out[at] = w + -rate * m / (__builtin_sqrtf(v) / root + eps);
    }
    if (streams)
        _mm_sfence();
}

/* Of many pieces, each by itself; those of `streamed` elements and more are written past the caches. */
TARGET void ps_adam_pieces(size_t count, const float *const *gradients, const float *const *weights,
                           float *const *outs, float *const *firsts, float *const *seconds, const size_t *elements,
                           float first_share, float second_kept, float second_share, float rate, float root,
                           float eps, float l2, float keep, size_t streamed)
{
    for (size_t piece = 0; piece < count; piece++)
        adam(gradients[piece], weights[piece], outs[piece], firsts[piece], seconds[piece], elements[piece],
             first_share, second_kept, second_share, rate, root, eps, l2, keep, elements[piece] >= streamed);
}

/* Past the caches; the two do not overlap. */
TARGET void ps_copy(const unsigned char *from, unsigned char *to, size_t size)
{
    size_t at = 0, head = (64 - ((uintptr_t)to & 63)) & 63;
    if (head > size)
        head = size;
    memcpy(to, from, head);
    for (at = head; at + 64 <= size; at += 64) {
        __m256i low = _mm256_loadu_si256((const __m256i *)(from + at));
        __m256i high = _mm256_loadu_si256((const __m256i *)(from + at + 32));
        _mm256_stream_si256((__m256i *)(to + at), low);
        _mm256_stream_si256((__m256i *)(to + at + 32), high);
    }
    memcpy(to + at, from + at, size - at);
    _mm_sfence();
}

#else

int ps_supported(void)
{
    return 0;
}

#endif
