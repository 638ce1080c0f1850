#include "opfuse/report/secrets.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <regex>

namespace opfuse::report {
namespace {

// Always secret, whatever the value.
constexpr std::array<std::string_view, 13> kStrictWords = {
    "secret", "secrets", "password",   "passwd",      "pwd",     "passphrase",   "apikey",
    "bearer", "cookie",  "credential", "credentials", "webhook", "authorization"};
// Also names of ordinary options (--key-dim 64), so that a short number passes.
constexpr std::array<std::string_view, 4> kLooseWords = {"token", "key", "auth", "pat"};

// "WANDB_API_KEY", "--hub-token", "apiKey" -> lower-case words.
std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words(1);
  char previous = 0;
  for (char c : name) {
    const bool starts = std::isupper(static_cast<unsigned char>(c)) &&
                        std::islower(static_cast<unsigned char>(previous));
    if (!std::isalnum(static_cast<unsigned char>(c)) || starts) words.emplace_back();
    if (std::isalnum(static_cast<unsigned char>(c)))
      words.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    previous = c;
  }
  return words;
}

bool is_short_number(std::string_view value) {
  return !value.empty() && value.size() <= 5 &&
         std::all_of(value.begin(), value.end(),
                     [](unsigned char c) { return std::isdigit(c) || c == '.'; });
}

bool is_secret(std::string_view name, std::string_view value) {
  const auto is_in = [](const auto& list, const std::string& word) {
    return std::find(list.begin(), list.end(), word) != list.end();
  };
  for (const std::string& word : words_of(name)) {
    if (is_in(kStrictWords, word)) return true;
    if (is_in(kLooseWords, word) && !is_short_number(value)) return true;
  }
  return false;
}

struct Shape {
  std::regex pattern;
  const char* replacement;
};

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> list = {
      {std::regex(R"(([A-Za-z][A-Za-z0-9+.-]{1,15}://)[^/\s@'"]+@)"), "$1***@"},
      {std::regex(R"(([?&](?:[A-Za-z_-]*(?:token|key|secret|password|sig|signature)))=[^&\s'"]+)",
                  std::regex::icase),
       "$1=***"},
      {std::regex(
           R"(\b(?:hf_|ghp_|gho_|ghs_|github_pat_|glpat-|sk-|pypi-|xox[abprs]-)[A-Za-z0-9_-]{8,})"),
       "***"},
      {std::regex(R"(\bAKIA[0-9A-Z]{12,})"), "***"},
      {std::regex(R"(\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*)"), "***"},
      {std::regex(R"(\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,})"), "$1 ***"},
  };
  return list;
}

bool is_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.';
  });
}

// "name=value" with a secret name -> "name=***"; otherwise the argument as text.
std::string mask_argument(const std::string& argument) {
  const size_t equals = argument.find('=');
  if (equals != std::string::npos) {
    const std::string_view name(argument.data(), equals);
    const std::string_view value = std::string_view(argument).substr(equals + 1);
    if (is_name(name) && !value.empty() && is_secret(name, value))
      return std::string(name) + "=" + std::string(kMask);
  }
  return mask_text(argument);
}

}  // namespace

std::vector<std::string> mask_command(const std::vector<std::string>& arguments) {
  std::vector<std::string> masked;
  masked.reserve(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool follows_flag = i > 0 && arguments[i - 1].starts_with("-") &&
                              arguments[i - 1].find('=') == std::string::npos;
    const bool is_value = follows_flag && !arguments[i].starts_with("--");
    if (is_value && is_secret(arguments[i - 1], arguments[i])) {
      masked.emplace_back(kMask);
    } else {
      masked.push_back(mask_argument(arguments[i]));
    }
  }
  return masked;
}

std::string mask_variable(std::string_view name, std::string_view value) {
  return is_secret(name, value) ? std::string(kMask) : mask_text(value);
}

std::string mask_text(std::string_view text) {
  // Every pattern is bounded on its left, so that a long text takes time linear in its length.
  // std::regex recurses once a character; what is longer than any command line is not looked at.
  constexpr size_t kLongest = 1 << 14;
  std::string masked(text.substr(0, kLongest));
  for (const Shape& shape : shapes())
    masked = std::regex_replace(masked, shape.pattern, shape.replacement);
  if (text.size() > kLongest) masked += "...";
  return masked;
}

}  // namespace opfuse::report
