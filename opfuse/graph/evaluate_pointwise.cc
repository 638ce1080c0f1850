#include <algorithm>
#include <cmath>
#include <numbers>

#include "opfuse/base/check.h"
#include "opfuse/graph/evaluate_kernels.h"

namespace opfuse::graph {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
// std::clamp would give the bound for NaN.
double clamped(double x, double low, double high) { return x < low ? low : x > high ? high : x; }
double softplus(double x, double beta, double threshold) {
  return x * beta > threshold ? x : std::log1p(std::exp(x * beta)) / beta;
}
double gelu(double x, bool tanh_form) {
  if (!tanh_form) return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
  const double inner = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1 + std::tanh(inner));
}

Kernel unary(double (*f)(double)) {
  return [f](const Arguments& a) {
    return std::vector{broadcast({a.array(0)}, [f](const auto& v) { return f(v[0]); })};
  };
}

Kernel binary(double (*f)(double, double, double)) {
  return [f](const Arguments& a) {
    const double alpha = a.number(2, 1);
    return std::vector{
        broadcast({a.array(0), a.array(1)}, [&](const auto& v) { return f(v[0], v[1], alpha); })};
  };
}

std::vector<Array> clamp(const Arguments& a) {
  const double low = a.number(1, -INFINITY), high = a.number(2, INFINITY);
  return {broadcast({a.array(0)}, [&](const auto& v) { return clamped(v[0], low, high); })};
}

std::map<std::string_view, Kernel> make_table() {
  std::map<std::string_view, Kernel> table = {
      {"aten.abs", unary([](double x) { return std::abs(x); })},
      {"aten.cos", unary([](double x) { return std::cos(x); })},
      {"aten.erf", unary([](double x) { return std::erf(x); })},
      {"aten.exp", unary([](double x) { return std::exp(x); })},
      {"aten.expm1", unary([](double x) { return std::expm1(x); })},
      {"aten.hardsigmoid", unary([](double x) { return clamped(x + 3, 0, 6) / 6; })},
      {"aten.hardswish", unary([](double x) { return x * clamped(x + 3, 0, 6) / 6; })},
      {"aten.log", unary([](double x) { return std::log(x); })},
      {"aten.log1p", unary([](double x) { return std::log1p(x); })},
      {"aten.log_sigmoid", unary([](double x) { return -softplus(-x, 1, INFINITY); })},
      {"aten.mish", unary([](double x) { return x * std::tanh(softplus(x, 1, 20)); })},
      {"aten.neg", unary([](double x) { return -x; })},
      {"aten.reciprocal", unary([](double x) { return 1 / x; })},
      {"aten.relu", unary([](double x) { return x < 0 ? 0 : x; })},
      {"aten.rsqrt", unary([](double x) { return 1 / std::sqrt(x); })},
      {"aten.sigmoid", unary(sigmoid)},
      {"aten.silu", unary([](double x) { return x * sigmoid(x); })},
      {"aten.sin", unary([](double x) { return std::sin(x); })},
      {"aten.sqrt", unary([](double x) { return std::sqrt(x); })},
      {"aten.tanh", unary([](double x) { return std::tanh(x); })},
      {"aten.add.Tensor", binary([](double a, double b, double c) { return a + c * b; })},
      {"aten.sub.Tensor", binary([](double a, double b, double c) { return a - c * b; })},
      {"aten.rsub.Tensor", binary([](double a, double b, double c) { return b - c * a; })},
      {"aten.mul.Tensor", binary([](double a, double b, double) { return a * b; })},
      {"aten.div.Tensor", binary([](double a, double b, double) { return a / b; })},
      {"aten.maximum", binary([](double a, double b, double) { return std::max(a, b); })},
      {"aten.minimum", binary([](double a, double b, double) { return std::min(a, b); })},
      {"aten.pow.Tensor_Scalar", binary([](double a, double b, double) { return std::pow(a, b); })},
      {"aten.logaddexp", binary([](double a, double b, double) {
         return std::max(a, b) + std::log1p(std::exp(-std::abs(a - b)));
       })},
      {"aten.clamp", clamp},
      {"aten.hardtanh",
       [](const Arguments& a) {
         const double low = a.number(1, -1), high = a.number(2, 1);
         return std::vector{
             broadcast({a.array(0)}, [&](const auto& v) { return clamped(v[0], low, high); })};
       }},
      {"aten.clamp_min", binary([](double a, double b, double) { return a < b ? b : a; })},
      {"aten.clamp_max", binary([](double a, double b, double) { return a > b ? b : a; })},
      {"aten.gelu",
       [](const Arguments& a) {
         const bool tanh_form = a.text(1) == "tanh";
         return std::vector{
             broadcast({a.array(0)}, [&](const auto& v) { return gelu(v[0], tanh_form); })};
       }},
      {"aten.softplus",
       [](const Arguments& a) {
         const double beta = a.number(1, 1), threshold = a.number(2, 20);
         return std::vector{broadcast(
             {a.array(0)}, [&](const auto& v) { return softplus(v[0], beta, threshold); })};
       }},
      {"aten.where.self",
       [](const Arguments& a) {
         return std::vector{broadcast({a.array(0), a.array(1), a.array(2)},
                                      [](const auto& v) { return v[0] != 0 ? v[1] : v[2]; })};
       }},
      {"aten.masked_fill.Scalar",
       [](const Arguments& a) {
         const double fill = a.number(2, 0);
         return std::vector{broadcast({a.array(0), a.array(1)},
                                      [&](const auto& v) { return v[1] != 0 ? fill : v[0]; })};
       }},
      {"aten.addcmul",
       [](const Arguments& a) {
         const double value = a.number(3, 1);
         return std::vector{broadcast({a.array(0), a.array(1), a.array(2)},
                                      [&](const auto& v) { return v[0] + value * v[1] * v[2]; })};
       }},
      {"aten.lerp.Scalar",
       [](const Arguments& a) {
         const double weight = a.number(2, 0);
         return std::vector{broadcast({a.array(0), a.array(1)}, [&](const auto& v) {
           return v[0] + weight * (v[1] - v[0]);
         })};
       }},
  };
  // The same with other overloads, and what does nothing in fp64.
  for (const auto& [alias, of] : {std::pair("aten.add.Scalar", "aten.add.Tensor"),
                                  std::pair("aten.sub.Scalar", "aten.sub.Tensor"),
                                  std::pair("aten.rsub.Scalar", "aten.rsub.Tensor"),
                                  std::pair("aten.mul.Scalar", "aten.mul.Tensor"),
                                  std::pair("aten.div.Scalar", "aten.div.Tensor")})
    table[alias] = table[of];
  for (std::string_view nothing :
       {"aten.detach", "aten.alias", "aten._to_copy", "aten.clone", "rule.to", "rule.reshape"})
    table[nothing] = unary([](double x) { return x; });
  return table;
}

}  // namespace

