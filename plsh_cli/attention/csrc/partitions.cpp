// Must be compiled without contraction of a * b + c: block starts are defined by the rounded product and the rounded sum.
#include "partitions.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "threads.h"

namespace plsh {
namespace {

// Calls visit(start, end) for each block of a draw, in order.
template <class Visit>
void each_block(double width, double shift, int32_t capacity, Visit visit) {
    const double last = capacity - 1;
    int32_t start = 0;
    for (double k = 0.0;; k += 1.0) {
        const double place = k == 0.0 ? shift : shift + k * width;  // 0 * inf is no number
        if (!(place <= last)) break;
        const int32_t next = static_cast<int32_t>(std::ceil(place));
        if (next <= start) continue;
        visit(start, next);
        start = next;
    }
    visit(start, capacity);
}

void choose_weights(HeadPartitions& head, const double* widths, const double* weights, int64_t draws,
                    std::vector<int64_t>& live) {
    bool equal = true;
    for (int64_t k = 1; k < draws; ++k) equal = equal && weights[k] == weights[0];
    head.unit = equal ? static_cast<float>(draws) : 1073741824.0f;
    for (int64_t k = 0; k < draws; ++k) {
        if (weights[k] == 0.0) continue;
        const double scaled = std::nearbyint(weights[k] * 1073741824.0);
        const int32_t weight = equal ? 1 : std::max(1, static_cast<int32_t>(scaled));
        if (widths[k] < 1.0) {
            head.diagonal += weight;
        } else {
            head.weights.push_back(weight);
            live.push_back(k);
        }
    }
}

void fill_reach(HeadPartitions& head, int32_t capacity) {
    head.low.resize(capacity);
    head.high.resize(capacity);
    int32_t reach = 0;
    for (int32_t p = 0; p < capacity; ++p) {
        reach = std::max(reach, p + 1);
        for (int32_t e = head.first_event[p]; e < head.first_event[p + 1]; ++e) reach = std::max(reach, head.events[e].end);
        head.high[p] = reach;
    }
    for (int32_t p = 0, low = 0; p < capacity; ++p) {
        while (head.high[low] <= p) ++low;
        head.low[p] = low;
    }
}

void build_head(HeadPartitions& head, const double* widths, const double* shifts, const double* weights, int64_t draws,
                int32_t capacity) {
    std::vector<int64_t> live;
    choose_weights(head, widths, weights, draws, live);
    const int64_t count = static_cast<int64_t>(live.size());
    head.first_event.assign(capacity + 2, 0);
    // Counts go in two places further, so that the offsets end up shifted into place after filling.
    for (int64_t k : live)
        each_block(widths[k], shifts[k], capacity, [&](int32_t start, int32_t) { ++head.first_event[start + 2]; });
    int64_t total = 0;
    for (int32_t count_here : head.first_event) total += count_here;
    if (total > INT32_MAX) throw std::length_error("more than 2^31 blocks in one head");
    for (int32_t p = 1; p <= capacity + 1; ++p) head.first_event[p] += head.first_event[p - 1];
    head.events.resize(head.first_event[capacity + 1]);
    head.checkpoints.resize((capacity + TILE - 1) / TILE * count);
    for (int64_t i = 0; i < count; ++i) {
        int32_t tile = 0;
        each_block(widths[live[i]], shifts[live[i]], capacity, [&](int32_t start, int32_t end) {
            head.events[head.first_event[start + 1]++] = {end, static_cast<int32_t>(i)};
            for (; tile * TILE < end; ++tile) head.checkpoints[tile * count + i] = {start, end};
        });
    }
    head.first_event.pop_back();
    fill_reach(head, capacity);
}

}  // namespace

int64_t Partitions::bytes() const {
    int64_t total = 0;
    for (const auto& head : heads)
        total += 4 * (head.first_event.size() + head.low.size() + head.high.size() + head.weights.size()) +
                 8 * (head.events.size() + head.checkpoints.size());
    return total;
}

Partitions* build_partitions(const double* widths, const double* shifts, const double* weights, int64_t heads,
                             int64_t draws, int64_t capacity, int threads) {
    auto* built = new Partitions;
    built->capacity = capacity;
    built->heads.resize(heads);
    run_parallel(threads, heads, [&](int64_t h, int) {
        build_head(built->heads[h], widths + h * draws, shifts + h * draws, weights + h * draws, draws,
                   static_cast<int32_t>(capacity));
    });
    return built;
}

}  // namespace plsh
