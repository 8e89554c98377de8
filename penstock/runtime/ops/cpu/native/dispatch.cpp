// Which kernels this machine can run.
#include "dispatch.h"

#include <cstring>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace penstock {
namespace {

#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

// Tiles are larger than other registers, so the kernel must first be asked to save them for this process.
bool has_amx() {
#if defined(__linux__)
  unsigned a, b, c, d;
  if (!has_avx512() || !__builtin_cpu_supports("avx512bf16") || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  const bool has_tiles = d & (1u << 24), has_int8 = d & (1u << 25), has_bf16 = d & (1u << 22);
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return has_tiles && has_int8 && has_bf16 && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

struct Family {
  const Kernels* kernels;
  int needs;
  bool is_chosen;  // where no name is given
};

// The fastest first.
const Family kFamilies[] = {
#if defined(__x86_64__)
    {&kAmx, kHasAvx2 | kHasAvx512 | kHasAmx, true},
    {&kAvx512, kHasAvx2 | kHasAvx512, true},
    {&kAvx2, kHasAvx2, true},
    {&kEmulatedAmx, kHasAvx2 | kHasAvx512, false},
#endif
    {&kPortable, 0, true},
};

}  // namespace

int find_features() {
#if defined(__x86_64__)
  return (has_avx2() ? kHasAvx2 : 0) | (has_avx512() ? kHasAvx512 : 0) | (has_amx() ? kHasAmx : 0);
#else
  return 0;
#endif
}

const Kernels* choose_kernels(const char* name, int features) {
  const bool any = !name || !*name;
  for (const Family& family : kFamilies)
    if ((features & family.needs) == family.needs && (any ? family.is_chosen : !std::strcmp(name, family.kernels->name)))
      return family.kernels;
  return nullptr;
}

}  // namespace penstock
