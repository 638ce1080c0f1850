#pragma once
// What a rule computes, in fp64 and without torch: its composition is the meaning, and every other
// way of writing it, and every target that is known here, must agree with it.

#include <string>
#include <vector>

#include "opfuse/graph/evaluate.h"
#include "opfuse/match/rule.h"

namespace opfuse::match {

// Values for the parameters of a rule, of shapes that its types allow.
struct Sample {
  std::vector<graph::Array> arrays;  // by parameter; empty for numbers
  NumberBindings numbers;            // by Number::name
};
Sample sample_of(const Rule& rule, uint64_t seed);

// The results of one way of writing the rule.
Result<std::vector<graph::Array>> values_of(const Rule& rule, const Spelling& spelling,
                                            const Sample& sample);
// The first result of a target, with the optional parameters of `absent` left out.
Result<graph::Array> target_value(const Rule& rule, const Target& target, const Sample& sample,
                                  uint32_t absent);

// "" when equal up to rounding, NaN and infinity at the same places; else where they differ.
std::string difference(const graph::Array& a, const graph::Array& b);

// Whether every operator has a meaning in fp64, and no size of an inner value is named.
bool can_be_evaluated(const graph::Graph& graph);

// An error that names the spelling which is not the function of the composition. What cannot be
// evaluated passes unchecked.
Status check_meaning(const Rule& rule);

}  // namespace opfuse::match
