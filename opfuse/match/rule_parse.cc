#include <cstdlib>

#include "opfuse/match/rule_reader.h"
#include "opfuse/match/versions.h"

namespace opfuse::match {
namespace {

class RuleParser : RuleReader {
 public:
  using RuleReader::RuleReader;

  Result<std::vector<RuleSyntax>> file() {
    std::vector<RuleSyntax> rules;
    while (peek().kind != TokenKind::kEnd) {
      OPFUSE_TRY(RuleSyntax next, rule());
      rules.push_back(std::move(next));
    }
    return rules;
  }

 private:
  Result<RuleSyntax> rule() {
    RuleSyntax rule;
    size_t begin = peek().offset;
    rule.head.file = file_;
    rule.head.line = peek().line;
    rule.head.extends = eat("extend");
    if (!rule.head.extends && !eat("op")) return fail("'op' or 'extend'");
    OPFUSE_TRY(rule.head.name, take(TokenKind::kName, "the rule's name"));
    if (!rule.head.extends) OPFUSE_TRY_STATUS(signature(&rule));
    number_sizes(&rule.head);
    OPFUSE_TRY_STATUS(expect(TokenKind::kNewline, "the end of the line"));
    OPFUSE_TRY_STATUS(expect(TokenKind::kIndent, "an indented block"));
    while (!eat(TokenKind::kDedent)) {
      if (peek().kind == TokenKind::kEnd) return fail("a clause of the rule");
      OPFUSE_TRY_STATUS(clause(&rule));
    }
    std::string_view source = text_.substr(begin, peek().offset - begin);
    rule.head.source = std::string(source.substr(0, source.find_last_not_of(" \n") + 1));
    if (!rule.head.extends && rule.composition.results.empty())
      return Error{fmt::format("{}:{}:1: rule {}: expected a composition", file_, rule.head.line,
                               rule.head.name)};
    if (rule.head.targets.empty())
      return Error{fmt::format("{}:{}:1: rule {}: expected a target", file_, rule.head.line,
                               rule.head.name)};
    return rule;
  }

  // (x: T[..., n], weight: T[n]?, eps: float) -> T[..., n]  where T in f32 and eps > 0
  Status signature(RuleSyntax* rule) {
    OPFUSE_TRY_STATUS(expect("("));
    while (!eat(")")) {
      OPFUSE_TRY_STATUS(parameter(&rule->head));
      if (!eat(",") && !is(")")) return fail("',' or ')'");
    }
    OPFUSE_TRY_STATUS(expect("->"));
    bool several = eat("(");
    do {
      if (several && peek(1).text == ":") at_ += 2;
      OPFUSE_TRY(RuleParameter result, type(&rule->head));
      if (!result.is_tensor) return fail("a tensor's type as result");
      rule->head.returns.push_back(std::move(result.tensor));
    } while (several && eat(","));
    if (several) OPFUSE_TRY_STATUS(expect(")"));
    if (eat("where")) return conditions(&rule->head.dtypes, &rule->conditions);
    return ok_status();
  }

  // Sizes are counted after the parameters.
  static void number_sizes(Rule* rule) {
    const auto shift = [&](TensorType* type) {
      for (Dimension& one : type->shape)
        if (one.kind == Dimension::Kind::kName)
          one.name += static_cast<int>(rule->parameters.size());
    };
    for (RuleParameter& parameter : rule->parameters) shift(&parameter.tensor);
    for (TensorType& type : rule->returns) shift(&type);
  }

  Status parameter(Rule* rule) {
    Token at = peek();
    OPFUSE_TRY(std::string name, take(TokenKind::kName, "a parameter's name"));
    OPFUSE_TRY_STATUS(expect(":"));
    bool random = eat("random");
    OPFUSE_TRY(RuleParameter parameter, type(rule));
    parameter.name = name;
    parameter.random = random;
    parameter.optional = eat("?");
    if (!parameter.is_tensor && (random || parameter.optional))
      return Error{fmt::format("{}:{}:{}: expected a tensor's type for '{}', found {}", file_,
                               at.line, at.column, name, parameter.type)};
    if (std::ranges::find(rule->parameters, name, &RuleParameter::name) != rule->parameters.end())
      return Error{
          fmt::format("{}:{}:{}: parameter '{}' is named twice", file_, at.line, at.column, name)};
    rule->parameters.push_back(std::move(parameter));
    return ok_status();
  }

