#include "opfuse/trace/read_all.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "opfuse/trace/byte_source.h"

namespace opfuse::trace {
namespace {

constexpr size_t kBlock = 512;  // of a tar archive

bool is_trace_name(std::string_view name) {
  for (std::string_view end :
       {".json", ".json.gz", ".ofr", "kernel_details.csv", "operator_details.csv"})
    if (name.ends_with(end)) return true;
  if (name.ends_with(".db"))
    return name.starts_with("ascend_pytorch_profiler") || name.starts_with("msprof_");
  return name.ends_with(".csv") && name.find("op_summary") != name.npos;
}

// A file that is no trace at all: no events, and nothing that looks like one.
bool is_empty(const TraceFile& file) {
  return file.size() == 0 && file.losses.count(LossKind::kEventCut) == 0;
}

Status use_if_trace(Result<TraceFile> file, const std::string& name, const ReadOptions& options,
                    const UseTrace& use, size_t* used) {
  if (!file.ok() || is_empty(*file)) {
    if (options.on_skip) options.on_skip(name);
    return ok_status();
  }
  ++*used;
  return use(std::move(*file));
}

// "x_slice_3_T.json" -> its number, and the name with the number left out.
bool is_slice(const std::string& path, int64_t* number, std::string* series) {
  constexpr std::string_view kMark = "_slice_";
  const size_t mark = path.rfind(kMark);
  if (mark == path.npos) return false;
  const char* first = path.data() + mark + kMark.size();
  const auto [end, error] = std::from_chars(first, path.data() + path.size(), *number);
  if (error != std::errc() || *number < 0) return false;
  *series = path.substr(0, mark + kMark.size()) + std::string(end, path.data() + path.size());
  return true;
}

// Slices of one timeline, in order, as one trace. Numbers that are missing are counted; those
// behind the last slice cannot be.
Result<TraceFile> read_slices(const std::vector<std::string>& names, const ReadOptions& options) {
  std::optional<TraceFile> whole;
  int64_t expected = 0;
  for (const std::string& name : names) {
    int64_t number = 0;
    std::string series;
    is_slice(name, &number, &series);
    OPFUSE_TRY(TraceFile part, read_trace(name, options));
    if (number > expected) part.losses.add(LossKind::kSliceMissing, -1, name, number - expected);
    expected = number + 1;
    if (!whole) {
      whole = std::move(part);
      continue;
    }
    if (whole->table || part.table)
      return Error{name + ": a slice of a format that is not cut into slices"};
    FileJoiner(&*whole).append(&part);
  }
  return std::move(*whole);
}

// Names in their order, slices of one timeline together.
std::vector<std::vector<std::string>> grouped(std::vector<std::string> names) {
  std::ranges::sort(names, natural_less);
  std::vector<std::vector<std::string>> groups;
  std::map<std::string, size_t> group_of_series;
  for (const std::string& name : names) {
    int64_t number = 0;
    std::string series;
    if (!is_slice(name, &number, &series)) {
      groups.push_back({name});
      continue;
    }
    const auto [it, is_new] = group_of_series.try_emplace(series, groups.size());
    if (is_new) groups.emplace_back();
    groups[it->second].push_back(name);
  }
  return groups;
}

Status read_folder(const std::string& path, const ReadOptions& options, const UseTrace& use) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator it(path, error), end; !error && it != end;
       it.increment(error))
    if (it->is_regular_file(error)) {
      if (is_trace_name(it->path().filename().string()))
        names.push_back(it->path().string());
      else if (options.on_skip)
        options.on_skip(it->path().string());
    }
  if (error) return Error{fmt::format("{}: {}", path, error.message())};
  size_t used = 0;
  for (const std::vector<std::string>& group : grouped(std::move(names)))
    OPFUSE_TRY_STATUS(use_if_trace(
        group.size() == 1 ? read_trace(group[0], options) : read_slices(group, options), group[0],
        options, use, &used));
  if (used == 0) return Error{fmt::format("{}: no trace in this folder", path)};
  return ok_status();
}

// The bytes of one member; the padding behind it is skipped by the caller.
class MemberSource : public ByteSource {
 public:
  MemberSource(ByteSource* archive, int64_t size) : archive_(archive), left_(size) {}
  size_t read(char* out, size_t size) override {
    if (left_ == 0) return 0;
    const size_t got = archive_->read(
        out, static_cast<size_t>(std::min<int64_t>(left_, static_cast<int64_t>(size))));
    if (got == 0) losses_.add(LossKind::kArchiveCut);
    left_ = got == 0 ? 0 : left_ - static_cast<int64_t>(got);
    return got;
  }

