// Shapes of the matrix tiles.
#include "kernels.h"

namespace {

struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int num_rows, int num_bytes) {
    rows[tile] = (uint8_t)num_rows;
    row_bytes[tile] = (uint16_t)num_bytes;
  }
  void apply() const {
    asm volatile("" : : "r"(this) : "memory");  // the intrinsic tells some compilers of the first bytes only
    _tile_loadconfig(this);
  }
};

}  // namespace
