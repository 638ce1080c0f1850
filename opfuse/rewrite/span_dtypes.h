#pragma once
// From which dtypes a result's dtype follows, whatever they are at a call: `weight * h.to(x.dtype)`
// has the dtype that x and weight promote to, `x.float() * 2` has f32 even where x is bf16. Two
// expressions whose sets are equal have results of one dtype at every call with floating inputs.

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "opfuse/base/dtype.h"
#include "opfuse/match/match.h"

namespace opfuse::rewrite {

// Dtypes that promote to the result's: of a parameter of the rule (its index), or fixed by a cast.
class DTypeSources {
 public:
  static DTypeSources parameter(size_t index) { return {{static_cast<int>(index)}}; }
  static DTypeSources fixed(DType dtype) { return {{-1 - static_cast<int>(dtype)}}; }
  DTypeSources() = default;

  void promote(const DTypeSources& other) { from_.insert(other.from_.begin(), other.from_.end()); }
  bool operator==(const DTypeSources&) const = default;
  bool empty() const { return from_.empty(); }
  // "x and f32"; `names` by parameter.
  std::string words(const std::vector<std::string>& names) const;

 private:
  DTypeSources(std::set<int> from) : from_(std::move(from)) {}
  std::set<int> from_;  // a parameter's index, or -1 - dtype
};

// Of the only result of the rule's composition, which is what its targets return; parameters that
// the match leaves out count for nothing. Empty where the composition does not say.
DTypeSources composition_dtype(const match::Match& match);

}  // namespace opfuse::rewrite
