// Backward pass: the terms of the softmax are recomputed from lse, tile by tile.
//
// Work is cut into chunks (chunks.h), whose halos are added at the end in the order of the chunks: every sum has one order.
#include <cmath>
#include <numeric>

#include "chunks.h"
#include "task.h"
#include "threads.h"

namespace plsh {
namespace {

bool keys_finite(const Array& from, DataType type, int64_t b, int64_t g, int64_t begin, int64_t end, int64_t dim) {
    if (type == FLOAT32) return all_finite(from.row<const float>(b, g, begin), end - begin, from.position, dim);
    const int mask = type == BFLOAT16 ? 0x7f80 : 0x7c00;
    bool bad = false;
    for (int64_t key = begin; key < end; ++key) {
        const uint16_t* row = from.row<const uint16_t>(b, g, key);
        for (int64_t x = 0; x < dim; ++x) bad |= (row[x] & mask) == mask;
    }
    return !bad;
}

template <class Kind>
class Backward : TileTask<Kind> {
    using Base = TileTask<Kind>;
    using Element = typename Kind::Element;
    using Base::b_, Base::call_, Base::count_, Base::first_, Base::g_, Base::h_, Base::scores_, Base::type_, Base::weights_;

  public:
    explicit Backward(const Call& call) : Base(call, 6 * TILE * call.dim + 3 * TILE * TILE) {
        auto& scratch = this->scratch_;
        d_out_ = reinterpret_cast<Element*>(scratch.take(TILE * call.dim));
        query_rows_ = scratch.take(TILE * call.dim);
        d_out_rows_ = scratch.take(TILE * call.dim);
        d_query_ = scratch.take(TILE * call.dim);
        query_pairs_ = reinterpret_cast<Element*>(scratch.take(TILE * call.dim));
        d_out_pairs_ = reinterpret_cast<Element*>(scratch.take(TILE * call.dim));
        d_scores_ = scratch.take(TILE * TILE);
        packed_terms_ = reinterpret_cast<Element*>(scratch.take(TILE * TILE));
        packed_d_scores_ = reinterpret_cast<Element*>(scratch.take(TILE * TILE));
    }

    void run(const QueryTile& tile, Chunk& chunk, int64_t h) {
        this->choose(tile, chunk.b, h);
        pack_transposed<Kind>(call_.d_out, type_, b_, h, tile.first, count_, this->terms_, d_out_, this->row_);
        const bool finite = read_rows(tile);
        std::fill(d_query_, d_query_ + count_ * call_.dim, 0.0f);
        this->each_key_tile(tile, [&](const HeadView& head, const Overlap& o) {
            const bool careful = !finite || !keys_finite(call_.k, type_, b_, g_, o.begin, o.end, call_.dim) ||
                                 !keys_finite(call_.v, type_, b_, g_, o.begin, o.end, call_.dim);
            one_tile(head, o, gradients_at(call_, chunk, o.tile), careful);
        });
        for (int64_t i = 0; i < count_; ++i)
            write_row(d_query_ + i * call_.dim, type_, call_.dim, call_.d_q.row_to_write(type_, b_, h, tile.first + i));
    }

  private:
    // Reads what belongs to the queries; returns whether all of it is finite.
    bool read_rows(const QueryTile& tile) {
        const HeadView head(call_, h_);
        const float unit = head.parts ? std::log(head.parts->unit) : 0.0f;
        bool finite = true;
        for (int64_t i = 0; i < TILE; ++i) {
            base_[i] = INFINITE, delta_[i] = 0.0f;
            if (i >= count_) continue;
            const int64_t query = tile.first + i, at = (b_ * call_.heads + h_) * call_.queries + query;
            float* d_out = d_out_rows_ + i * call_.dim;
            read_row(call_.q.row(type_, b_, h_, query), type_, call_.dim, query_rows_ + i * call_.dim);
            read_row(call_.d_out.row(type_, b_, h_, query), type_, call_.dim, d_out);
            read_row(call_.out.row(type_, b_, h_, query), type_, call_.dim, this->row_);
            Floats sum{};
            for (int64_t x = 0; x < call_.dim; x += WIDTH) sum += load(d_out + x) * load(this->row_ + x);
            for (int j = 0; j < WIDTH; ++j) delta_[i] += sum[j];
            if (call_.d_lse) delta_[i] -= call_.d_lse[at];
            // A row without keys has lse -inf; its terms are to be 0.
            const float lse = call_.lse[at];
            if (lse != -INFINITE) base_[i] = lse + unit;
            finite = finite && lse < INFINITE && delta_[i] - delta_[i] == 0.0f;
        }
        if constexpr (Base::PACKED == 2) {
            pair_queries(call_.q, tile, query_pairs_);
            pair_queries(call_.d_out, tile, d_out_pairs_);
        }
        return finite && all_finite(query_rows_, count_, call_.dim, call_.dim) &&
               all_finite(d_out_rows_, count_, call_.dim, call_.dim);
    }

