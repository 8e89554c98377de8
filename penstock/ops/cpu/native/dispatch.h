#pragma once
#include "kernels.h"

namespace penstock {

// The kernels of that name, or with none the fastest, if this machine runs them; else null.
const Kernels* find_kernels(const char* name);

}  // namespace penstock
