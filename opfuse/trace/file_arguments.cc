#include "opfuse/trace/file_arguments.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <tuple>

#include "opfuse/trace/json_text.h"

namespace opfuse::trace {
namespace {

bool is_space(char c) { return static_cast<unsigned char>(c) <= ' '; }

// Reads nested lists of whole numbers; anything else ends the list.
class ListReader {
 public:
  explicit ListReader(std::string_view text) : text_(text) {}

  bool eat(char c) {
    skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool peek(char c) {
    skip();
    return at_ < text_.size() && text_[at_] == c;
  }
  bool number(int64_t* value) {
    skip();
    const auto [end, error] =
        std::from_chars(text_.data() + at_, text_.data() + text_.size(), *value);
    if (error != std::errc()) return false;
    at_ = static_cast<size_t>(end - text_.data());
    return true;
  }
  bool string(std::string* value) {
    if (!eat('"')) return false;
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != '"') at_ += 1 + (text_[at_] == '\\');
    if (at_ >= text_.size()) return false;
    *value = decode_string(text_.substr(begin, at_++ - begin)).text;
    return true;
  }
  std::vector<int64_t> numbers() {  // behind the bracket
    std::vector<int64_t> list;
    int64_t value = 0;
    while (number(&value)) {
      list.push_back(value);
      eat(',');
    }
    eat(']');
    return list;
  }

