#include "opfuse/trace/read.h"

#include <sys/stat.h>

#include <algorithm>
#include <thread>

#include <fmt/format.h>

#include "opfuse/trace/ascend_database.h"
#include "opfuse/trace/chrome_reader.h"
#include "opfuse/trace/execution_trace.h"
#include "opfuse/trace/kernel_table.h"
#include "opfuse/trace/record_file.h"

namespace opfuse::trace {
namespace {

int64_t file_size(const std::string& path) {
  struct stat info{};
  if (path == "-" || ::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return -1;
  return info.st_size;
}

// Traces shrink to about a tenth; a guess too low only costs a second allocation.
constexpr int64_t kUsualRatio = 10;

// Below this a second thread is begun for less than it saves: a tenth of a second's reading.
constexpr int64_t kLargeBytes = 64 << 20;

int threads_for(int wanted, int64_t expected_bytes) {
  if (wanted > 0) return wanted;
  return expected_bytes >= kLargeBytes && std::thread::hardware_concurrency() > 1 ? 2 : 1;
}

class HeadSource : public ByteSource {
 public:
  HeadSource(std::string head, std::unique_ptr<ByteSource> rest)
      : head_(std::move(head)), rest_(std::move(rest)) {}
  size_t read(char* out, size_t size) override {
    if (used_ < head_.size()) {
      size = std::min(size, head_.size() - used_);
      std::copy_n(head_.data() + used_, size, out);
      used_ += size;
      return size;
    }
    const size_t got = rest_->read(out, size);
    if (got == 0) losses_ = rest_->losses();
    return got;
  }

 private:
  std::string head_;
  size_t used_ = 0;
  std::unique_ptr<ByteSource> rest_;
};

enum class Format {
  kNone,
  kChrome,
  kExecutionTrace,
  kKernelTable,
  kOperatorTable,
  kRecord,
  kDatabase
};

// By the first bytes of the (inflated) content.
Format format_of(std::string_view head) {
  if (head.starts_with("opfuse.r")) return Format::kRecord;
  if (is_database(head)) return Format::kDatabase;
  const size_t first = head.find_first_not_of(" \t\r\n\xEF\xBB\xBF");
  if (first == head.npos) return Format::kChrome;  // nothing: counted as an empty file
  if (head[first] == '{') {
    const size_t events = head.find("\"traceEvents\"");
    const bool nodes = head.find("\"nodes\"") < events || head.find("\"schema\":") < events;
    return nodes ? Format::kExecutionTrace : Format::kChrome;
  }
  if (head[first] == '[') return Format::kChrome;
  if (is_kernel_table(head.substr(first))) return Format::kKernelTable;
  if (is_operator_table(head.substr(first))) return Format::kOperatorTable;
  return Format::kNone;
}

std::string printable(std::string_view text) {
  std::string result;
  for (char c : text) result += c >= 0x20 && c < 0x7f ? c : '?';
  return result;
}

// Our own records hold what is needed to check them, so they are read whole.
Result<TraceFile> read_record_source(ByteSource* source, TraceFile file) {
  std::string bytes;
  std::string block(256 << 10, '\0');
  while (const size_t got = source->read(block.data(), block.size())) bytes.append(block, 0, got);
  file.format = "opfuse record";
  file.bytes = static_cast<int64_t>(bytes.size());
  OPFUSE_TRY(EventTable table, decode_record(bytes, file.path));
  file.table = std::move(table);
  return file;
}

// `plain_file`: the bytes are those of the file `path`.
Result<TraceFile> read_source(std::unique_ptr<ByteSource> source, const std::string& path,
                              const ReadOptions& options, int64_t expected, bool plain_file) {
  constexpr size_t kHead = 4096;
  std::string head(kHead, '\0');
  head.resize(read_fully(source.get(), head.data(), head.size()));
  TraceFile file;
  file.path = path;
  const Format format = format_of(head);
  if (format == Format::kNone)
    return Error{fmt::format(
        "{}: expected a trace (JSON, a table or database of Ascend, or .ofr), found '{}'", path,
        printable(head.substr(0, 20)))};
  HeadSource whole(std::move(head), std::move(source));
  switch (format) {
    case Format::kExecutionTrace:
      file.format = "execution trace";
      read_execution_trace(&whole, &file);
      return file;
    case Format::kKernelTable:
      file.format = "ascend kernels";
      read_kernel_table(&whole, &file);
      finish_trace_file(&file);
      return file;
    case Format::kOperatorTable:
      file.format = "ascend operators";
      read_operator_table(&whole, &file);
      finish_trace_file(&file);
      return file;
    case Format::kDatabase: {
      file.format = "ascend database";
      const bool on_disk = plain_file && file_size(path) > 0;
      if (on_disk) file.bytes = file_size(path);
      OPFUSE_TRY_STATUS(read_ascend_database(on_disk ? path : "", &whole, &file));
      finish_trace_file(&file);
      return file;
    }
    case Format::kRecord:
      return read_record_source(&whole, std::move(file));
    default:
      break;
  }
  file.format = "chrome";
  read_chrome(&whole, {options.threads, expected}, &file);
  finish_trace_file(&file);
  return file;
}

}  // namespace

Result<TraceFile> read_trace(const std::string& path, const ReadOptions& options) {
  int64_t expected = file_size(path);
  if (path.ends_with(".gz")) expected *= kUsualRatio;
  ReadOptions used = options;
  used.threads = threads_for(options.threads, expected);
  OPFUSE_TRY(auto source, open_bytes(path, used.threads));
  return read_source(std::move(source), path, used, expected, !path.ends_with(".gz"));
}

Result<TraceFile> read_trace_text(std::string text, const std::string& name,
                                  const ReadOptions& options) {
  const auto size = static_cast<int64_t>(text.size());
  const bool gzip = text.starts_with("\x1f\x8b");
  std::unique_ptr<ByteSource> source = bytes_of(std::move(text));
  if (gzip) source = inflate(std::move(source));
  return read_source(std::move(source), name, options, size, false);
}

int64_t line_of_byte(const std::string& path, int64_t offset) {
  if (path == "-" || offset < 0) return -1;
  auto source = open_bytes(path);
  if (!source.ok()) return -1;
  std::string block(64 << 10, '\0');
  int64_t line = 1;
  while (offset > 0) {
    const size_t wanted = std::min<size_t>(block.size(), static_cast<size_t>(offset));
    const size_t got = (*source)->read(block.data(), wanted);
    if (got == 0) return -1;
    line += std::count(block.data(), block.data() + got, '\n');
    offset -= static_cast<int64_t>(got);
  }
  return line;
}

}  // namespace opfuse::trace
