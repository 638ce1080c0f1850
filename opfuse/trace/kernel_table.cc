#include "opfuse/trace/kernel_table.h"

#include <algorithm>
#include <array>
#include <vector>

#include "opfuse/trace/json_text.h"

namespace opfuse::trace {
namespace {

enum Column {
  kName,
  kType,
  kCore,
  kStart,
  kDuration,
  kStream,
  kDims,
  kTypes,
  kOutputDims,
  kOutputTypes,
  kColumns
};

// Names of kernel_details.csv, then of the older op_summary.
constexpr std::pair<std::string_view, Column> kNames[] = {
    {"Name", kName},
    {"Op Name", kName},
    {"Type", kType},
    {"OP Type", kType},
    {"Accelerator Core", kCore},
    {"Task Type", kCore},
    {"Start Time(us)", kStart},
    {"Task Start Time(us)", kStart},
    {"Duration(us)", kDuration},
    {"Task Duration(us)", kDuration},
    {"Stream ID", kStream},
    {"Stream Id", kStream},
    {"Input Shapes", kDims},
    {"Input Data Types", kTypes},
    {"Output Shapes", kOutputDims},
    {"Output Data Types", kOutputTypes},
};

using Cells = std::vector<std::string>;

// A line of cells: commas, or tabs in a table that has them; quotes double inside quotes; spaces
// and tabs around a cell do not count.
class CsvReader {
 public:
  explicit CsvReader(ByteSource* source) : source_(source) {}

  bool line(Cells* cells) {
    cells->clear();
    line_offset_ = offset_;
    std::string cell;
    bool quoted = false, any = false;
    for (int c = next(); c >= 0; c = next()) {
      any = true;
      if (quoted) {
        if (c != '"') {
          cell += static_cast<char>(c);
        } else if (peek() == '"') {
          cell += static_cast<char>(next());
        } else {
          quoted = false;
        }
      } else if (c == '"' && cell.empty()) {
        quoted = true;
      } else if (c == separator_) {
        cells->push_back(trimmed(cell));
        cell.clear();
      } else if (c == '\n') {
        break;
      } else {
        cell += static_cast<char>(c);
      }
    }
    if (!any) return false;
    cells->push_back(trimmed(cell));
    return true;
  }

  void set_separator(char separator) { separator_ = separator; }
  int64_t line_offset() const { return line_offset_; }
  int64_t offset() const { return offset_; }

 private:
  int peek() {
    if (used_ == have_) {
      have_ = source_->read(block_.data(), block_.size());
      used_ = 0;
      if (have_ == 0) return -1;
    }
    return static_cast<unsigned char>(block_[used_]);
  }
  int next() {
    const int c = peek();
    if (c >= 0) ++used_, ++offset_;
    return c;
  }

  // Shapes stand in quotes of their own inside the cell.
  static std::string trimmed(const std::string& cell) {
    const size_t first = cell.find_first_not_of(" \t\r\"");
    if (first == std::string::npos) return "";
    return cell.substr(first, cell.find_last_not_of(" \t\r\"") + 1 - first);
  }

  ByteSource* source_;
  std::array<char, 64 << 10> block_;
  size_t used_ = 0, have_ = 0;
  int64_t offset_ = 0, line_offset_ = 0;
  char separator_ = ',';
};

class KernelTable {
 public:
  KernelTable(CsvReader* csv, TraceFile* file) : csv_(*csv), file_(*file) {}

  void run() {
    Cells cells;
    if (!csv_.line(&cells)) return;
    find_columns(cells);
    file_.categories.push_back(file_.strings.intern("kernel"));
    const size_t width = cells.size();
    while (csv_.line(&cells)) {
      if (cells.size() == 1 && cells[0].empty()) continue;
      if (cells.size() != width)
        file_.losses.add(LossKind::kRowUnreadable, csv_.line_offset(), cells[0]);
      else
        add(cells);
    }
    file_.bytes = csv_.offset();
  }

