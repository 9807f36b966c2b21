// A parallel loop over work items with an atomic counter.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace plsh {

// Calls work(item, worker) for items 0..items-1, in order of their numbers, on up to `threads` threads. Which thread takes
// an item is left open, so that results must not depend on it. Rethrows the first exception.
template <class Work>
void run_parallel(int threads, int64_t items, const Work& work) {
    std::atomic<int64_t> next{0};
    std::exception_ptr failure;
    std::mutex guard;
    const auto loop = [&](int worker) {
        try {
            for (int64_t item; (item = next.fetch_add(1)) < items;) work(item, worker);
        } catch (...) {
            const std::lock_guard<std::mutex> lock(guard);
            failure = std::current_exception();
            next = items;
        }
    };
    std::vector<std::thread> others;
    const int64_t wanted = threads < items ? threads : items;
    for (int64_t i = 1; i < wanted; ++i) {
        try {
            others.emplace_back(loop, static_cast<int>(i));
        } catch (const std::system_error&) {
            break;  // fewer threads do the same work
        }
    }
    loop(0);
    for (auto& thread : others) thread.join();
    if (failure) std::rethrow_exception(failure);
}

}  // namespace plsh
