#include "opfuse/trace/record_file.h"

#include <fmt/format.h>
#include <zlib.h>

#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <type_traits>

namespace opfuse::trace {
namespace {

constexpr std::string_view kMagic = "opfuse.r";
constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 8 + 4 + 8;  // magic, version, payload length
constexpr size_t kTrailerBytes = 4;         // CRC-32 of the payload

// One text for both directions: `codec & field` writes or reads the field.
class Writer {
 public:
  static constexpr bool kReads = false;
  bool failed() const { return false; }

  void unsigned_number(uint64_t value) {
    for (; value >= 128; value >>= 7) bytes.push_back(static_cast<char>(value | 128));
    bytes.push_back(static_cast<char>(value));
  }
  void text(const std::string& value) {
    unsigned_number(value.size());
    bytes += value;
  }
  void real(double value) {
    uint64_t bits = std::bit_cast<uint64_t>(value);
    for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(bits >> (8 * i)));
  }

  std::string bytes;
};

class Reader {
 public:
  static constexpr bool kReads = true;
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  bool failed() const { return !error_.empty(); }
  const std::string& error() const { return error_; }
  size_t position() const { return position_; }
  bool at_end() const { return position_ == bytes_.size(); }
  void fail(std::string expected) {
    if (error_.empty())
      error_ = fmt::format("byte {}: expected {}", kHeaderBytes + position_, expected);
  }

  uint64_t unsigned_number() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (position_ >= bytes_.size()) break;
      auto byte = static_cast<uint8_t>(bytes_[position_++]);
      value |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) return value;
    }
    fail("a number, found the end or one too long");
    return 0;
  }
  std::string text() {
    uint64_t size = unsigned_number();
    if (failed() || size > bytes_.size() - position_) {
      fail(fmt::format("a string of {} bytes", size));
      return {};
    }
    position_ += size;
    return std::string(bytes_.substr(position_ - size, size));
  }
  double real() {
    if (bytes_.size() - position_ < 8) {
      fail("8 bytes of a real number");
      return 0;
    }
    uint64_t bits = 0;
    for (int i = 0; i < 8; ++i)
      bits |= static_cast<uint64_t>(static_cast<uint8_t>(bytes_[position_++])) << (8 * i);
    return std::bit_cast<double>(bits);
  }
  // Rows take at least one byte each, so a damaged count cannot ask for more memory than the file.
  uint64_t count() {
    uint64_t rows = unsigned_number();
    if (rows <= bytes_.size() - position_) return rows;
    fail(fmt::format("at most {} rows, found {}", bytes_.size() - position_, rows));
    return 0;
  }

 private:
  std::string_view bytes_;
  size_t position_ = 0;
  std::string error_;
};

uint64_t zigzag(int64_t value) {
  return (static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63);
}
int64_t unzigzag(uint64_t value) {
  return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
}

template <class Codec, class T>
void field(Codec& codec, T& value) {
  using Plain = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Plain, double>) {
    if constexpr (Codec::kReads)
      value = codec.real();
    else
      codec.real(value);
  } else if constexpr (std::is_same_v<Plain, std::string>) {
    if constexpr (Codec::kReads)
      value = codec.text();
    else
      codec.text(value);
  } else if constexpr (std::is_enum_v<Plain>) {
    auto number = static_cast<std::underlying_type_t<Plain>>(value);
    field(codec, number);
    if constexpr (Codec::kReads) value = static_cast<Plain>(number);
  } else if constexpr (Codec::kReads) {
    value = static_cast<Plain>(unzigzag(codec.unsigned_number()));
  } else {
    codec.unsigned_number(zigzag(static_cast<int64_t>(value)));
  }
}

template <class Codec, class Row>
void rows(Codec& codec, Row& items) {
  if constexpr (Codec::kReads) {
    // Grown row by row: a damaged count fails before it takes memory.
    uint64_t count = codec.count();
    items.clear();
    for (uint64_t i = 0; i < count && !codec.failed(); ++i) {
      items.emplace_back();
      row(codec, items.back());
    }
  } else {
    codec.unsigned_number(items.size());
    for (auto& item : items) row(codec, item);
  }
}

template <class Codec, class... Fields>
void fields(Codec& codec, Fields&... values) {
  (field(codec, values), ...);
}

