#include "opfuse/trace/execution_trace.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <unordered_map>

#include "opfuse/trace/chrome_reader.h"
#include "opfuse/trace/execution_nodes.h"
#include "opfuse/trace/file_arguments.h"

namespace opfuse::trace {
namespace {

using nlohmann::json;

std::vector<int64_t> numbers(const json& list) {
  std::vector<int64_t> result;
  if (list.is_array())
    for (const json& item : list)
      if (item.is_number()) result.push_back(item.get<int64_t>());
  return result;
}

const json& item(const json& list, size_t index) {
  static const json kNothing;
  return list.is_array() && index < list.size() ? list[index] : kNothing;
}

bool is_backward(std::string_view name) {
  while (!name.empty() && name.back() >= '0' && name.back() <= '9') name.remove_suffix(1);
  return name.ends_with("Backward") || name == "torch::autograd::AccumulateGrad";
}

// "Tensor(c10::Half)" -> its dtype.
DType tensor_dtype(std::string_view type) {
  const size_t open = type.find('('), close = type.rfind(')');
  if (open == type.npos || close == type.npos) return DType::kUnknown;
  return dtype_of_file(type.substr(open + 1, close - open - 1));
}

class TableMaker {
 public:
  TableMaker(std::vector<ExecutionNode> nodes, TraceFile* file)
      : nodes_(std::move(nodes)), file_(*file), table_(file->table.emplace()) {}

  void run() {
    table_.source = "execution trace";
    std::ranges::stable_sort(nodes_, {}, &ExecutionNode::id);
    drop_duplicates();
    add_events();
    for (size_t i = 0; i < nodes_.size(); ++i)
      if (table_.events[i].parent == kNone) visit(i);
  }

 private:
  void drop_duplicates() {
    const auto same = [](const ExecutionNode& a, const ExecutionNode& b) { return a.id == b.id; };
    const auto last = std::unique(nodes_.begin(), nodes_.end(), same);
    file_.losses.add(LossKind::kEventDuplicated, -1, {}, nodes_.end() - last);
    nodes_.erase(last, nodes_.end());
  }

  void add_events() {
    std::unordered_map<int64_t, int32_t> row_of;
    std::map<int64_t, int32_t> threads;
    for (size_t i = 0; i < nodes_.size(); ++i) row_of[nodes_[i].id] = static_cast<int32_t>(i);
    children_.resize(nodes_.size());
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const ExecutionNode& node = nodes_[i];
      EventRow event;
      event.name = table_.strings.intern(name_of(node));
      event.kind = kind_of(node);
      const auto [thread, is_new] =
          threads.try_emplace(node.thread, static_cast<int32_t>(table_.threads.size()));
      if (is_new) table_.threads.push_back({0, node.thread, 0});
      event.thread = thread->second;
      const auto parent = row_of.find(node.parent);
      // A parent has a smaller id; the first node's parent is not in the file.
      if (parent != row_of.end() && parent->second < static_cast<int32_t>(i)) {
        event.parent = parent->second;
        children_[event.parent].push_back(i);
        event.flags = table_.events[event.parent].flags & kGraphTask;
      } else if (i > 0 && node.parent > 1) {
        file_.losses.add(LossKind::kParentMissing);
      }
      if (event.kind == EventKind::kAutogradNode ||
          node.name.starts_with("autograd::engine::evaluate_function"))
        event.flags |= kGraphTask;
      event.start_ns = static_cast<int64_t>(i);
      (event.kind == EventKind::kOperator ? event.forward_sequence : event.sequence) =
          node.sequence;
      table_.events.push_back(std::move(event));
    }
  }

  static std::string name_of(const ExecutionNode& node) {
    const size_t open = node.schema.find('(');
    return open == std::string::npos || open == 0 ? node.name : node.schema.substr(0, open);
  }

  static EventKind kind_of(const ExecutionNode& node) {
    if (node.name.starts_with("autograd::engine::")) return EventKind::kUserScope;
    if (is_backward(node.name)) return EventKind::kAutogradNode;
    // A compiled kernel has arguments and no results: it may have written any of them.
    if (!node.kernel_backend.empty()) return EventKind::kOperator;
    if (node.name.find("::") != std::string::npos) return EventKind::kOperator;
    return node.sequence >= 0 ? EventKind::kFunction : EventKind::kUserScope;
  }

