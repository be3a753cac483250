// The parts of DLPack's C exchange interface (dmlc/dlpack, version 1.3) that a borrowed look at a
// tensor needs. A type offers it as the capsule `__dlpack_c_exchange_api__`.
#pragma once

#include <cstdint>

namespace torsh::dlpack {

enum : std::int32_t { on_cpu = 1 };
enum : std::uint8_t { integer = 0, unsigned_integer = 1, floating = 2, bfloat = 4, complex = 5, boolean = 6 };

struct Tensor {
  void* data;
  std::int32_t device_type, device_id;
  std::int32_t dims;
  std::uint8_t code, bits;
  std::uint16_t lanes;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null is contiguous
  std::uint64_t byte_offset;
};

struct Exchange {
  struct {
    std::uint32_t major, minor;
    void* earlier;
  } header;
  void* allocate;
  void* from_object;
  void* to_object;
  // Fills in a tensor that is valid while the object lives and is not changed; 0, or -1 with a
  // Python error set. May be null.
  int (*look)(void* object, Tensor* tensor);
  void* current_stream;
};

}  // namespace torsh::dlpack
