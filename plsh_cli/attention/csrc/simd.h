// Vectors of floats: the widest the target has, and the few operations on them that the kernels use.
//
// Written with the vector extensions of GCC and Clang, so that any target compiles; intrinsics only where the extensions
// give poor code. PLSH_PLAIN forces the narrow portable path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && !defined(PLSH_PLAIN)
#define PLSH_AVX512 1
#include <immintrin.h>
#if defined(__AVX512BF16__)
#define PLSH_BF16 1
#endif
#endif

namespace plsh {

// ROWS x COLUMNS vectors of accumulators live in registers, beside one row of operands.
#if defined(PLSH_AVX512)
constexpr int WIDTH = 16, ROWS = 6, COLUMNS = 4;
#elif defined(__AVX__) && !defined(PLSH_PLAIN)
constexpr int WIDTH = 8, ROWS = 6, COLUMNS = 2;
#elif defined(__aarch64__) && !defined(PLSH_PLAIN)
constexpr int WIDTH = 4, ROWS = 6, COLUMNS = 4;
#else
constexpr int WIDTH = 4, ROWS = 4, COLUMNS = 2;
#endif

typedef float Floats __attribute__((vector_size(WIDTH * 4)));
typedef int32_t Ints __attribute__((vector_size(WIDTH * 4)));
typedef float FloatsInMemory __attribute__((vector_size(WIDTH * 4), aligned(4), may_alias));
typedef int32_t IntsInMemory __attribute__((vector_size(WIDTH * 4), aligned(4), may_alias));

inline Floats load(const float* from) { return *reinterpret_cast<const FloatsInMemory*>(from); }
inline void store(float* to, Floats x) { *reinterpret_cast<FloatsInMemory*>(to) = x; }
inline Ints load(const uint32_t* from) { return *reinterpret_cast<const IntsInMemory*>(from); }
inline void store(uint32_t* to, Ints x) { *reinterpret_cast<IntsInMemory*>(to) = x; }
inline Floats splat(float x) { return x - Floats{}; }
inline Ints splat(int32_t x) { return x - Ints{}; }
inline Floats select(Ints mask, Floats yes, Floats no) { return mask ? yes : no; }
inline Floats to_floats(Ints x) { return __builtin_convertvector(x, Floats); }
inline Ints bits(Floats x) { return reinterpret_cast<Ints>(x); }
inline Floats from_bits(Ints x) { return reinterpret_cast<Floats>(x); }
inline Floats magnitude(Floats x) { return from_bits(bits(x) & 0x7fffffff); }

// The lane numbers 0, 1, ..
inline Ints lanes() {
    Ints x;
    for (int i = 0; i < WIDTH; ++i) x[i] = i;
    return x;
}

// The larger one; a NaN in `x` is passed over.
inline Floats larger(Floats x, Floats bound) { return x > bound ? x : bound; }

inline bool any(Ints mask) {
    int32_t together = 0;
    for (int i = 0; i < WIDTH; ++i) together |= mask[i];
    return together != 0;
}

// The nearest bf16 numbers, as floats; of two equally near the larger.
inline Floats round_to_bfloat16(Floats x) { return from_bits((bits(x) + 0x8000) & static_cast<int32_t>(0xffff0000)); }

// True lanes are all ones.
inline Ints not_finite(Floats x) { return (x - x) != 0.0f; }

// The lanes of `a` and `b` in which bit `Step` is clear (from `b` moved up) or, shifted, set (from `a` moved down).
template <int Step, size_t... I>
inline void exchange(Floats& a, Floats& b, std::index_sequence<I...>) {
    const Floats low = __builtin_shufflevector(a, b, ((I & Step) ? WIDTH + I - Step : I)...);
    b = __builtin_shufflevector(a, b, ((I & Step) ? WIDTH + I : I + Step)...);
    a = low;
}

// Transposes the square matrix of WIDTH vectors in place.
template <int Step = WIDTH / 2>
inline void transpose(Floats (&rows)[WIDTH]) {
#pragma GCC unroll 16
    for (int i = 0; i < WIDTH; ++i)
        if (!(i & Step)) exchange<Step>(rows[i], rows[i | Step], std::make_index_sequence<WIDTH>());
    if constexpr (Step > 1) transpose<Step / 2>(rows);
}

// 2^x for x <= 1, to about 1e-7 (or 3e-6 where `Coarse`); 0 below -126 or so, NaN for NaN.
template <bool Coarse>
inline Floats exp2(Floats x) {
#if defined(PLSH_AVX512)
    x = _mm512_max_ps(_mm512_set1_ps(-160.0f), x);  // a NaN as second operand is kept
    const Floats whole = _mm512_roundscale_ps(x, 8);
#else
    const Ints none = x < -126.0f;
    x = none ? splat(-126.0f) : x;
    const float round = 12582912.0f;  // 1.5 * 2^23: adding it drops the fraction
    const Floats whole = (x + round) - round;
#endif
    const Floats part = x - whole;
    // Relative minimax fits of 2^x on [-1/2, 1/2], exact at 0.
    Floats y;
    if (Coarse) {
        y = part * 0.00958285294f + 0.0559064248f;
    } else {
        y = part * 0.0013264727f + 0.00967151265f;
        y = y * part + 0.0555073374f;
    }
    y = y * part + (Coarse ? 0.240240986f : 0.240222421f);
    y = y * part + (Coarse ? 0.693124193f : 0.693146978f);
    y = y * part + 1.0f;
#if defined(PLSH_AVX512)
    return _mm512_scalef_ps(y, whole);
#else
    const Ints power = (__builtin_convertvector(whole, Ints) + 127) << 23;
    return none ? Floats{} : y * from_bits(power);
#endif
}

}  // namespace plsh
