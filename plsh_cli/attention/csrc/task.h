// What forward and backward share: a tile of queries of one head, and sums over the keys it sees.
#pragma once

#include <limits>

#include "tile.h"

namespace plsh {

constexpr float LOG2E = 1.44269504088896341f;
constexpr float INFINITE = std::numeric_limits<float>::infinity();

template <class Kind>
class TileTask {
  protected:
    using Element = typename Kind::Element;
    static constexpr int PACKED = std::is_same_v<Kind, Singles> ? 1 : 2;  // terms per element

    // own_floats: what the derived class takes from scratch_ itself.
    TileTask(const Call& call, int64_t own_floats)
        : call_(call),
          type_(static_cast<DataType>(call.type)),
          terms_(call.dim / PACKED),
          scratch_((3 * TILE + WIDTH) * call.dim + 3 * TILE * TILE + own_floats + 256) {
        queries_ = reinterpret_cast<Element*>(scratch_.take(TILE * call.dim));
        key_rows_ = scratch_.take(TILE * call.dim);
        packed_rows_ = reinterpret_cast<Element*>(scratch_.take(TILE * call.dim));
        row_ = scratch_.take(WIDTH * call.dim);
        scores_ = scratch_.take(TILE * TILE);
        weights_ = scratch_.take(TILE * TILE);
        pairs_ = reinterpret_cast<Element*>(scratch_.take(TILE * TILE));
    }

    void choose(const QueryTile& tile, int64_t b, int64_t h) {
        b_ = b, h_ = h, g_ = h / (call_.heads / call_.key_heads);
        first_ = tile.first + call_.query_offset, count_ = tile.last - tile.first;
        pack_transposed<Kind>(call_.q, type_, b, h, tile.first, count_, terms_, queries_, row_);
    }

    // Calls one_tile(head, overlap) for all key tiles that the queries see, upwards.
    template <class OneTile>
    void each_key_tile(const QueryTile& tile, OneTile one_tile) {
        const HeadView head(call_, h_);
        const KeyRange range = key_range(call_, head, tile);
        if (range.begin >= range.end) return;
        if (head.parts) rows_.start(*head.parts, first_, range.begin, call_.causal);
        for (int64_t at = range.begin / TILE * TILE; at < range.end; at += TILE)
            one_tile(head, Overlap(head, first_, count_, at, std::max(at, range.begin), std::min(at + TILE, range.end),
                                   call_.causal));
    }

    // Rows of keys or values as the left operand of score_products.
    Strided<Element> left_rows(const Array& from, const Overlap& o) {
        if constexpr (PACKED == 2)
            return {reinterpret_cast<const Element*>(from.row<const uint16_t>(b_, g_, o.tile)), from.position / 2, 1};
        else
            return float_rows(from, type_, b_, g_, o.tile, o.begin, o.end, call_.dim, key_rows_);
    }

    // Fills weights_ and returns true, or returns false where all pairs of the tile weigh 1.
    bool fill_weights(const HeadView& head, const Overlap& o, bool always) {
        const uint8_t* keep = call_.keep ? call_.keep + b_ * call_.keys : nullptr;
        const int64_t last = first_ + count_ - 1;
        const bool whole = last - o.begin <= head.width && o.end - 1 - first_ <= (call_.causal ? 0 : head.width);
        if (!head.parts && whole && !keep && !always) return false;
        for (int64_t key = o.begin; key < o.end; ++key) {
            float* row = weights_ + (key - o.tile) * TILE;
            if (head.parts)
                rows_.write(row);
            else
                write_band(row, first_, key, head.width, call_.causal);
            if (keep && !keep[key]) std::fill(row, row + TILE, 0.0f);
        }
        return true;
    }

    // to[query] += sum over the tile's keys of terms[key][query] * the key's row of `from`; terms of queries and keys more
    // than `within` apart are taken to be zero.
    void add_by_query(const HeadView& head, const Overlap& o, const float* terms, const Array& from, float* to,
                      int64_t within = int64_t{1} << 40) {
        const Element* left;
        Strided<Element> rows;
        if constexpr (PACKED == 2) {
            pair_rows(o, terms);
            interleave_rows(from.row<const uint16_t>(b_, g_, 0) + o.tile * from.position, from.position, o.begin - o.tile,
                            o.end - o.tile, call_.dim, packed_rows_);
            left = pairs_;
            rows = {packed_rows_, call_.dim, 1};
        } else {
            left = terms;
            rows = float_rows(from, type_, b_, g_, o.tile, o.begin, o.end, call_.dim, key_rows_);
        }
        for (int64_t i = 0; i < count_; i += ROWS) {
            const int some = static_cast<int>(std::min<int64_t>(ROWS, count_ - i));
            const int64_t last = first_ + i + some - 1;
            const int64_t low = std::max(head.low(first_ + i), first_ + i - within);
            const int64_t high = std::min(call_.causal ? last + 1 : head.high(last), last + within + 1);
            const int64_t begin = (std::max(o.begin, low) - o.tile) / PACKED, stop = std::min(o.end, high) - o.tile;
            const int64_t end = (stop + PACKED - 1) / PACKED;
            if (begin < end)
                multiply<Kind, true>(some, static_cast<int>(call_.dim / WIDTH), {left + begin * TILE + i, 1, TILE},
                                     rows.at(begin, 0), rows.row, to + i * call_.dim, call_.dim, end - begin, true);
        }
    }

    // The same without the keys that a query does not see, where 0 x NaN would let them through.
    void add_seen_by_query(const Overlap& o, const float* terms, const Array& from, float* to) {
        const auto rows = float_rows(from, type_, b_, g_, o.tile, o.begin, o.end, call_.dim, key_rows_);
        for (int64_t r = o.begin - o.tile; r < o.end - o.tile; ++r)
            for (int64_t i = 0; i < count_; ++i)
                if (weights_[r * TILE + i] > 0.0f)
                    add_scaled(terms[r * TILE + i], rows.at(r, 0), to + i * call_.dim);
    }

    // to += factor * row
    void add_scaled(float factor, const float* row, float* to) {
        for (int64_t x = 0; x < call_.dim; x += WIDTH) store(to + x, factor * load(row + x) + load(to + x));
    }

    // pairs_[i][query] = terms of keys 2i and 2i + 1
    void pair_rows([[maybe_unused]] const Overlap& o, [[maybe_unused]] const float* terms) {
        if constexpr (PACKED == 2) {
            const int64_t begin = o.begin - o.tile, end = o.end - o.tile;
            for (int64_t r = begin & ~int64_t{1}; r < end; r += 2)
                for (int v = 0; v < VECTORS; ++v) {
                    const Floats even = r >= begin ? load(terms + r * TILE + v * WIDTH) : Floats{};
                    const Floats odd = r + 1 < end ? load(terms + (r + 1) * TILE + v * WIDTH) : Floats{};
                    store(pairs_ + r / 2 * TILE + v * WIDTH, make_pairs(even, odd));
                }
        }
    }

    const Call& call_;
    const DataType type_;
    const int64_t terms_;  // elements in a packed row
    Scratch scratch_;
    Element *queries_, *packed_rows_, *pairs_;
    float *key_rows_, *row_, *scores_, *weights_;
    WeightRows rows_;
    int64_t b_ = 0, h_ = 0, g_ = 0, first_ = 0, count_ = 0;
};

}  // namespace plsh
