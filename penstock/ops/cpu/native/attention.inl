// Attention over the paged cache with plain vector arithmetic.
#include "softmax.inl"

namespace {

void attend(const Attend& t, uint8_t* scratch) {
  const int dim = t.head_dim;
  float* scores = (float*)scratch;                                // [kKeysAtOnce]
  uint16_t* weights = (uint16_t*)(scores + kKeysAtOnce);          // [kKeysAtOnce]
  float* sums = (float*)(weights + kKeysAtOnce);                  // [head_dim]
  uint16_t* clean = (uint16_t*)(sums + kMaxHeadDim);              // [16, head_dim]
  for (int row = 0; row < t.num_rows; ++row) {
    const Seen seen = seen_by(t, row);
    const float* q = head_of((float*)t.q, t, t.stride, row);
    float most = -__builtin_inff(), total = 0.0f;
    for (int d = 0; d < dim; ++d) sums[d] = 0.0f;
    for (int first = seen.begin / kKeysAtOnce * kKeysAtOnce; first < seen.end; first += kKeysAtOnce) {
      const int left = seen.end - first;
      const int num_keys = left < kKeysAtOnce ? (left + 15) / 16 * 16 : kKeysAtOnce;
      for (int i = 0; i < num_keys; i += kTile) {
        const uint16_t* unit = keys_of(t, first + i, clean);
        Floats even = {}, odd = {};
        for (int pair = 0; pair < dim / 2; ++pair) {
          Ints both;
          std::memcpy(&both, unit + pair * 32, sizeof both);
          even += (Floats)(both << 16) * from_bf16(to_bf16(q[pair * 2]));
          odd += (Floats)(both & (int32_t)0xffff0000) * from_bf16(to_bf16(q[pair * 2 + 1]));
        }
        store(scores + i, even + odd);
      }
      if (t.key_scales) scale_scores(t, scores, first, num_keys);
      const float factor = weigh(t, scores, weights, first, num_keys, seen, most, total);
      if (factor != 1.0f)
        for (int d = 0; d < dim; ++d) sums[d] *= factor;
      for (int i = 0; i < num_keys; i += kTile) {
        const uint16_t* unit = values_of(t, first + i, left - i, clean);
        for (int pair = 0; pair < kTile / 2; ++pair) {
          const float a = from_bf16(weights[i + pair * 2]), b = from_bf16(weights[i + pair * 2 + 1]);
          const uint16_t* line = unit + pair * dim * 2;
          for (int d = 0; d < dim; d += 16) {
            Ints both;
            std::memcpy(&both, line + d * 2, sizeof both);
            store(sums + d, load(sums + d) + (Floats)(both << 16) * a + (Floats)(both & (int32_t)0xffff0000) * b);
          }
        }
      }
    }
    float* out = head_of(t.out, t, t.out_stride, row);
    for (int d = 0; d < dim; ++d) out[d] = sums[d] / total;
  }
}

}  // namespace
