// ops: the table of fused operators.

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "opfuse/base/embedded.h"
#include "opfuse/cli/operators.h"
#include "opfuse/cli/verb.h"

namespace opfuse::cli {

Result<std::vector<OperatorInfo>> read_operators() {
  std::vector<OperatorInfo> operators;
  for (const EmbeddedFile& file : embedded_operators()) {
    const auto json = nlohmann::json::parse(file.text, nullptr, false);
    const auto text = [&](const char* key) {
      return json.is_object() && json.contains(key) && json[key].is_string()
                 ? json[key].get<std::string>()
                 : std::string();
    };
    OperatorInfo info{text("operator"), text("formula"), text("found_in"),      text("saves"),
                      text("layouts"),  text("class"),   std::string(file.text)};
    if (info.name.empty() || info.formula.empty() || info.equivalence.empty())
      return Error{std::string(file.name) +
                   ": expected an object with operator, formula and class, found none"};
    operators.push_back(std::move(info));
  }
  std::sort(operators.begin(), operators.end(),
            [](const OperatorInfo& a, const OperatorInfo& b) { return a.name < b.name; });
  return operators;
}

namespace {

class Ops : public Verb {
 public:
  std::string name() const override { return "ops"; }
  std::string summary() const override { return "the fused operators: formula, layouts, memory"; }
  std::string usage() const override { return "ops [OPERATOR…]"; }
  std::string description() const override {
    return "Prints each operator of opfuse.functional with its formula, its equivalence class\n"
           "(E1: the same formula with other or fewer roundings), what it saves for the backward\n"
           "pass, the memory layouts of its kernels and where models have it. Kernels run on CPU,\n"
           "forward and backward, in f32, bf16, f16 and f64.";
  }
  int run(const std::vector<std::string>& words) override {
    Result<std::vector<OperatorInfo>> operators = read_operators();
    if (!operators.ok()) {
      say("ops: " + operators.error().message);
      return 1;
    }
    for (const std::string& word : words)
      if (std::none_of(operators->begin(), operators->end(),
                       [&](const OperatorInfo& o) { return o.name == word; }))
        return usage_error("ops: expected an operator, found '" + word + "' (see `opfuse ops`)");
    for (const OperatorInfo& o : *operators) {
      if (!words.empty() && std::find(words.begin(), words.end(), o.name) == words.end()) continue;
      std::printf("%s  [%s]\n  %s\n  saves %s; layouts: %s\n  in %s\n", o.name.c_str(),
                  o.equivalence.c_str(), o.formula.c_str(), o.saves.c_str(), o.layouts.c_str(),
                  o.found_in.c_str());
    }
    return 0;
  }
};

}  // namespace

std::unique_ptr<Verb> make_ops() { return std::make_unique<Ops>(); }

}  // namespace opfuse::cli
