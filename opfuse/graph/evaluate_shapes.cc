#include <algorithm>
#include <cmath>
#include <numeric>

#include "opfuse/base/check.h"
#include "opfuse/graph/evaluate_kernels.h"

namespace opfuse::graph {
namespace {

// result[i0, i1, …] = x[…] with its dimensions in this order.
Array permuted(const Array& x, const std::vector<int64_t>& order) {
  Array result;
  for (int64_t dim : order) result.shape.push_back(x.shape[dim]);
  result.data.resize(x.data.size());
  std::vector<int64_t> strides(x.shape.size(), 1);
  for (size_t i = x.shape.size(); i-- > 1;) strides[i - 1] = strides[i] * x.shape[i];
  for (int64_t index = 0; index < static_cast<int64_t>(x.data.size()); ++index) {
    int64_t rest = index, place = 0;
    for (size_t i = result.shape.size(); i-- > 0;) {
      place += rest % result.shape[i] * strides[order[i]];
      rest /= result.shape[i];
    }
    result.data[index] = x.data[place];
  }
  return result;
}

Array transposed(const Array& x, int64_t a, int64_t b) {
  std::vector<int64_t> order(x.shape.size());
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[positive(a, order.size())], order[positive(b, order.size())]);
  return permuted(x, order);
}

Array sliced(const Array& x, int64_t dim, int64_t begin, int64_t end) {
  dim = positive(dim, x.shape.size());
  int64_t inner = 1, outer = 1;
  for (size_t i = 0; i < x.shape.size(); ++i)
    (static_cast<int64_t>(i) < dim ? outer : inner) *= x.shape[i];
  const int64_t step = inner / x.shape[dim];
  Array result;
  result.shape = x.shape;
  result.shape[dim] = end - begin;
  for (int64_t o = 0; o < outer; ++o)
    result.data.insert(result.data.end(), x.data.begin() + o * inner + begin * step,
                       x.data.begin() + o * inner + end * step);
  return result;
}

Array joined(const std::vector<Array>& parts, int64_t dim) {
  dim = positive(dim, parts[0].shape.size());
  const auto to_front = [&](const Array& x) { return transposed(x, 0, dim); };
  Array result = to_front(parts[0]);
  for (size_t i = 1; i < parts.size(); ++i) {
    const Array next = to_front(parts[i]);
    result.shape[0] += next.shape[0];
    result.data.insert(result.data.end(), next.data.begin(), next.data.end());
  }
  return to_front(result);
}

// Products of the last two dimensions; the ones before are equal.
Array product(const Array& a, const Array& b) {
  OPFUSE_CHECK(a.shape.size() >= 2 && b.shape.size() >= 2, "matrices have two dimensions");
  const int64_t m = a.shape[a.shape.size() - 2], k = a.shape.back(), n = b.shape.back();
  OPFUSE_CHECK(b.shape[b.shape.size() - 2] == k, "the inner sizes agree");
  Array result;
  result.shape = a.shape;
  result.shape.back() = n;
  const int64_t batches = element_count(a.shape) / (m * k);
  OPFUSE_CHECK(element_count(b.shape) / (k * n) == batches, "as many matrices on both sides");
  result.data.assign(batches * m * n, 0);
  for (int64_t t = 0; t < batches; ++t)
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j)
        for (int64_t l = 0; l < k; ++l)
          result.data[(t * m + i) * n + j] +=
              a.data[(t * m + i) * k + l] * b.data[(t * k + l) * n + j];
  return result;
}

std::vector<Array> attention(const Arguments& a) {
  const Array q = a.array(0), k = a.array(1), v = a.array(2);
  const double scale = a.number(6, 1 / std::sqrt(static_cast<double>(q.shape.back())));
  Array scores = product(q, transposed(k, -1, -2));
  for (double& s : scores.data) s *= scale;
  if (a.given(3))
    scores = broadcast({scores, a.array(3)}, [](const auto& s) { return s[0] + s[1]; });
  const int64_t keys = scores.shape.back();
  for (size_t row = 0; row < scores.data.size(); row += keys) {
    double total = 0, largest = *std::max_element(&scores.data[row], &scores.data[row] + keys);
    for (int64_t i = 0; i < keys; ++i)
      total += scores.data[row + i] = std::exp(scores.data[row + i] - largest);
    for (int64_t i = 0; i < keys; ++i) scores.data[row + i] /= total;
  }
  return {product(scores, v)};
}