  // Arguments when the node begins, what it calls, then its results. Depth is that of the file's
  // tree, which may be deep: no recursion.
  void visit(size_t root) {
    struct Frame {
      size_t node, next_child = 0, storages = 0;
    };
    std::vector<Frame> open = {{root}};
    while (!open.empty()) {
      Frame& frame = open.back();
      const ExecutionNode& node = nodes_[frame.node];
      EventRow& event = table_.events[frame.node];
      if (frame.next_child == 0) {
        frame.storages = table_.storages.size();
        event.inputs = arguments(node.inputs, node.input_shapes, node.input_types,
                                 node.input_strides, nullptr, 0);
      }
      if (frame.next_child < children_[frame.node].size()) {
        const size_t child = children_[frame.node][frame.next_child++];
        open.push_back({child});
        continue;
      }
      table_.events[frame.node].outputs =
          arguments(node.outputs, node.output_shapes, node.output_types, node.output_strides, &node,
                    frame.storages);
      open.pop_back();
    }
  }

  // `maker`: these are its results, and what is newer than `storages` was made inside it.
  std::vector<ArgumentRow> arguments(const json& values, const json& shapes, const json& types,
                                     const json& strides, const ExecutionNode* maker,
                                     size_t storages) {
    std::vector<ArgumentRow> rows;
    for (size_t i = 0; i < values.size(); ++i) {
      const std::string type = item(types, i).is_string() ? item(types, i).get<std::string>() : "";
      rows.push_back(argument(values[i], item(shapes, i), type, item(strides, i), maker, storages));
    }
    return rows;
  }

  ArgumentRow argument(const json& value, const json& shape, const std::string& type,
                       const json& strides, const ExecutionNode* maker, size_t storages) {
    ArgumentRow row;
    if (type.starts_with("Tensor(")) {
      row.kind = ArgumentKind::kTensor;
      row.tensors = {tensor(value, shape, type, strides, maker, storages)};
    } else if (type.starts_with("GenericList[Tensor")) {
      row.kind = ArgumentKind::kTensorList;
      for (size_t i = 0; value.is_array() && i < value.size(); ++i)
        row.tensors.push_back(tensor(value[i], item(shape, i), element_type(type, i),
                                     item(strides, i), maker, storages));
    } else if (value == "<None>" || type == "None") {
      row.kind = ArgumentKind::kNone;
    } else {
      set_value(value, type, &row);
    }
    return row;
  }

  // "GenericList[Tensor(float),Tensor(int)]": one type an element.
  static std::string element_type(const std::string& type, size_t index) {
    size_t begin = type.find('[');
    for (size_t i = 0; i < index && begin != std::string::npos; ++i)
      begin = type.find("Tensor(", begin + 2);
    const size_t at = begin == std::string::npos ? begin : type.find("Tensor(", begin);
    const size_t end = at == std::string::npos ? at : type.find(')', at);
    return end == std::string::npos ? "" : type.substr(at, end + 1 - at);
  }

  void set_value(const json& value, const std::string& type, ArgumentRow* row) {
    if (value.is_boolean()) {
      row->kind = ArgumentKind::kBool;
      row->ints = {value.get<bool>()};
    } else if (value.is_number_integer() && type == "Double") {
      row->kind = ArgumentKind::kDouble;
      row->doubles = {value.get<double>()};
    } else if (value.is_number_integer()) {
      row->kind = ArgumentKind::kInt;
      row->ints = {value.get<int64_t>()};
    } else if (value.is_number()) {
      row->kind = ArgumentKind::kDouble;
      row->doubles = {value.get<double>()};
    } else if (value.is_string() && type == "Double") {  // "inf", "nan"
      row->kind = ArgumentKind::kDouble;
      row->doubles = {std::strtod(value.get<std::string>().c_str(), nullptr)};
    } else if (value.is_string()) {
      row->kind = type == "Device" ? ArgumentKind::kDevice : ArgumentKind::kString;
      row->text = table_.strings.intern(value.get<std::string>());
    } else if (value.is_array() && type.find("Double") != std::string::npos) {
      row->kind = ArgumentKind::kDoubleList;
      for (const json& number : value)
        if (number.is_number()) row->doubles.push_back(number.get<double>());
    } else if (value.is_array() && type.find("Bool") != std::string::npos) {
      row->kind = ArgumentKind::kBoolList;
      for (const json& flag : value) row->ints.push_back(flag == true);
    } else if (value.is_array() && type.find("Int") != std::string::npos) {
      row->kind = ArgumentKind::kIntList;
      row->ints = numbers(value);
    }
  }

