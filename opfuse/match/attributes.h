#pragma once
// When two attributes are the same: numbers to 1 ulp, dimensions counted from the end.

#include "opfuse/base/dtype.h"
#include "opfuse/graph/graph.h"

namespace opfuse::match {

// A number or a flag, or a list of one number.
bool number_of(const graph::Attr& attr, double* number);

bool equal_attribute(const graph::Attr& a, const graph::Attr& b, DType dtype);

// Argument `index` of `node`; dimensions become negative and sorted where the rank is known, so
// that dim=1 of a matrix is dim=-1.
graph::Attr plain_attribute(const graph::Graph& graph, const graph::Node& node, size_t index);
// `attr` in the same form, as if it were that argument of `node`.
graph::Attr plain_like(const graph::Attr& attr, const graph::Graph& graph, const graph::Node& node,
                       size_t index);

}  // namespace opfuse::match
