// Kernels: copies and in-place ops are queued, everything else runs in the caller over the same bytes.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/_reshape_alias_cpu_dispatch.h>
#include <ATen/ops/unfold_cpu_dispatch.h>
#include <ATen/ops/view_cpu_dispatch.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include "device.h"

namespace {
bool is_npu(const at::Tensor& t) { return t.defined() && t.device().type() == NPU; }
at::Tensor host_view(const at::Tensor& t) {            // CPU tensor, same geometry, same bytes
  return at::from_blob(t.numel() ? host_of(t.data_ptr()).second : nullptr, t.sizes(), t.strides(),
                       t.options().device(c10::kCPU).pinned_memory(false));
}
c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);
at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dt, std::optional<c10::Layout>, std::optional<Device> d, std::optional<bool>, std::optional<c10::MemoryFormat> mf) {
  c10::OptionalDeviceGuard g(d ? *d : Device(NPU, tDevice));
  return at::detail::empty_generic(size, &gAlloc, kKeys, c10::dtype_or_default(dt), mf);
}
at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dt, std::optional<c10::Layout>, std::optional<Device> d, std::optional<bool>) {
  c10::OptionalDeviceGuard g(d ? *d : Device(NPU, tDevice));
  return at::detail::empty_strided_generic(size, stride, &gAlloc, kKeys, c10::dtype_or_default(dt));
}
struct Below { at::AutoDispatchBelowADInplaceOrView g; };
at::Tensor copy_from(const at::Tensor& src, const at::Tensor& dst, bool non_blocking) {
  if (src.numel() == 0) return dst;
  bool s = is_npu(src), d = is_npu(dst);
  int kind = s ? (d ? 2 : 1) : (d ? 0 : 3);
  ++gCopies[kind]; gBytes[kind] += dst.nbytes();
  int dev = d ? dst.device().index() : src.device().index();
  if (s && d && src.device() != dst.device()) currentQueue(src.device().index())->sync();
  auto* q = currentQueue(dev);
  auto a = s ? host_view(src) : src, b = d ? host_view(dst) : dst;
  auto seq = q->push([a, b] { Below g; b.copy_(a); });
  bool async = (s && d) || (non_blocking && pinned(s ? dst.data_ptr() : src.data_ptr()));
  if (!async) { q->wait(seq); q->sync(); }
  return dst;
}
at::Tensor copy_from_and_resize(const at::Tensor& src, const at::Tensor& dst) {
  if (!dst.sizes().equals(src.sizes())) dst.resize_(src.sizes());
  return copy_from(src, dst, false);
}
const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef size, std::optional<c10::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  size_t need = at::detail::computeStorageNbytesContiguous(size, self.itemsize(), self.storage_offset());
  if (need > self.storage().nbytes()) at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), need);
  return self;
}
c10::Scalar item(const at::Tensor& t) { currentQueue(t.device().index())->sync(); return host_view(t).item(); }
void record_stream(at::Tensor& t, Stream s) { gAlloc.recordStream(t.storage().data_ptr(), s); }
at::Tensor& set_whole(at::Tensor& self, at::Storage src) { int64_t n = src.nbytes() / self.itemsize(); return at::cpu::set_(self, std::move(src), 0, {n}, {1}); }
at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& src) { return at::cpu::set_(self, src.storage(), src.storage_offset(), src.sizes(), src.strides()); }
at::Tensor& set_empty(at::Tensor& self) { auto e = empty({0}, self.scalar_type(), std::nullopt, self.device(), std::nullopt, std::nullopt); return set_tensor(self, e); }
at::Tensor& set_source(at::Tensor& self, at::Storage src, int64_t off, c10::IntArrayRef size, c10::IntArrayRef stride) { return at::cpu::set_(self, std::move(src), off, size, stride); }