std::vector<Array> gather(const Arguments& a) {
  const Array x = a.array(0), index = a.array(2);
  OPFUSE_CHECK(positive(a.whole(1, 0), x.shape.size()) + 1 == static_cast<int64_t>(x.shape.size()),
               "gathering is over the last dimension");
  Array result;
  result.shape = index.shape;
  const int64_t taken = index.shape.back(), size = x.shape.back();
  for (size_t i = 0; i < index.data.size(); ++i)
    result.data.push_back(
        x.data[static_cast<int64_t>(i) / taken * size + static_cast<int64_t>(index.data[i])]);
  return {result};
}

std::vector<Array> split(const Arguments& a) {
  const Array x = a.array(0);
  const int64_t dim = positive(a.whole(2, 0), x.shape.size());
  // Without a size (a rule's chunk) into two halves.
  const int64_t part = a.whole(1, x.shape[dim] / 2);
  std::vector<Array> parts;
  for (int64_t at = 0; at < x.shape[dim]; at += part)
    parts.push_back(sliced(x, dim, at, std::min(at + part, x.shape[dim])));
  return parts;
}

std::vector<Array> glu(const Arguments& a) {
  const Array x = a.array(0);
  const int64_t dim = positive(a.whole(1, -1), x.shape.size()), half = x.shape[dim] / 2;
  return {broadcast({sliced(x, dim, 0, half), sliced(x, dim, half, 2 * half)},
                    [](const auto& v) { return v[0] / (1 + std::exp(-v[1])); })};
}

std::vector<Array> unsqueeze(const Arguments& a) {
  Array x = a.array(0);
  x.shape.insert(x.shape.begin() + positive(a.whole(1, 0), x.shape.size() + 1), 1);
  return {x};
}

std::vector<Array> squeeze(const Arguments& a) {
  Array x = a.array(0);
  const int64_t dim = positive(a.whole(1, 0), x.shape.size());
  if (x.shape[dim] == 1) x.shape.erase(x.shape.begin() + dim);
  return {x};
}

std::vector<Array> view(const Arguments& a) {
  Array x = a.array(0);
  x.shape = a.sizes(1);
  int64_t known = 1;
  for (int64_t size : x.shape) known *= size == -1 ? 1 : size;
  std::ranges::replace(x.shape, int64_t{-1}, static_cast<int64_t>(x.data.size()) / known);
  return {x};
}

std::map<std::string_view, Kernel> make_table() {
  const Kernel matrices = [](const Arguments& a) {
    return std::vector{product(a.array(0), a.array(1))};
  };
  return {
      {"aten.mm", matrices},
      {"aten.bmm", matrices},
      {"aten.addmm",
       [](const Arguments& a) {
         const double beta = a.number(3, 1), alpha = a.number(4, 1);
         return std::vector{broadcast({a.array(0), product(a.array(1), a.array(2))},
                                      [&](const auto& v) { return beta * v[0] + alpha * v[1]; })};
       }},
      {"aten.scaled_dot_product_attention", attention},
      {"aten.gather", gather},
      {"aten.split.Tensor", split},
      {"aten.glu", glu},
      {"aten.cat",
       [](const Arguments& a) { return std::vector{joined(a.list(0), a.whole(1, 0))}; }},
      {"aten.transpose.int",
       [](const Arguments& a) {
         return std::vector{transposed(a.array(0), a.whole(1, 0), a.whole(2, 1))};
       }},
      {"aten.t", [](const Arguments& a) { return std::vector{transposed(a.array(0), 0, 1)}; }},
      {"aten.unsqueeze", unsqueeze},
      {"aten.squeeze.dim", squeeze},
      {"aten.view", view},
      {"aten._unsafe_view", view},
  };
}

}  // namespace

const std::map<std::string_view, Kernel>& shape_kernels() {
  static const std::map<std::string_view, Kernel> table = make_table();
  return table;
}

}  // namespace opfuse::graph