// T is the row type, const when writing.
template <class Codec, class T>
void row(Codec& codec, T& item) {
  using Plain = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Plain, TensorRow>) {
    fields(codec, item.tensor, item.storage, item.offset, item.dtype, item.device, item.flags,
           item.shape_known, item.torch_version, item.number);
    rows(codec, item.shape);
    rows(codec, item.strides);
  } else if constexpr (std::is_same_v<Plain, StorageRow>) {
    fields(codec, item.session_id, item.bytes, item.external, item.label);
  } else if constexpr (std::is_same_v<Plain, ArgumentRow>) {
    fields(codec, item.kind, item.text);
    rows(codec, item.tensors);
    rows(codec, item.ints);
    rows(codec, item.doubles);
  } else if constexpr (std::is_same_v<Plain, FrameRow>) {
    fields(codec, item.file, item.function, item.line, item.column, item.end_line, item.end_column,
           item.code);
  } else if constexpr (std::is_same_v<Plain, StackRow>) {
    fields(codec, item.frame, item.parent);
  } else if constexpr (std::is_same_v<Plain, ThreadRow>) {
    fields(codec, item.pid, item.tid, item.name);
  } else if constexpr (std::is_same_v<Plain, StorageWrite>) {
    fields(codec, item.event, item.storage);
  } else if constexpr (std::is_same_v<Plain, EventRow>) {
    fields(codec, item.name, item.kind, item.flags, item.thread, item.parent, item.start_ns,
           item.dur_ns, item.sequence, item.forward_sequence, item.stack);
    rows(codec, item.inputs);
    rows(codec, item.outputs);
  } else {
    field(codec, item);
  }
}

template <class Codec, class Table>
void tables(Codec& codec, Table& table) {
  rows(codec, table.events);
  rows(codec, table.tensors);
  rows(codec, table.storages);
  rows(codec, table.frames);
  rows(codec, table.stacks);
  rows(codec, table.threads);
  rows(codec, table.outside_writes);
  rows(codec, table.undeclared_writes);
  fields(codec, table.source, table.wall_start_unix_ns);
}

void read_strings(Reader& reader, EventTable* table) {
  uint64_t count = reader.count();
  for (uint64_t i = 0; i < count && !reader.failed(); ++i)
    if (table->strings.intern(reader.text()) != i)
      reader.fail("different strings, the first empty");
}

void read_losses(Reader& reader, EventTable* table) {
  uint64_t count = reader.count();
  for (uint64_t i = 0; i < count && !reader.failed(); ++i) {
    std::string name = reader.text();
    field(reader, table->losses[name]);
  }
}

// What a row number outside its table would do later, it does here.
class Checker {
 public:
  explicit Checker(const EventTable& table) : table_(table) {}

  std::string run() {
    for (const StorageRow& storage : table_.storages) text(storage.label);
    for (const TensorRow& tensor : table_.tensors) row(tensor.storage, table_.storages.size());
    for (const FrameRow& frame : table_.frames) text(frame.file), text(frame.function);
    for (size_t i = 0; i < table_.stacks.size(); ++i) {
      row(table_.stacks[i].frame, table_.frames.size());
      row(table_.stacks[i].parent, i);
    }
    for (const ThreadRow& thread : table_.threads) text(thread.name);
    for (size_t i = 0; i < table_.events.size(); ++i) event(table_.events[i], i);
    for (const auto* writes : {&table_.outside_writes, &table_.undeclared_writes})
      for (const StorageWrite& write : *writes) {
        row(write.event, table_.events.size());
        row(write.storage, table_.storages.size());
      }
    return wrong_;
  }

 private:
  void event(const EventRow& event, size_t index) {
    text(event.name);
    row(event.parent, index);
    row(event.thread, table_.threads.size());
    row(event.stack, table_.stacks.size());
    if (event.kind > EventKind::kOther) wrong_ = "an unknown kind of event";
    for (const auto* arguments : {&event.inputs, &event.outputs})
      for (const ArgumentRow& argument : *arguments) {
        text(argument.text);
        if (argument.kind > ArgumentKind::kOpaque) wrong_ = "an unknown kind of argument";
        for (int32_t tensor : argument.tensors) row(tensor, table_.tensors.size());
        if (!holds_what_it_says(argument)) wrong_ = "an argument without its value";
      }
  }

  static bool holds_what_it_says(const ArgumentRow& argument) {
    switch (argument.kind) {
      case ArgumentKind::kTensor:
        return argument.tensors.size() == 1;
      case ArgumentKind::kBool:
      case ArgumentKind::kInt:
        return argument.ints.size() == 1;
      case ArgumentKind::kDouble:
        return argument.doubles.size() == 1;
      case ArgumentKind::kComplex:
        return argument.doubles.size() == 2;
      default:
        return true;
    }
  }

