#pragma once
// A verb of the command line as an object: what it is called, what it teaches, its flags and what
// it runs. main.cc turns the flags into CLI11 options, so that flags are tested without running a
// verb.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace opfuse::cli {

using FlagTarget = std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*>;

struct Flag {
  std::string names;    // "-o,--output"
  std::string metavar;  // "DIR"; empty for switches
  std::string help;
  FlagTarget target;
};

class Verb {
 public:
  virtual ~Verb() = default;
  virtual std::string name() const = 0;
  virtual std::string summary() const = 0;      // one line in `opfuse --help`
  virtual std::string usage() const = 0;        // after "opfuse "
  virtual std::string description() const = 0;  // what it does, an example, what comes out
  virtual std::vector<Flag> flags() { return {}; }
  // Names of positional arguments for the help; the words themselves arrive in run().
  virtual bool takes_command() const { return false; }  // everything after the flags is a command
  // Returns the exit status. `words`: positional arguments or the command.
  virtual int run(const std::vector<std::string>& words) = 0;
};

std::unique_ptr<Verb> make_tune();
std::unique_ptr<Verb> make_record();
std::unique_ptr<Verb> make_run();
std::unique_ptr<Verb> make_apply();
std::unique_ptr<Verb> make_analyze();
std::unique_ptr<Verb> make_compare();
std::unique_ptr<Verb> make_view();
std::unique_ptr<Verb> make_rules();
std::unique_ptr<Verb> make_explain();
std::unique_ptr<Verb> make_match();
std::unique_ptr<Verb> make_ops();
std::unique_ptr<Verb> make_bench();
std::unique_ptr<Verb> make_doctor();

// Every verb, in the order of `opfuse --help`.
std::vector<std::unique_ptr<Verb>> all_verbs();

// Prints "opfuse: <text>" on stderr.
void say(const std::string& text);
// The same as an error; returns 2, the status of a usage error.
int usage_error(const std::string& text);

}  // namespace opfuse::cli
