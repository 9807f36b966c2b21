// Small matrix products on tiles that fit the first-level cache: c (+)= a b, float32 accumulation.
//
// `a` is read one element at a time (any strides), `b` and `c` a vector at a time along their rows. Elements are floats, or
// with Pairs two bf16 numbers that multiply the two halves of an element of `b` (the sum runs over twice as many terms).
#pragma once

#include <algorithm>

#include "simd.h"

namespace plsh {

struct Singles {
    using Element = float;
    using Vector = Floats;
    static Vector spread(float x) { return splat(x); }
    static Floats multiply_add(Vector a, Vector b, Floats c) { return a * b + c; }
};

#if defined(PLSH_BF16)
struct Pairs {
    using Element = uint32_t;
    using Vector = Ints;
    static Vector spread(uint32_t x) { return splat(static_cast<int32_t>(x)); }
    static Floats multiply_add(Vector a, Vector b, Floats c) {
        return _mm512_dpbf16_ps(c, (__m512bh)b, (__m512bh)a);
    }
};
#endif

// A matrix by its first element and the distances of rows and of terms (the index that is summed over).
template <class Element>
struct Strided {
    const Element* first;
    int64_t row, term;
    const Element* at(int64_t r, int64_t t) const { return first + r * row + t * term; }
};

template <class Kind, int R, int C, bool UnitRow>
void block(Strided<typename Kind::Element> a, const typename Kind::Element* b, int64_t b_row, float* c, int64_t c_row,
           int64_t terms, bool add) {
    Floats sum[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < C; ++v) sum[r][v] = add ? load(c + r * c_row + v * WIDTH) : Floats{};
    const auto* from = a.first;
    for (int64_t t = 0; t < terms; ++t, b += b_row, from += a.term) {
        typename Kind::Vector right[C];
#pragma GCC unroll 4
        for (int v = 0; v < C; ++v) right[v] = load(b + v * WIDTH);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const auto left = Kind::spread(from[UnitRow ? r : r * a.row]);
#pragma GCC unroll 4
            for (int v = 0; v < C; ++v) sum[r][v] = Kind::multiply_add(left, right[v], sum[r][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < C; ++v) store(c + r * c_row + v * WIDTH, sum[r][v]);
}

// block<..> for a number of rows that is known at run time only: at most ROWS.
template <class Kind, int C, bool UnitRow, int R = ROWS>
void rows_block(int rows, Strided<typename Kind::Element> a, const typename Kind::Element* b, int64_t b_row, float* c,
                int64_t c_row, int64_t terms, bool add) {
    if (rows == R)
        block<Kind, R, C, UnitRow>(a, b, b_row, c, c_row, terms, add);
    else if constexpr (R > 1)
        rows_block<Kind, C, UnitRow, R - 1>(rows, a, b, b_row, c, c_row, terms, add);
}

// c[r][v] (+)= sum over `terms` t of a(r, t) b[t][v], for up to ROWS rows and any number of vectors.
template <class Kind, bool UnitRow>
void multiply(int rows, int vectors, Strided<typename Kind::Element> a, const typename Kind::Element* b, int64_t b_row,
              float* c, int64_t c_row, int64_t terms, bool add) {
    while (vectors > 0) {
        // 6 vectors go as 3 + 3 rather than as 4 + 2, which would keep too few sums in flight.
        int now = std::min(vectors, COLUMNS);
        if (vectors > COLUMNS && vectors < 2 * COLUMNS) now = (vectors + 1) / 2;
        if (COLUMNS >= 4 && now == 4)
            rows_block<Kind, COLUMNS >= 4 ? 4 : 1, UnitRow>(rows, a, b, b_row, c, c_row, terms, add);
        else if (COLUMNS >= 3 && now == 3)
            rows_block<Kind, COLUMNS >= 3 ? 3 : 1, UnitRow>(rows, a, b, b_row, c, c_row, terms, add);
        else if (now == 2)
            rows_block<Kind, 2, UnitRow>(rows, a, b, b_row, c, c_row, terms, add);
        else
            rows_block<Kind, 1, UnitRow>(rows, a, b, b_row, c, c_row, terms, add);
        vectors -= now, b += now * WIDTH, c += now * WIDTH;
    }
}

}  // namespace plsh