  void row(int32_t index, size_t count) {
    if (index < kNone || index >= static_cast<int64_t>(count))
      wrong_ = fmt::format("row {} of {}", index, count);
  }
  void text(StringId id) {
    if (id >= table_.strings.size()) wrong_ = fmt::format("string {}", id);
  }

  const EventTable& table_;
  std::string wrong_;
};

template <class Number>
void append_fixed(std::string* out, Number value) {
  for (size_t i = 0; i < sizeof value; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

template <class Number>
Number read_fixed(std::string_view bytes, size_t at) {
  Number value = 0;
  for (size_t i = 0; i < sizeof value; ++i)
    value |= static_cast<Number>(static_cast<uint8_t>(bytes[at + i])) << (8 * i);
  return value;
}

uint32_t checksum(std::string_view payload) {
  return static_cast<uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(payload.data()), payload.size()));
}

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

}  // namespace

std::string encode_record(const EventTable& table) {
  Writer writer;
  writer.unsigned_number(table.strings.size());
  for (StringId id = 0; id < table.strings.size(); ++id)
    writer.text(std::string(table.strings.get(id)));
  tables(writer, table);
  writer.unsigned_number(table.losses.size());
  for (const auto& [name, count] : table.losses) {
    writer.text(name);
    field(writer, count);
  }
  std::string bytes(kMagic);
  append_fixed(&bytes, kVersion);
  append_fixed(&bytes, static_cast<uint64_t>(writer.bytes.size()));
  bytes += writer.bytes;
  append_fixed(&bytes, checksum(writer.bytes));
  return bytes;
}

Result<EventTable> decode_record(std::string_view bytes, const std::string& where) {
  if (bytes.size() < kHeaderBytes || !bytes.starts_with(kMagic))
    return Error{
        fmt::format("{}: byte 0: expected an .ofr file of opfuse, found {} bytes of "
                    "something else",
                    where, bytes.size())};
  if (auto version = read_fixed<uint32_t>(bytes, 8); version != kVersion)
    return Error{
        fmt::format("{}: byte 8: expected version {}, found {}", where, kVersion, version)};
  const auto length = read_fixed<uint64_t>(bytes, 12);
  const size_t rest = bytes.size() - kHeaderBytes;
  if (rest < kTrailerBytes || length != rest - kTrailerBytes)
    return Error{
        fmt::format("{}: byte {}: expected {} bytes and a checksum, found {} bytes; the "
                    "file is cut or damaged",
                    where, kHeaderBytes, length, rest)};
  std::string_view payload = bytes.substr(kHeaderBytes, length);
  const auto expected = read_fixed<uint32_t>(bytes, kHeaderBytes + length);
  if (uint32_t found = checksum(payload); found != expected)
    return Error{
        fmt::format("{}: byte {}: expected checksum {:08x}, found {:08x}; the file is "
                    "damaged",
                    where, kHeaderBytes + length, expected, found)};
  Reader reader(payload);
  EventTable table;
  read_strings(reader, &table);
  tables(reader, table);
  read_losses(reader, &table);
  if (!reader.failed() && !reader.at_end()) reader.fail("the end");
  if (reader.failed()) return Error{where + ": " + reader.error()};
  if (std::string wrong = Checker(table).run(); !wrong.empty())
    return Error{
        fmt::format("{}: byte {}: expected rows that exist, found {}", where, kHeaderBytes, wrong)};
  return table;
}

Status write_record(const EventTable& table, const std::string& path) {
  std::string bytes = encode_record(table);
  File file(std::fopen(path.c_str(), "wb"));
  if (!file) return Error{path + ": expected a file that can be written: " + std::strerror(errno)};
  bool whole = std::fwrite(bytes.data(), 1, bytes.size(), file.get()) == bytes.size();
  whole = std::fclose(file.release()) == 0 && whole;
  if (!whole) return Error{path + ": expected room for the record: " + std::strerror(errno)};
  return ok_status();
}

Result<EventTable> read_record(const std::string& path) {
  File file(std::fopen(path.c_str(), "rb"));
  if (!file) return Error{path + ": expected a file that can be read: " + std::strerror(errno)};
  std::string bytes;
  char buffer[1 << 16];
  while (size_t n = std::fread(buffer, 1, sizeof buffer, file.get())) bytes.append(buffer, n);
  if (std::ferror(file.get())) return Error{path + ": expected to read it whole, found an error"};
  return decode_record(bytes, path);
}

}  // namespace opfuse::trace