 private:
  void find_columns(const Cells& header) {
    at_.fill(-1);
    for (size_t i = 0; i < header.size(); ++i)
      for (const auto& [name, column] : kNames)
        if (header[i] == name && at_[column] < 0) at_[column] = static_cast<int>(i);
  }

  std::string_view cell(const Cells& cells, Column column) const {
    if (at_[column] < 0 || cells[at_[column]] == "N/A") return {};
    return cells[at_[column]];
  }
  StringId id(const Cells& cells, Column column) {
    const std::string_view text = cell(cells, column);
    return file_.strings.intern(check_text(text).valid_utf8 ? std::string(text)
                                                            : replace_invalid_utf8(text));
  }

  void add(const Cells& cells) {
    int64_t start = kNoTime, duration = -1, stream = -1;
    if (parse_microseconds(cell(cells, kStart), &start) != Scalar::kNumber) {
      start = kNoTime;
      file_.losses.add(LossKind::kEventWithoutTime, csv_.line_offset(), cells[0]);
    }
    const bool timed = parse_microseconds(cell(cells, kDuration), &duration) == Scalar::kNumber;
    if (!timed) file_.losses.add(LossKind::kDurationUnreadable, csv_.line_offset(), cells[0]);
    if (timed && duration < 0) file_.losses.add(LossKind::kDurationNegative, csv_.line_offset());
    if (!timed || duration < 0) duration = -1;
    parse_integer(cell(cells, kStream), &stream);
    DeviceDetail detail;
    detail.stream = static_cast<int32_t>(stream);
    detail.shapes = static_cast<int32_t>(file_.device_shapes.size());
    file_.device_shapes.push_back({id(cells, kType), id(cells, kDims), id(cells, kTypes),
                                   id(cells, kOutputDims), id(cells, kOutputTypes)});
    file_.name.push_back(id(cells, kName));
    file_.kind.push_back(FileKind::kKernel);
    file_.category.push_back(0);
    file_.phase.push_back('X');
    file_.thread.push_back(thread(stream));
    file_.start_ns.push_back(start);
    file_.dur_ns.push_back(duration);
    file_.id.push_back(kNoId);
    file_.detail.push_back(static_cast<int32_t>(file_.devices.size()));
    file_.devices.push_back(detail);
  }

  int32_t thread(int64_t stream) {
    for (size_t i = 0; i < file_.threads.size(); ++i)
      if (file_.threads[i].tid == stream) return static_cast<int32_t>(i);
    file_.threads.push_back({0, stream, 0, 0, 0, 0});
    return static_cast<int32_t>(file_.threads.size() - 1);
  }

  CsvReader& csv_;
  TraceFile& file_;
  std::array<int, kColumns> at_;
};

// operator_details.csv: operators of the host in their order, without start times; the time on the
// device is that of their own kernels. What it says of each, in microseconds.
class OperatorTable {
 public:
  OperatorTable(CsvReader* csv, TraceFile* file) : csv_(*csv), file_(*file) {}

  void run() {
    Cells cells;
    if (!csv_.line(&cells)) return;
    const auto find = [&](std::string_view name) {
      const auto it = std::ranges::find(cells, name);
      return it == cells.end() ? -1 : static_cast<int>(it - cells.begin());
    };
    name_ = find("Name"), dims_ = find("Input Shapes"), stack_ = find("Call Stack");
    host_ = find("Host Self Duration(us)"), device_ = find("Device Self Duration(us)");
    file_.categories.push_back(file_.strings.intern("cpu_op"));
    file_.threads.emplace_back();
    const size_t width = cells.size();
    while (csv_.line(&cells)) {
      if (cells.size() == 1 && cells[0].empty()) continue;
      if (cells.size() != width)
        file_.losses.add(LossKind::kRowUnreadable, csv_.line_offset(), cells[0]);
      else
        add(cells);
    }
    file_.losses.add(LossKind::kTimesInOrder);
    file_.bytes = csv_.offset();
  }

