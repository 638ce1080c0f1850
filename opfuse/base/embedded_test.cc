#include "opfuse/base/embedded.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace opfuse {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

int count_files(const fs::path& folder, std::string_view extension) {
  if (!fs::exists(folder)) return 0;
  return static_cast<int>(
      std::count_if(fs::directory_iterator(folder), fs::directory_iterator(),
                    [&](const auto& entry) { return entry.path().extension() == extension; }));
}

void expect_same_as_on_disk(std::span<const EmbeddedFile> files, const fs::path& folder) {
  for (const auto& file : files) {
    EXPECT_EQ(file.text, read(folder / file.name)) << file.name;
    EXPECT_FALSE(file.text.empty()) << file.name;
  }
}

TEST(Embedded, FilesAreByteForByteThoseOfTheSourceTree) {
  const fs::path root = OPFUSE_SOURCE_DIR;
  expect_same_as_on_disk(embedded_rules(), root);
  expect_same_as_on_disk(embedded_schemas(), root / "opfuse/graph/schemas");
  expect_same_as_on_disk(embedded_web(), root / "opfuse/report/web");
}

TEST(Embedded, NoRuleOfTheRulebookIsLeftOut) {
  const auto rules = embedded_rules();
  const auto in_rulebook = std::count_if(rules.begin(), rules.end(), [](const auto& file) {
    return std::string_view(file.name).starts_with("rulebook/");
  });
  EXPECT_EQ(in_rulebook, count_files(fs::path(OPFUSE_SOURCE_DIR) / "rulebook", ".rule"));
}

TEST(Embedded, FilesAreSortedByName) {
  for (const auto files : {embedded_rules(), embedded_schemas(), embedded_web()}) {
    EXPECT_TRUE(std::is_sorted(files.begin(), files.end(), [](const auto& a, const auto& b) {
      return std::string_view(a.name) < std::string_view(b.name);
    }));
  }
}

}  // namespace
}  // namespace opfuse
