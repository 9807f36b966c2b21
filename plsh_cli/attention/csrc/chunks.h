// How the backward pass cuts its work: chunks of query tiles, the same for any number of threads.
//
// A chunk owns the keys beside its queries and adds to their gradients in place; what falls on other keys goes to a private
// halo.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "call.h"
#include "tile.h"

namespace plsh {

// Gradients of keys begin..end-1 that another chunk owns, keys and values after each other.
struct Halo {
    int64_t begin = 0, end = 0;
    std::unique_ptr<float[]> rows;

    void set(int64_t from, int64_t to, int64_t dim) {
        begin = from, end = std::max(from, to);
        if (begin < end) rows.reset(new float[2 * (end - begin) * dim]());
    }
};

struct Chunk {
    int64_t b, g, first_tile, last_tile;
    int64_t begin, end;      // keys it owns
    int64_t reach_begin, reach_end;  // keys that its queries see
    int64_t work;
    Halo before, after;
};

// Where the gradients of the keys of a tile go.
struct KeyGradients {
    float *keys, *values;
};

inline KeyGradients gradients_at(const Call& call, Chunk& chunk, int64_t key) {
    for (Halo* halo : {&chunk.before, &chunk.after})
        if (key >= halo->begin && key < halo->end) {
            float* keys = halo->rows.get() + (key - halo->begin) * call.dim;
            return {keys, keys + (halo->end - halo->begin) * call.dim};
        }
    return {call.d_k.row<float>(chunk.b, chunk.g, key), call.d_v.row<float>(chunk.b, chunk.g, key)};
}

// How far a key head's queries see beyond their own tile, at most.
inline int64_t largest_reach(const Call& call, const std::vector<QueryTile>& tiles, int64_t g) {
    const int64_t group = call.heads / call.key_heads;
    int64_t reach = 0;
    for (int64_t h = g * group; h < (g + 1) * group; ++h) {
        const HeadView head(call, h);
        for (const QueryTile& tile : tiles) {
            const KeyRange range = key_range(call, head, tile);
            const int64_t first = tile.first + call.query_offset, last = tile.last - 1 + call.query_offset;
            if (range.begin < range.end) reach = std::max({reach, first - range.begin, range.end - 1 - last});
        }
    }
    return reach;
}

// Chunks of at least 512 queries and twice the reach, so that halos stay below half of the gradients themselves; where
// queries see far, two chunks still share the work.
inline std::vector<Chunk> cut_chunks(const Call& call, const std::vector<QueryTile>& tiles) {
    std::vector<Chunk> chunks;
    const int64_t group = call.heads / call.key_heads, count = static_cast<int64_t>(tiles.size());
    for (int64_t g = 0; g < call.key_heads; ++g) {
        const int64_t length =
            std::max<int64_t>(512, std::min(2 * largest_reach(call, tiles, g), (call.queries + 1) / 2));
        for (int64_t first = 0, next; first < count; first = next) {
            Chunk chunk{0, g, first, first, 0, call.keys, call.keys, 0, 0, {}, {}};
            for (next = first; next < count && tiles[next].last - tiles[first].first <= std::max<int64_t>(length, TILE); ++next)
                for (int64_t h = g * group; h < (g + 1) * group; ++h) {
                    const KeyRange range = key_range(call, HeadView(call, h), tiles[next]);
                    if (range.begin >= range.end) continue;
                    chunk.reach_begin = std::min(chunk.reach_begin, range.begin / TILE * TILE);
                    chunk.reach_end = std::max(chunk.reach_end, range.end);
                    chunk.work += range.end - range.begin;
                }
            chunk.last_tile = next;
            const auto start = [&](int64_t tile) {
                return std::min(std::max<int64_t>(tiles[tile].first + call.query_offset, 0), call.keys) / TILE * TILE;
            };
            if (first > 0) chunk.begin = start(first);
            if (next < count) chunk.end = start(next);
            for (int64_t b = 0; b < call.batch; ++b) {
                chunks.push_back({b, g, first, next, chunk.begin, chunk.end, chunk.reach_begin, chunk.reach_end, chunk.work, {}, {}});
            }
        }
    }
    return chunks;
}

}  // namespace plsh
