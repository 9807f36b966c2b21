// The blocks of all draws of a head, ordered by position, so that a row of M~ follows from the row before it.
//
// Position p stores, for every draw in which a block starts at p, where that block ends: the events of p. Blocks of one token
// in draws of width below 1 are no events; their total weight sits on the diagonal. Weights are integers: counts where all
// draws weigh the same, else multiples of 2^-30, at least one; a sum is then exactly 0 where no draw joins two positions.
#pragma once

#include <cstdint>
#include <vector>

namespace plsh {

constexpr int TILE = 64;  // queries per tile, and keys per tile

struct Event {
    int32_t end, draw;
};

struct Span {
    int32_t start, end;
};

struct HeadPartitions {
    std::vector<int32_t> weights;  // per draw of width 1 or more
    int32_t diagonal = 0;          // total weight of the draws whose blocks are single tokens
    float unit = 1.0f;             // a weight of 1 in integers
    std::vector<int32_t> first_event;  // capacity + 1 offsets into events
    std::vector<Event> events;
    std::vector<Span> checkpoints;  // at each multiple of TILE, the block of every draw that holds it
    // A position shares blocks with positions low .. high-1 and with none outside; both never decrease.
    std::vector<int32_t> low, high;
};

struct Partitions {
    int64_t capacity = 0;
    std::vector<HeadPartitions> heads;
    int64_t bytes() const;
};

// widths, shifts, weights: (heads, draws), row by row; the rule for block starts is that of plsh_cli.positional.partitions.
Partitions* build_partitions(const double* widths, const double* shifts, const double* weights, int64_t heads,
                             int64_t draws, int64_t capacity, int threads);

}  // namespace plsh
