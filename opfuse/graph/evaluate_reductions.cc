#include <algorithm>
#include <cmath>
#include <numeric>

#include "opfuse/base/check.h"
#include "opfuse/graph/evaluate_kernels.h"

namespace opfuse::graph {
namespace {

using Reduce = std::function<double(const std::vector<double>&)>;

// For each element of the reduced array the elements of `x` that it is made of.
std::vector<std::vector<double>> groups_of(const Array& x, const std::vector<bool>& reduced,
                                           std::vector<int64_t>* kept_shape) {
  kept_shape->clear();
  for (size_t i = 0; i < x.shape.size(); ++i) kept_shape->push_back(reduced[i] ? 1 : x.shape[i]);
  std::vector<std::vector<double>> groups(element_count(*kept_shape));
  for (int64_t index = 0; index < static_cast<int64_t>(x.data.size()); ++index) {
    int64_t rest = index, place = 0, stride = 1;
    for (size_t i = x.shape.size(); i-- > 0;) {
      const int64_t coordinate = rest % x.shape[i];
      rest /= x.shape[i];
      if (!reduced[i]) place += coordinate * stride;
      stride *= (*kept_shape)[i];
    }
    groups[place].push_back(x.data[index]);
  }
  return groups;
}

std::vector<bool> reduced_dims(const Array& x, const std::vector<int64_t>& dims) {
  std::vector<bool> reduced(x.shape.size(), dims.empty());
  for (int64_t dim : dims) reduced[positive(dim, x.shape.size())] = true;
  return reduced;
}

Array reduced_by(const Array& x, const std::vector<int64_t>& dims, bool keep, const Reduce& f) {
  const std::vector<bool> reduced = reduced_dims(x, dims);
  Array result;
  for (const std::vector<double>& group : groups_of(x, reduced, &result.shape))
    result.data.push_back(f(group));
  if (keep) return result;
  std::vector<int64_t> shape;
  for (size_t i = 0; i < x.shape.size(); ++i)
    if (!reduced[i]) shape.push_back(x.shape[i]);
  result.shape = shape;
  return result;
}

double sum(const std::vector<double>& v) { return std::accumulate(v.begin(), v.end(), 0.0); }
double mean(const std::vector<double>& v) { return sum(v) / static_cast<double>(v.size()); }
double largest(const std::vector<double>& v) { return *std::ranges::max_element(v); }
double logsumexp(const std::vector<double>& v) {
  const double m = largest(v);
  double total = 0;
  for (double x : v) total += std::exp(x - m);
  return m + std::log(total);
}
double variance(const std::vector<double>& v, double correction) {
  const double m = mean(v);
  double total = 0;
  for (double x : v) total += (x - m) * (x - m);
  return total / (static_cast<double>(v.size()) - correction);
}

Kernel reduction(double (*f)(const std::vector<double>&)) {
  return [f](const Arguments& a) {
    return std::vector{reduced_by(a.array(0), a.sizes(1), a.flag(2), f)};
  };
}

Kernel softmax(bool log) {
  return [log](const Arguments& a) {
    const Array x = a.array(0);
    const Array total = reduced_by(x, std::vector{a.whole(1, -1)}, true, logsumexp);
    return std::vector{broadcast(
        {x, total}, [log](const auto& v) { return log ? v[0] - v[1] : std::exp(v[0] - v[1]); })};
  };
}

// (x - mean) / sqrt(variance + eps) over the last `count` dimensions, times weight, plus bias.
Array normalized(const Array& x, size_t count, bool centered, double eps) {
  std::vector<int64_t> dims;
  for (size_t i = 0; i < count; ++i) dims.push_back(-1 - static_cast<int64_t>(i));
  const Array m = centered ? reduced_by(x, dims, true, mean) : Array(0.0);
  const Array d = broadcast({x, m}, [](const auto& v) { return v[0] - v[1]; });
  const Array square = broadcast({d}, [](const auto& v) { return v[0] * v[0]; });
  const Array v = reduced_by(square, dims, true, mean);
  return broadcast({d, v}, [eps](const auto& p) { return p[0] / std::sqrt(p[1] + eps); });
}

Array scaled(Array y, const Arguments& a, size_t weight, size_t bias) {
  if (a.given(weight))
    y = broadcast({y, a.array(weight)}, [](const auto& v) { return v[0] * v[1]; });
  if (bias > 0 && a.given(bias))
    y = broadcast({y, a.array(bias)}, [](const auto& v) { return v[0] + v[1]; });
  return y;
}

std::vector<Array> layer_norm(const Arguments& a) {
  const Array x = a.array(0);
  return {scaled(normalized(x, a.sizes(1).size(), true, a.number(4, 0)), a, 2, 3)};
}

std::vector<Array> rms_norm(const Arguments& a) {
  const Array x = a.array(0);
  return {scaled(normalized(x, a.sizes(1).size(), false, a.number(3, 0)), a, 2, 0)};
}

// Mean over the rows of -(1 - s) log p[target] - s mean(log p); logits [n, classes].
std::vector<Array> cross_entropy(const Arguments& a) {
  const Array x = a.array(0), target = a.array(1);
  const double s = a.number(5, 0);
  const int64_t classes = x.shape.back();
  double total = 0;
  for (size_t row = 0; row < target.data.size(); ++row) {
    const std::vector<double> logits(x.data.begin() + row * classes,
                                     x.data.begin() + (row + 1) * classes);
    const double all = logsumexp(logits);
    total +=
        (1 - s) * (all - logits[static_cast<size_t>(target.data[row])]) + s * (all - mean(logits));
  }
  return {Array(total / static_cast<double>(target.data.size()))};
}

std::map<std::string_view, Kernel> make_table() {
  return {
      {"aten.mean.dim", reduction(mean)},
      {"aten.sum.dim_IntList", reduction(sum)},
      {"aten.amax", reduction(largest)},
      {"aten.logsumexp", reduction(logsumexp)},
      {"aten.mean",
       [](const Arguments& a) { return std::vector{reduced_by(a.array(0), {}, false, mean)}; }},
      {"aten.sum",
       [](const Arguments& a) { return std::vector{reduced_by(a.array(0), {}, false, sum)}; }},
      {"aten.max.dim",
       [](const Arguments& a) {  // the places are not used by any rule
         const Array values =
             reduced_by(a.array(0), std::vector{a.whole(1, 0)}, a.flag(2), largest);
         return std::vector{values, values};
       }},
      {"aten.var.correction",
       [](const Arguments& a) {
         const double correction = a.number(2, 1);
         return std::vector{reduced_by(a.array(0), a.sizes(1), a.flag(3),
                                       [&](const auto& v) { return variance(v, correction); })};
       }},
      {"aten.var_mean.correction",
       [](const Arguments& a) {
         const double correction = a.number(2, 1);
         const Array x = a.array(0);
         return std::vector{reduced_by(x, a.sizes(1), a.flag(3),
                                       [&](const auto& v) { return variance(v, correction); }),
                            reduced_by(x, a.sizes(1), a.flag(3), mean)};
       }},
      {"aten.linalg_vector_norm",
       [](const Arguments& a) {
         OPFUSE_CHECK(a.number(1, 2) == 2, "the norm is the Euclidean one");
         return std::vector{reduced_by(a.array(0), a.sizes(2), a.flag(3), [](const auto& v) {
           double total = 0;
           for (double x : v) total += x * x;
           return std::sqrt(total);
         })};
       }},
      {"aten._softmax", softmax(false)},
      {"aten._log_softmax", softmax(true)},
      {"aten.softmax.int", softmax(false)},
      {"aten.log_softmax.int", softmax(true)},
      {"aten.native_layer_norm", layer_norm},
      {"aten.layer_norm", layer_norm},
      {"aten.rms_norm", rms_norm},
      {"aten.cross_entropy_loss", cross_entropy},
  };
}

}  // namespace

int64_t positive(int64_t dim, size_t rank) {
  const int64_t from_front = dim < 0 ? dim + static_cast<int64_t>(rank) : dim;
  OPFUSE_CHECK(from_front >= 0 && from_front < static_cast<int64_t>(rank), "a dimension exists");
  return from_front;
}

const std::map<std::string_view, Kernel>& reduction_kernels() {
  static const std::map<std::string_view, Kernel> table = make_table();
  return table;
}

}  // namespace opfuse::graph
