#pragma once
#include "kernels.h"

namespace penstock {

// What a machine may have, as bits.
enum Feature : int { kHasAvx2 = 1, kHasAvx512 = 2, kHasAmx = 4 };

// Of the machine this runs on.
int find_features();

// The kernels of that name, or with none the fastest, if a machine with these features runs them; else null.
const Kernels* choose_kernels(const char* name, int features);

}  // namespace penstock