 private:
  void skip() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }
  std::string_view text_;
  size_t at_ = 0;
};

// Ascend's lists: one text, items split by ";\r\n", numbers by ",".
std::vector<std::string> split_items(std::string_view text) {
  std::vector<std::string> items;
  while (true) {
    const size_t end = text.find(';');
    std::string_view item = text.substr(0, end);
    while (!item.empty() && is_space(item.front())) item.remove_prefix(1);
    while (!item.empty() && is_space(item.back())) item.remove_suffix(1);
    items.emplace_back(item);
    if (end == text.npos) return items;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

DType dtype_of_file(std::string_view type) {
  static constexpr std::pair<std::string_view, DType> kTypes[] = {
      {"float", DType::kF32},
      {"c10::BFloat16", DType::kBF16},
      {"c10::Half", DType::kF16},
      {"double", DType::kF64},
      {"long int", DType::kI64},
      {"long", DType::kI64},
      {"int", DType::kI32},
      {"short", DType::kI16},
      {"short int", DType::kI16},
      {"signed char", DType::kI8},
      {"char", DType::kI8},
      {"unsigned char", DType::kU8},
      {"bool", DType::kBool},
      {"c10::complex<float>", DType::kC64},
      {"c10::complex<double>", DType::kC128},
      {"FLOAT", DType::kF32},
      {"FLOAT16", DType::kF16},
      {"BF16", DType::kBF16},
      {"BFLOAT16", DType::kBF16},
      {"INT64", DType::kI64},
      {"INT32", DType::kI32},
      {"INT16", DType::kI16},
      {"INT8", DType::kI8},
      {"UINT8", DType::kU8},
      {"BOOL", DType::kBool},
      {"DOUBLE", DType::kF64},
      {"float16", DType::kF16},
      {"bfloat16", DType::kBF16},
      {"__int64", DType::kI64},
      {"c10::Half ", DType::kF16},
  };
  if (type.starts_with("DT_")) type.remove_prefix(3);
  for (const auto& [name, dtype] : kTypes)
    if (type == name) return dtype;
  return DType::kUnknown;
}

const std::vector<FileArguments::Dims>& FileArguments::dims(StringId text) {
  auto [it, is_new] = dims_.try_emplace(text);
  if (!is_new) return it->second;
  const std::string_view raw = file_.text(text);
  if (!raw.starts_with('[')) {
    for (const std::string& item : split_items(raw)) {
      Dims one;
      ListReader reader(item);
      one.tensors.push_back(reader.numbers());
      it->second.push_back(std::move(one));
    }
    return it->second;
  }
  ListReader reader(raw);
  reader.eat('[');
  while (reader.eat('[')) {
    Dims one;
    one.is_list = reader.peek('[');
    if (one.is_list)
      while (reader.eat('[')) {
        one.tensors.push_back(reader.numbers());
        reader.eat(',');
      }
    else
      one.tensors.push_back(reader.numbers());
    if (one.is_list) reader.eat(']');
    it->second.push_back(std::move(one));
    reader.eat(',');
  }
  return it->second;
}

const std::vector<std::string>& FileArguments::words(StringId text) {
  auto [it, is_new] = words_.try_emplace(text);
  if (!is_new) return it->second;
  const std::string_view raw = file_.text(text);
  if (!raw.starts_with('[')) {
    if (!raw.empty()) it->second = split_items(raw);
    return it->second;
  }
  ListReader reader(raw);
  reader.eat('[');
  std::string word;
  while (reader.string(&word)) {
    it->second.push_back(word);
    reader.eat(',');
  }
  return it->second;
}

namespace {

// Sizes that no tensor has are damage: their product would not fit.
bool is_possible(const std::vector<int64_t>& shape) {
  constexpr int64_t kMost = int64_t{1} << 48;
  int64_t count = 1;
  for (int64_t size : shape)
    if (size < 0 || size > kMost || __builtin_mul_overflow(count, size, &count) || count > kMost)
      return false;
  return true;
}

}  // namespace

int32_t FileArguments::tensor(const std::vector<int64_t>& shape,
                              const std::vector<int64_t>* strides, DType dtype, bool is_number,
                              int8_t device) {
  const bool has_strides = strides != nullptr && strides->size() == shape.size();
  auto [it, is_new] = tensors_.try_emplace(
      {shape, has_strides ? *strides : std::vector<int64_t>{}, dtype, is_number, device},
      static_cast<int32_t>(table_.tensors.size()));
  if (is_new) {
    TensorRow row;
    row.dtype = dtype;
    row.device = is_number ? 0 : device;
    row.shape_known = is_possible(shape);
    if (row.shape_known) row.shape = shape;
    if (has_strides && row.shape_known) row.strides = *strides;
    if (is_number) row.flags = kWrappedNumber;
    if (is_number) row.number = std::numeric_limits<double>::quiet_NaN();
    table_.tensors.push_back(std::move(row));
  }
  return it->second;
}

// "[1, 5185]", "15", "False", "1e-06", "" (None, or not written).
void FileArguments::set_value(ArgumentRow* row, const std::string& value) {
  if (value.empty()) return;
  if (value == "True" || value == "False") {
    row->kind = ArgumentKind::kBool;
    row->ints = {value == "True"};
  } else if (value.front() == '[') {
    ListReader reader(value);
    reader.eat('[');
    row->kind = ArgumentKind::kIntList;
    row->ints = reader.numbers();
  } else if (int64_t whole = 0; parse_integer(value, &whole) == Scalar::kNumber &&
                                value.find_first_of(".e") == value.npos) {
    row->kind = ArgumentKind::kInt;
    row->ints = {whole};
  } else {
    double real = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), real);
    if (error != std::errc() || end != value.data() + value.size()) return;
    row->kind = ArgumentKind::kDouble;
    row->doubles = {real};
  }
}

ArgumentRow FileArguments::argument(const std::string& type, const Dims* dims, const Dims* strides,
                                    const std::string* value, int8_t device) {
  ArgumentRow row;
  if (type == "TensorList" || type.starts_with("GenericList[Tensor")) {
    row.kind = ArgumentKind::kTensorList;
    if (dims == nullptr) return row;
    for (size_t i = 0; i < dims->tensors.size(); ++i) {
      const auto* own =
          strides != nullptr && i < strides->tensors.size() ? &strides->tensors[i] : nullptr;
      row.tensors.push_back(tensor(dims->tensors[i], own, DType::kUnknown, false, device));
    }
    return row;
  }
  const DType dtype = dtype_of_file(type);
  if (dtype == DType::kUnknown) {
    // No tensor, number or list: None, a text or a device; the profiler does not say which.
    if (type.empty()) row.kind = ArgumentKind::kOpaque;
    if (value != nullptr) set_value(&row, *value);
    return row;
  }
  if (dims == nullptr || dims->tensors.empty()) return row;
  row.kind = ArgumentKind::kTensor;
  const std::vector<int64_t>& shape = dims->tensors.front();
  // A Python number is written as a tensor of f64 or i64 without dimensions and without its value.
  const bool is_number = shape.empty() && (dtype == DType::kF64 || dtype == DType::kI64);
  row.tensors = {tensor(
      shape, strides == nullptr || strides->tensors.empty() ? nullptr : &strides->tensors.front(),
      dtype, is_number, device)};
  return row;
}

std::vector<ArgumentRow> FileArguments::of(const OperatorDetail& detail, int8_t device) {
  std::vector<ArgumentRow> rows;
  if (detail.types == 0) {  // shapes alone, as in operator_details.csv
    if (detail.dims == 0) return rows;
    for (const Dims& one : dims(detail.dims)) {
      ArgumentRow& row = rows.emplace_back();
      if (one.tensors.empty() || one.tensors.front().empty()) continue;
      row.kind = ArgumentKind::kTensor;
      row.tensors = {tensor(one.tensors.front(), nullptr, DType::kUnknown, false, device)};
    }
    return rows;
  }
  const std::vector<std::string>& types = words(detail.types);
  static const std::vector<Dims> kNoDims;
  static const std::vector<std::string> kNoWords;
  const std::vector<Dims>& shapes = detail.dims != 0 ? dims(detail.dims) : kNoDims;
  const std::vector<Dims>& strides = detail.strides != 0 ? dims(detail.strides) : kNoDims;
  const std::vector<std::string>& values = detail.values != 0 ? words(detail.values) : kNoWords;
  rows.reserve(types.size());
  for (size_t i = 0; i < types.size(); ++i)
    rows.push_back(argument(types[i], i < shapes.size() ? &shapes[i] : nullptr,
                            i < strides.size() ? &strides[i] : nullptr,
                            i < values.size() ? &values[i] : nullptr, device));
  return rows;
}

}  // namespace opfuse::trace
