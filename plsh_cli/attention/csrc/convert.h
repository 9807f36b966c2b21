// Conversions between float32 and the 16-bit formats, rounding to nearest, ties to even.
#pragma once

#include "simd.h"

namespace plsh {

enum DataType : int32_t { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2 };

inline int64_t element_bytes(DataType type) { return type == FLOAT32 ? 4 : 2; }

inline float float_from(uint32_t x) {
    float y;
    std::memcpy(&y, &x, 4);
    return y;
}

inline uint32_t bits_of(float x) {
    uint32_t y;
    std::memcpy(&y, &x, 4);
    return y;
}

inline float from_bfloat16(uint16_t x) { return float_from(static_cast<uint32_t>(x) << 16); }

inline float from_float16(uint16_t x) {
    // Shifted into place, the exponent is 112 too small; the product also normalises subnormal numbers.
    const float scaled = float_from((x & 0x7fffu) << 13) * 0x1p112f;
    const uint32_t special = (x & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
    return float_from(bits_of(scaled) | special | (x & 0x8000u) << 16);
}

inline uint16_t to_bfloat16(float x) {
    const uint32_t u = bits_of(x);
    if (x != x) return static_cast<uint16_t>(u >> 16 | 0x40u);
    return static_cast<uint16_t>((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

inline uint16_t to_float16(float x) {
    const uint32_t u = bits_of(x), sign = u >> 16 & 0x8000u, size = u & 0x7fffffffu;
    if (size > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
    if (size >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and more round to infinity
    if (size < 0x38800000u) return static_cast<uint16_t>(sign | (bits_of(float_from(size) + 0.5f) - 0x3f000000u));
    return static_cast<uint16_t>(sign | (size + 0xfffu + (size >> 13 & 1u) - 0x38000000u) >> 13);
}

inline void read_row(const void* from, DataType type, int64_t count, float* to) {
    const auto* half = static_cast<const uint16_t*>(from);
    if (type == FLOAT32)
        std::memcpy(to, from, count * 4);
    else if (type == BFLOAT16)
        for (int64_t i = 0; i < count; ++i) to[i] = from_bfloat16(half[i]);
    else
        for (int64_t i = 0; i < count; ++i) to[i] = from_float16(half[i]);
}

inline void write_row(const float* from, DataType type, int64_t count, void* to) {
    auto* half = static_cast<uint16_t*>(to);
    if (type == FLOAT32)
        std::memcpy(to, from, count * 4);
    else if (type == BFLOAT16)
        for (int64_t i = 0; i < count; ++i) half[i] = to_bfloat16(from[i]);
    else
        for (int64_t i = 0; i < count; ++i) half[i] = to_float16(from[i]);
}

}  // namespace plsh
