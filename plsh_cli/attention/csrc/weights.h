// The weights of the pairs in one tile, row by row: a row is a key, its lanes are the queries of a tile.
#pragma once

#include <algorithm>
#include <vector>

#include "call.h"
#include "simd.h"

namespace plsh {

constexpr int VECTORS = TILE / WIDTH;

// Walks the keys of a query tile upwards and keeps the integer weights of the current key with all queries of the tile.
class WeightRows {
  public:
    // Starts at key `key` with queries at positions first, first + 1, ..
    void start(const HeadPartitions& parts, int64_t first, int64_t key, bool causal) {
        parts_ = &parts, first_ = first, causal_ = causal;
        const auto draws = static_cast<int64_t>(parts.weights.size());
        const Span* held = parts.checkpoints.data() + key / TILE * draws;
        for (auto& row : row_) row = Ints{};
        if (!causal) starts_.resize(draws);
        key_ = key / TILE * TILE;
        for (int64_t i = 0; i < draws; ++i) {
            if (!causal) starts_[i] = held[i].start;
            add(held[i].start, held[i].end, parts.weights[i]);
        }
        while (key_ < key) step();
    }

    // Writes the weights of the next key, 0 for queries before it where causal.
    void write(float* to) {
        const int64_t lane = key_ - first_;
        if (lane < 0) {
            for (int v = 0; v < VECTORS; ++v) store(to + v * WIDTH, to_floats(row_[v]));
        } else {
            for (int v = 0; v < VECTORS; ++v) {
                const Ints here = lanes() + v * WIDTH - static_cast<int32_t>(std::min<int64_t>(lane, TILE));
                Ints row = row_[v] + ((here == 0) & parts_->diagonal);
                if (causal_) row &= here >= 0;
                store(to + v * WIDTH, to_floats(row));
            }
        }
        if (key_ + 1 < static_cast<int64_t>(parts_->low.size())) step();
    }

  private:
    void step() {
        ++key_;
        const int32_t* at = parts_->first_event.data() + key_;
        const Event* event = parts_->events.data() + at[0];
        const Event* const end = parts_->events.data() + at[1];
        if (causal_) {
            // Blocks that end here hold no query from here on; `write` masks the lanes before this key.
            for (; event < end; ++event)
                if (event->end > first_) add(key_, event->end, parts_->weights[event->draw]);
            return;
        }
        for (; event < end; ++event) {
            const int32_t weight = parts_->weights[event->draw];
            add(starts_[event->draw], key_, -weight);
            add(key_, event->end, weight);
            starts_[event->draw] = static_cast<int32_t>(key_);
        }
    }

    // Adds to the queries at positions from .. to-1.
    void add(int64_t from, int64_t to, int32_t weight) {
        if (to <= first_ || from >= first_ + TILE) return;
        const auto below = static_cast<int32_t>(std::min<int64_t>(to - first_, TILE));
        const auto above = static_cast<int32_t>(std::max<int64_t>(from - first_, 0));
        for (int v = above / WIDTH; v * WIDTH < below; ++v)
            row_[v] += (lanes() < below - v * WIDTH) & (lanes() >= above - v * WIDTH) & weight;
    }

    const HeadPartitions* parts_ = nullptr;
    int64_t first_ = 0, key_ = 0;
    bool causal_ = false;
    Ints row_[VECTORS];
    std::vector<int32_t> starts_;
};

// Writes 1 for the queries at first, first + 1, .. that a band lets see `key`, else 0.
inline void write_band(float* to, int64_t first, int64_t key, int64_t width, bool causal) {
    const int64_t far = int64_t{1} << 30;
    const auto begin = static_cast<int32_t>(std::max(-far, (causal ? key : key - width) - first));
    const auto end = static_cast<int32_t>(std::min(far, key + width + 1 - first));
    for (int v = 0; v < VECTORS; ++v) {
        const Ints lane = lanes() + v * WIDTH;
        store(to + v * WIDTH, select((lane >= begin) & (lane < end), splat(1.0f), Floats{}));
    }
}

}  // namespace plsh
