// apply: writes the edit of a plan into the user's files.

#include <cstdio>
#include <filesystem>
#include <map>

#include "opfuse/base/sha256.h"
#include "opfuse/cli/run_directory.h"
#include "opfuse/cli/verb.h"
#include "opfuse/rewrite/plan.h"

namespace opfuse::cli {
namespace fs = std::filesystem;
namespace {

struct FileEdit {
  std::string path, before, after;
};

class Apply : public Verb {
 public:
  std::string name() const override { return "apply"; }
  std::string summary() const override { return "write the edit of a report into your files"; }
  std::string usage() const override { return "apply [REPORT] [--check | --diff] [--root DIR]"; }
  std::string description() const override {
    return "Writes the source edit that was measured into your files: REPORT is a report directory "
           "or\n"
           "its plan.json (default opfuse-report/latest). A file that changed since is refused "
           "and\n"
           "left alone; nothing is written unless every file fits. The same edit is in "
           "changes.diff\n"
           "for `git apply`. Installed packages are not edited: the report directory holds a "
           "small\n"
           "module to import instead.\n"
           "\n"
           "  opfuse apply --diff             show what would change\n"
           "  opfuse apply                    write it\n"
           "  opfuse apply --root ../copy     write it into another copy of the tree\n"
           "\n"
           "Exit status: 0 done, 1 with --check when something is to be written, 5 refused.";
  }
  std::vector<Flag> flags() override {
    return {
        {"--check", "", "write nothing; status 1 when a file would change", &check_},
        {"--diff", "", "write nothing; print the diff", &diff_},
        {"--root", "DIR",
         "apply to the same files below DIR instead (paths relative to the run's directory)",
         &root_},
    };
  }

  int run(const std::vector<std::string>& words) override {
    if (words.size() > 1)
      return usage_error("apply: expected one REPORT, found " + std::to_string(words.size()));
    fs::path where = words.empty() ? fs::path("opfuse-report/latest") : fs::path(words[0]);
    std::error_code ignored;
    if (fs::is_directory(where, ignored)) where /= "plan.json";
    Result<std::vector<FileEdit>> edits = prepare(where);
    if (!edits.ok()) {
      say("apply: " + edits.error().message);
      return 5;
    }
    return carry_out(*edits);
  }

 private:
  Result<std::vector<FileEdit>> prepare(const fs::path& plan_path) {
    OPFUSE_TRY(std::string text, read_file(plan_path.string()));
    Result<rewrite::Plan> plan = rewrite::plan_from_json(text);
    if (!plan.ok()) return Error{plan_path.string() + ": " + plan.error().message};
    std::map<std::string, std::string> files;  // path -> hash
    for (const auto& replacement : plan->replacements)
      for (const auto& edit : replacement.edits) files[edit.file] = edit.sha256;
    if (files.empty()) return Error{plan_path.string() + ": the plan replaces nothing"};
    std::vector<FileEdit> edits;
    for (const auto& [file, hash] : files) {
      OPFUSE_TRY(fs::path path, placed(file));
      if (path.string().find("site-packages") != std::string::npos)
        return Error{path.string() +
                     ": is an installed package, which is not edited; import the "
                     "module that lies in the report directory instead"};
      OPFUSE_TRY(std::string before, read_file(path.string()));
      if (sha256_hex(before) != hash) {
        if (already_applied(before, *plan, file))
          return Error{path.string() + ": already holds the edit"};
        return Error{path.string() +
                     ": changed since it was measured (sha256 differs); run `opfuse "
                     "tune` again"};
      }
      OPFUSE_TRY(std::string after, rewrite::apply_edits(before, *plan, file, false));
      edits.push_back({path.string(), before, after});
    }
    return edits;
  }

  // True when every replacement text of `file` is there and none of the old texts.
  static bool already_applied(const std::string& text, const rewrite::Plan& plan,
                              const std::string& file) {
    for (const auto& replacement : plan.replacements)
      for (const auto& edit : replacement.edits)
        if (edit.file == file && (text.find(edit.source_text) == std::string::npos ||
                                  text.find(edit.old_text) != std::string::npos))
          return false;
    return true;
  }

  Result<fs::path> placed(const std::string& file) const {
    if (root_.empty()) return fs::path(file);
    // The longest tail of the path that exists below the root.
    std::error_code ignored;
    fs::path tail;
    fs::path found;
    for (fs::path rest = file; rest.has_filename(); rest = rest.parent_path()) {
      tail = tail.empty() ? rest.filename() : rest.filename() / tail;
      if (fs::exists(fs::path(root_) / tail, ignored)) found = fs::path(root_) / tail;
    }
    if (found.empty()) return Error{"--root " + root_ + ": holds no file like " + file};
    return found;
  }

  int carry_out(const std::vector<FileEdit>& edits) {
    for (const auto& edit : edits) {
      if (diff_) {
        std::fputs(
            rewrite::unified_diff(fs::path(edit.path).lexically_relative(fs::current_path()).empty()
                                      ? edit.path
                                      : fs::proximate(edit.path).string(),
                                  edit.before, edit.after)
                .c_str(),
            stdout);
        continue;
      }
      if (check_) {
        say("would change " + edit.path);
        continue;
      }
      if (Status status = write_file(edit.path, edit.after); !status.ok()) {
        say("apply: " + status.error().message);
        return 5;
      }
      say("changed " + edit.path);
    }
    return check_ ? 1 : 0;
  }

  bool check_ = false, diff_ = false;
  std::string root_;
};

}  // namespace

std::unique_ptr<Verb> make_apply() { return std::make_unique<Apply>(); }

}  // namespace opfuse::cli