  // T, f32, float, int, bool; tensors with dimensions: T[..., n], T[n, 2], T[*].
  Result<RuleParameter> type(Rule* rule) {
    RuleParameter result;
    size_t begin = peek().offset;
    std::string word = peek().text;
    std::optional<DType> dtype = dtype_from_name(word);
    bool variable = word.size() == 1 && word[0] >= 'A' && word[0] <= 'Z';
    bool number = word == "float" || word == "int" || word == "bool";
    if (word == "bool" && peek(1).text != "[") dtype.reset();  // a flag, not a tensor of flags
    if (peek().kind != TokenKind::kName || (!dtype && !variable && !number))
      return fail("a type: a capital letter, a dtype, float, int or bool");
    ++at_;
    result.is_tensor = variable || dtype.has_value();
    if (variable) result.tensor.variable = word[0];
    if (dtype) result.tensor.dtype = *dtype;
    if (result.is_tensor && eat("[")) {
      result.tensor.has_shape = true;
      while (!eat("]")) {
        OPFUSE_TRY(Dimension next, dimension(rule));
        result.tensor.shape.push_back(next);
        if (!eat(",") && !is("]")) return fail("',' or ']'");
      }
    }
    const Token& last = tokens_[at_ - 1];
    result.type = std::string(text_.substr(begin, last.offset + last.text.size() - begin));
    return result;
  }

  Result<Dimension> dimension(Rule* rule) {
    using Kind = Dimension::Kind;
    if (eat("...")) return Dimension{Kind::kRest};
    if (eat("*")) return Dimension{Kind::kAnyRest};
    if (eat("_")) return Dimension{Kind::kAny};
    const std::string word = peek().text;
    if (word == "1...") {
      ++at_;
      return Dimension{Kind::kOnes};
    }
    if (peek().kind == TokenKind::kNumber && word.find_first_not_of("0123456789") == word.npos) {
      ++at_;
      return Dimension{Kind::kSize, std::stoll(word.substr(0, 9))};
    }
    if (peek().kind != TokenKind::kName) return fail("a dimension or ']'");
    ++at_;
    auto known = std::ranges::find(rule->sizes, word);
    if (known == rule->sizes.end()) known = rule->sizes.insert(known, word);
    // Counted from 0 here; after all parameters once they are known.
    return Dimension{Kind::kName, 0, static_cast<int>(known - rule->sizes.begin())};
  }

  // T in f32, bf16 · a is not b · shape(a) == shape(b) · eps > 0, joined by `and`.
  Status conditions(std::vector<DType>* dtypes, std::vector<Condition>* conditions) {
    do {
      if (is("T") && peek(1).text == "in") {
        at_ += 2;
        if (!dtypes) return fail("a condition without dtypes");
        OPFUSE_TRY_STATUS(dtype_list(dtypes));
        continue;
      }
      Condition next;
      next.line = peek().line;
      next.column = peek().column;
      if (is("shape")) {
        OPFUSE_TRY(next.guard.a, shape_of());
        next.guard.kind = is("!=") ? Guard::Kind::kOtherShape : Guard::Kind::kSameShape;
        if (!eat("==") && !eat("!=")) return fail("'==' or '!='");
        OPFUSE_TRY(next.guard.b, shape_of());
      } else if (peek().kind == TokenKind::kName && peek(1).text == "is") {
        OPFUSE_TRY(next.guard.a, take(TokenKind::kName, "a condition"));
        OPFUSE_TRY_STATUS(expect("is"));
        OPFUSE_TRY_STATUS(expect("not"));
        OPFUSE_TRY(next.guard.b, take(TokenKind::kName, "a name"));
      } else {
        OPFUSE_TRY_STATUS(comparison(&next));
      }
      conditions->push_back(std::move(next));
    } while (eat("and"));
    return ok_status();
  }

