// Kernels for x86-64 with AVX-512 and 8-bit dot products (VNNI).
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,prefer-vector-width=512")
#define PENSTOCK_AVX512
#include "attention.inl"
#include "vnni.inl"

namespace {
void finish() {}
}  // namespace

namespace penstock {
const Kernels kAvx512 = {"avx512", 0,       embed,         norm,  add,    encode, encode_group,
                         gate,     softcap, peak, allow, multiply_vnni, place, attend, finish, decode, shrink, expand};
}
#endif