 private:
  ByteSource* archive_;
  int64_t left_;
};

// `size` bytes, or fewer where the archive ends: the size is what a header says, so no more is held
// than there is.
std::string read_text(ByteSource* source, int64_t size) {
  constexpr int64_t kStep = 1 << 20;
  std::string text;
  while (static_cast<int64_t>(text.size()) < size) {
    const size_t have = text.size();
    text.resize(static_cast<size_t>(
        std::min(size, std::max<int64_t>(2 * static_cast<int64_t>(have), kStep))));
    text.resize(have + read_fully(source, text.data() + have, text.size() - have));
    if (text.size() == have) break;
  }
  return text;
}

Status read_archive(ByteSource* archive, const std::string& path, std::string header,
                    const ReadOptions& options, const UseTrace& use) {
  size_t used = 0;
  while (header.size() == kBlock && header[0] != '\0') {
    const std::string name(header.c_str(), std::min(header.find('\0'), size_t{100}));
    int64_t size = 0;
    const char* digits = header.data() + 124;
    while (*digits == ' ') ++digits;
    std::from_chars(digits, header.data() + 135, size, 8);
    const char kind = header[156];
    const int64_t padded = (size + kBlock - 1) / kBlock * kBlock;
    auto member = std::make_unique<MemberSource>(archive, padded);
    ByteSource* all = member.get();
    if ((kind == '0' || kind == '\0') && is_trace_name(name)) {
      std::string text = read_text(all, size);
      Result<TraceFile> file = read_trace_text(std::move(text), path + ":" + name, options);
      if (file.ok()) file->losses.merge(all->losses());
      OPFUSE_TRY_STATUS(use_if_trace(std::move(file), path + ":" + name, options, use, &used));
    } else if (options.on_skip && (kind == '0' || kind == '\0')) {
      options.on_skip(path + ":" + name);
    }
    std::string rest(64 << 10, '\0');
    while (all->read(rest.data(), rest.size()) > 0) {
    }
    header.assign(kBlock, '\0');
    header.resize(read_fully(archive, header.data(), kBlock));
  }
  if (used == 0) return Error{fmt::format("{}: no trace in this archive", path)};
  return ok_status();
}

}  // namespace

bool natural_less(std::string_view a, std::string_view b) {
  size_t i = 0, j = 0;
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  while (i < a.size() && j < b.size()) {
    if (digit(a[i]) && digit(b[j])) {
      uint64_t x = 0, y = 0;
      while (i < a.size() && digit(a[i])) x = x * 10 + static_cast<uint64_t>(a[i++] - '0');
      while (j < b.size() && digit(b[j])) y = y * 10 + static_cast<uint64_t>(b[j++] - '0');
      if (x != y) return x < y;
    } else if (a[i] != b[j]) {
      return a[i] < b[j];
    } else {
      ++i, ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

Status for_each_trace(const std::string& path, const ReadOptions& options, const UseTrace& use) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return read_folder(path, options, use);
  if (path != "-") {
    OPFUSE_TRY(auto source, open_bytes(path));
    std::string header(kBlock, '\0');
    header.resize(read_fully(source.get(), header.data(), header.size()));
    if (header.size() == kBlock && header.compare(257, 5, "ustar") == 0)
      return read_archive(source.get(), path, std::move(header), options, use);
  }
  OPFUSE_TRY(TraceFile file, read_trace(path, options));
  return use(std::move(file));
}

Status for_each_trace_of(const std::vector<std::string>& paths, const ReadOptions& options,
                         const UseTrace& use) {
  std::map<std::string, std::vector<std::string>> series;
  for (const std::string& path : paths) {
    int64_t number = 0;
    std::string name;
    if (is_slice(path, &number, &name)) series[name].push_back(path);
  }
  for (const std::string& path : paths) {
    int64_t number = 0;
    std::string name;
    if (!is_slice(path, &number, &name) || series[name].size() < 2) {
      OPFUSE_TRY_STATUS(for_each_trace(path, options, use));
      continue;
    }
    if (series[name].front() != path) continue;  // once, where the first of them stands
    std::vector<std::string> slices = series[name];
    std::ranges::sort(slices, natural_less);
    OPFUSE_TRY(TraceFile file, read_slices(slices, options));
    OPFUSE_TRY_STATUS(use(std::move(file)));
  }
  return ok_status();
}

}  // namespace opfuse::trace
