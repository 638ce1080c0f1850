// How the time of find_matches grows: blocks of a transformer and of a CNN, repeated, against 60
// rules. Prints one line a size: nodes, matches, near misses, milliseconds of CPU time (the best of
// three), microseconds a node.
//   ninja opfuse_bench_match && bin/opfuse_bench_match [nodes]

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>

#include <fmt/format.h>

#include "opfuse/graph/text.h"
#include "opfuse/match/match.h"

namespace {

using namespace opfuse;

constexpr int kRules = 60;

// One block reads %x<i> and makes %x<i+1>; 41 operators.
constexpr std::string_view kBlock = R"(
%a{0}: f32[8,64] = aten.addmm(%b, %x{0}, %w)
%c{0}: f32[8,64] = aten.pow.Tensor_Scalar(%a{0}, 2)
%d{0}: f32[8,1] = aten.mean.dim(%c{0}, [-1], keepdim=True)
%e{0}: f32[8,1] = aten.add.Tensor(%d{0}, 1e-06)
%f{0}: f32[8,1] = aten.rsqrt(%e{0})
%g{0}: f32[8,64] = aten.mul.Tensor(%a{0}, %f{0})
%h{0}: f32[8,64] = aten.mul.Tensor(%g{0}, %b)
%i{0}: f32[8,64] = aten.mm(%h{0}, %w)
%j{0}: f32[8,64] = aten.sigmoid(%i{0})
%k{0}: f32[8,64] = aten.mul.Tensor(%i{0}, %j{0})
%l{0}: f32[8,64] = aten.mul.Tensor(%k{0}, %h{0})
%m{0}: f32[8,64] = aten.mul.Tensor(%l{0}, 1.7)
%n{0}: f32[8,64] = aten.sigmoid(%m{0})
%o{0}: f32[8,64] = aten.mul.Tensor(%l{0}, %n{0})
%p{0}: f32[8,64] = aten.pow.Tensor_Scalar(%o{0}, 3)
%q{0}: f32[8,64] = aten.mul.Tensor(%p{0}, 0.044715)
%r{0}: f32[8,64] = aten.add.Tensor(%o{0}, %q{0})
%s{0}: f32[8,64] = aten.mul.Tensor(%r{0}, 0.79788456)
%t{0}: f32[8,64] = aten.tanh(%s{0})
%u{0}: f32[8,64] = aten.add.Tensor(%t{0}, 1)
%v{0}: f32[8,64] = aten.mul.Tensor(%o{0}, 0.5)
%y{0}: f32[8,64] = aten.mul.Tensor(%v{0}, %u{0})
%A{0}: f32[8,64] = aten.add.Tensor(%y{0}, %x{0})
%B{0}: f32[8,1] = aten.mean.dim(%A{0}, [-1], keepdim=True)
%C{0}: f32[8,64] = aten.sub.Tensor(%A{0}, %B{0})
%D{0}: f32[8,64] = aten.pow.Tensor_Scalar(%C{0}, 2)
%E{0}: f32[8,1] = aten.mean.dim(%D{0}, [-1], keepdim=True)
%F{0}: f32[8,1] = aten.add.Tensor(%E{0}, 1e-05)
%G{0}: f32[8,1] = aten.sqrt(%F{0})
%H{0}: f32[8,64] = aten.div.Tensor(%C{0}, %G{0})
%I{0}: f32[8,64] = aten.mul.Tensor(%H{0}, %b)
%J{0}: f32[8,64] = aten.add.Tensor(%I{0}, %b)
%K{0}: f32[8,64] = aten.add.Tensor(%J{0}, 3)
%L{0}: f32[8,64] = aten.hardtanh(%K{0}, 0, 6)
%M{0}: f32[8,64] = aten.mul.Tensor(%J{0}, %L{0})
%N{0}: f32[8,64] = aten.div.Tensor(%M{0}, 6)
%O{0}: f32[8,1] = aten.amax(%N{0}, [-1], keepdim=True)
%P{0}: f32[8,64] = aten.sub.Tensor(%N{0}, %O{0})
%Q{0}: f32[8,64] = aten.exp(%P{0})
%R{0}: f32[8,1] = aten.sum.dim_IntList(%Q{0}, [-1], keepdim=True)
%x{1}: f32[8,64] = aten.div.Tensor(%Q{0}, %R{0})
)";
constexpr int kBlockNodes = 41;

graph::Graph repeated(int nodes) {
  std::string text = "%x0: f32[8,64]\n%w: f32[64,64]\n%b: f32[64]\n";
  for (int i = 0; i < nodes / kBlockNodes; ++i)
    text += fmt::format(fmt::runtime(kBlock.substr(1)), i, i + 1);
  Result<graph::Graph> parsed = graph::parse_graph(text, graph::SchemaTable::builtin());
  if (!parsed.ok()) std::fprintf(stderr, "%s\n", parsed.error().message.c_str());
  return parsed.ok() ? std::move(*parsed) : graph::Graph{};
}

match::Rulebook rules() {
  Result<match::Rulebook> book = match::load_rulebook({}, graph::SchemaTable::builtin());
  if (!book.ok()) return {};
  // Neighbours of the carried ones: the same operators with other constants.
  for (int i = 0; static_cast<int>(book->rules.size()) < kRules; ++i) {
    const std::string text = fmt::format(
        "op extra_{0}(x: T) -> T\n  composition\n    return x * sigmoid({1} * x) * {1}\n"
        "  spelling \"tanh\"\n    return x * (1 + tanh({1} * x + {1} * x ** 3))\n"
        "  target mine.extra(x)\n",
        i, 2.5 + i);
    auto more = match::parse_rules(text, "extra.rule", graph::SchemaTable::builtin());
    if (more.ok()) book->rules.push_back(std::move((*more)[0]));
  }
  return std::move(*book);
}

}  // namespace

int main(int argc, char** argv) {
  const int largest = argc > 1 ? std::atoi(argv[1]) : 100'000;
  const match::Rulebook book = rules();
  size_t patterns = 0;
  for (const match::Rule& rule : book.rules)
    patterns += 1 + rule.spellings.size() + rule.alternatives.size() + rule.near.size();
  std::printf("%zu rules, %zu patterns\n", book.rules.size(), patterns);
  for (int nodes = largest / 8; nodes <= largest; nodes *= 2) {
    const graph::Graph g = repeated(nodes);
    double best = 1e9;
    match::MatchReport report;
    for (int round = 0; round < 3; ++round) {
      const std::clock_t start = std::clock();
      report = match::find_matches(g, book);
      best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    }
    std::printf("%7zu nodes: %6zu matches, %6zu near misses, %7.1f ms, %.2f us a node\n",
                g.nodes.size(), report.matches.size(), report.near_misses.size(), best * 1e3,
                best * 1e6 / static_cast<double>(g.nodes.size()));
  }
  return 0;
}
