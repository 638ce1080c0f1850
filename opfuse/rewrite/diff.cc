#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "opfuse/rewrite/plan.h"

namespace opfuse::rewrite {
namespace {

constexpr int kContext = 3;  // lines around a change, as diff -u and git print them

using Lines = std::vector<std::string_view>;

// A line keeps its end; "\r" is part of the line, as git sees it.
Lines split_lines(std::string_view text) {
  Lines lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const size_t length = end == std::string_view::npos ? text.size() : end + 1;
    lines.push_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  return lines;
}

// ' ' kept, '-' only before, '+' only after; `before` and `after` are the lines consumed so far.
struct Step {
  char kind;
  int before, after;
};

// Myers: the furthest x on each diagonal for d = 0, 1, … edits, then back along the trace. The
// edits of a plan are few, so d stays small however long the file is.
std::vector<Step> shortest_script(const Lines& a, const Lines& b) {
  const int n = static_cast<int>(a.size()), m = static_cast<int>(b.size());
  const int offset = n + m + 1;
  std::vector<int> furthest(2 * offset + 1, 0);
  std::vector<std::vector<int>> trace;  // of round d: diagonals -d..d before it
  bool done = false;
  for (int d = 0; !done; d++) {
    trace.emplace_back(furthest.begin() + (offset - d - 1), furthest.begin() + (offset + d + 2));
    for (int k = -d; k <= d && !done; k += 2) {
      const bool down = k == -d || (k != d && furthest[offset + k - 1] < furthest[offset + k + 1]);
      int x = down ? furthest[offset + k + 1] : furthest[offset + k - 1] + 1;
      while (x < n && x - k < m && a[x] == b[x - k]) x++;
      furthest[offset + k] = x;
      done = x >= n && x - k >= m;
    }
  }
  std::vector<Step> steps;
  int x = n, y = m;
  for (int d = static_cast<int>(trace.size()) - 1; d >= 0; d--) {
    const auto at = [&](int k) { return trace[d][k + d + 1]; };
    const int k = x - y;
    const bool down = k == -d || (k != d && at(k - 1) < at(k + 1));
    const int from_x = d == 0 ? 0 : down ? at(k + 1) : at(k - 1);
    const int from_y = d == 0 ? 0 : from_x - (down ? k + 1 : k - 1);
    while (x > from_x && y > from_y) steps.push_back({' ', --x, --y});
    if (d == 0) break;
    if (down)
      steps.push_back({'+', x, --y});
    else
      steps.push_back({'-', --x, y});
  }
  std::reverse(steps.begin(), steps.end());
  return steps;
}

std::string range(int begin, int count) {
  // git counts from one; an empty range names the line before it.
  if (count == 1) return fmt::format("{}", begin + 1);
  return fmt::format("{},{}", count == 0 ? begin : begin + 1, count);
}

void append_line(char kind, std::string_view line, std::string* out) {
  out->push_back(kind);
  out->append(line);
  if (!line.ends_with('\n')) out->append("\n\\ No newline at end of file\n");
}

void append_hunk(const Lines& a, const Lines& b, std::span<const Step> steps, std::string* out) {
  int minus = 0, plus = 0;
  for (const Step& step : steps) {
    minus += step.kind != '+';
    plus += step.kind != '-';
  }
  out->append(fmt::format("@@ -{} +{} @@\n", range(steps.front().before, minus),
                          range(steps.front().after, plus)));
  for (const Step& step : steps)
    append_line(step.kind, step.kind == '+' ? b[step.after] : a[step.before], out);
}

// git quotes names with control characters, quotes or backslashes, and ends names with spaces by a
// tab.
std::string header_path(std::string_view prefix, std::string_view path) {
  std::string escaped;
  bool quote = false;
  for (const unsigned char c : path) {
    if (c == '"' || c == '\\')
      escaped += {'\\', static_cast<char>(c)};
    else if (c < 32 || c == 127)
      escaped += fmt::format("\\{:03o}", c);
    else {
      escaped.push_back(static_cast<char>(c));
      continue;
    }
    quote = true;
  }
  if (quote) return fmt::format("\"{}{}\"", prefix, escaped);
  return fmt::format("{}{}{}", prefix, path, path.find(' ') == path.npos ? "" : "\t");
}

}  // namespace

std::string unified_diff(std::string_view path, std::string_view before, std::string_view after) {
  if (before == after) return "";
  const Lines a = split_lines(before), b = split_lines(after);
  const std::vector<Step> steps = shortest_script(a, b);
  std::string out =
      fmt::format("--- {}\n+++ {}\n", header_path("a/", path), header_path("b/", path));
  const int size = static_cast<int>(steps.size());
  for (int i = 0; i < size;) {
    if (steps[i].kind == ' ') {
      i++;
      continue;
    }
    // A hunk goes on while the next change is near enough that the contexts would touch.
    int last = i;
    for (int j = i; j < size && j - last <= 2 * kContext + 1; j++)
      if (steps[j].kind != ' ') last = j;
    const int begin = std::max(0, i - kContext), end = std::min(size, last + kContext + 1);
    append_hunk(a, b, std::span(steps).subspan(begin, end - begin), &out);
    i = last + 1;
  }
  return out;
}

}  // namespace opfuse::rewrite
