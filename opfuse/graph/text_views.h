#pragma once
// Names of the text form as views of storages: which value a name stands for depends on how often
// its storage was written before.

#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "opfuse/base/result.h"
#include "opfuse/graph/graph.h"
#include "opfuse/graph/text_line.h"

namespace opfuse::graph::text {

// What stands before '=': a new name with its type and properties, or a name that exists.
struct Definition {
  std::string name;
  bool is_new = true;  // false: "%1" without a type stands for a value that exists
  size_t pos = 0;
  TensorMeta meta;
  uint16_t escapes = 0;
  std::string label, alias;
  bool fresh = false, no_storage = false, opaque_writes = false;
};

class Views {
 public:
  explicit Views(Graph* graph) : graph_(graph) {}

  bool contains(const std::string& name) const { return names_.contains(name); }
  int32_t find(const std::string& name) const { return names_.at(name); }
  bool has_view(ValueId value) const { return view_of_value_.contains(value); }  // no literal
  int32_t of_value(ValueId value) const { return view_of_value_.at(value); }

  // The node writes the storage of `view`; twice by one node is one write.
  void write(int32_t view, NodeId node) {
    int32_t storage = views_[view].storage;
    if (writers_[storage] != node) ++versions_[storage];
    writers_[storage] = node;
  }

  // The result of an in-place operator: another name for the view, now with this type.
  ValueId rename(int32_t view, const Definition& d, NodeId producer, int output) {
    names_.emplace(d.name, view);
    views_[view].meta = d.meta;
    return value_of(view, producer, output, d.name, d.escapes);
  }

  Result<int32_t> storage_for(Line* line, const Definition& d, int32_t shared) {
    if (d.no_storage) return kNone;
    if (!d.alias.empty()) {
      auto it = names_.find(d.alias);
      if (it == names_.end())
        return line->fail_at(d.pos, fmt::format("%{} is not defined", d.alias));
      return views_[it->second].storage;
    }
    if (shared != kNone && !d.fresh) return shared;
    Storage storage;
    storage.label = d.label;
    storage.opaque_writes = d.opaque_writes;
    graph_->storages.push_back(std::move(storage));
    versions_.push_back(0);
    writers_.push_back(kNone);
    return static_cast<int32_t>(graph_->storages.size() - 1);
  }

  int32_t add_view(const Definition& d, int32_t storage) {
    View view;
    view.name = d.name;
    view.storage = storage;
    view.meta = d.meta;
    views_.push_back(std::move(view));
    escapes_of_view_.push_back(d.escapes);
    int32_t id = static_cast<int32_t>(views_.size() - 1);
    names_.emplace(d.name, id);
    return id;
  }

  // The view's value at the storage's version of now, made when it is not there yet.
  ValueId value_of(int32_t view_id, NodeId producer, int output, std::string_view name = {},
                   uint16_t escapes = 0) {
    View& view = views_[view_id];
    uint32_t version = view.storage == kNone ? 0 : versions_[view.storage];
    auto it = view.values.find(version);
    if (it != view.values.end()) return it->second;
    Value value;
    value.producer = producer;
    value.output = output;
    value.storage = view.storage;
    value.version = version;
    value.meta = view.meta;
    value.escapes = view.values.empty() ? escapes_of_view_[view_id] : escapes;
    value.name = name.empty() ? view.name : std::string(name);
    ValueId id = static_cast<ValueId>(graph_->values.size());
    graph_->values.push_back(std::move(value));
    view_of_value_[id] = view_id;
    view.values.emplace(version, id);
    return id;
  }

  ValueId current_value(int32_t view) {
    int32_t storage = views_[view].storage;
    return value_of(view, storage == kNone ? kNone : writers_[storage], -1);
  }

 private:
  // A name stands for a view; which value it is depends on the storage's version.
  struct View {
    std::string name;
    int32_t storage = kNone;
    TensorMeta meta;
    std::map<uint32_t, ValueId> values;
  };

  Graph* graph_;
  std::vector<View> views_;
  std::vector<uint16_t> escapes_of_view_;
  std::map<std::string, int32_t, std::less<>> names_;
  std::unordered_map<ValueId, int32_t> view_of_value_;
  std::vector<uint32_t> versions_;  // by storage
  std::vector<NodeId> writers_;     // by storage: last node that wrote it
};

}  // namespace opfuse::graph::text
