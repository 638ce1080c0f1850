#pragma once
// What the tests of trace files share.

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "opfuse/pipeline_trace.h"

namespace opfuse {

inline const match::Rulebook& rulebook() {
  static const match::Rulebook rules = [] {
    auto loaded = match::load_rulebook({}, graph::SchemaTable::builtin());
    EXPECT_TRUE(loaded.ok());
    return std::move(*loaded);
  }();
  return rules;
}

inline TraceAnalysis analyze_file(const std::string& path) {
  StageLog log;
  auto analysis = analyze_trace(path, {}, rulebook(), &log);
  EXPECT_TRUE(analysis.ok()) << (analysis.ok() ? "" : analysis.error().message);
  return analysis.ok() ? std::move(*analysis) : TraceAnalysis{};
}

}  // namespace opfuse