Array broadcast(const std::vector<Array>& arrays,
                const std::function<double(const std::vector<double>&)>& f) {
  Array result;
  for (const Array& array : arrays) {
    if (array.shape.size() > result.shape.size())
      result.shape.insert(result.shape.begin(), array.shape.size() - result.shape.size(), 1);
    for (size_t i = 0; i < array.shape.size(); ++i) {
      int64_t& size = result.shape[result.shape.size() - array.shape.size() + i];
      OPFUSE_CHECK(size == 1 || array.shape[i] == 1 || size == array.shape[i],
                   "the shapes broadcast");
      if (size == 1) size = array.shape[i];
    }
  }
  const int64_t count = element_count(result.shape);
  result.data.resize(count);
  std::vector<double> at(arrays.size());
  for (int64_t index = 0; index < count; ++index) {
    for (size_t k = 0; k < arrays.size(); ++k) {
      int64_t rest = index, place = 0, stride = 1;
      for (size_t i = result.shape.size(); i-- > 0;) {
        const int64_t coordinate = rest % result.shape[i];
        rest /= result.shape[i];
        const size_t skipped = result.shape.size() - arrays[k].shape.size();
        if (i < skipped) continue;
        const int64_t size = arrays[k].shape[i - skipped];
        if (size > 1) place += coordinate * stride;
        stride *= size;
      }
      at[k] = arrays[k].data[place];
    }
    result.data[index] = f(at);
  }
  return result;
}

const std::map<std::string_view, Kernel>& pointwise_kernels() {
  static const std::map<std::string_view, Kernel> table = make_table();
  return table;
}

}  // namespace opfuse::graph