// Any other op. In-place ops are queued on the current stream; the rest wait for it and run here.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema(); const size_t n = schema.arguments().size();
  std::vector<std::pair<at::Tensor, at::Tensor>> map;           // (cpu, npu)
  std::vector<std::pair<at::Tensor, at::Tensor>> outs;          // out= arguments
  int dev = -1; bool hostOut = false;
  auto down = [&](const at::Tensor& t, bool out) {
    if (!is_npu(t)) return t;
    TORCH_CHECK(dev < 0 || dev == t.device().index(), "tensors on different npu devices in ", schema.name());
    dev = t.device().index();
    TORCH_CHECK(!kStrict || t.is_contiguous(), schema.name(), ": npu operand must be contiguous, got stride ", t.strides(), " for shape ", t.sizes());
    for (auto& [c, d] : map) if (d.is_same(t)) return c;
    out = out && t.numel() == 0;                                // an empty out= argument is about to be resized
    auto c = out ? at::empty(t.sizes(), t.options().device(c10::kCPU)) : host_view(t);
    if (out) outs.push_back({c, t});
    map.push_back({c, t}); return c;
  };
  torch::jit::Stack args(stack->end() - n, stack->end()); torch::jit::drop(*stack, n);
  bool writes = false;
  for (size_t i = 0; i < n; ++i) {
    auto& v = args[i]; const auto& sa = schema.arguments()[i]; auto* ai = sa.alias_info();
    bool w = ai && ai->isWrite(); writes |= w;
    if (v.isTensor()) { if (w && !is_npu(v.toTensor())) hostOut = true; v = down(v.toTensor(), w && sa.kwarg_only()); }
    else if (v.isTensorList()) { auto l = v.toTensorList(); c10::List<at::Tensor> r; for (size_t k = 0; k < l.size(); ++k) { if (w && !is_npu(l.get(k))) hostOut = true; r.push_back(down(l.get(k), false)); } v = r; }
    else if (v.isOptionalTensorList()) { auto l = v.toOptionalTensorList(); c10::List<std::optional<at::Tensor>> r; for (size_t k = 0; k < l.size(); ++k) { std::optional<at::Tensor> e = l.get(k); if (e && e->defined()) e = down(*e, false); r.push_back(e); } v = r; }
    else if (v.isDevice() && v.toDevice().type() == NPU) { dev = v.toDevice().has_index() ? v.toDevice().index() : tDevice; v = Device(c10::kCPU); }
  }
  if (dev < 0) dev = tDevice;
  bool inplace = writes && outs.empty() && !hostOut;
  for (auto& r : schema.returns()) inplace = inplace && r.alias_info() && r.alias_info()->isWrite() && r.type()->kind() == c10::TypeKind::TensorType;
  auto* q = currentQueue(dev);
  if (inplace) {
    std::vector<at::Tensor> ret;
    for (auto& r : schema.returns())
      for (size_t i = 0; i < n; ++i) {
        auto* ai = schema.arguments()[i].alias_info();
        if (ai && ai->isWrite() && *ai == *r.alias_info()) for (auto& [c, d] : map) if (args[i].isTensor() && c.is_same(args[i].toTensor())) ret.push_back(d);
      }
    q->push([op, args]() mutable { Below g; auto s = args; op.callBoxed(&s); });
    for (auto& t : ret) torch::jit::push(*stack, t);
    return;
  }
  q->sync();
  { Below g; op.callBoxed(&args); }
  auto up = [&](const at::Tensor& t) -> at::Tensor {
    if (!t.defined()) return t;
    for (auto& [c, d] : map) if (c.is_same(t)) return d;
    for (auto& [c, d] : map) if (t.has_storage() && c.has_storage() && t.storage().data() && t.storage().data() == c.storage().data())
      return at::cpu::as_strided(d, t.sizes(), t.strides(), d.storage_offset() + ((char*)t.data_ptr() - (char*)c.data_ptr()) / t.itemsize());
    auto r = empty_strided(t.sizes(), t.strides(), t.scalar_type(), std::nullopt, Device(NPU, dev), std::nullopt);
    if (t.numel()) host_view(r).copy_(t);
    return r;
  };
  for (auto& [c, d] : outs) { if (!d.sizes().equals(c.sizes())) d.resize_(c.sizes()); if (c.numel()) host_view(d).copy_(c); }
  for (auto& v : args) {
    if (v.isTensor()) v = up(v.toTensor());
    else if (v.isTensorList()) { c10::List<at::Tensor> r; auto l = v.toTensorList(); for (size_t k = 0; k < l.size(); ++k) r.push_back(up(l.get(k))); v = r; }
    torch::jit::push(*stack, std::move(v));
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty); m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", TORCH_FN(at::cpu::as_strided)); m.impl("view", TORCH_FN(at::cpu::view));
  m.impl("_reshape_alias", TORCH_FN(at::cpu::_reshape_alias)); m.impl("unfold", TORCH_FN(at::cpu::unfold));
  m.impl("set_.source_Storage_storage_offset", &set_source); m.impl("resize_", &resize_);
  m.impl("set_.source_Storage", &set_whole); m.impl("set_.source_Tensor", &set_tensor); m.impl("set_", &set_empty);
  m.impl("_copy_from", &copy_from); m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &item); m.impl("record_stream", &record_stream);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
}  // namespace
