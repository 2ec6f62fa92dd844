// The random bits of JAX (Threefry-2x32, 20 rounds; Salmon et al., SC 2011), of one call for XLA instead of a hundred
// operations: a test that draws in five places would compile them five times. `tests/plugin.py` builds this and puts it
// in place; `tests/test_threefry.py` holds it against JAX's own.
#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using Words = ffi::Buffer<ffi::U32>;

static uint32_t rotated(uint32_t word, int bits) { return (word << bits) | (word >> (32 - bits)); }

static ffi::Error Threefry(Words key1, Words key2, Words counts1, Words counts2, ffi::Result<Words> bits1,
                           ffi::Result<Words> bits2) {
  static const int rotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  for (size_t i = 0; i < bits1->element_count(); ++i) {
    const uint32_t a = key1.typed_data()[i], b = key2.typed_data()[i];
    const uint32_t keys[3] = {a, b, a ^ b ^ 0x1BD11BDAu};
    uint32_t x = counts1.typed_data()[i] + keys[0], y = counts2.typed_data()[i] + keys[1];
    for (uint32_t group = 0; group < 5; ++group) {
      for (int rotation : rotations[group % 2]) {
        x += y;
        y = rotated(y, rotation) ^ x;
      }
      x += keys[(group + 1) % 3];
      y += keys[(group + 2) % 3] + group + 1;
    }
    bits1->typed_data()[i] = x;
    bits2->typed_data()[i] = y;
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    threefry, Threefry,
    ffi::Ffi::Bind().Arg<Words>().Arg<Words>().Arg<Words>().Arg<Words>().Ret<Words>().Ret<Words>());