  Status comparison(Condition* condition) {
    condition->guard.kind = Guard::Kind::kCompare;
    OPFUSE_TRY(condition->left, sum());
    for (std::string_view sign : {"==", "!=", "<=", ">=", "<", ">"})
      if (condition->guard.sign.empty() && eat(sign)) condition->guard.sign = sign;
    if (condition->guard.sign.empty()) return fail("'is not' or a comparison");
    OPFUSE_TRY(condition->right, sum());
    return ok_status();
  }

  Result<std::string> shape_of() {
    OPFUSE_TRY_STATUS(expect("shape"));
    OPFUSE_TRY_STATUS(expect("("));
    OPFUSE_TRY(std::string name, take(TokenKind::kName, "a name"));
    OPFUSE_TRY_STATUS(expect(")"));
    return name;
  }

  Status dtype_list(std::vector<DType>* dtypes) {
    do {
      std::optional<DType> dtype = dtype_from_name(peek().text);
      if (peek().kind != TokenKind::kName || !dtype) return fail("a dtype such as f32");
      dtypes->push_back(*dtype);
      ++at_;
    } while (eat(","));
    return ok_status();
  }

  Status clause(RuleSyntax* rule) {
    if (eat("target")) return target(&rule->head);
    if (rule->head.extends) return fail("'target'");
    if (eat("version")) return version(&rule->head);
    if (eat("composition")) return block(&rule->composition);
    if (eat("spelling")) return spelling(rule);
    if (eat("near")) return near(rule);
    if (eat("domain")) return domain(&rule->head);
    if (is("requires")) return requires_mode(&rule->head);
    if (eat("found")) return found_only(&rule->head);
    if (eat("folds")) return folds(&rule->head);
    return fail("version, composition, spelling, near, domain, requires, found, folds or target");
  }

  Status version(Rule* rule) {
    OPFUSE_TRY(std::string number, take(TokenKind::kNumber, "the version, a whole number"));
    if (number.find_first_not_of("0123456789") != std::string::npos) {
      --at_;
      return fail("the version, a whole number");
    }
    rule->version = std::stoi(number.substr(0, 6));
    return expect(TokenKind::kNewline, "the end of the line");
  }

  Status found_only(Rule* rule) {
    if (!eat("only")) return fail("'only'");
    OPFUSE_TRY(rule->only_found, take(TokenKind::kString, "the reason as a string"));
    return expect(TokenKind::kNewline, "the end of the line");
  }

  Status folds(Rule* rule) {
    do {
      OPFUSE_TRY(std::string name, take(TokenKind::kName, "the name of a parameter"));
      const auto parameter = std::ranges::find(rule->parameters, name, &RuleParameter::name);
      if (parameter == rule->parameters.end() || !parameter->is_tensor)
        return Error{
            fmt::format("{}:{}:1: rule {}: expected a tensor parameter to fold, found '{}'", file_,
                        rule->line, rule->name, name)};
      rule->folds.push_back(std::move(name));
    } while (eat(","));
    return expect(TokenKind::kNewline, "the end of the line");
  }

  Status domain(Rule* rule) {
    if (!is("floating")) return fail("the domain: floating");
    OPFUSE_TRY(rule->domain, take(TokenKind::kName, "a domain"));
    if (eat("finite")) rule->domain += " finite";
    return expect(TokenKind::kNewline, "the end of the line");
  }

  Status requires_mode(Rule* rule) {
    ++at_;
    if (!is("training") && !is("eval")) return fail("training or eval");
    OPFUSE_TRY(rule->mode, take(TokenKind::kName, "a mode"));
    return expect(TokenKind::kNewline, "the end of the line");
  }

  Status spelling(RuleSyntax* rule) {
    SpellingSyntax next;
    OPFUSE_TRY(next.title, take(TokenKind::kString, "the spelling's title"));
    if (eat("class")) {
      OPFUSE_TRY(next.equivalence, equivalence_class());
    }
    OPFUSE_TRY_STATUS(block(&next.block));
    rule->spellings.push_back(std::move(next));
    return ok_status();
  }

  Result<Equivalence> equivalence_class() {
    const std::string& name = peek().text;
    bool known = name.size() == 2 && name[0] == 'E' && name[1] >= '0' && name[1] <= '4';
    if (!known) return fail("a class E0 to E4");
    ++at_;
    return static_cast<Equivalence>(name[1] - '0');
  }

