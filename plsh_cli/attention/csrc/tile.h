// One tile of queries against one tile of keys: which vectors of scores exist, how operands are laid out, and their products.
//
// Scores are kept transposed, [key][query], TILE queries per row: what belongs to a query (its maximum, its sum) is then a
// lane of a vector, and keys and values are read where the caller has them.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <type_traits>

#include "call.h"
#include "product.h"
#include "weights.h"

namespace plsh {

// Memory for one worker, on cache line boundaries.
class Scratch {
  public:
    explicit Scratch(int64_t floats) : memory_(new float[floats + 16]) {
        const auto address = reinterpret_cast<uintptr_t>(memory_.get());
        next_ = reinterpret_cast<float*>((address + 63) / 64 * 64);
    }
    float* take(int64_t floats) {
        float* taken = next_;
        next_ += (floats + 15) / 16 * 16;
        return taken;
    }

  private:
    std::unique_ptr<float[]> memory_;
    float* next_;
};

// The part of a tile of keys that a tile of queries sees, and for each block of ROWS keys the vectors of queries that see it.
struct Overlap {
    static constexpr int BLOCKS = (TILE + ROWS - 1) / ROWS;
    int64_t tile, begin, end;             // keys begin..end-1 of those from `tile` on
    int8_t from[BLOCKS], to[BLOCKS];      // vectors of block i, which starts at begin + i * ROWS
    int16_t row_from[VECTORS], row_to[VECTORS];  // rows (keys from `tile` on) in which a vector of queries exists