 private:
  StringId id(const Cells& cells, int at) {
    if (at < 0 || cells[at] == "N/A") return 0;
    return file_.strings.intern(check_text(cells[at]).valid_utf8 ? cells[at]
                                                                 : replace_invalid_utf8(cells[at]));
  }

  int64_t duration(const Cells& cells, int at) {
    int64_t ns = 0;
    if (at < 0) return 0;
    if (parse_microseconds(cells[at], &ns) != Scalar::kNumber || ns < 0) {
      file_.losses.add(LossKind::kDurationUnreadable, csv_.line_offset(), cells[0]);
      return 0;
    }
    return ns;
  }

  void add(const Cells& cells) {
    const int64_t host = std::max<int64_t>(duration(cells, host_), 1);
    const int64_t device = duration(cells, device_);
    if (now_ > kMostTimeNs - host - device) return;
    OperatorDetail detail;
    detail.dims = id(cells, dims_);
    detail.call_stack = id(cells, stack_);
    detail.external = static_cast<int64_t>(file_.operators.size()) + 1;
    push(id(cells, name_), FileKind::kOperator, now_, host, detail.external,
         static_cast<int32_t>(file_.operators.size()));
    file_.operators.push_back(detail);
    if (device > 0) {
      DeviceDetail work;
      work.external = detail.external;
      push(id(cells, name_), FileKind::kKernel, device_now_, device, kNoId,
           static_cast<int32_t>(file_.devices.size()));
      file_.devices.push_back(work);
      device_now_ += device;
    }
    now_ += host;
  }

  void push(StringId name, FileKind kind, int64_t start, int64_t dur, int64_t id, int32_t detail) {
    file_.name.push_back(name);
    file_.kind.push_back(kind);
    file_.category.push_back(0);
    file_.phase.push_back('X');
    file_.thread.push_back(0);
    file_.start_ns.push_back(start);
    file_.dur_ns.push_back(dur);
    file_.id.push_back(id);
    file_.detail.push_back(detail);
  }

  CsvReader& csv_;
  TraceFile& file_;
  int name_ = -1, dims_ = -1, stack_ = -1, host_ = -1, device_ = -1;
  int64_t now_ = 1, device_now_ = 1;
};

}  // namespace

bool is_kernel_table(std::string_view head) {
  const std::string_view line = head.substr(0, head.find('\n'));
  return line.find("Duration(us)") != line.npos && line.find("Start Time(us)") != line.npos &&
         (line.find("Type") != line.npos);
}

void read_kernel_table(ByteSource* source, TraceFile* file) {
  CsvReader csv(source);
  KernelTable(&csv, file).run();
  file->losses.merge(source->losses());
}

bool is_operator_table(std::string_view head) {
  const std::string_view line = head.substr(0, head.find('\n'));
  return line.find("Host Self Duration(us)") != line.npos && line.find("Name") != line.npos;
}

void read_operator_table(ByteSource* source, TraceFile* file) {
  CsvReader csv(source);
  OperatorTable(&csv, file).run();
  file->losses.merge(source->losses());
}

std::string_view operator_of_kernel_type(std::string_view type) {
  static constexpr std::pair<std::string_view, std::string_view> kTypes[] = {
      {"Sigmoid", "aten::sigmoid"}, {"Mul", "aten::mul"},         {"Add", "aten::add"},
      {"Sub", "aten::sub"},         {"RealDiv", "aten::div"},     {"Div", "aten::div"},
      {"Exp", "aten::exp"},         {"Tanh", "aten::tanh"},       {"Neg", "aten::neg"},
      {"Rsqrt", "aten::rsqrt"},     {"Sqrt", "aten::sqrt"},       {"Square", "aten::square"},
      {"Relu", "aten::relu"},       {"Gelu", "aten::gelu"},       {"Swish", "aten::silu"},
      {"Maximum", "aten::maximum"}, {"Minimum", "aten::minimum"}, {"Erf", "aten::erf"},
  };
  for (const auto& [kernel, op] : kTypes)
    if (type == kernel) return op;
  return {};
}

}  // namespace opfuse::trace