  // near "weight plus one" if weight is add(w, 1)   or   near "gate" if x * sigmoid(gate) where …
  //   because "…"
  Status near(RuleSyntax* rule) {
    NearSyntax next;
    next.line = peek().line;
    next.column = peek().column;
    OPFUSE_TRY(next.title, take(TokenKind::kString, "the neighbour's title"));
    OPFUSE_TRY_STATUS(expect("if"));
    if (peek().kind == TokenKind::kName && peek(1).text == "is") {
      next.substituted = peek().text;
      if (std::ranges::find(rule->head.parameters, next.substituted, &RuleParameter::name) ==
          rule->head.parameters.end())
        return fail("a parameter of the rule");
      at_ += 2;
    }
    OPFUSE_TRY(next.formula, expression());
    if (eat("where")) OPFUSE_TRY_STATUS(conditions(nullptr, &next.conditions));
    OPFUSE_TRY_STATUS(expect(TokenKind::kNewline, "the end of the line"));
    if (eat(TokenKind::kIndent)) {
      OPFUSE_TRY_STATUS(expect("because"));
      OPFUSE_TRY(next.why, take(TokenKind::kString, "the reason, a string"));
      OPFUSE_TRY_STATUS(expect(TokenKind::kNewline, "the end of the line"));
      OPFUSE_TRY_STATUS(expect(TokenKind::kDedent, "the end of the block"));
    }
    rule->near.push_back(std::move(next));
    return ok_status();
  }

  // target opfuse.rms_norm(x, [n], eps) on cuda where T is f32, with indented python and backward.
  Status target(Rule* rule) {
    Target next;
    OPFUSE_TRY(next.op, dotted("the target's operator"));
    OPFUSE_TRY_STATUS(expect("("));
    while (!eat(")")) {
      OPFUSE_TRY(std::string argument, target_argument());
      next.arguments.push_back(std::move(argument));
      if (!eat(",") && !is(")")) return fail("',' or ')'");
    }
    if (eat("[")) {
      if (peek().kind != TokenKind::kNumber) return fail("the number of a result");
      next.result = std::atoi(tokens_[at_++].text.c_str());
      OPFUSE_TRY_STATUS(expect("]"));
    }
    if (eat("on")) {
      OPFUSE_TRY(next.device, take(TokenKind::kName, "a device"));
    }
    if (eat("where")) OPFUSE_TRY_STATUS(target_conditions(&next));
    OPFUSE_TRY_STATUS(expect(TokenKind::kNewline, "the end of the line"));
    if (eat(TokenKind::kIndent)) OPFUSE_TRY_STATUS(target_details(&next));
    rule->targets.push_back(std::move(next));
    return ok_status();
  }

  // where weight and T in f16, f32: optional parameters that must be there, and dtypes.
  Status target_conditions(Target* target) {
    do {
      if (!is("T")) {
        OPFUSE_TRY(std::string name, take(TokenKind::kName, "T or a parameter"));
        target->given.push_back(std::move(name));
        continue;
      }
      OPFUSE_TRY_STATUS(expect("T"));
      if (!eat("in") && !eat("is")) return fail("'in' or 'is'");
      OPFUSE_TRY_STATUS(dtype_list(&target->dtypes));
    } while (eat("and"));
    return ok_status();
  }

  Status target_details(Target* target) {
    while (!eat(TokenKind::kDedent)) {
      if (eat("python")) {
        OPFUSE_TRY(target->python, dotted("how Python calls it"));
        if (eat("(")) OPFUSE_TRY_STATUS(call_arguments(&target->python_arguments));
      } else if (eat("graph")) {
        OPFUSE_TRY(target->graph, dotted("what a captured graph calls"));
        OPFUSE_TRY_STATUS(expect("("));
        OPFUSE_TRY_STATUS(call_arguments(&target->graph_arguments));
      } else if (eat("backward")) {
        size_t begin = peek().offset;
        OPFUSE_TRY(std::string op, dotted("the backward operator"));
        OPFUSE_TRY_STATUS(expect("("));
        while (!eat(")")) {
          OPFUSE_TRY(std::string argument, target_argument());
          if (!eat(",") && !is(")")) return fail("',' or ')'");
        }
        std::string_view source = text_.substr(begin, peek().offset - begin);
        target->backward = std::string(source.substr(0, source.find(')') + 1));
      } else if (eat("needs")) {
        OPFUSE_TRY(target->package, dotted("a package"));
        OPFUSE_TRY(target->versions, take(TokenKind::kString, "its versions, a string"));
        if (!parse_versions(target->versions))
          return fail("versions like \">=2.1, <3\" before this");
      } else if (eat("class")) {
        OPFUSE_TRY(target->equivalence, equivalence_class());
      } else if (eat("written")) {
        OPFUSE_TRY_STATUS(expect("only"));
        OPFUSE_TRY(target->written_only, take(TokenKind::kString, "the reason, a string"));
      } else {
        return fail("python, graph, backward, needs, class or written");
      }
      OPFUSE_TRY_STATUS(expect(TokenKind::kNewline, "the end of the line"));
    }
    return ok_status();
  }