    void pair_queries(const Array& from, const QueryTile& tile, Element* to) {
        if constexpr (Base::PACKED == 2)
            interleave_rows(from.row<const uint16_t>(b_, h_, tile.first), from.position, 0, count_, call_.dim, to);
    }

    void one_tile(const HeadView& head, const Overlap& o, KeyGradients to, bool careful) {
        const bool weighted = this->fill_weights(head, o, careful);
        score_products<Kind>(o, this->left_rows(call_.k, o), this->queries_, this->terms_, scores_);
        score_products<Kind>(o, this->left_rows(call_.v, o), d_out_, this->terms_, d_scores_);
        if (head.parts)
            differentiate<true, false>(head, o);
        else if (weighted)
            differentiate<true, true>(head, o);
        else
            differentiate<false, true>(head, o);
        if (careful) {
            this->add_seen_by_query(o, d_scores_, call_.k, d_query_);
            add_seen_by_key(o, scores_, d_out_rows_, to.values);
            add_seen_by_key(o, d_scores_, query_rows_, to.keys);
            return;
        }
        this->add_by_query(head, o, d_scores_, call_.k, d_query_);
        add_by_key(head, o, scores_, packed_terms_, d_out_rows_, d_out_pairs_, to.values);
        add_by_key(head, o, d_scores_, packed_d_scores_, query_rows_, query_pairs_, to.keys);
    }

    // scores_ become the softmax terms p, d_scores_ (now d_out v) become the gradients of the scaled products q k.
    template <bool Weighted, bool Decay>
    void differentiate(const HeadView& head, const Overlap& o) {
        // In nats up to the difference with lse: a factor before it would round numbers of the size of the scores.
        const float scale = call_.scale, slope = head.slope;
        const int begin = static_cast<int>(o.begin - o.tile), end = static_cast<int>(o.end - o.tile);
        for (int v = 0; v < VECTORS; ++v) {
            const int64_t column = v * WIDTH;
            const int from = o.row_from[v], to = o.row_to[v];
            const Floats base = load(base_ + column), delta = load(delta_ + column);
            Floats distance = to_floats(lanes() + static_cast<int32_t>(first_ + column - (o.tile + from)));
            for (int r = begin; r < from; ++r) clear(r * TILE + column);
            for (int r = from; r < to; ++r, distance -= 1.0f) {
                const int64_t at = r * TILE + column;
                Floats x = load(scores_ + at) * scale;
                if (Decay) x -= slope * magnitude(distance);
                x -= base;
                if (Weighted) x = select(load(weights_ + at) > 0.0f, x, splat(-INFINITE));
                Floats p = exp2<Base::PACKED == 2>(x * LOG2E);
                if (Weighted) p *= load(weights_ + at);
                Floats d = p * (load(d_scores_ + at) - delta) * scale;
                if (Weighted) d = select(load(weights_ + at) > 0.0f, d, Floats{});
                store(scores_ + at, p);
                store(d_scores_ + at, d);
            }
            for (int r = std::max(to, begin); r < end; ++r) clear(r * TILE + column);
        }
    }

    void clear(int64_t at) {
        store(scores_ + at, Floats{});
        store(d_scores_ + at, Floats{});
    }

