#pragma once
// Which tensor and which storage is it: numbers that stay the same while the object lives and are
// never given to another. Weak references keep an address from being used again while the table
// knows it; they keep no data alive, only the object's few words, and those not for long: dead
// objects are forgotten as new ones come. Not locked: the recorder's mutex guards it.

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <memory_resource>
#include <unordered_map>
#include <vector>

#include "opfuse/torch/recorder_log.h"

namespace opfuse::torch_bridge {

// Of one live object. `row` is the row that the record numbered `record` gave it.
template <class WeakReference>
struct Identity {
  WeakReference reference;
  int64_t id = -1;
  uint64_t record = 0;
  int32_t row = -1;
};
using TensorIdentity = Identity<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>>;
using StorageIdentity = Identity<c10::weak_intrusive_ptr<c10::StorageImpl>>;

// Objects of one type by address.
template <class Entry>
class IdentityMap {
 public:
  template <class MakeReference>
  Entry& find_or_add(const void* address, MakeReference make_reference) {
    auto it = entries_.find(address);
    // An address that is in the map belongs to the same object still: the weak reference holds it.
    if (it != entries_.end()) return it->second;
    forget_some();
    addresses_.push_back(address);
    return entries_.emplace(address, Entry{make_reference(), next_id_++}).first->second;
  }

  const Entry* find(const void* address) const {
    auto it = entries_.find(address);
    return it == entries_.end() || it->second.reference.expired() ? nullptr : &it->second;
  }

  void forget_expired() {
    std::erase_if(entries_, [](const auto& entry) { return entry.second.reference.expired(); });
    std::erase_if(addresses_, [&](const void* address) { return !entries_.contains(address); });
    hand_ = 0;
  }

  size_t size() const { return entries_.size(); }

 private:
  // Most objects die young and, in the backward pass, the youngest of the old ones first: look at
  // the newest addresses and at some older ones, from the newest down.
  void forget_some() {
    for (size_t i = 0; i < kYoung && i < addresses_.size(); ++i)
      forget_if_expired(addresses_.size() - 1 - i);
    for (size_t i = 0; i < kOld && !addresses_.empty(); ++i) {
      if (hand_ == 0 || hand_ > addresses_.size()) hand_ = addresses_.size();
      forget_if_expired(--hand_);
    }
  }

  void forget_if_expired(size_t position) {
    auto it = entries_.find(addresses_[position]);
    if (!it->second.reference.expired()) return;
    entries_.erase(it);
    addresses_[position] = addresses_.back();
    addresses_.pop_back();
  }

  static constexpr size_t kYoung = 4, kOld = 6;
  std::pmr::unsynchronized_pool_resource memory_{MappedMemory::instance()};
  std::pmr::unordered_map<const void*, Entry> entries_{&memory_};
  std::pmr::vector<const void*> addresses_ =
      std::pmr::vector<const void*>(&memory_);  // of `entries_`, roughly by age
  size_t hand_ = 0;
  int64_t next_id_ = 0;
};

class IdentityTable {
 public:
  // The returned reference is valid until the next call.
  TensorIdentity& tensor(const at::Tensor& tensor);
  StorageIdentity& storage(const c10::Storage& storage);
  // The identity of the live storage at that address, or null.
  const StorageIdentity* find_storage(const void* storage_impl) const;
  // Forgets objects that died; their addresses may then name new objects, with new numbers.
  void drop_expired();
  size_t size() const { return tensors_.size() + storages_.size(); }

 private:
  IdentityMap<TensorIdentity> tensors_;
  IdentityMap<StorageIdentity> storages_;
};

}  // namespace opfuse::torch_bridge