  // [tensor id, storage id, offset, elements, bytes an element, device]
  int32_t tensor(const json& value, const json& shape, const std::string& type, const json& strides,
                 const ExecutionNode* maker, size_t storages) {
    if (!value.is_array() || value.size() < 6) return kNone;
    TensorRow row;
    const std::string device = value[5].is_string() ? value[5].get<std::string>() : "";
    row.device = device.starts_with("cpu") ? 0 : device.starts_with("cuda") ? 1 : 2;
    row.dtype = tensor_dtype(type);
    row.shape_known = shape.is_array();
    row.shape = numbers(shape);
    row.strides = numbers(strides);
    if (row.strides.size() != row.shape.size()) row.strides.clear();
    const std::vector<int64_t> ids = numbers(value);
    if (ids.size() < 5) return kNone;
    row.offset = ids[2];
    int64_t bytes = -1;
    if (ids[3] < 0 || ids[4] < 0 || __builtin_mul_overflow(ids[3], ids[4], &bytes)) bytes = -1;
    row.storage = storage_row(ids[1], row.device, bytes, maker, storages);
    row.tensor = tensor_id(ids[0], row.storage);
    if (row.device == 0 && row.shape.empty() && row.dtype == DType::kF64) {
      row.flags = kWrappedNumber;  // its value is not in the file
      row.number = std::numeric_limits<double>::quiet_NaN();
    }
    table_.tensors.push_back(std::move(row));
    return static_cast<int32_t>(table_.tensors.size() - 1);
  }

  int32_t tensor_id(int64_t id, int32_t storage) {
    return tensor_ids_.try_emplace({id, storage}, static_cast<int32_t>(tensor_ids_.size()))
        .first->second;
  }

  int32_t storage_row(int64_t id, int8_t device, int64_t bytes, const ExecutionNode* maker,
                      size_t made_inside) {
    auto [it, is_new] = storage_of_.try_emplace({id, device}, kNone);
    const bool known = it->second != kNone;
    const bool inside = known && it->second >= static_cast<int32_t>(made_inside);
    if (known && (maker == nullptr || inside || returns_argument(*maker, id))) return it->second;
    StorageRow row;
    row.session_id = static_cast<int64_t>(table_.storages.size());
    row.bytes = bytes;
    row.external = maker == nullptr;
    it->second = static_cast<int32_t>(table_.storages.size());
    table_.storages.push_back(row);
    return it->second;
  }

  // The schema marks a result as a view of an argument, or as one that is written; and the storage
  // is that of an argument. Nodes without a schema hand on what they were given.
  static bool returns_argument(const ExecutionNode& node, int64_t storage) {
    const size_t arrow = node.schema.find("->");
    const bool marked = node.schema.empty() || (arrow != std::string::npos &&
                                                node.schema.find('(', arrow) != std::string::npos);
    if (!marked) return false;
    const auto holds = [&](const json& value) {
      return value.is_array() && value.size() >= 6 && value[1].is_number() &&
             value[1].get<int64_t>() == storage;
    };
    for (const json& value : node.inputs) {
      if (holds(value)) return true;
      if (value.is_array() && !value.empty() && value[0].is_array() &&
          std::any_of(value.begin(), value.end(), holds))
        return true;
    }
    return false;
  }

  std::vector<ExecutionNode> nodes_;
  TraceFile& file_;
  EventTable& table_;
  std::vector<std::vector<size_t>> children_;
  std::map<std::pair<int64_t, int8_t>, int32_t> storage_of_;
  std::map<std::pair<int64_t, int32_t>, int32_t> tensor_ids_;
};

}  // namespace

void read_execution_trace(ByteSource* source, TraceFile* file) {
  std::vector<ExecutionNode> nodes;
  JsonWalker walker(source, 0, &file->losses, &file->header,
                    [&](std::string_view, const JsonWindow* window) {
                      return std::make_unique<ExecutionNodes>(window, &nodes);
                    });
  walker.run(JsonWalker::Place::kStart, false, true);
  file->bytes += walker.done_offset();
  file->losses.merge(source->losses());
  if (nodes.empty()) file->losses.add(LossKind::kFileEmpty);
  TableMaker(std::move(nodes), file).run();
}

}  // namespace opfuse::trace
