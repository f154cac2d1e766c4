// Memory of the devices, and page-locked memory of the host.
#pragma once
#include <c10/core/CachingDeviceAllocator.h>

#include "streams.h"

namespace {
struct Mem {
  char *va = nullptr, *shadow = nullptr; std::mutex m;
  std::map<size_t, size_t> free;                                   // offset -> size
  struct Block { size_t size, asked; StreamId stream; std::set<StreamId> used; };
  std::map<size_t, Block> live;
  struct Pending { size_t off, size; std::vector<std::pair<Queue*, uint64_t>> wait; };
  std::vector<Pending> pending;
  c10::CachingDeviceAllocator::DeviceStats st;
};
Mem* mem(int d) {
  static std::vector<Mem*>* all = [] {
    auto v = new std::vector<Mem*>();
    for (int i = 0; i < kDevices; ++i) {
      auto* x = new Mem();
      auto map = [](int prot) { auto p = mmap(nullptr, kCapacity, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); TORCH_CHECK(p != MAP_FAILED, "mmap failed"); return (char*)p; };
      x->shadow = map(PROT_READ | PROT_WRITE); x->va = kProtect ? map(PROT_NONE) : x->shadow;
      x->free[0] = kCapacity; v->push_back(x);
    }
    return v;
  }();
  TORCH_CHECK(d >= 0 && d < kDevices, "npu device index ", d, " out of range [0, ", kDevices, ")");
  return (*all)[d];
}
// device address -> (device, host address); device -1 when p is not a device address
std::pair<int, char*> host_of(const void* p) {
  for (int d = 0; d < kDevices; ++d) {
    auto* x = mem(d); auto c = (char*)p;
    if (c >= x->va && c < x->va + kCapacity) return {d, x->shadow + (c - x->va)};
  }
  return {-1, (char*)p};
}
void bump(c10::CachingAllocator::StatArray& a, int64_t by) {
  auto& s = a[0];
  if (by > 0) s.increase(by); else s.decrease(-by);
}
struct Alloc final : c10::DeviceAllocator {
  static void give(Mem* x, size_t off, size_t size) {
    auto it = x->free.emplace(off, size).first;
    auto nx = std::next(it);
    if (nx != x->free.end() && it->first + it->second == nx->first) { it->second += nx->second; x->free.erase(nx); }
    if (it != x->free.begin()) { auto pv = std::prev(it); if (pv->first + pv->second == it->first) { pv->second += it->second; x->free.erase(it); } }
  }
  static void reap(Mem* x, bool block) {
    auto& p = x->pending;
    for (size_t i = 0; i < p.size();) {
      bool ok = true;
      for (auto& [q, seq] : p[i].wait) { if (block) q->wait(seq); ok = ok && q->done(seq); }
      if (ok) { give(x, p[i].off, p[i].size); p[i] = p.back(); p.pop_back(); } else ++i;
    }
  }
  static void release(void* ctx) {
    auto [d, h] = host_of(ctx); if (d < 0) return;
    auto* x = mem(d); std::lock_guard<std::mutex> l(x->m);
    size_t off = h - x->shadow; auto b = x->live.at(off); x->live.erase(off);
    bump(x->st.allocated_bytes, -int64_t(b.size)); bump(x->st.requested_bytes, -int64_t(b.asked)); bump(x->st.allocation, -1);
    Mem::Pending p{off, b.size, {}};
    b.used.insert(b.stream);
    for (auto s : b.used) { auto* q = queue(d, s); auto t = q->tail(); if (!q->done(t)) p.wait.push_back({q, t}); }
    if (p.wait.empty()) give(x, off, b.size); else x->pending.push_back(std::move(p));
  }
  c10::DataPtr allocate(size_t n) override {
    gUsed = true; int d = tDevice; auto* x = mem(d); std::lock_guard<std::mutex> l(x->m);
    if (n == 0) return {nullptr, nullptr, &release, Device(NPU, d)};
    size_t size = (n + 32 + 511) / 512 * 512;                     // 512-byte blocks with a 32-byte tail, like an NPU caching allocator
    for (int attempt = 0; attempt < 2; ++attempt) {
      reap(x, attempt == 1);
      for (auto it = x->free.begin(); it != x->free.end(); ++it) {
        if (it->second < size) continue;
        size_t off = it->first, rest = it->second - size; x->free.erase(it);
        if (rest) x->free[off + size] = rest;
        x->live[off] = {size, n, currentStream(d).id(), {}};
        bump(x->st.allocated_bytes, size); bump(x->st.requested_bytes, n); bump(x->st.allocation, 1);
        return {x->va + off, x->va + off, &release, Device(NPU, d)};
      }
    }
    ++x->st.num_ooms;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "NPU out of memory. Tried to allocate ", n, " bytes on npu:", d,
                     ", capacity ", kCapacity, ", allocated ", x->st.allocated_bytes[0].current);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* dst, const void* src, size_t n) const override { std::memcpy(host_of(dst).second, host_of(src).second, n); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& p, Stream s) override {
    auto [d, h] = host_of(p.get()); if (d < 0) return;
    auto* x = mem(d); std::lock_guard<std::mutex> l(x->m);
    auto it = x->live.find(h - x->shadow); if (it != x->live.end()) it->second.used.insert(s.id());
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex d) override { auto* x = mem(d); std::lock_guard<std::mutex> l(x->m); return x->st; }
  void resetAccumulatedStats(DeviceIndex d) override { for (auto* a : {&mem(d)->st.allocated_bytes, &mem(d)->st.allocation}) (*a)[0].reset_accumulated(); }
  void resetPeakStats(DeviceIndex d) override { for (auto* a : {&mem(d)->st.allocated_bytes, &mem(d)->st.allocation}) (*a)[0].reset_peak(); }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex d) override { auto* x = mem(d); return {kCapacity - x->st.allocated_bytes[0].current, kCapacity}; }
};
Alloc gAlloc;
REGISTER_ALLOCATOR(NPU, &gAlloc)

std::mutex gPinM; std::map<char*, size_t> gPinned;
bool pinned(const void* p) {
  std::lock_guard<std::mutex> l(gPinM); auto it = gPinned.upper_bound((char*)p);
  return it != gPinned.begin() && (char*)p < std::prev(it)->first + std::prev(it)->second;
}
struct PinAlloc final : c10::Allocator {
  static void release(void* p) { if (!p) return; { std::lock_guard<std::mutex> l(gPinM); gPinned.erase((char*)p); } std::free(p); }
  c10::DataPtr allocate(size_t n) override {
    void* p = std::aligned_alloc(4096, (n + 4095) / 4096 * 4096 + (n == 0) * 4096);
    std::lock_guard<std::mutex> l(gPinM); gPinned[(char*)p] = n ? n : 1;
    return {p, p, &release, Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* d, const void* s, size_t n) const override { std::memcpy(d, s, n); }
};
PinAlloc gPin;
}  // namespace
