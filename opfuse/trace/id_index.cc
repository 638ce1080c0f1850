#include "opfuse/trace/id_index.h"

#include <cstdlib>

namespace opfuse::trace {
namespace {

constexpr int64_t kSlackNs = 1000;  // clocks of host and device are aligned to about this

}  // namespace

IdIndex::IdIndex(const TraceFile& file, FileKind kind) : file_(file) {
  for (size_t i = 0; i < file.size(); ++i) {
    if (file.kind[i] != kind || file.id[i] <= 0) continue;
    const auto row = static_cast<int32_t>(i);
    if (!first_.emplace(file.id[i], row).second) more_.emplace(file.id[i], row);
  }
}

template <class Visit>
void IdIndex::for_each(int64_t id, Visit visit) const {
  const auto first = first_.find(id);
  if (first == first_.end()) return;
  visit(first->second);
  const auto [begin, end] = more_.equal_range(id);
  for (auto it = begin; it != end; ++it) visit(it->second);
}

void IdIndex::learn(std::span<const std::pair<int32_t, int64_t>> ids_of_rows) {
  if (!ambiguous()) return;
  std::map<Process, std::map<Process, int64_t>> votes;
  for (const auto& [of, id] : ids_of_rows) {
    const int32_t row = of;  // clang 14 takes no structured binding into a lambda
    int32_t nearest = kNone;
    for_each(id, [&](int32_t candidate) {
      if (nearest == kNone || std::abs(candidate - row) < std::abs(nearest - row))
        nearest = candidate;
    });
    if (nearest != kNone) ++votes[process_of(row)][process_of(nearest)];
  }
  for (const auto& [device, hosts] : votes) {
    int64_t most = 0;
    for (const auto& [host, count] : hosts)
      if (count > most) most = count, host_of_[device] = host;
  }
}

int32_t IdIndex::find(int64_t id, int32_t device_row) const {
  const auto first = first_.find(id);
  if (first == first_.end()) return kNone;
  if (!shared(id)) return first->second;
  const auto host = host_of_.find(process_of(device_row));
  if (host == host_of_.end()) return kNone;
  int32_t found = kNone;
  for_each(id, [&](int32_t row) {
    if (process_of(row) != host->second) return;
    if (file_.start_ns[row] > file_.start_ns[device_row] + kSlackNs) return;
    if (found == kNone || file_.start_ns[row] > file_.start_ns[found]) found = row;
  });
  return found;
}

}  // namespace opfuse::trace
