// The C interface: plain pointers and sizes; a message in place of an exception.
#include <cstdio>
#include <exception>

#include "call.h"

namespace {

thread_local char message[256];

template <class Work>
const char* guarded(Work work) {
    try {
        work();
        return nullptr;
    } catch (const std::exception& error) {
        std::snprintf(message, sizeof message, "%s", error.what());
        return message;
    }
}

}  // namespace

#define PLSH_EXPORT __attribute__((visibility("default")))

extern "C" {

PLSH_EXPORT int64_t plsh_call_bytes() { return sizeof(plsh::Call); }

PLSH_EXPORT const char* plsh_partitions(const double* widths, const double* shifts, const double* weights, int64_t heads, int64_t draws,
                            int64_t capacity, int threads, plsh::Partitions** built) {
    return guarded([&] { *built = plsh::build_partitions(widths, shifts, weights, heads, draws, capacity, threads); });
}

PLSH_EXPORT int64_t plsh_partitions_bytes(const plsh::Partitions* partitions) { return partitions->bytes(); }

PLSH_EXPORT void plsh_partitions_free(plsh::Partitions* partitions) { delete partitions; }

PLSH_EXPORT const char* plsh_forward(const plsh::Call* call) {
    return guarded([&] { plsh::forward(*call); });
}

PLSH_EXPORT const char* plsh_backward(const plsh::Call* call) {
    return guarded([&] { plsh::backward(*call); });
}
}
