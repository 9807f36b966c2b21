// What one call of the operator is given, as plain data: the C interface mirrored by plsh_cli/attention/fused.py.
#pragma once

#include <cstdint>

#include "convert.h"
#include "partitions.h"

namespace plsh {

// A (batch, heads, positions, dim) array; strides count elements, the last one is 1.
struct Array {
    void* data;
    int64_t batch, head, position;

    template <class T>
    T* row(int64_t b, int64_t h, int64_t p) const {
        return static_cast<T*>(data) + b * batch + h * head + p * position;
    }
    const void* row(DataType type, int64_t b, int64_t h, int64_t p) const {
        return row_to_write(type, b, h, p);
    }
    void* row_to_write(DataType type, int64_t b, int64_t h, int64_t p) const {
        return static_cast<char*>(data) + element_bytes(type) * (b * batch + h * head + p * position);
    }
};

struct Call {
    int64_t batch, heads, key_heads, queries, keys, dim, query_offset;
    int64_t documents;               // 0, or the number of packed documents
    const int64_t* document_starts;  // documents + 1 offsets
    const uint8_t* keep;             // (batch, keys), null where every key counts
    const Partitions* partitions;    // null for a band
    const float* slopes;             // band: per head, 1 / sigma
    const int64_t* widths;           // band: per head, the largest distance that counts
    Array q, k, v, out, d_out;       // out and d_out as q
    float* lse;                      // (batch, heads, queries)
    const float* d_lse;              // null for no gradient
    Array d_q;                       // in the data type
    Array d_k, d_v;                  // float32, contiguous, zero on entry
    float scale;
    int32_t causal, type, threads;
};

// The queries [first, last) of one document and the keys [key_first, key_last) that they may see.
struct QueryTile {
    int64_t first, last, key_first, key_last;
};

std::vector<QueryTile> query_tiles(const Call& call);

// Which keys a head lets a position see, and how much they count.
struct HeadView {
    const HeadPartitions* parts;
    float slope;
    int64_t width;

    HeadView(const Call& call, int64_t head)
        : parts(call.partitions ? &call.partitions->heads[head] : nullptr),
          slope(parts ? 0.0f : call.slopes[head]),
          width(parts ? 0 : call.widths[head]) {}
    int64_t low(int64_t position) const {
        return parts ? parts->low[position < 0 ? 0 : position] : position - width;
    }
    int64_t high(int64_t position) const {
        return parts ? parts->high[position < 0 ? 0 : position] : position + width + 1;
    }
};

void forward(const Call& call);
void backward(const Call& call);

}  // namespace plsh
