#pragma once
// One composition, spelling or neighbour as a canonical graph of ATen overloads: what the names,
// signs and functions of the rule language stand for.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "opfuse/base/result.h"
#include "opfuse/graph/schema.h"
#include "opfuse/match/rule_ast.h"

namespace opfuse::match {

class Lowering {
 public:
  struct Options {
    bool free_names = false;  // a neighbour: names that are no parameters are other values
    uint32_t absent = 0;      // optional parameters that are not given
  };
  Lowering(const Rule& rule, const graph::SchemaTable& schemas, Options options);

  Status block(const Block& block);
  Status returns(const Expression& expression);
  // Lets `parameter` stand for the value of `expression` from here on.
  Status substitute(const std::string& parameter, const Expression& expression);
  // A number of parameters, sizes and constants.
  Result<Number> number_of(const Expression& expression);

  const std::vector<std::string>& others() const { return others_; }
  // True after an error that says no more than: an optional parameter is used that is not given.
  bool needs_absent() const { return needs_absent_; }
  Result<Spelling> finish(const std::string& name, int line);

 private:
  // A tensor by its name in the text form, a number, or an optional parameter that is not given.
  struct Term {
    std::string name;
    std::optional<Number> number;
    bool none = false;
  };

  template <class Located>
  Error fail(const Located& at, const std::string& sentence) const;
  std::string text(const Term& term);
  std::string tensor_text(const Term& term);
  int hole(const Number& number);

  Term emit(const std::string& call, const Expression& at, const std::vector<std::string>& names);
  Term emit(const std::string& call, const Expression& at);
  Status several(const Binding& binding);
  Result<Term> value(const Expression& e);
  Result<Term> name(const Expression& e);
  Result<Term> literal(const Expression& e);
  Result<Term> negation(const Expression& e);
  Result<Term> binary(const Expression& e);
  Result<Term> conditional(const Expression& e);
  Result<Term> call(const Expression& e);
  Result<Term> square_root(const Expression& e);
  Result<Term> cast(const Expression& e);
  Result<Term> reshape(const Expression& e);
  Result<std::string> call_text(const Expression& e);
  Result<std::string> chunk_text(const Expression& e, size_t parts);
  Result<std::string> argument(const Expression& e, const std::string& keyword, size_t position,
                               const graph::Schema& schema);
  Error located(const std::string& message, size_t externals, int line) const;
  Result<graph::Graph> compacted(graph::Graph graph, const std::vector<std::string>& externals,
                                 int line) const;
  bool is_used(const graph::Graph& graph, graph::ValueId id) const;

  const Rule& rule_;
  const graph::SchemaTable& schemas_;
  Options options_;
  bool needs_absent_ = false;
  std::map<std::string, Term> bindings_;
  std::vector<std::string> others_, value_holes_;
  std::vector<Number> numbers_;
  std::vector<std::pair<std::string, const Expression*>> lines_;
  int names_ = 0;
  std::vector<std::string> results_;
};

}  // namespace opfuse::match
