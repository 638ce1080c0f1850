#include "opfuse/graph/build_cut.h"

#include <algorithm>
#include <unordered_map>

namespace opfuse::graph {
namespace {

using trace::EventKind;
using trace::EventRow;
using trace::EventTable;

class Cutter {
 public:
  Cutter(const EventTable& table, const SchemaTable& schemas, const SchemaTable* extra)
      : table_(table), schemas_(schemas), extra_(extra), size_(table.events.size()) {}

  Cut run() {
    find_schemas();
    find_nesting();
    mark_leaves();
    place_nodes();
    return std::move(cut_);
  }

 private:
  const EventRow& event(int32_t row) const { return table_.events[row]; }
  bool is_operator(int32_t row) const { return event(row).kind == EventKind::kOperator; }

  void find_schemas() {
    std::unordered_map<trace::StringId, const Schema*> known;
    cut_.schemas.assign(size_, nullptr);
    for (size_t row = 0; row < size_; ++row) {
      if (!is_operator(static_cast<int32_t>(row))) continue;
      auto [it, is_new] = known.try_emplace(table_.events[row].name, nullptr);
      if (is_new) {
        std::string name = dotted_name(table_.name(table_.events[row]));
        it->second = schemas_.find(name);
        if (it->second == nullptr && extra_ != nullptr) it->second = extra_->find(name);
      }
      cut_.schemas[row] = it->second;
    }
  }

  void find_nesting() {
    calls_operators_.assign(size_, 0);
    calls_itself_.assign(size_, 0);
    for (size_t row = 0; row < size_; ++row) {
      if (!is_operator(static_cast<int32_t>(row))) continue;
      for (int32_t up = table_.events[row].parent; up != trace::kNone; up = event(up).parent) {
        if (!is_operator(up)) continue;
        calls_operators_[up] = 1;
        if (event(up).name == table_.events[row].name) calls_itself_[up] = 1;
      }
    }
  }

  // A composite that called nothing and whose results are its arguments did nothing.
  bool did_something(int32_t row) const {
    std::vector<int32_t> given;
    for_each_tensor(event(row).inputs,
                    [&](int32_t tensor) { given.push_back(table_.tensors[tensor].storage); });
    bool fresh = false;
    for_each_tensor(event(row).outputs, [&](int32_t tensor) {
      int32_t storage = table_.tensors[tensor].storage;
      if (std::find(given.begin(), given.end(), storage) == given.end()) fresh = true;
    });
    return fresh;
  }

  bool descends(int32_t row) const {
    if (!is_operator(row) || calls_itself_[row]) return true;
    const uint16_t flags = event(row).flags;
    const Schema* schema = cut_.schemas[row];
    if ((flags & trace::kComposite) || (schema != nullptr && schema->composite_implicit))
      return calls_operators_[row] || !did_something(row);
    return (flags & trace::kOpaqueArguments) && calls_operators_[row];
  }

  void mark_leaves() {
    leaf_above_.assign(size_, trace::kNone);
    is_leaf_.assign(size_, 0);
    for (size_t row = 0; row < size_; ++row) {
      int32_t parent = table_.events[row].parent;
      if (parent != trace::kNone)
        leaf_above_[row] = is_leaf_[parent] ? parent : leaf_above_[parent];
      is_leaf_[row] = leaf_above_[row] == trace::kNone && !descends(static_cast<int32_t>(row));
    }
  }

  // The clone that first made each storage inside a leaf.
  std::vector<int32_t> hidden_makers() const {
    std::vector<int32_t> makers(table_.storages.size(), trace::kNone);
    std::vector<char> seen(table_.storages.size(), 0);
    for (size_t row = 0; row < size_; ++row) {
      const EventRow& candidate = table_.events[row];
      for_each_tensor(candidate.inputs, [&](int32_t tensor) {
        if (int32_t storage = table_.tensors[tensor].storage; storage != trace::kNone)
          seen[storage] = 1;
      });
      bool is_clone = leaf_above_[row] != trace::kNone && table_.name(candidate) == "aten::clone";
      for_each_tensor(candidate.outputs, [&](int32_t tensor) {
        int32_t storage = table_.tensors[tensor].storage;
        if (storage == trace::kNone || seen[storage]) return;
        if (is_clone && clones_an_argument(candidate, leaf_above_[row]))
          makers[storage] = static_cast<int32_t>(row);
        seen[storage] = 1;
      });
    }
    return makers;
  }

  bool clones_an_argument(const EventRow& clone, int32_t leaf) const {
    bool found = false;
    for_each_tensor(clone.inputs, [&](int32_t source) {
      for_each_tensor(event(leaf).inputs, [&](int32_t given) {
        found |= table_.tensors[given].storage == table_.tensors[source].storage;
      });
    });
    return found;
  }

  void place_nodes() {
    const std::vector<int32_t> makers = hidden_makers();
    std::vector<char> available(table_.storages.size(), 0);
    std::vector<std::vector<int32_t>> hidden(size_);
    std::vector<int32_t> leaves;
    cut_.external.assign(table_.storages.size(), 0);
    for (size_t row = 0; row < size_; ++row) {
      if (!is_leaf_[row]) continue;
      const EventRow& leaf = table_.events[row];
      if (table_.name(leaf).starts_with("profiler::")) continue;
      leaves.push_back(static_cast<int32_t>(row));
      for_each_tensor(leaf.inputs, [&](int32_t tensor) {
        int32_t storage = table_.tensors[tensor].storage;
        if (storage == trace::kNone || available[storage]) return;
        available[storage] = 1;
        if (makers[storage] != trace::kNone && makers[storage] < static_cast<int32_t>(row))
          hidden[leaf_above_[makers[storage]]].push_back(makers[storage]);
        else
          cut_.external[storage] = 1;
      });
      for_each_tensor(leaf.outputs, [&](int32_t tensor) {
        if (int32_t storage = table_.tensors[tensor].storage; storage != trace::kNone)
          available[storage] = 1;
      });
    }
    for (int32_t leaf : leaves) {
      for (int32_t product : hidden[leaf]) cut_.nodes.push_back({product, true});
      cut_.nodes.push_back({leaf, false});
    }
  }

  const EventTable& table_;
  const SchemaTable& schemas_;
  const SchemaTable* extra_;
  size_t size_;
  std::vector<char> calls_operators_, calls_itself_, is_leaf_;
  std::vector<int32_t> leaf_above_;  // the leaf that an event is inside of
  Cut cut_;
};

}  // namespace

Cut cut_call_tree(const EventTable& table, const SchemaTable& schemas, const SchemaTable* extra) {
  return Cutter(table, schemas, extra).run();
}

}  // namespace opfuse::graph
