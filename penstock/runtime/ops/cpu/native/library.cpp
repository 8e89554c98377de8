// The C interface. Functions return 0, or 1 when memory ran out; arguments were checked by the caller. A step told by rows
// returns 2 if it reaches beyond a row's blocks, 3 if it was interrupted; a step of several ranks 4 if one of them was lost.
#include "dispatch.h"
#include "layout.h"
#include "rows.h"

using namespace penstock;

namespace {

template <typename Function>
int guarded(Function function) {
  try {
    function();
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// Bumped whenever a struct of abi.h changes.
int penstock_abi() { return 7; }

// Sizes and places in the structs; how many numbers that are.
int penstock_layout(const int32_t** numbers) {
  *numbers = kLayout;
  return sizeof kLayout / sizeof *kLayout;
}

int penstock_features() { return find_features(); }

// The name of the kernels that a machine with these features would run; null for none.
const char* penstock_choose(const char* kernels, int features) {
  const Kernels* found = choose_kernels(kernels, features);
  return found ? found->name : nullptr;
}

void* penstock_open(int num_threads, const char* kernels) {
  const Kernels* found = choose_kernels(kernels, find_features());
  if (!found || num_threads < 1) return nullptr;
  try {
    return new Context(num_threads, found);
  } catch (...) {
    return nullptr;
  }
}

void penstock_close(void* context) { delete (Context*)context; }

const char* penstock_kernels(void* context) { return ((Context*)context)->kernels->name; }

int penstock_step(void* context, const Model* model, const Step* step) {
  return guarded([&] { run_step(*(Context*)context, *model, *step); });
}

int penstock_shared_step(void* context, const Model* model, const Step* step, const Sharing* sharing) {
  bool is_whole = true;
  const int status = guarded([&] { is_whole = run_step(*(Context*)context, *model, *step, false, *sharing); });
  return is_whole ? status : 4;
}

int penstock_rows(void* context, const Model* model, const RowsStep* step) {
  Outcome outcome = Outcome::kDone;
  const int status = guarded([&] { outcome = run_rows(*(Context*)context, *model, *step); });
  return status ? status : (int)outcome;
}

// As penstock_rows and penstock_shared_step, of which some rows, or tokens, have adapters.
int penstock_adapted_rows(void* context, const Model* model, const RowsStep* step, const Adaptation* adaptation) {
  Outcome outcome = Outcome::kDone;
  const int status = guarded([&] { outcome = run_rows(*(Context*)context, *model, *step, *adaptation); });
  return status ? status : (int)outcome;
}

int penstock_adapted_step(void* context, const Model* model, const Step* step, const Sharing* sharing,
                          const Adaptation* adaptation) {
  bool is_whole = true;
  const auto run = [&] { is_whole = run_step(*(Context*)context, *model, *step, false, *sharing, *adaptation); };
  const int status = guarded(run);
  return is_whole ? status : 4;
}

// From any thread: steps that yield are left halfway, from now on and until told otherwise.
void penstock_interrupt(void* context, int is_on) { ((Context*)context)->is_interrupted = is_on != 0; }

// From now on steps note when their parts end, as long as there is room; null for no longer. Returns how many were noted before.
int64_t penstock_trace(void* context, Mark* marks, int64_t capacity) {
  Marks& known = ((Context*)context)->marks;
  const int64_t count = known.count;
  known = Marks{marks, marks ? capacity : 0, 0};
  return count;
}

int penstock_product(void* context, const Matrix* matrix, const Product* product) {
  return guarded([&] { run_product(*(Context*)context, *matrix, *product); });
}

// As penstock_product with places asked for, of those that are allowed; -2 where none is.
int penstock_choose_allowed(void* context, const Matrix* matrix, const Product* product, const Allowed* allowed) {
  return guarded([&] { run_product(*(Context*)context, *matrix, *product, *allowed); });
}

int penstock_attention(void* context, const Model* model, const Step* step, float* qkv, float* out) {
  return guarded([&] { run_attention(*(Context*)context, *model, *step, qkv, out); });
}

}  // extern "C"
#pragma GCC visibility pop
