// Forward pass: query tiles with a running row maximum and sum (online softmax), key tiles inside the reach of the queries.
#include <cmath>
#include <numeric>

#include "task.h"
#include "threads.h"

namespace plsh {
namespace {

template <class Kind>
class Forward : TileTask<Kind> {
    using Base = TileTask<Kind>;
    using Base::b_, Base::call_, Base::count_, Base::first_, Base::h_, Base::scores_, Base::type_, Base::weights_;

  public:
    explicit Forward(const Call& call)
        : Base(call, TILE * call.dim + TILE * TILE),
          out_(this->scratch_.take(TILE * call.dim)),
          remainders_(this->scratch_.take(TILE * TILE)) {}

    void run(const QueryTile& tile, int64_t b, int64_t h) {
        this->choose(tile, b, h);
        // A number that is not finite must reach only the rows that see it, but 0 x NaN is NaN: on finding one in the
        // result, the tile is done again with a product that leaves out what no query sees.
        attend(tile, false);
        if (!finish(tile)) {
            attend(tile, true);
            finish(tile);
        }
    }

  private:
    // bf16 terms carry 8 bits. Where the bias makes weights large, at distances up to this, a second product adds the next 8.
    static constexpr int64_t NEAR = 32;

    void attend(const QueryTile& tile, bool careful) {
        std::fill(out_, out_ + TILE * call_.dim, 0.0f);
        fresh_ = true;
        for (int v = 0; v < VECTORS; ++v) largest_[v] = splat(-INFINITE), total_[v] = rounded_total_[v] = Floats{};
        this->each_key_tile(tile, [&](const HeadView& head, const Overlap& o) {
            const bool weighted = this->fill_weights(head, o, careful);
            score_products<Kind>(o, this->left_rows(call_.k, o), this->queries_, this->terms_, scores_);
            if (head.parts)
                softmax<true, false>(head, o);
            else if (weighted)
                softmax<true, true>(head, o);
            else
                softmax<false, true>(head, o);
            if (careful) {
                this->add_seen_by_query(o, scores_, call_.v, out_);
                if (near_) this->add_seen_by_query(o, remainders_, call_.v, out_);
                return;
            }
            this->add_by_query(head, o, scores_, call_.v, out_);
            if (near_) this->add_by_query(head, o, remainders_, call_.v, out_, NEAR + WIDTH);
        });
    }

    // Scores become the terms of the numerator; maxima, sums and what is already in out_ follow.
    template <bool Weighted, bool Decay>
    void softmax(const HeadView& head, const Overlap& o) {
        // In nats up to the difference with the maximum: a factor before it would round numbers of the size of the scores.
        const float scale = call_.scale, slope = head.slope;
        const int begin = static_cast<int>(o.begin - o.tile), end = static_cast<int>(o.end - o.tile);
        alignas(64) float factors[TILE];
        near_ = Base::PACKED == 2 && o.end > first_ - NEAR && o.begin < first_ + count_ + NEAR;
        Ints changed{};
        for (int v = 0; v < VECTORS; ++v) {
            float* column = scores_ + v * WIDTH;
            const float* weight = weights_ + v * WIDTH;
            const int from = o.row_from[v], to = o.row_to[v];
            Floats most = largest_[v];
            Floats distance = to_floats(lanes() + static_cast<int32_t>(first_ + v * WIDTH - (o.tile + from)));
            for (int r = from; r < to; ++r, distance -= 1.0f) {
                Floats x = load(column + r * TILE) * scale;
                if (Decay) x -= slope * magnitude(distance);
                if (Weighted) x = select(load(weight + r * TILE) > 0.0f, x, splat(-INFINITE));
                store(column + r * TILE, x);
                most = larger(x, most);
            }
            const Floats base = select(most == -INFINITE, Floats{}, most);
            const Floats factor = exp2<false>((largest_[v] - base) * LOG2E);
            Floats sum = total_[v] * factor, rounded = rounded_total_[v] * factor;
            const int64_t near_from = first_ + v * WIDTH - NEAR - o.tile, near_to = near_from + WIDTH + 2 * NEAR;
            for (int r = begin; r < from; ++r) clear(r * TILE + v * WIDTH);
            for (int r = from; r < to; ++r) {
                Floats p = exp2<Base::PACKED == 2>((load(column + r * TILE) - base) * LOG2E);
                if (Weighted) p *= load(weight + r * TILE);
                sum += p;
                if (Base::PACKED == 2) {
                    const Floats exact = p;
                    const bool near = r >= near_from && r < near_to;
                    p = round_to_bfloat16(p);
                    rounded += near ? exact : p;
                    if (near_) store(remainders_ + r * TILE + v * WIDTH, near ? exact - p : Floats{});
                }
                store(column + r * TILE, p);
            }
            for (int r = std::max(to, begin); r < end; ++r) clear(r * TILE + v * WIDTH);
            changed |= largest_[v] != most;
            largest_[v] = most, total_[v] = sum, rounded_total_[v] = rounded;
            store(factors + v * WIDTH, factor);
        }
        if (!fresh_ && any(changed)) rescale(factors);
        fresh_ = false;
    }

