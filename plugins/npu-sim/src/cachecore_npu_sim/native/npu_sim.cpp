// Simulated accelerator on torch's PrivateUse1 key, backed by host memory.
//  * device addresses are a PROT_NONE reservation: host code that dereferences a device pointer faults,
//    kernels work on a shadow mapping at the same offset
//  * every stream is a worker thread with a FIFO, so copies and in-place ops really are asynchronous
//  * DeviceAllocator (statistics, OOM, record_stream), pinned host allocator, events, per-device guard
//  * ops without a kernel run through one boxed fallback that aliases npu arguments as CPU tensors (no copies)
#include "kernels.h"

namespace {
void check_range(int d, const char* host, size_t n, const char* what) {
  auto* x = mem(d); std::lock_guard<std::mutex> l(x->m);
  size_t off = host - x->shadow; auto it = x->live.upper_bound(off);
  TORCH_CHECK(it != x->live.begin(), what, " does not start inside a live npu allocation"); --it;
  TORCH_CHECK(off + n <= it->first + it->second.asked, what, " runs past the end of its npu allocation");
}
void memcpy_batch(const at::Tensor& dst, const at::Tensor& src, const at::Tensor& bytes) {
  TORCH_CHECK(dst.is_cpu() && src.is_cpu() && bytes.is_cpu() && dst.scalar_type() == at::kLong && src.scalar_type() == at::kLong && bytes.scalar_type() == at::kLong, "expected int64 CPU tensors");
  auto D = dst.contiguous(), S = src.contiguous(), B = bytes.contiguous();
  std::vector<std::tuple<char*, char*, size_t>> job; int dev = -1; bool sync = false;
  for (int64_t i = 0; i < B.numel(); ++i) {
    auto [dd, dh] = host_of((void*)D.const_data_ptr<int64_t>()[i]); auto [sd, sh] = host_of((void*)S.const_data_ptr<int64_t>()[i]); size_t n = B.const_data_ptr<int64_t>()[i];
    if (dd >= 0) check_range(dd, dh, n, "destination"); else sync |= !pinned(dh);
    if (sd >= 0) check_range(sd, sh, n, "source"); else sync |= !pinned(sh);
    int k = sd < 0 ? (dd < 0 ? 3 : 0) : (dd < 0 ? 1 : 2); ++gCopies[k]; gBytes[k] += n;
    dev = std::max({dev, dd, sd}); job.emplace_back(dh, sh, n);
  }
  TORCH_CHECK(dev >= 0 || job.empty(), "no npu address in the batch"); if (job.empty()) return;
  auto* q = currentQueue(dev); auto seq = q->push([job] { for (auto& [d, s, n] : job) std::memmove(d, s, n); });
  if (sync) { q->wait(seq); q->sync(); }
}
// The address-table copy of vllm-ascend, under its name; source addresses come first. Device to device is refused:
// aclrtMemcpyBatchAsync has no such direction. Addresses on the wrong side fail as in the runtime (EE1001).
void swap_blocks_batch(const at::Tensor& src, const at::Tensor& dst, const at::Tensor& bytes, int64_t direction) {
  TORCH_CHECK(direction == 0 || direction == 1, "direction ", direction, "; expected 0 (host to device) or 1 (device to host)");
  auto S = src.contiguous(), D = dst.contiguous();
  for (int64_t i = 0; i < S.numel(); ++i) {
    bool from = host_of((void*)S.const_data_ptr<int64_t>()[i]).first >= 0, to = host_of((void*)D.const_data_ptr<int64_t>()[i]).first >= 0;
    TORCH_CHECK(from == (direction == 1) && to == (direction == 0), "EE1001: Memory async failed, src loc type=", int(from), ", dst loc type=", int(to), ", kind=", direction);
  }
  memcpy_batch(dst, src, bytes);
}
std::vector<int64_t> counters() { std::vector<int64_t> r; for (int i = 0; i < 4; ++i) { r.push_back(gCopies[i]); r.push_back(gBytes[i]); } return r; }
TORCH_LIBRARY(cachecore_npu_sim, m) {
  m.def("memcpy_batch(Tensor dst_ptrs, Tensor src_ptrs, Tensor nbytes) -> ()", &memcpy_batch);
  m.def("counters() -> int[]", &counters);
  m.def("initialized() -> bool", [] { return gUsed.load(); });
  m.def("set_delay_us(int us) -> ()", [](int64_t us) { gDelayUs = us; });
  m.def("stall(int us) -> ()", [](int64_t us) { currentQueue(tDevice)->push([us] { std::this_thread::sleep_for(std::chrono::microseconds(us)); }); });
}
TORCH_LIBRARY_FRAGMENT(_C_ascend, m) {
  if (env("CACHECORE_NPU_SIM_BATCH_OP", 1)) m.def("swap_blocks_batch(Tensor x, Tensor y, Tensor z, int direction) -> ()", &swap_blocks_batch);
}
}  // namespace
