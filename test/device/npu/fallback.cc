// Every other operator: the kernel of the CPU, queued. Its outputs are made at once, from the
// shapes that the meta kernel gives; an operator without one, or that draws random numbers, runs at
// once.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include <set>
#include <vector>

#include "queue.h"
#include "tensors.h"

namespace standin {
namespace {

using Values = std::vector<c10::IValue>;
using Change = at::Tensor (*)(const at::Tensor&);

/// The tensors of an argument, also those inside lists, changed.
c10::IValue changed(const c10::IValue& value, Change change) {
  if (value.isTensor()) {
    return change(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(change(tensor));
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor.has_value() ? std::optional(change(*tensor)) : std::nullopt);
    }
    return list;
  }
  if (value.isDevice()) {
    return c10::Device(c10::DeviceType::CPU);
  }
  return value;
}

Values changed(const Values& values, Change change) {
  Values result;
  for (const c10::IValue& value : values) {
    result.push_back(changed(value, change));
  }
  return result;
}

at::Tensor to_meta(const at::Tensor& tensor) {
  // A number stays one on the host, where meta kernels that are in Python take it.
  if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    return tensor;
  }
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
}

at::Tensor to_device(const at::Tensor& tensor) {
  return tensor.defined() ? empty_like_on_device(tensor) : tensor;
}

Values run(const c10::OperatorHandle& op, Values arguments) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::DisableRecordFunctionGuard unseen;
  torch::jit::Stack stack = std::move(arguments);
  op.callBoxed(&stack);
  return stack;
}

/// The results of the CPU kernel into the memory of the device's outputs.
void deliver(const Values& from, const Values& to) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::DisableRecordFunctionGuard unseen;
  for (size_t i = 0; i < from.size(); ++i) {
    if (to[i].isTensor() && to[i].toTensor().defined()) {
      const at::Tensor target = to[i].toTensor();
      const at::Tensor source = from[i].toTensor();
      TORCH_CHECK(target.sizes() == source.sizes(), "npu: expected a result of ", target.sizes(),
                  ", found ", source.sizes());
      target.copy_(source);
    } else if (to[i].isTensorList()) {
      const std::vector<at::Tensor> targets = to[i].toTensorVector();
      const std::vector<at::Tensor> sources = from[i].toTensorVector();
      for (size_t j = 0; j < targets.size(); ++j) {
        targets[j].copy_(sources[j]);
      }
    }
  }
}

/// The argument that a returned alias is, by its alias set; -1 for a new value.
int returned_argument(const c10::FunctionSchema& schema, size_t result) {
  const c10::AliasInfo* const info = schema.returns()[result].alias_info();
  if (info == nullptr) {
    return -1;
  }
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::AliasInfo* const argument = schema.arguments()[i].alias_info();
    if (argument != nullptr && argument->beforeSets() == info->beforeSets()) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

/// An `out=` of the wrong size gets the size that the meta kernel gave its like, as eager resizes
/// it.
void resize_outputs(const c10::FunctionSchema& schema, const Values& arguments,
                    const Values& meta) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!schema.arguments()[i].is_out() || !arguments[i].isTensor()) {
      continue;
    }
    const at::Tensor output = arguments[i].toTensor();
    const at::Tensor like = meta[i].toTensor();
    if (output.sizes() != like.sizes()) {
      output.resize_(like.sizes());
      output.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
    }
  }
}

/// What the meta kernel says of the results; nothing where it cannot.
std::optional<Values> shapes(const c10::OperatorHandle& op, const Values& arguments) {
  if (op.hasTag(at::Tag::nondeterministic_seeded) || op.hasTag(at::Tag::data_dependent_output) ||
      op.hasTag(at::Tag::dynamic_output_shape)) {
    return std::nullopt;
  }
  for (const c10::Argument& result : op.schema().returns()) {
    const c10::TypeKind kind = result.type()->kind();
    if (kind != c10::TypeKind::TensorType && kind != c10::TypeKind::ListType) {
      return std::nullopt;
    }
  }
  try {
    Values meta = changed(arguments, to_meta);
    for (c10::IValue& value : meta) {
      if (value.isDevice()) {
        value = c10::Device(c10::kMeta);
      }
    }
    Values results = run(op, meta);
    resize_outputs(op.schema(), arguments, meta);
    return results;
  } catch (const std::exception&) {
    return std::nullopt;  // the CPU kernel, run at once, says what is wrong
  }
}

void call_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t count = schema.arguments().size();
  const Values arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  stack->resize(stack->size() - count);
  bool unknown = false;  // some result is no argument, or an argument that may be resized
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    const int argument = returned_argument(schema, i);
    unknown = unknown || argument < 0 || schema.arguments()[static_cast<size_t>(argument)].is_out();
  }
  const std::optional<Values> known =
      unknown ? shapes(op, arguments) : Values(schema.returns().size());
  Values host = changed(arguments, host_view);
  Values computed;
  if (!known) {
    synchronize();
    computed = run(op, host);
  }
  Values results;
  Values targets;
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    const int argument = returned_argument(schema, i);
    const Values& shaped = known ? *known : computed;
    results.push_back(argument >= 0 ? arguments[static_cast<size_t>(argument)]
                                    : changed(shaped[i], to_device));
    targets.push_back(argument >= 0 ? c10::IValue() : changed(results[i], host_view));
  }
  if (known) {
    enqueue(schema.name().substr(schema.name().find("::") + 2),
            [op, host, targets]() { deliver(run(op, host), targets); });
  } else {
    deliver(computed, targets);
  }
  stack->insert(stack->end(), results.begin(), results.end());
}

/// True for what kernels.cc writes and for views, which share memory and compute nothing.
bool is_own(const c10::OperatorHandle& op, const std::set<std::string>& own) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string name =
      schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  bool view = false;
  bool tensors = false;
  for (const c10::Argument& result : schema.returns()) {
    view = view || (result.alias_info() != nullptr && !result.alias_info()->isWrite());
  }
  for (const c10::Argument& argument : schema.arguments()) {
    const std::string type = argument.type()->str();
    tensors = tensors || type.find("Tensor") != std::string::npos;
  }
  return view || !tensors || own.count(name) > 0;
}

/// All operators that have a kernel of the CPU, each by name: as on the devices it stands in for,
/// an operator is one kernel, and is not split into the smaller ones of a composition.
std::vector<c10::RegistrationHandleRAII> register_all() {
  const std::set<std::string> own = {"aten::resize_",
                                     "aten::set_.source_Storage",
                                     "aten::set_.source_Storage_storage_offset",
                                     "aten::set_.source_Tensor",
                                     "aten::_copy_from",
                                     "aten::_copy_from_and_resize",
                                     "aten::_local_scalar_dense",
                                     "aten::set_"};
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  std::vector<c10::RegistrationHandleRAII> kept;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || name.name.rfind("aten::", 0) != 0 ||
        !op->hasKernelForDispatchKey(c10::DispatchKey::CPU) || is_own(*op, own)) {
      continue;
    }
    kept.push_back(
        dispatcher.registerImpl(name, c10::DispatchKey::PrivateUse1,
                                c10::KernelFunction::makeFromBoxedFunction<&call_on_host>(),
                                std::nullopt, nullptr, "stand-in device"));
  }
  return kept;
}

const std::vector<c10::RegistrationHandleRAII> registered = register_all();

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&call_on_host>());
}

}  // namespace
}  // namespace standin
