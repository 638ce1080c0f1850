// No tests of its own: generated_test.cc uses it.

#include "opfuse/match/spelling_generator.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

#include <fmt/format.h>

namespace opfuse::match::testing {
namespace {

FormulaPtr node(std::string op, std::vector<FormulaPtr> operands = {}, double number = 0,
                double number2 = 0) {
  return std::make_shared<Formula>(Formula{std::move(op), std::move(operands), number, number2});
}
FormulaPtr number(double c) { return node("number", {}, c); }
FormulaPtr x() { return node("x"); }

bool is_number(const FormulaPtr& f) { return f->op == "number"; }
bool is_reduction(const std::string& op) { return op == "mean" || op == "sum" || op == "amax"; }

std::map<std::string, FormulaPtr> make_formulas() {
  const auto add = [](FormulaPtr a, FormulaPtr b) { return node("add", {a, b}); };
  const auto mul = [](std::vector<FormulaPtr> f) { return node("mul", std::move(f)); };
  const FormulaPtr d = node("sub", {x(), node("mean", {x()})});
  const FormulaPtr shifted = node("sub", {x(), node("amax", {x()})});
  const FormulaPtr e = node("exp", {shifted});
  const FormulaPtr variance = add(node("mean", {node("square", {d})}), number(1e-5));
  const FormulaPtr power = add(node("mean", {node("square", {x()})}), number(1e-6));
  const double c = std::sqrt(2 / std::numbers::pi);
  return {
      {"silu", mul({x(), node("sigmoid", {x()})})},
      {"hardswish", mul({x(), node("clamp", {add(x(), number(3))}, 0, 6), number(1.0 / 6)})},
      {"hardsigmoid", mul({node("clamp", {add(x(), number(3))}, 0, 6), number(1.0 / 6)})},
      {"mish", mul({x(), node("tanh", {node("softplus", {x()})})})},
      {"gelu", mul({number(0.5), x(),
                    add(node("erf", {mul({x(), number(1 / std::numbers::sqrt2)})}), number(1))})},
      {"gelu_tanh",
       mul({number(0.5), x(),
            add(node("tanh",
                     {mul({number(c), add(x(), mul({number(0.044715), node("cube", {x()})}))})}),
                number(1))})},
      {"quick_gelu", mul({x(), node("sigmoid", {mul({x(), number(1.702)})})})},
      {"softmax", node("div", {e, node("sum", {e})})},
      {"layer_norm", node("div", {d, node("sqrt", {variance})})},
      {"rms_norm", mul({x(), node("rsqrt", {power})})},
      {"log_sigmoid", node("neg", {node("softplus", {node("neg", {x()})})})},
      {"log_softmax", node("sub", {shifted, node("log", {node("sum", {node("exp", {shifted})})})})},
      {"silu_mul", mul({node("silu", {x()}), node("z")})},
      {"swish_beta", mul({x(), node("sigmoid", {mul({x(), number(2.5)})})})},
  };
}

}  // namespace

const std::map<std::string, FormulaPtr>& formulas() {
  static const std::map<std::string, FormulaPtr> table = make_formulas();
  return table;
}

std::string Speller::number_text(double c) {
  if (c == std::floor(c) && pick(2)) return fmt::format("{}", static_cast<int64_t>(c));
  const std::string text = fmt::format("{}", c);
  return text.find_first_of(".en") == text.npos ? text + ".0" : text;
}

std::string Speller::line(const std::string& call, const std::string& shape) {
  const std::string name = fmt::format("v{}", next_++);
  text_ += fmt::format("%{}: f32[{}] = {}\n", name, shape, call);
  shapes_[name] = shape;
  inner_.push_back(name);
  return name;
}

// Now and then an operator that does nothing.
std::string Speller::decorated(const std::string& value, const std::string& shape) {
  switch (pick(24)) {
    case 0:
      return line(fmt::format("aten.detach(%{})", value), shape);
    case 1:
      return line(fmt::format("aten._to_copy(%{}, dtype=f32)", value), shape);
    case 2:
      return line(fmt::format("aten.mul.Tensor(%{}, {})", value, number_text(1)), shape);
    case 3:
      return line(fmt::format("aten.alias(%{})", value), shape);
    default:
      return value;
  }
}

std::string Speller::emit(const FormulaPtr& f) {
  const auto known = done_.find(f.get());
  if (known != done_.end()) return known->second;
  const std::string plain = emit_plain(f);
  return done_[f.get()] = decorated(plain, shapes_.at(plain));
}

std::string Speller::with_number(const std::string& a, double c, const std::string& op,
                                 const std::string& shape) {
  const std::string overload = pick(3) == 0 ? "Scalar" : "Tensor";
  const std::string place = pick(4) == 0 ? "_" : "";  // in place, where nobody else reads it
  const size_t made = text_.find("%" + a + ":");
  const std::string maker = text_.substr(made, text_.find('\n', made) - made);
  const bool view = maker.find("detach") != maker.npos || maker.find("alias") != maker.npos;
  const bool own = a.starts_with("v") && !view && text_.find("%" + a + ":") == text_.rfind("%" + a);
  return line(
      fmt::format("aten.{}{}.{}(%{}, {})", op, own ? place : "", overload, a, number_text(c)),
      shape);
}

std::string Speller::sum_of(const std::string& a, const FormulaPtr& b, bool minus,
                            const std::string& shape) {
  if (is_number(b)) {
    const double c = minus ? -b->number : b->number;
    return pick(3) == 0 ? with_number(a, -c, "sub", shape) : with_number(a, c, "add", shape);
  }
  const std::string other = emit(b);
  const std::string wide = shapes_.at(other).size() > shape.size() ? shapes_.at(other) : shape;
  if (minus)
    return pick(3) == 0 ? line(fmt::format("aten.rsub.Tensor(%{}, %{})", other, a), wide)
                        : line(fmt::format("aten.sub.Tensor(%{}, %{})", a, other), wide);
  return pick(2) ? line(fmt::format("aten.add.Tensor(%{}, %{})", a, other), wide)
                 : line(fmt::format("aten.add.Tensor(%{}, %{})", other, a), wide);
}

// The factors in any order and with any parentheses.
std::string Speller::product(std::vector<FormulaPtr> factors) {
  std::shuffle(factors.begin(), factors.end(), random_);
  if (is_number(factors[0])) std::swap(factors[0], factors[1]);
  if (factors.size() == 1) return emit(factors[0]);
  size_t left = 1 + static_cast<size_t>(pick(static_cast<int>(factors.size()) - 1));
  std::vector<FormulaPtr> a(factors.begin(), factors.begin() + static_cast<long>(left)),
      b(factors.begin() + static_cast<long>(left), factors.end());
  if (b.size() == 1 && is_number(b[0])) {
    const std::string value = product(a);
    const double c = b[0]->number;
    return pick(3) == 0 ? with_number(value, 1 / c, "div", shapes_.at(value))
                        : with_number(value, c, "mul", shapes_.at(value));
  }
  const std::string one = product(a), two = product(b);
  const std::string shape = shapes_.at(one) == "4,1" ? shapes_.at(two) : shapes_.at(one);
  return pick(2) ? line(fmt::format("aten.mul.Tensor(%{}, %{})", one, two), shape)
                 : line(fmt::format("aten.mul.Tensor(%{}, %{})", two, one), shape);
}

std::string Speller::quotient(const Formula& f, const std::string& shape) {
  if (is_number(f.operands[0])) {
    const std::string whole = emit(f.operands[1]);
    return line(fmt::format("aten.reciprocal(%{})", whole), shapes_.at(whole));
  }
  const std::string a = emit(f.operands[0]), b = emit(f.operands[1]);
  switch (pick(3)) {
    case 0: {
      const std::string inverse =
          pick(2) ? line(fmt::format("aten.reciprocal(%{})", b), shapes_.at(b))
                  : line(fmt::format("aten.pow.Tensor_Scalar(%{}, -1)", b), shapes_.at(b));
      return line(fmt::format("aten.mul.Tensor(%{}, %{})", a, inverse), shape);
    }
    default:
      return line(fmt::format("aten.div.Tensor(%{}, %{})", a, b), shape);
  }
}

std::string Speller::clamp(const Formula& f, const std::string& shape) {
  const std::string a = emit(f.operands[0]);
  const std::string low = number_text(f.number), high = number_text(f.number2);
  switch (pick(3)) {
    case 0:
      return line(fmt::format("aten.clamp(%{}, {}, {})", a, low, high), shape);
    case 1:
      return line(fmt::format("aten.hardtanh(%{}, {}, {})", a, low, high), shape);
    default:
      return line(fmt::format("aten.clamp_max(%{}, {})",
                              line(fmt::format("aten.clamp_min(%{}, {})", a, low), shape), high),
                  shape);
  }
}

std::string Speller::reduction(const Formula& f) {
  const std::string a = emit(f.operands[0]);
  const std::string dim = f.number != 0 ? "0" : pick(2) ? "-1" : "1";
  const std::string shape = f.number != 0 ? "1,6" : "4,1";
  const std::string op = f.op == "mean" ? "mean.dim" : f.op == "sum" ? "sum.dim_IntList" : "amax";
  return line(fmt::format("aten.{}(%{}, [{}], keepdim=True)", op, a, dim), shape);
}

std::string Speller::emit_plain(const FormulaPtr& f) {
  if (f->op == "x" || f->op == "z") return f->op;
  if (f->op == "mul") return product(f->operands);
  if (is_reduction(f->op)) return reduction(*f);
  if (f->op == "div") return quotient(*f, "4,6");
  const std::string a = emit(f->operands[0]);
  const std::string shape = shapes_.at(a);
  const auto unary = [&](const std::string& op) {
    return line(fmt::format("aten.{}(%{})", op, a), shape);
  };
  const auto power = [&](const std::string& exponent) {
    return line(fmt::format("aten.pow.Tensor_Scalar(%{}, {})", a, exponent), shape);
  };
  if (f->op == "add") return sum_of(a, f->operands[1], false, shape);
  if (f->op == "sub") return sum_of(a, f->operands[1], true, shape);
  if (f->op == "clamp") return clamp(*f, shape);
  if (f->op == "square")
    return pick(2) ? power(pick(2) ? "2" : "2.0")
                   : line(fmt::format("aten.mul.Tensor(%{}, %{})", a, a), shape);
  if (f->op == "cube") {
    if (pick(2)) return power(pick(2) ? "3" : "3.0");
    return line(fmt::format("aten.mul.Tensor(%{}, %{})", a,
                            line(fmt::format("aten.mul.Tensor(%{}, %{})", a, a), shape)),
                shape);
  }
  if (f->op == "sqrt") return pick(2) ? unary("sqrt") : power("0.5");
  if (f->op == "rsqrt") {
    if (pick(3) == 0) return power("-0.5");
    if (pick(2)) return unary("rsqrt");
    return line(fmt::format("aten.reciprocal(%{})", unary("sqrt")), shape);
  }
  if (f->op == "neg" && pick(3) == 0) return with_number(a, -1, "mul", shape);
  return unary(f->op);
}

std::string Speller::spell(const FormulaPtr& formula) {
  text_ = "%x: f32[4,6]\n%z: f32[4,6]\n";
  done_.clear();
  inner_.clear();
  shapes_ = {{"x", "4,6"}, {"z", "4,6"}};
  next_ = 0;
  const std::string result = emit_plain(formula);
  return text_ + fmt::format("return %{}\n", result);
}

namespace {

// Every place of the formula where `fits` says so, by the path of operand indices.
void places(const FormulaPtr& f, std::vector<int> path, bool (*fits)(const Formula&),
            std::vector<std::vector<int>>* found) {
  if (fits(*f)) found->push_back(path);
  for (size_t i = 0; i < f->operands.size(); ++i) {
    path.push_back(static_cast<int>(i));
    places(f->operands[i], path, fits, found);
    path.pop_back();
  }
}

FormulaPtr replaced(const FormulaPtr& f, const std::vector<int>& path, size_t at,
                    const FormulaPtr& now) {
  if (at == path.size()) return now;
  Formula copy = *f;
  copy.operands[path[at]] = replaced(f->operands[path[at]], path, at + 1, now);
  return std::make_shared<Formula>(std::move(copy));
}

FormulaPtr found_at(FormulaPtr f, const std::vector<int>& path) {
  for (int i : path) f = f->operands[i];
  return f;
}

bool fits_number(const Formula& f) { return f.op == "number" || f.op == "clamp"; }
bool fits_operand(const Formula& f) { return f.op == "x"; }
bool fits_function(const Formula& f) {
  static const std::set<std::string> kOthers = {"sigmoid", "tanh", "erf", "exp",
                                                "mean",    "sum",  "sub", "softplus"};
  return kOthers.contains(f.op);
}
bool fits_dim(const Formula& f) { return is_reduction(f.op); }
bool fits_eps(const Formula& f) { return f.op == "sqrt" || f.op == "rsqrt"; }

const std::string& other_function(const std::string& op) {
  static const std::map<std::string, std::string> kOther = {
      {"sigmoid", "tanh"}, {"tanh", "sigmoid"}, {"erf", "tanh"}, {"exp", "expm1"},
      {"mean", "sum"},     {"sum", "mean"},     {"sub", "add"},  {"softplus", "exp"}};
  return kOther.at(op);
}

}  // namespace

FormulaPtr Speller::changed(const FormulaPtr& formula, Fault fault) {
  bool (*fits)(const Formula&) = fault == Fault::kNumber     ? fits_number
                                 : fault == Fault::kOperand  ? fits_operand
                                 : fault == Fault::kFunction ? fits_function
                                 : fault == Fault::kDim      ? fits_dim
                                                             : fits_eps;
  std::vector<std::vector<int>> found;
  places(formula, {}, fits, &found);
  // Of one use of x, another tensor in its place is the same function of another tensor.
  if (found.size() < (fault == Fault::kOperand ? 2 : 1)) return nullptr;
  const std::vector<int>& path = found[pick(static_cast<int>(found.size()))];
  Formula now = *found_at(formula, path);
  switch (fault) {
    case Fault::kNumber:
      (now.op == "clamp" && pick(2) ? now.number2 : now.number) +=
          (now.number + 0.3) * (pick(2) ? 0.01 : -0.05);
      break;
    case Fault::kOperand:
      now.op = "z";
      break;
    case Fault::kFunction:
      now.op = other_function(now.op);
      break;
    case Fault::kDim:
      now.number = 1;
      break;
    default: {  // sqrt(v + eps) -> sqrt(v) + eps, and its inverse
      const FormulaPtr sum = now.operands[0];
      const FormulaPtr root = node("add", {node("sqrt", {sum->operands[0]}), sum->operands[1]});
      return replaced(formula, path, 0, now.op == "sqrt" ? root : node("div", {number(1), root}));
    }
  }
  return replaced(formula, path, 0, std::make_shared<Formula>(std::move(now)));
}

std::string Speller::spell_with(const FormulaPtr& formula, Fault fault) {
  const std::string whole = spell(formula);
  // The first reader of an inner value stands on some line after the one that makes it.
  std::vector<std::string> lines;
  for (size_t at = 0; at < whole.size();) {
    const size_t end = whole.find('\n', at);
    lines.push_back(whole.substr(at, end - at));
    at = end + 1;
  }
  std::vector<size_t> makers;  // lines of inner values, the result's excepted
  for (size_t i = 2; i + 2 < lines.size(); ++i)
    if (lines[i].find("_.") == std::string::npos) makers.push_back(i);
  if (makers.empty()) return "";
  const size_t at = makers[pick(static_cast<int>(makers.size()))];
  const std::string name = lines[at].substr(1, lines[at].find(':') - 1);
  const std::string shape = shapes_.at(name);
  switch (fault) {
    case Fault::kUse:
      lines.back() += ", %" + name;
      break;
    case Fault::kWrite:
      lines.insert(lines.begin() + static_cast<long>(at) + 1,
                   fmt::format("%w: f32[{}] = aten.add_.Tensor(%{}, 1)", shape, name));
      break;
    default: {  // the value goes through bf16 on its way to every reader
      for (size_t i = at + 1; i < lines.size(); ++i)
        for (size_t p = lines[i].find('%' + name); p != std::string::npos;
             p = lines[i].find('%' + name, p + 1)) {
          const char after =
              p + name.size() + 1 < lines[i].size() ? lines[i][p + name.size() + 1] : ' ';
          if (!std::isalnum(static_cast<unsigned char>(after)))
            lines[i].replace(p, name.size() + 1, "%back");
        }
      lines.insert(lines.begin() + static_cast<long>(at) + 1,
                   {fmt::format("%low: bf16[{}] = aten._to_copy(%{}, dtype=bf16)", shape, name),
                    fmt::format("%back: f32[{}] = aten._to_copy(%low, dtype=f32)", shape)});
    }
  }
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

}  // namespace opfuse::match::testing
