// Reading a Chrome trace into columns, for bench/trace/compare.py: one reader a process, so that
// the peak memory is its own. Prints one line of JSON.
//   opfuse_read_speed FILE opfuse|simdjson [THREADS]
//
// simdjson On-Demand, over the whole file in memory, takes the same fields of the same rows.

#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

#include "opfuse/trace/read.h"

#if OPFUSE_SIMDJSON
#include <simdjson.h>
#endif

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Outcome {
  size_t events = 0;
  int64_t duration_sum = 0;  // of all rows, to see that both read the same
  size_t column_bytes = 0;
};

Outcome read_with_opfuse(const char* path, int threads) {
  auto file = opfuse::trace::read_trace(path, {.threads = threads});
  if (!file.ok()) {
    std::fprintf(stderr, "%s\n", file.error().message.c_str());
    std::exit(1);
  }
  Outcome outcome{file->size(), 0, file->column_bytes()};
  for (int64_t dur : file->dur_ns)
    if (dur > 0) outcome.duration_sum += dur;
  return outcome;
}

#if OPFUSE_SIMDJSON

// Nanoseconds of "12.345"; what simdjson offers, a double, would lose digits of epoch times.
int64_t nanoseconds(std::string_view token) {
  int64_t value = 0;
  int scale = 3;
  bool point = false;
  for (char c : token) {
    if (c == '.') {
      point = true;
    } else if (c >= '0' && c <= '9' && (!point || scale > 0)) {
      value = value * 10 + (c - '0');
      scale -= point;
    } else {
      break;
    }
  }
  while (scale-- > 0) value *= 10;
  return value;
}

class OnDemand {
 public:
  Outcome read(const char* path) {
    auto text = simdjson::padded_string::load(path).take_value();
    simdjson::ondemand::parser parser;
    auto document = parser.iterate(text);
    for (auto event : document["traceEvents"].get_array()) add(event.get_object());
    Outcome outcome{name_.size(), 0, 0};
    for (int64_t dur : dur_)
      if (dur > 0) outcome.duration_sum += dur;
    return outcome;
  }

 private:
  opfuse::trace::StringId text(simdjson::ondemand::value value) {
    std::string_view token = value.raw_json_token();
    return strings_.intern(token.substr(1, token.rfind('"') - 1));
  }

  void add(simdjson::ondemand::object event) {
    opfuse::trace::StringId name = 0, category = 0;
    char phase = 0;
    int64_t start = 0, dur = -1, pid = 0, tid = 0, id = -1;
    for (auto field : event) {
      const std::string_view key = field.unescaped_key();
      simdjson::ondemand::value value = field.value();
      if (key == "name") {
        name = text(value);
      } else if (key == "cat") {
        category = text(value);
      } else if (key == "ph") {
        phase = value.raw_json_token()[1];
      } else if (key == "ts") {
        start = nanoseconds(value.raw_json_token());
      } else if (key == "dur") {
        dur = nanoseconds(value.raw_json_token());
      } else if (key == "pid") {
        if (value.get_int64().get(pid)) pid = 0;
      } else if (key == "tid") {
        if (value.get_int64().get(tid)) tid = 0;
      } else if (key == "args") {
        arguments(value.get_object(), &id);
      }
    }
    name_.push_back(name), category_.push_back(category), phase_.push_back(phase);
    start_.push_back(start), dur_.push_back(dur), pid_.push_back(pid), tid_.push_back(tid);
    id_.push_back(id);
  }

  void arguments(simdjson::ondemand::object object, int64_t* id) {
    for (auto field : object) {
      const std::string_view key = field.unescaped_key();
      simdjson::ondemand::value value = field.value();
      if (key == "External id" || key == "correlation" || key == "Addr" || key == "Python id") {
        if (value.get_int64().get(*id)) *id = -1;
      } else if (key == "Input Dims" || key == "Input type" || key == "Concrete Inputs" ||
                 key == "Input Strides") {
        std::string_view raw = value.get_array().value().raw_json().value();
        lists_.push_back(strings_.intern(raw));
      } else if (key == "Bytes" || key == "stream" || key == "device" || key == "Device Id") {
        int64_t number = 0;
        if (!value.get_int64().get(number)) numbers_.push_back(number);
      }
    }
  }

  opfuse::trace::StringPool strings_;
  std::vector<opfuse::trace::StringId> name_, category_, lists_;
  std::vector<char> phase_;
  std::vector<int64_t> start_, dur_, pid_, tid_, id_, numbers_;
};

#endif

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: opfuse_read_speed FILE opfuse|simdjson [THREADS]\n");
    return 2;
  }
  const int threads = argc > 3 ? std::atoi(argv[3]) : 1;
  const double begin = now();
  const std::clock_t cpu = std::clock();
  Outcome outcome;
  if (std::strcmp(argv[2], "opfuse") == 0) {
    outcome = read_with_opfuse(argv[1], threads);
#if OPFUSE_SIMDJSON
  } else if (std::strcmp(argv[2], "simdjson") == 0) {
    outcome = OnDemand().read(argv[1]);
#endif
  } else {
    std::fprintf(stderr, "this build has no reader '%s'\n", argv[2]);
    return 2;
  }
  const double wall_s = now() - begin;
  const double cpu_s = static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf(
      "{\"wall_s\": %.4f, \"cpu_s\": %.4f, \"events\": %zu, \"duration_sum\": %lld, "
      "\"column_mb\": %.1f, \"peak_mb\": %.1f}\n",
      wall_s, cpu_s, outcome.events, static_cast<long long>(outcome.duration_sum),
      static_cast<double>(outcome.column_bytes) / 1e6,
      static_cast<double>(usage.ru_maxrss) * 1024 / 1e6);
  return 0;
}
