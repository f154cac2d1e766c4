// What torch asks of a device type: current device and stream, events, hooks.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "memory.h"

namespace {
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return NPU; }
  Device exchangeDevice(Device d) const override { auto o = getDevice(); setDevice(d); return o; }
  Device getDevice() const override { return Device(NPU, tDevice); }
  void setDevice(Device d) const override { TORCH_CHECK(d.index() < kDevices, "npu:", int(d.index()), " does not exist"); if (d.index() >= 0) tDevice = d.index(); }
  void uncheckedSetDevice(Device d) const noexcept override { if (d.index() >= 0) tDevice = d.index(); }
  DeviceIndex deviceCount() const noexcept override { return kDevices; }
  static int ix(Device d) { return d.has_index() ? d.index() : tDevice; }
  Stream getStream(Device d) const override { return currentStream(ix(d)); }
  Stream getDefaultStream(Device d) const override { return Stream(Stream::DEFAULT, Device(NPU, ix(d))); }
  Stream getNewStream(Device d, int) const override { std::lock_guard<std::mutex> l(gStreamsM); return Stream(Stream::UNSAFE, Device(NPU, ix(d)), gNextStream++); }
  Stream getStreamFromGlobalPool(Device d, bool) const override { return getNewStream(d, 0); }
  Stream exchangeStream(Stream s) const override { auto o = currentStream(s.device_index()); tStream[s.device_index()] = s.id(); return o; }
  void* getStreamNativeHandle(const Stream s) const override { return queueOf(s); }
  bool queryStream(const Stream& s) const override { auto* q = queueOf(s); return q->done(q->tail()); }
  void synchronizeStream(const Stream& s) const override { queueOf(s)->sync(); }
  void synchronizeDevice(const DeviceIndex d) const override {
    std::vector<Queue*> qs; { std::lock_guard<std::mutex> l(gStreamsM); for (auto& kv : gStreams) if (kv.first.first == d) qs.push_back(kv.second); }
    for (auto* q : qs) q->sync();
  }
  void recordDataPtrOnStream(const c10::DataPtr& p, const Stream& s) const override { gAlloc.recordStream(p, s); }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}     // queued tasks may still point at it; leak, it is a simulator
  void record(void** e, const Stream& s, const DeviceIndex, const c10::EventFlag flag) const override {
    if (!*e) *e = new Event();
    auto* ev = (Event*)*e; uint64_t v; { std::lock_guard<std::mutex> l(ev->m); v = ++ev->want; ev->timing = flag == c10::EventFlag::BACKEND_DEFAULT; }
    queueOf(s)->push([ev, v] { std::lock_guard<std::mutex> l(ev->m); ev->have = std::max(ev->have, v); ev->at = now_ms(); ev->cv.notify_all(); });
  }
  void block(void* e, const Stream& s) const override {
    if (!e) return; auto* ev = (Event*)e; uint64_t v; { std::lock_guard<std::mutex> l(ev->m); v = ev->want; }
    queueOf(s)->push([ev, v] { std::unique_lock<std::mutex> l(ev->m); ev->cv.wait(l, [&] { return ev->have >= v; }); });
  }
  bool queryEvent(void* e) const override { if (!e) return true; auto* ev = (Event*)e; std::lock_guard<std::mutex> l(ev->m); return ev->have >= ev->want; }
  void synchronizeEvent(void* e) const override { if (!e) return; auto* ev = (Event*)e; std::unique_lock<std::mutex> l(ev->m); ev->cv.wait(l, [&] { return ev->have >= ev->want; }); }
  double elapsedTime(void* a, void* b, const DeviceIndex) const override { synchronizeEvent(a); synchronizeEvent(b); return ((Event*)b)->at - ((Event*)a)->at; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(DeviceIndex d) const override { Guard().setDevice(Device(NPU, d)); }
  DeviceIndex getCurrentDevice() const override { return tDevice; }
  DeviceIndex exchangeDevice(DeviceIndex d) const override { auto o = tDevice; setCurrentDevice(d); return o; }
  DeviceIndex maybeExchangeDevice(DeviceIndex d) const override { return exchangeDevice(d); }
  bool isPinnedPtr(const void* p) const override { return pinned(p); }
  c10::Allocator* getPinnedMemoryAllocator() const override { TORCH_CHECK(kPinned, "this device has no page-locked memory (CACHECORE_NPU_SIM_PINNED=0)"); return &gPin; }
  Device getDeviceFromPtr(void* p) const override { auto d = host_of(p).first; TORCH_CHECK(d >= 0, "not an npu pointer"); return Device(NPU, d); }
  void resizePrivateUse1Bytes(const c10::Storage& s, size_t n) const override {
    c10::DeviceGuard g(s.device()); auto fresh = gAlloc.allocate(n); auto keep = std::min(n, s.nbytes());
    if (keep) { Guard().synchronizeDevice(s.device().index()); std::memcpy(host_of(fresh.get()).second, host_of(s.data()).second, keep); }
    s.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(fresh)); s.unsafeGetStorageImpl()->set_nbytes(n);
  }
};
struct RegisterHooks { RegisterHooks() { at::RegisterPrivateUse1HooksInterface(new Hooks()); } } gRegisterHooks;
}  // namespace
