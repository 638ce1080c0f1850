// The device itself: memory, guard and hooks of torch's PrivateUse1.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>

#include <atomic>
#include <utility>

#include "queue.h"

namespace standin {
namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
const c10::Device kDevice(kType, 0);

std::atomic<long> in_use{0};
std::atomic<long> peak{0};

/// Its size lies before each block, so that what is given back is known.
constexpr size_t kHead = 64;

void free_counted(void* data) {
  if (data == nullptr) {
    return;
  }
  auto* const block = static_cast<char*>(data) - kHead;
  in_use -= *reinterpret_cast<long*>(block);
  c10::free_cpu(block);
}

void* alloc_counted(size_t bytes) {
  if (bytes == 0) {
    return nullptr;
  }
  auto* const block = static_cast<char*>(c10::alloc_cpu(bytes + kHead));
  *reinterpret_cast<long*>(block) = static_cast<long>(bytes);
  const long now = in_use += static_cast<long>(bytes);
  long highest = peak;
  while (now > highest && !peak.compare_exchange_weak(highest, now)) {
  }
  return block + kHead;
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* const data = alloc_counted(bytes);
    return {data, data, &free_counted, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_counted; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

Memory memory;
REGISTER_ALLOCATOR(kType, &memory);

thread_local c10::StreamId current_stream = 0;
std::atomic<c10::StreamId> last_stream{0};

/// One device. Its streams have numbers and one queue: what is launched runs in that order,
/// whatever the stream; an event is done when the queue is.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.type() == kType && device.index() <= 0, "npu: expected device 0, found ",
                device);
  }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream(current_stream); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(++last_stream); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(std::exchange(current_stream, next.id()));
  }
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    *event = const_cast<c10::Device*>(&kDevice);  // anything but null: recorded
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { synchronize(); }
  void synchronizeEvent(void*) const override { synchronize(); }
  void synchronizeDevice(c10::DeviceIndex) const override { synchronize(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

 private:
  static c10::Stream stream(c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, kDevice, id);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  at::Device getDeviceFromPtr(void*) const override { return kDevice; }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();  // random operators run on the host
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::detail::createCPUGenerator();
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    synchronize();
    c10::DataPtr grown = memory.allocate(bytes);
    memory.copy_data(grown.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.set_data_ptr_noswap(std::move(grown));
    storage.set_nbytes(bytes);
  }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace
}  // namespace standin

extern "C" {

/// Bytes of the device's memory that tensors hold, and the most since the last reset.
long standin_memory_in_use() { return standin::in_use; }
long standin_memory_peak() { return standin::peak; }
void standin_reset_memory_peak() { standin::peak = standin::in_use.load(); }
/// 1 while memory of the device comes from its own allocator.
int standin_allocates() { return c10::GetAllocator(standin::kType) == &standin::memory; }
}
