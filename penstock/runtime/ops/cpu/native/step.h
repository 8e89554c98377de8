#pragma once
#include "adapted.h"
#include "context.h"

namespace penstock {

// out [num_rows, matrix rows] = x [num_rows, matrix columns] times the matrix, transposed; or, of each row, only the place of
// its largest number, the first of equals, and -1 if a number of it is not finite.
struct Product {
  const float* x;
  float* out;          // null if places are asked for
  int64_t* likeliest;  // [num_rows], or null
  int32_t num_rows;
  int32_t number;  // 8 or 16 bits for the rows, 0 for whichever is faster
  int32_t invariant;
  float softcap;  // 0 for none
};

// Which places of a product's rows may be chosen, as bits.
struct Allowed {
  const uint16_t* bits = nullptr;  // [masks, stride]
  const int64_t* masks = nullptr;  // [num_rows] which of them holds; -1 for none
  int64_t stride = 0;
};

constexpr int64_t kNothingLeft = -2;  // in place of a place

// A model of which this process has a part. Ranks that share layers call `add_up` in the same order: everybody's numbers become
// their sum. A stage that is not the first takes hidden states in place of embeddings.
struct Sharing {
  int32_t (*add_up)(float* numbers, int64_t count) = nullptr;  // null where nobody shares the layers; nonzero if a rank is lost
  const float* inputs = nullptr;                               // [tokens, hidden_size], or null
  int64_t first_token = 0;                                     // of the embedding's first row
};

// False if it yields and was interrupted: then hidden states are not written. False if a rank was lost: what was computed is of
// no use.
bool run_step(Context& context, const Model& model, const Step& step, bool yields = false, const Sharing& sharing = {},
              const Adaptation& adaptation = {});
void run_product(Context& context, const Matrix& matrix, const Product& product, const Allowed& allowed = {});
// The first layer's placing of keys and values and its attention; qkv is written, out is [tokens, heads * head_dim].
void run_attention(Context& context, const Model& model, const Step& step, float* qkv, float* out);

}  // namespace penstock