    void clear(int64_t at) {
        store(scores_ + at, Floats{});
        if (near_) store(remainders_ + at, Floats{});
    }

    void rescale(const float* factors) {
        for (int64_t i = 0; i < count_; ++i) {
            if (factors[i] == 1.0f) continue;
            float* row = out_ + i * call_.dim;
            for (int64_t x = 0; x < call_.dim; x += WIDTH) store(row + x, load(row + x) * factors[i]);
        }
    }

    // Writes the rows of the tile; returns whether all numbers are finite.
    bool finish(const QueryTile& tile) {
        const HeadView head(call_, h_);
        const float unit = head.parts ? std::log(head.parts->unit) : 0.0f;
        alignas(64) float largest[TILE], total[TILE], inverse[TILE];
        for (int v = 0; v < VECTORS; ++v) {
            store(largest + v * WIDTH, largest_[v]);
            store(total + v * WIDTH, total_[v]);
            // The terms that were summed with the values add up to this: rounding them must not scale the row.
            const Floats divisor = Base::PACKED == 2 ? rounded_total_[v] : total_[v];
            store(inverse + v * WIDTH, select(total_[v] == 0.0f, Floats{}, 1.0f / divisor));
        }
        Ints bad{};
        for (int64_t i = 0; i < count_; ++i) {
            const int64_t query = tile.first + i;
            float* lse = call_.lse + (b_ * call_.heads + h_) * call_.queries + query;
            *lse = total[i] == 0.0f ? -INFINITE : largest[i] + (std::log(total[i]) - unit);
            float* row = out_ + i * call_.dim;
            for (int64_t x = 0; x < call_.dim; x += WIDTH) {
                const Floats y = load(row + x) * inverse[i];
                bad |= not_finite(y);
                store(row + x, y);
            }
            write_row(row, type_, call_.dim, call_.out.row_to_write(type_, b_, h_, query));
        }
        return !any(bad);
    }

    float *out_, *remainders_;
    bool near_ = false;   // remainders_ count in the current tile
    bool fresh_ = true;  // out_ holds zeros
    Floats largest_[VECTORS], total_[VECTORS], rounded_total_[VECTORS];
};

// The heads, those whose queries see the most keys first.
std::vector<int64_t> heads_by_work(const Call& call, const std::vector<QueryTile>& tiles) {
    std::vector<int64_t> work(call.heads), order(call.heads);
    for (int64_t h = 0; h < call.heads; ++h)
        for (const QueryTile& tile : tiles) {
            const KeyRange range = key_range(call, HeadView(call, h), tile);
            work[h] += std::max<int64_t>(range.end - range.begin, 0);
        }
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return work[a] > work[b]; });
    return order;
}

template <class Kind>
void run(const Call& call) {
    const std::vector<QueryTile> tiles = query_tiles(call);
    const std::vector<int64_t> order = heads_by_work(call, tiles);
    const auto count = static_cast<int64_t>(tiles.size());
    std::vector<std::unique_ptr<Forward<Kind>>> workers(std::max(call.threads, 1));
    // Heads outside: neighbouring tiles share keys in the cache. Long work first, so that all threads end together.
    run_parallel(call.threads, count * call.batch * call.heads, [&](int64_t item, int worker) {
        if (!workers[worker]) workers[worker] = std::make_unique<Forward<Kind>>(call);
        const int64_t b = item / count % call.batch, h = order[item / (count * call.batch)];
        workers[worker]->run(tiles[count - 1 - item % count], b, h);
    });
}

}  // namespace

std::vector<QueryTile> query_tiles(const Call& call) {
    std::vector<QueryTile> tiles;
    const auto cut = [&](int64_t first, int64_t last, int64_t key_first, int64_t key_last) {
        for (int64_t at = first; at < last; at += TILE)
            tiles.push_back({at, std::min(at + TILE, last), key_first, key_last});
    };
    for (int64_t i = 0; i < call.documents; ++i)
        cut(call.document_starts[i], call.document_starts[i + 1], call.document_starts[i], call.document_starts[i + 1]);
    if (!call.documents) cut(0, call.queries, 0, call.keys);
    return tiles;
}

void forward(const Call& call) {
#if defined(PLSH_BF16)
    if (call.type == BFLOAT16) return run<Pairs>(call);
#endif
    run<Singles>(call);
}

}  // namespace plsh
