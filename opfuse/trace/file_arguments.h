#pragma once
// The arguments of an operator as a trace file writes them ("Input Dims", "Input type", "Concrete
// Inputs") -> ArgumentRows. Each text is parsed once. Internal to trace/.

#include <map>
#include <unordered_map>
#include <vector>

#include "opfuse/trace/trace_file.h"

namespace opfuse::trace {

DType dtype_of_file(std::string_view type);  // "c10::BFloat16", "float", "DT_BF16" …

class FileArguments {
 public:
  FileArguments(const TraceFile& file, EventTable* table) : file_(file), table_(*table) {}

  // `device`: of the tensors, as TensorRow has it.
  std::vector<ArgumentRow> of(const OperatorDetail& detail, int8_t device);

 private:
  struct Dims {  // of one argument: a tensor's, or a list's
    bool is_list = false;
    std::vector<std::vector<int64_t>> tensors;
  };
  const std::vector<Dims>& dims(StringId text);
  const std::vector<std::string>& words(StringId text);
  ArgumentRow argument(const std::string& type, const Dims* dims, const Dims* strides,
                       const std::string* value, int8_t device);
  void set_value(ArgumentRow* row, const std::string& value);
  int32_t tensor(const std::vector<int64_t>& shape, const std::vector<int64_t>* strides,
                 DType dtype, bool is_number, int8_t device);

  const TraceFile& file_;
  EventTable& table_;
  std::unordered_map<StringId, std::vector<Dims>> dims_;
  std::unordered_map<StringId, std::vector<std::string>> words_;
  std::map<std::tuple<std::vector<int64_t>, std::vector<int64_t>, DType, bool, int8_t>, int32_t>
      tensors_;
};

}  // namespace opfuse::trace
