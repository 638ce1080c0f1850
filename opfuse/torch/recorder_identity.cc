#include "opfuse/torch/recorder_identity.h"

namespace opfuse::torch_bridge {

// An address that is in the table belongs to the same object still: the weak reference holds it.
TensorIdentity& IdentityTable::tensor(const at::Tensor& tensor) {
  auto it = tensors_.find(tensor.unsafeGetTensorImpl());
  if (it == tensors_.end()) {
    using Reference = decltype(TensorIdentity::reference);
    TensorIdentity identity{.reference = Reference(tensor.getIntrusivePtr()), .id = next_tensor_++};
    it = tensors_.emplace(tensor.unsafeGetTensorImpl(), std::move(identity)).first;
  }
  return it->second;
}

StorageIdentity& IdentityTable::storage(const c10::Storage& storage) {
  auto it = storages_.find(storage.unsafeGetStorageImpl());
  if (it == storages_.end()) {
    StorageIdentity identity{.reference = storage.getWeakStorageImpl(), .id = next_storage_++};
    it = storages_.emplace(storage.unsafeGetStorageImpl(), std::move(identity)).first;
  }
  return it->second;
}

const StorageIdentity* IdentityTable::find_storage(const void* storage_impl) const {
  auto it = storages_.find(storage_impl);
  return it == storages_.end() || it->second.reference.expired() ? nullptr : &it->second;
}

void IdentityTable::drop_expired() {
  std::erase_if(tensors_, [](const auto& entry) { return entry.second.reference.expired(); });
  std::erase_if(storages_, [](const auto& entry) { return entry.second.reference.expired(); });
}

}  // namespace opfuse::torch_bridge
