// opfuse: the command line. Turns the verbs (verb.h) into CLI11 subcommands and runs one.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "opfuse/base/version.h"
#include "opfuse/cli/verb.h"

namespace opfuse::cli {

void say(const std::string& text) { std::fprintf(stderr, "opfuse: %s\n", text.c_str()); }

int usage_error(const std::string& text) {
  say(text);
  return 2;
}

std::vector<std::unique_ptr<Verb>> all_verbs() {
  std::vector<std::unique_ptr<Verb>> verbs;
  verbs.push_back(make_tune());
  verbs.push_back(make_run());
  verbs.push_back(make_apply());
  verbs.push_back(make_record());
  verbs.push_back(make_analyze());
  verbs.push_back(make_compare());
  verbs.push_back(make_view());
  verbs.push_back(make_rules());
  verbs.push_back(make_explain());
  verbs.push_back(make_match());
  verbs.push_back(make_ops());
  verbs.push_back(make_bench());
  verbs.push_back(make_doctor());
  return verbs;
}

namespace {

constexpr const char* kDescription =
    "opfuse finds chains of small PyTorch operators in a running script, proves that a fused\n"
    "operator computes the same function, replaces them while training goes on, and measures\n"
    "old against new in alternating live steps. The script is not changed.\n"
    "\n"
    "  opfuse tune -- python main.py --epochs 1      find, prove, replace, measure, report\n"
    "  opfuse apply                                  write the edit into your files\n"
    "\n"
    "`opfuse VERB --help` teaches the verb. OPFUSE_DISABLE=1 switches everything off.";

// Prints our own usage line; CLI11 would list every flag kind.
class UsageFormatter : public CLI::Formatter {
 public:
  explicit UsageFormatter(std::string usage) : usage_(std::move(usage)) {}
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: opfuse " + usage_ + "\n";
  }

 private:
  std::string usage_;
};

void set_usage(CLI::App* app, const std::string& usage) {
  auto formatter = std::make_shared<UsageFormatter>(usage);
  formatter->column_width(32);
  app->formatter(formatter);
}

void add_flag(CLI::App* app, const Flag& flag) {
  std::visit(
      [&](auto* target) {
        using T = std::remove_pointer_t<decltype(target)>;
        if constexpr (std::is_same_v<T, bool>) {
          app->add_flag(flag.names, *target, flag.help);
        } else {
          auto* option = app->add_option(flag.names, *target, flag.help);
          option->type_name(flag.metavar);
          if constexpr (std::is_same_v<T, std::vector<std::string>>)
            option->delimiter(',')->take_all()->expected(1)->allow_extra_args(false);
        }
      },
      flag.target);
}

CLI::App* add_verb(CLI::App* app, Verb* verb, std::vector<std::string>* words) {
  CLI::App* sub = app->add_subcommand(verb->name(), verb->summary());
  set_usage(sub, verb->usage());
  sub->footer(verb->description());
  for (const Flag& flag : verb->flags()) add_flag(sub, flag);
  if (verb->takes_command())
    sub->prefix_command();
  else
    sub->add_option("arguments", *words, "see the usage line")->group("");
  return sub;
}

// The words behind the first `--` are the command, untouched; without one, the command starts at
// the first word that is not a flag.
std::vector<std::string> words_after_dashes(int* argc, char** argv) {
  for (int i = 1; i < *argc; ++i) {
    if (std::string(argv[i]) != "--") continue;
    std::vector<std::string> words(argv + i + 1, argv + *argc);
    *argc = i;
    return words;
  }
  return {};
}

int run_main(int argc, char** argv) {
  CLI::App app(kDescription, "opfuse");
  app.set_version_flag("--version", std::string("opfuse ") + kVersion);
  set_usage(&app, "VERB [flags] …");
  app.require_subcommand(0, 1);
  std::vector<std::unique_ptr<Verb>> verbs = all_verbs();
  std::vector<CLI::App*> subs;
  std::vector<std::string> positionals;
  const std::vector<std::string> command = words_after_dashes(&argc, argv);
  for (auto& verb : verbs) subs.push_back(add_verb(&app, verb.get(), &positionals));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    say(std::string(error.what()) + " (see `opfuse --help`)");
    return 2;
  }
  for (size_t i = 0; i < verbs.size(); ++i) {
    if (!subs[i]->parsed()) continue;
    if (!verbs[i]->takes_command()) return verbs[i]->run(positionals);
    const std::vector<std::string> rest = subs[i]->remaining();
    if (!rest.empty() && (!command.empty() || rest.front().starts_with("-")))
      return usage_error(verbs[i]->name() + ": unknown flag '" + rest.front() + "' (see `opfuse " +
                         verbs[i]->name() + " --help`)");
    return verbs[i]->run(command.empty() ? rest : command);
  }
  std::fputs(app.help().c_str(), stdout);
  return 0;
}

}  // namespace
}  // namespace opfuse::cli

int main(int argc, char** argv) {
  try {
    return opfuse::cli::run_main(argc, argv);
  } catch (const std::exception& error) {
    opfuse::cli::say(std::string("internal error: ") + error.what());
    return 70;
  }
}