    // Queries at positions first..first+count-1.
    Overlap(const HeadView& head, int64_t first, int64_t count, int64_t tile_, int64_t begin_, int64_t end_, bool causal)
        : tile(tile_), begin(begin_), end(end_) {
        for (int v = 0; v < VECTORS; ++v) row_from[v] = row_to[v] = static_cast<int16_t>(begin - tile);
        int i = 0;
        for (int64_t key = begin; key < end; key += ROWS, ++i) {
            const int64_t last = std::min(key + ROWS, end) - 1;
            const int64_t low = std::max<int64_t>((causal ? key : head.low(key)) - first, 0);
            const int64_t high = std::min(head.high(last) - first, count);
            from[i] = static_cast<int8_t>(std::min<int64_t>(low / WIDTH, VECTORS));
            to[i] = static_cast<int8_t>(std::max<int64_t>((high + WIDTH - 1) / WIDTH, 0));
            for (int v = from[i]; v < to[i]; ++v) {
                if (row_from[v] == row_to[v]) row_from[v] = static_cast<int16_t>(key - tile);
                row_to[v] = static_cast<int16_t>(last + 1 - tile);
            }
        }
    }
};

// The keys that some query of a tile sees lie in begin..end-1.
struct KeyRange {
    int64_t begin, end;
};

inline KeyRange key_range(const Call& call, const HeadView& head, const QueryTile& tile) {
    const int64_t first = tile.first + call.query_offset, last = tile.last - 1 + call.query_offset;
    return {std::max(tile.key_first, head.low(first)), std::min(tile.key_last, call.causal ? last + 1 : head.high(last))};
}

// Rows of queries or gradients as the right operand of `score_products`: [term][TILE], zeros for missing rows.
// `rows` has room for WIDTH rows of floats.
template <class Kind>
void pack_transposed(const Array& from, DataType type, int64_t b, int64_t h, int64_t first, int64_t count, int64_t terms,
                     typename Kind::Element* to, float* rows) {
    using Element = typename Kind::Element;
    if (count < TILE) std::fill(to, to + terms * TILE, Element{});
    for (int64_t i = 0; i < count; i += WIDTH) {
        const int some = static_cast<int>(std::min<int64_t>(WIDTH, count - i));
        const float* source[WIDTH];
        for (int j = 0; j < some; ++j) {
            source[j] = static_cast<const float*>(from.row(type, b, h, first + i + j));
            if (std::is_same_v<Kind, Singles> && type != FLOAT32) {
                read_row(source[j], type, terms, rows + j * terms);
                source[j] = rows + j * terms;
            }
        }
        int64_t t = 0;
        for (; some == WIDTH && t + WIDTH <= terms; t += WIDTH) {
            Floats square[WIDTH];
            for (int j = 0; j < WIDTH; ++j) square[j] = load(source[j] + t);
            transpose(square);
            for (int j = 0; j < WIDTH; ++j) store(reinterpret_cast<float*>(to) + (t + j) * TILE + i, square[j]);
        }
        for (; t < terms; ++t)
            for (int j = 0; j < some; ++j) std::memcpy(to + t * TILE + i + j, source[j] + t, sizeof(Element));
    }
}

// to[key][query] = the products of rows `a` (by key, counted from the tile's start) and the packed columns `b`.
template <class Kind>
void score_products(const Overlap& overlap, Strided<typename Kind::Element> a, const typename Kind::Element* b,
                    int64_t terms, float* to) {
    int i = 0;
    for (int64_t key = overlap.begin; key < overlap.end; key += ROWS, ++i) {
        const int64_t row = key - overlap.tile;
        const int rows = static_cast<int>(std::min<int64_t>(ROWS, overlap.end - key));
        const int from = overlap.from[i] * WIDTH;
        if (overlap.to[i] > overlap.from[i])
            multiply<Kind, false>(rows, overlap.to[i] - overlap.from[i], {a.at(row, 0), a.row, 1}, b + from, TILE,
                                  to + row * TILE + from, TILE, terms, false);
    }
}

// Two vectors of floats as bf16 pairs, `even` in the lower halves.
Ints make_pairs(Floats even, Floats odd);

// The bf16 numbers of two vectors after each other.
Ints join_pairs(Floats first, Floats second);

#if defined(PLSH_BF16)
inline Ints make_pairs(Floats even, Floats odd) {
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
    alignas(64) static const uint16_t order[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                   8,  24, 9,  25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return (Ints)_mm512_permutexvar_epi16(_mm512_load_si512(order), both);
}

inline Ints join_pairs(Floats first, Floats second) { return (Ints)(__m512i)_mm512_cvtne2ps_pbh(second, first); }

// Rows 2i and 2i + 1 of [row][dim] bf16 as pairs [i][dim], for rows begin..end-1; missing partners are zeros.
inline void interleave_rows(const uint16_t* from, int64_t stride, int64_t begin, int64_t end, int64_t dim, uint32_t* to) {
    for (int64_t i = begin / 2; 2 * i < end; ++i) {
        const uint16_t* even = from + 2 * i * stride;
        const uint16_t* odd = even + stride;
        for (int64_t x = 0; x < dim; x += WIDTH) {
            const __m512i low = 2 * i >= begin ? _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(even + x)))
                                               : _mm512_setzero_si512();
            const __m512i high = 2 * i + 1 < end ? _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(odd + x)))
                                                 : _mm512_setzero_si512();
            store(to + i * dim + x, (Ints)_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
        }
    }
}
#endif

// The rows of keys or values of one head as floats, from `tile` on: in place where they are floats, else converted.
inline Strided<float> float_rows(const Array& from, DataType type, int64_t b, int64_t h, int64_t tile, int64_t begin,
                                 int64_t end, int64_t dim, float* scratch) {
    if (type == FLOAT32) return {from.row<const float>(b, h, 0) + tile * from.position, from.position, 1};
    for (int64_t p = begin; p < end; ++p) read_row(from.row(type, b, h, p), type, dim, scratch + (p - tile) * dim);
    return {scratch, dim, 1};
}

inline bool all_finite(const float* x, int64_t rows, int64_t stride, int64_t dim) {
    Ints bad{};
    for (int64_t i = 0; i < rows; ++i, x += stride)
        for (int64_t j = 0; j < dim; j += WIDTH) bad |= not_finite(load(x + j));
    return !any(bad);
}

}  // namespace plsh
