#include "opfuse/torch/recorder_identity.h"

namespace opfuse::torch_bridge {

TensorIdentity& IdentityTable::tensor(const at::Tensor& tensor) {
  return tensors_.find_or_add(tensor.unsafeGetTensorImpl(), [&] {
    return decltype(TensorIdentity::reference)(tensor.getIntrusivePtr());
  });
}

StorageIdentity& IdentityTable::storage(const c10::Storage& storage) {
  return storages_.find_or_add(storage.unsafeGetStorageImpl(),
                               [&] { return storage.getWeakStorageImpl(); });
}

const StorageIdentity* IdentityTable::find_storage(const void* storage_impl) const {
  return storages_.find(storage_impl);
}

void IdentityTable::drop_expired() {
  tensors_.forget_expired();
  storages_.forget_expired();
}

}  // namespace opfuse::torch_bridge
