// Settings, and streams: each is a queue with a thread of its own.
#pragma once
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>

namespace {
using c10::Device; using c10::DeviceIndex; using c10::Stream; using c10::StreamId;
constexpr auto NPU = c10::DeviceType::PrivateUse1;

long env(const char* k, long d) { auto v = std::getenv(k); return v ? std::atol(v) : d; }
const int kDevices = int(env("CACHECORE_NPU_SIM_DEVICES", 2));
const size_t kCapacity = size_t(env("CACHECORE_NPU_SIM_MEMORY", 16L << 30));
const bool kProtect = env("CACHECORE_NPU_SIM_PROTECT", 1);
const bool kStrict = env("CACHECORE_NPU_SIM_STRICT", 0);            // refuse non-contiguous operands, as many vendor kernels do
const bool kPinned = env("CACHECORE_NPU_SIM_PINNED", 1);            // 0: no page-locked memory, as on some devices
std::atomic<long> gDelayUs{env("CACHECORE_NPU_SIM_DELAY_US", 0)};   // added before every queued task
std::atomic<bool> gUsed{false};                           // a context was made
std::atomic<int64_t> gCopies[4], gBytes[4];               // H2D, D2H, D2D, H2H

struct Queue {
  std::mutex m; std::condition_variable cv, idle; std::deque<std::function<void()>> q;
  uint64_t submitted = 0, completed = 0; std::exception_ptr error; std::thread worker;
  Queue() : worker([this] { run(); }) { worker.detach(); }
  void run() {
    for (;;) {
      std::unique_lock<std::mutex> l(m);
      cv.wait(l, [&] { return !q.empty(); });
      auto task = std::move(q.front()); q.pop_front();
      l.unlock();
      if (auto us = gDelayUs.load()) std::this_thread::sleep_for(std::chrono::microseconds(us));
      std::exception_ptr err;
      try { task(); } catch (...) { err = std::current_exception(); }
      task = nullptr;
      l.lock(); ++completed; if (err && !error) error = err; idle.notify_all();
    }
  }
  uint64_t push(std::function<void()> f) {
    std::lock_guard<std::mutex> l(m); q.push_back(std::move(f)); cv.notify_one(); return ++submitted;
  }
  bool done(uint64_t seq) { std::lock_guard<std::mutex> l(m); return completed >= seq; }
  uint64_t tail() { std::lock_guard<std::mutex> l(m); return submitted; }
  void wait(uint64_t seq) { std::unique_lock<std::mutex> l(m); idle.wait(l, [&] { return completed >= seq; }); }
  void sync() {
    wait(tail());
    std::exception_ptr e; { std::lock_guard<std::mutex> l(m); std::swap(e, error); }
    if (e) std::rethrow_exception(e);
  }
};
std::mutex gStreamsM;
std::map<std::pair<int, StreamId>, Queue*> gStreams;
StreamId gNextStream = 1;
thread_local DeviceIndex tDevice = 0;
thread_local std::map<int, StreamId> tStream;

Queue* queue(int dev, StreamId id) {
  std::lock_guard<std::mutex> l(gStreamsM);
  gUsed = true; auto& q = gStreams[{dev, id}]; if (!q) q = new Queue(); return q;
}
Stream currentStream(int dev) { auto it = tStream.find(dev); return Stream(Stream::UNSAFE, Device(NPU, dev), it == tStream.end() ? 0 : it->second); }
Queue* queueOf(const Stream& s) { return queue(s.device_index(), s.id()); }
Queue* currentQueue(int dev) { return queueOf(currentStream(dev)); }

struct Event {
  std::mutex m; std::condition_variable cv; uint64_t want = 0, have = 0; bool timing = false; double at = 0;
};
double now_ms() { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
}  // namespace
