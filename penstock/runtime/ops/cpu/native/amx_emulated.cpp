// The kernels of amx.cpp with tiles in plain code: what tests run where the machine has AVX-512 and no tiles.
#define PENSTOCK_EMULATED_TILES
#include "amx.cpp"
