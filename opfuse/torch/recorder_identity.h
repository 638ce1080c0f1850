#pragma once
// Which tensor and which storage is it: numbers that stay the same while the object lives and are
// never given to another. Weak references keep an address from being used again while the table
// knows it; they keep no data alive. Not locked: the recorder's mutex guards it.

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <unordered_map>

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
  std::unordered_map<const void*, TensorIdentity> tensors_;
  std::unordered_map<const void*, StorageIdentity> storages_;
  int64_t next_tensor_ = 0, next_storage_ = 0;
};

}  // namespace opfuse::torch_bridge