  // python opfuse.functional.rms_norm(x, weight, eps, cast="input"), after the parenthesis.
  Status call_arguments(std::vector<std::string>* arguments) {
    while (!eat(")")) {
      OPFUSE_TRY(std::string argument, is("@") ? node_argument() : target_argument());
      if (eat("=")) {
        OPFUSE_TRY(const std::string value, is("@") ? node_argument() : target_argument());
        argument += "=" + value;
      }
      arguments->push_back(std::move(argument));
      if (!eat(",") && !is(")")) return fail("',' or ')'");
    }
    return ok_status();
  }

  // @convolution.stride, @constant_pad_nd.pad?
  Result<std::string> node_argument() {
    ++at_;
    OPFUSE_TRY(const std::string name, dotted("an operator and one of its arguments"));
    if (name.find('.') == name.npos) return fail("'.' and an argument of the operator");
    return "@" + name + (eat("?") ? "?" : "");
  }

  Result<std::string> target_argument() {
    if (peek().kind == TokenKind::kName) return tokens_[at_++].text;
    bool negative = eat("-");
    if (peek().kind == TokenKind::kNumber) return (negative ? "-" : "") + tokens_[at_++].text;
    if (!negative && peek().kind == TokenKind::kString) return '"' + tokens_[at_++].text + '"';
    if (!negative && eat("[")) return target_list();
    return fail("a parameter or a literal");
  }

  // [n], [1, n]: sizes and numbers, kept as they are written.
  Result<std::string> target_list() {
    std::string text = "[";
    while (!eat("]")) {
      if (peek().kind != TokenKind::kName && peek().kind != TokenKind::kNumber)
        return fail("a size or a number");
      text += (text.size() > 1 ? ", " : "") + tokens_[at_++].text;
      if (!eat(",") && !is("]")) return fail("',' or ']'");
    }
    return text + "]";
  }

  // An indented block of bindings that ends in `return`.
  Status block(Block* block) {
    block->line = peek().line;
    block->column = peek().column;
    OPFUSE_TRY_STATUS(expect(TokenKind::kNewline, "the end of the line"));
    OPFUSE_TRY_STATUS(expect(TokenKind::kIndent, "an indented block"));
    while (!is("return")) {
      Binding binding;
      binding.line = peek().line;
      binding.column = peek().column;
      do {
        OPFUSE_TRY(std::string name, take(TokenKind::kName, "a binding or 'return'"));
        binding.names.push_back(std::move(name));
      } while (eat(","));
      OPFUSE_TRY_STATUS(expect("="));
      OPFUSE_TRY(binding.value, expression());
      OPFUSE_TRY_STATUS(expect(TokenKind::kNewline, "the end of the line"));
      block->bindings.push_back(std::move(binding));
    }
    ++at_;
    do {
      OPFUSE_TRY(Expression result, expression());
      block->results.push_back(std::move(result));
    } while (eat(","));
    OPFUSE_TRY_STATUS(expect(TokenKind::kNewline, "the end of the line"));
    return expect(TokenKind::kDedent, "the end of the block after 'return'");
  }
};

}  // namespace

Result<std::vector<RuleSyntax>> parse_rule_syntax(std::string_view text, std::string_view file) {
  OPFUSE_TRY(std::vector<Token> tokens, tokenize_rules(text, file));
  return RuleParser(std::move(tokens), text, file).file();
}

}  // namespace opfuse::match
