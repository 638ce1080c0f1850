// match: what the rules find in a graph that is written down.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "opfuse/cli/verb.h"
#include "opfuse/graph/build.h"
#include "opfuse/graph/schema.h"
#include "opfuse/graph/text.h"
#include "opfuse/graph/validate.h"
#include "opfuse/match/candidates.h"
#include "opfuse/match/match.h"
#include "opfuse/trace/record_file.h"

namespace opfuse::cli {
namespace {

// A step that opfuse recorded (step.ofr), or a graph in text form.
Result<graph::Graph> read_graph(const std::string& path) {
  if (path.ends_with(".ofr")) {
    OPFUSE_TRY(const trace::EventTable table, trace::read_record(path));
    return graph::build_graph(table, graph::SchemaTable::builtin());
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) return Error{path + ": expected a readable file"};
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  Result<graph::Graph> graph = graph::parse_graph(text, graph::SchemaTable::builtin());
  if (!graph.ok()) return Error{path + ":" + graph.error().message};
  if (const Status valid = graph::validate_graph(*graph); !valid.ok())
    return Error{path + ": " + valid.error().message};
  return graph;
}

class Match : public Verb {
 public:
  std::string name() const override { return "match"; }
  std::string summary() const override { return "what the rules find in a graph or a record"; }
  std::string usage() const override {
    return "match GRAPH.txt|step.ofr… [--rules FILE] [--only RULE]";
  }
  std::string description() const override {
    return "Reads graphs of ATen operators in the text form of docs/graphs.md, or steps that "
           "`opfuse record`\n"
           "wrote (step.ofr), and prints what each rule finds there, what is refused and why, and "
           "what nearly is the function. Nothing is "
           "replaced.\n"
           "opfuse.capture writes such a graph for a model, without a training step:\n"
           "\n"
           "  python -c 'import torch, opfuse.capture as c, mymodel\n"
           "  open(\"graph.txt\", \"w\").write(c.graph_texts(mymodel.Net(), torch.randn(8, "
           "16))[0])'\n"
           "  opfuse match graph.txt\n"
           "\n"
           "Exit status: 0 when a chain is found, 3 when none is, 6 when a file cannot be read.";
  }
  std::vector<Flag> flags() override {
    return {{"--rules", "FILE", "more rules (docs/rulebook.md)", &files_},
            {"--only", "RULE", "look for these rules alone", &only_}};
  }

  int run(const std::vector<std::string>& words) override {
    if (words.empty()) return usage_error("match: expected a file, as in `opfuse match graph.txt`");
    Result<match::Rulebook> book = match::load_rulebook(files_, graph::SchemaTable::builtin());
    if (!book.ok()) return usage_error("match: " + book.error().message);
    for (const std::string& rule : only_)
      if (!book->find(rule)) return usage_error("match: expected a rule, found '" + rule + "'");
    if (!only_.empty()) {
      std::erase_if(book->rules, [&](const match::Rule& rule) {
        return std::find(only_.begin(), only_.end(), rule.name) == only_.end();
      });
    }
    bool damaged = false;
    size_t found = 0;
    for (const std::string& path : words) {
      const Result<graph::Graph> graph = read_graph(path);
      if (!graph.ok()) {
        say("match: " + graph.error().message);
        damaged = true;
        continue;
      }
      found += print_matches(*graph, *book, words.size() > 1 ? path : "");
    }
    return damaged ? 6 : found > 0 ? 0 : 3;
  }

 private:
  static size_t print_matches(const graph::Graph& graph, const match::Rulebook& book,
                              const std::string& heading) {
    if (!heading.empty()) std::printf("%s\n", heading.c_str());
    const auto start = std::chrono::steady_clock::now();
    const match::MatchReport report = match::find_matches(graph, book);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    for (const match::Rule& rule : book.rules)
      for (const std::string& line : match::explain_rule(graph, report, rule.name))
        std::printf("%s\n", line.c_str());
    const std::vector<match::CandidateChain> unknown = match::find_candidates(graph, report);
    if (!unknown.empty()) std::printf("no rule knows:\n");
    for (const match::CandidateChain& chain : unknown)
      std::printf("  %s\n", match::candidate_sentence(graph, chain).c_str());
    std::printf("%zu operators, %zu chains of %zu rules, found in %.1f ms\n", graph.nodes.size(),
                report.matches.size(), book.rules.size(), took.count());
    return report.matches.size();
  }

  std::vector<std::string> files_, only_;
};

}  // namespace

std::unique_ptr<Verb> make_match() { return std::make_unique<Match>(); }

}  // namespace opfuse::cli