    // to[key] += sum over the tile's queries of terms[key][query] * the query's row.
    void add_by_key(const HeadView& head, const Overlap& o, const float* terms, Element* packed, const float* rows,
                    const Element* pairs, float* to) {
        const Element *left, *right;
        if constexpr (Base::PACKED == 2) {
            for (int64_t at = (o.begin - o.tile) * TILE; at < (o.end - o.tile) * TILE; at += 2 * WIDTH)
                store(packed + at / 2, join_pairs(load(terms + at), load(terms + at + WIDTH)));
            left = packed, right = pairs;
        } else {
            left = terms, right = rows;
        }
        constexpr int64_t ROW = TILE / Base::PACKED;
        for (int64_t key = o.begin; key < o.end; key += ROWS) {
            const int some = static_cast<int>(std::min<int64_t>(ROWS, o.end - key));
            const int64_t low = std::max<int64_t>((call_.causal ? key : head.low(key)) - first_, 0);
            const int64_t high = std::min(head.high(key + some - 1) - first_, count_);
            const int64_t begin = low / Base::PACKED, end = (high + Base::PACKED - 1) / Base::PACKED;
            const int64_t row = key - o.tile;
            if (begin < end)
                multiply<Kind, false>(some, static_cast<int>(call_.dim / WIDTH), {left + row * ROW + begin, ROW, 1},
                                      right + begin * call_.dim, call_.dim, to + row * call_.dim, call_.dim, end - begin, true);
        }
    }

    void add_seen_by_key(const Overlap& o, const float* terms, const float* rows, float* to) {
        for (int64_t r = o.begin - o.tile; r < o.end - o.tile; ++r)
            for (int64_t i = 0; i < count_; ++i)
                if (weights_[r * TILE + i] > 0.0f)
                    this->add_scaled(terms[r * TILE + i], rows + i * call_.dim, to + r * call_.dim);
    }

    Element *d_out_, *query_pairs_, *d_out_pairs_, *packed_terms_, *packed_d_scores_;
    float *query_rows_, *d_out_rows_, *d_query_, *d_scores_;
    alignas(64) float base_[TILE], delta_[TILE];
};

template <class Kind>
void run(const Call& call) {
    const std::vector<QueryTile> tiles = query_tiles(call);
    std::vector<Chunk> chunks = cut_chunks(call, tiles);
    std::vector<int64_t> order(chunks.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return chunks[a].work > chunks[b].work; });
    std::vector<std::unique_ptr<Backward<Kind>>> workers(std::max(call.threads, 1));
    const int64_t group = call.heads / call.key_heads;
    run_parallel(call.threads, static_cast<int64_t>(order.size()), [&](int64_t item, int worker) {
        if (!workers[worker]) workers[worker] = std::make_unique<Backward<Kind>>(call);
        Chunk& chunk = chunks[order[item]];
        chunk.before.set(chunk.reach_begin, std::min(chunk.begin, chunk.reach_end), call.dim);
        chunk.after.set(std::max(chunk.end, chunk.reach_begin), chunk.reach_end, call.dim);
        for (int64_t tile = chunk.first_tile; tile < chunk.last_tile; ++tile)
            for (int64_t h = chunk.g * group; h < (chunk.g + 1) * group; ++h) workers[worker]->run(tiles[tile], chunk, h);
    });
    run_parallel(call.threads, call.batch * call.key_heads, [&](int64_t item, int) {
        for (Chunk& chunk : chunks) {
            if (chunk.b * call.key_heads + chunk.g != item) continue;
            for (const Halo* halo : {&chunk.before, &chunk.after}) {
                const int64_t size = (halo->end - halo->begin) * call.dim;
                if (size == 0) continue;
                float* keys = call.d_k.row<float>(chunk.b, chunk.g, halo->begin);
                float* values = call.d_v.row<float>(chunk.b, chunk.g, halo->begin);
                for (int64_t i = 0; i < size; ++i) keys[i] += halo->rows[i], values[i] += halo->rows[size + i];
            }
        }
    });
}

}  // namespace

void backward(const Call& call) {
#if defined(PLSH_BF16)
    if (call.type == BFLOAT16) return run<Pairs>(call);
#endif
    run<Singles>(call);
}

}  // namespace plsh
