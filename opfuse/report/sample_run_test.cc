#include "opfuse/report/sample_run.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "opfuse/base/sha256.h"

namespace opfuse::report {
namespace fs = std::filesystem;

namespace {

// Lines 62 to 80 stand where they do in efficientnet_pytorch 0.7.1.
std::string sample_source() {
  std::string text = "import torch\nfrom torch import nn\n";
  for (int line = 3; line < 62; ++line) text += line == 40 ? "# Swish activation function\n" : "\n";
  return text +
         "# A memory-efficient implementation of Swish function\n"
         "class SwishImplementation(torch.autograd.Function):\n"
         "    @staticmethod\n"
         "    def forward(ctx, i):\n"
         "        # </script> in a source line must stay text\n"
         "        result = i * torch.sigmoid(i)\n"
         "        ctx.save_for_backward(i)\n"
         "        return result\n"
         "\n"
         "    @staticmethod\n"
         "    def backward(ctx, grad_output):\n"
         "        i = ctx.saved_tensors[0]\n"
         "        sigmoid_i = torch.sigmoid(i)\n"
         "        return grad_output * (sigmoid_i * (1 + i * (1 - sigmoid_i)))\n"
         "\n"
         "\n"
         "class MemoryEfficientSwish(nn.Module):\n"
         "    def forward(self, x):\n"
         "        return SwishImplementation.apply(x)\n"
         "\n"
         "\n"
         "def round_filters(filters, global_params):\n"
         "    pass\n";
}

constexpr const char* kDiff =
    "--- a/efficientnet_pytorch/utils.py\n"
    "+++ b/efficientnet_pytorch/utils.py\n"
    "@@ -77,7 +77,7 @@\n"
    " \n"
    " class MemoryEfficientSwish(nn.Module):\n"
    "     def forward(self, x):\n"
    "-        return SwishImplementation.apply(x)\n"
    "+        return nn.functional.silu(x)\n"
    " \n"
    " \n"
    " def round_filters(filters, global_params):\n";

Json error(const char* what, double error_old, double error_new, int64_t elements) {
  return {{"what", what},
          {"elements", elements},
          {"same_function", 3.1e-16},
          {"error_old", error_old},
          {"error_new", error_new},
          {"excess", 0.4},
          {"nonfinite_differences", 0}};
}

Json site_verdict() {
  return {
      {"site", 0},
      {"accepted", true},
      {"reason", "forward, backward and the hand-written backward agree with silu"},
      {"input_set", "captured call 12 f32[16,32,112,112]"},
      {"captured",
       {error("output", 2.4e-7, 2.4e-7, 6422528), error("d/dx", 4.1e-7, 3.0e-7, 6422528)}},
      {"generated", {error("output", 1.9e31, 1.9e31, 4096), error("d/dx", 1.2e-7, 1.2e-7, 4096)}},
      {"captured_calls", 49},
      {"generated_cases", 132}};
}

Json steps_of(bool with_sides, double gain) {
  std::mt19937 random(7);
  std::normal_distribution<double> noise(0, 0.05);
  Json steps = Json::array();
  const auto add = [&](double wall, const char* side) {
    steps.push_back({{"step", steps.size() + 1},
                     {"wall", wall},
                     {"data", 0.012},
                     {"cpu", wall * 1.9},
                     {"side", side}});
  };
  add(3.4, "plain");
  add(2.98, "record");
  add(5.1, "values");
  if (!with_sides) {
    for (int i = 0; i < 5; ++i) add(2.43 + noise(random), "plain");
    return steps;
  }
  add(2.6, "validate");
  for (int pair = 0; pair < 20; ++pair) {
    const double drift = 0.1 * pair / 20;
    const bool new_first = random() % 2;
    for (int half = 0; half < 2; ++half) {
      const bool is_new = (half == 0) == new_first;
      add((is_new ? 2.43 / gain : 2.43) + drift + noise(random), is_new ? "new" : "old");
    }
  }
  return steps;
}

Json interval(double ratio, double low, double high, int pairs) {
  return {{"ratio", ratio}, {"low", low}, {"high", high}, {"pairs", pairs}};
}

Json ab(const char* outcome, double ratio, double low, double high) {
  return {{"phase", "done"},
          {"outcome", outcome},
          {"choosing", interval(ratio, low - 0.02, high + 0.02, 8)},
          {"headline_wall", interval(ratio, low, high, 12)},
          {"headline_cpu", interval(ratio + 0.01, low, high + 0.03, 12)},
          {"old_step_s", 2.47},
          {"new_step_s", 2.47 / ratio},
          {"counted_steps", 40}};
}

// The chain's own place, and what it takes.
Json sample_site(const std::string& file) {
  return {
      {"id", 0},
      {"rule", "silu"},
      {"calls", 49},
      {"function_class", "efficientnet_pytorch.utils.SwishImplementation"},
      {"file", file},
      {"line", 80},
      {"chain_file", file},
      {"chain_line", 67},
      {"chain_columns", {17, 37}},
      {"now", "x*sigmoid(x)"},
      {"becomes", "F.silu(x)"},
      {"target", "aten.silu"},
      {"equivalence", "E1"},
      {"domain", "floating"},
      {"forward_ms", 212.5},
      {"backward_ms", 611.0},
      {"operators",
       {{{"op", "aten.sigmoid"}, {"line", 67}, {"column", 21}},
        {{"op", "aten.mul.Tensor"}, {"line", 67}, {"column", 17}}}},
      {"status", "planned"},
      {"refusal", nullptr},
      {"kept", true},
      {"shapes", {{"f32[16,32,112,112]", 3}, {"f32[16,96,56,56]", 4}, {"f32[16,1280,7,7]", 1}}}};
}

Json near_misses(const std::string& file) {
  return {{{"rule", "silu"},
           {"reason", "sigmoid(a)*b with a and b two values: a gate, not silu"},
           {"file", fs::path(file).parent_path() / "model.py"},
           {"line", 112},
           {"column", 12},
           {"row", 0},
           {"operators", {"aten.sigmoid", "aten.mul.Tensor"}},
           {"calls", 16}}};
}

Json whole_step() {
  return {{"replayed_exactly", true},
          {"values_checked", 4212},
          {"values_wrong", 0},
          {"first_wrong", ""},
          {"cut_points", Json::array()},
          {"fp64_floors", 1.6},
          {"run_floors", 2.1},
          {"floor_replays", 1},
          {"worst_tensor", "grad of _blocks.3._bn1.weight"},
          {"gradient_error_old", 3.3e-5},
          {"gradient_error_new", 3.1e-5},
          {"accepted", true},
          {"reason", ""}};
}

Json costs() {
  return {{"record_s", 0.55},        {"values_s", 2.7},
          {"find_s", 0.21},          {"facts_s", 0.08},
          {"prove_s", 14.2},         {"validate_s", 0.3},
          {"plain_step_s", 2.43},    {"total_in_plain_steps", 7.4},
          {"memory_peak_mb", 3710.5}};
}

Json events() {
  return {
      {{"t", 3.5},
       {"step", 2},
       {"phase", "recording"},
       {"text", "step 2 recorded: 1,901 operators, 1.21x a plain step"}},
      {{"t", 9.2}, {"step", 3}, {"phase", "proving"}, {"text", "1 site, 49 calls, proving"}},
      {{"t", 24.0}, {"step", 4}, {"phase", "measuring"}, {"text", "measuring: up to 64 steps"}}};
}

}  // namespace

SampleRun::SampleRun() {
  static int number = 0;
  path_ = (fs::temp_directory_path() /
           ("opfuse_sample_" + std::to_string(getpid()) + "_" + std::to_string(++number)))
              .string();
  fs::create_directories(path_ + "/state");
  fs::create_directories(path_ + "/efficientnet_pytorch");
  write("efficientnet_pytorch/utils.py", sample_source());
}

SampleRun::~SampleRun() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

Json SampleRun::config() const {
  return {{"version", 1},
          {"opfuse", "0.1.0"},
          {"verb", "tune"},
          {"command",
           {"python", "main.py", "/data/imagenet", "--arch", "efficientnet-b0", "-b", "16",
            "--steps", "60", "--hub-token", "hf_abcdefghijklmnop"}},
          {"environment", {{"OMP_NUM_THREADS", "2"}, {"WANDB_API_KEY", "0123456789abcdef"}}},
          {"cwd", fs::path(path_).parent_path()},
          {"started_unix_s", 1772374320},
          {"run_dir", path_}};
}

Json SampleRun::tuned_process() const {
  const std::string file = source_path();
  return {{"version", 1},
          {"pid", 4242},
          {"argv", {"main.py", "/data/imagenet"}},
          {"script", "main.py"},
          {"rank", nullptr},
          {"world_size", 1},
          {"python", "3.11.7"},
          {"torch", "2.13.0+cpu"},
          {"threads", 2},
          {"phase", "tuned"},
          {"finished", false},
          {"events", events()},
          {"progress", nullptr},
          {"boundary", {{"kind", "optimizer"}, {"name", "SGD.step"}, {"count", 1}}},
          {"model", {{"root", "EfficientNet"}, {"batch", 16}}},
          {"steps", steps_of(true, 1.27)},
          {"outcome", "tuned"},
          {"reason", "the replaced steps are faster"},
          {"trouble", Json::array()},
          {"result",
           {{"operators", 1901},
            {"losses", Json::object()},
            {"costs", costs()},
            {"sites", {sample_site(file)}},
            {"near_misses", near_misses(file)},
            {"plan", {{"version", 1}, {"replacements", Json::array()}}},
            {"verdict",
             {{"sites", {site_verdict()}},
              {"step", whole_step()},
              {"validation",
               {{"accepted", true},
                {"operators_equal", 1509},
                {"sites_replaced", 49},
                {"backward_replaced", 49},
                {"reason", ""},
                {"attempts", 1}}}}},
            {"ab", ab("tuned", 1.27, 1.21, 1.32)},
            {"files",
             {{"step_before", "step_before-4242.ofr"},
              {"step_after", "step_after-4242.ofr"},
              {"trace_before", "trace_before-4242.json"},
              {"trace_after", "trace_after-4242.json"}}},
            {"diffs",
             {{{"file", file},
               {"package", ""},
               {"module", "efficientnet_pytorch.utils"},
               {"before_sha256", sha256_hex(sample_source())},
               {"diff", kDiff},
               {"after", ""}}}}}}};
}

Json SampleRun::process(const std::string& outcome) const {
  Json json = tuned_process();
  Json& result = json["result"];
  json["outcome"] = outcome;
  json["reason"] = "";
  if (outcome == "not_faster") {
    result["ab"] = ab("not_faster", 0.99, 0.97, 1.01);
    json["steps"] = steps_of(true, 0.99);
    result["sites"][0]["kept"] = false;
    result["diffs"] = Json::array();
  } else if (outcome == "undecided") {
    result["ab"] = ab("undecided", 1.03, 0.97, 1.09);
    json["steps"] = steps_of(true, 1.03);
    result["sites"][0]["kept"] = false;
    result["diffs"] = Json::array();
  } else if (outcome != "tuned") {
    json["steps"] = steps_of(false, 1);
    for (const char* key : {"ab", "verdict", "diffs", "plan"}) result.erase(key);
    result["sites"][0]["kept"] = nullptr;
  }
  if (outcome == "nothing_found" || outcome == "recorded") result["sites"] = Json::array();
  if (outcome == "refused")
    result["sites"][0]["refusal"] = {
        {"row", 5},
        {"reason", "the inner value s = sigmoid(x) is kept by Python: self.last = s"},
        {"node", "%2: f32[16,32,112,112] = aten.sigmoid(%1)"}};
  if (outcome == "failed")
    json["reason"] = "proving: the replay ran out of the memory it was given";
  return json;
}

void SampleRun::write_config(const Json& config) const { write("config.json", config.dump()); }

void SampleRun::write_process(int pid, const Json& process) const {
  write("state/process-" + std::to_string(pid) + ".json", process.dump());
}

void SampleRun::write(const std::string& name, const std::string& text) const {
  std::ofstream(path_ + "/" + name, std::ios::binary) << text;
}

namespace {

using trace::EventKind;
using trace::EventRow;
using trace::EventTable;

// Emits calls one after the other; a call that contains others ends where the last of them does.
class StepWriter {
 public:
  StepWriter(const std::string& file, bool replaced) : file_(file), replaced_(replaced) {
    table_.source = "recorder";
    table_.threads.push_back({4242, 4242, table_.strings.intern("MainThread")});
    table_.threads.push_back({4242, 4250, table_.strings.intern("autograd cpu")});
    model_stack_ = stack(frame("model.py", "EfficientNet.forward", 314, 12), trace::kNone);
  }

  EventTable take() { return std::move(table_); }

  int32_t open(const std::string& name, EventKind kind, int32_t stack_row, int64_t sequence) {
    EventRow event;
    event.name = table_.strings.intern(name);
    event.kind = kind;
    event.thread = thread_;
    event.parent = open_.empty() ? trace::kNone : open_.back();
    event.start_ns = now_;
    event.sequence = sequence;
    event.stack = stack_row;
    now_ += 900;
    table_.events.push_back(event);
    open_.push_back(static_cast<int32_t>(table_.events.size()) - 1);
    return open_.back();
  }

  void close() {
    EventRow& event = table_.events[open_.back()];
    now_ += 700;
    event.dur_ns = now_ - event.start_ns;
    open_.pop_back();
    now_ += 1500;
  }

  void leaf(const std::string& name, int64_t ns, const std::vector<int64_t>& shape,
            int32_t stack_row, int64_t sequence = -1) {
    const int32_t row = open(name, EventKind::kOperator, stack_row, -1);
    table_.events[row].forward_sequence = sequence;
    table_.events[row].inputs.push_back(tensor(shape));
    table_.events[row].outputs.push_back(tensor(shape));
    now_ += ns;
    close();
  }

  void conv(const std::vector<int64_t>& shape, int64_t ns) {
    const int32_t at = stack(frame("model.py", "MBConvBlock.forward", 99, 12), model_stack_);
    open("aten::conv2d", EventKind::kOperator, at, -1);
    open("aten::convolution", EventKind::kOperator, at, -1);
    open("aten::_convolution", EventKind::kOperator, at, -1);
    leaf("aten::mkldnn_convolution", ns, shape, at);
    close(), close(), close();
    backward_.push_back(
        {"ConvolutionBackward0", {{"aten::convolution_backward", ns * 2}}, shape, -1});
  }

  void batch_norm(const std::vector<int64_t>& shape, int64_t ns) {
    const int32_t at = stack(frame("model.py", "MBConvBlock.forward", 100, 12), model_stack_);
    open("aten::batch_norm", EventKind::kOperator, at, -1);
    open("aten::_batch_norm_impl_index", EventKind::kOperator, at, -1);
    leaf("aten::native_batch_norm", ns, shape, at);
    close(), close();
    backward_.push_back({"NativeBatchNormBackward0",
                         {{"aten::native_batch_norm_backward", ns * 3 / 2}},
                         shape,
                         -1});
  }

  void swish(const std::vector<int64_t>& shape) {
    int64_t ns = 2000;
    for (int64_t size : shape) ns = size == shape[0] ? size * 400 : ns * size / 20;
    ns = std::clamp<int64_t>(ns, 6000, 2600000);
    const int32_t at = stack(frame(file_, "MemoryEfficientSwish.forward", 80, 15), model_stack_);
    const int64_t sequence = sequence_++;
    if (replaced_) {
      leaf("aten::silu", ns * 3 / 4, shape, at, sequence);
      backward_.push_back({"SiluBackward0", {{"aten::silu_backward", ns}}, shape, sequence});
      return;
    }
    open("SwishImplementation", EventKind::kFunction, at, sequence);
    leaf("aten::sigmoid", ns * 11 / 10, shape,
         stack(frame(file_, "SwishImplementation.forward", 67, 21), at));
    leaf("aten::mul.Tensor", ns, shape,
         stack(frame(file_, "SwishImplementation.forward", 67, 17), at));
    close();
    backward_.push_back({"SwishImplementationBackward",
                         {{"aten::sigmoid", ns * 11 / 10},
                          {"aten::rsub.Scalar", ns * 9 / 10},
                          {"aten::mul.Tensor", ns},
                          {"aten::add.Scalar", ns * 9 / 10},
                          {"aten::mul.Tensor", ns},
                          {"aten::mul.Tensor", ns}},
                         shape,
                         sequence});
  }

  void gate(const std::vector<int64_t>& shape) {
    const int32_t at = stack(frame("model.py", "MBConvBlock.forward", 112, 12), model_stack_);
    leaf("aten::mean.dim", 60000, shape, at);
    conv({shape[0], shape[1] / 4, 1, 1}, 21000);
    swish({shape[0], shape[1] / 4, 1, 1});
    conv({shape[0], shape[1], 1, 1}, 21000);
    leaf("aten::sigmoid", 9000, {shape[0], shape[1], 1, 1}, at);
    leaf("aten::mul.Tensor", 400000, shape, at);
  }

  void run_backward() {
    thread_ = 1;
    for (auto it = backward_.rbegin(); it != backward_.rend(); ++it) {
      open(it->node, EventKind::kAutogradNode, trace::kNone, it->sequence);
      for (const auto& [name, ns] : it->leaves) {
        leaf(name, ns, it->shape, trace::kNone);
      }
      close();
      now_ += 2000;
      open("torch::autograd::AccumulateGrad", EventKind::kAutogradNode, trace::kNone, -1);
      leaf("aten::detach", 1200, it->shape, trace::kNone);
      close();
    }
    thread_ = 0;
  }

  void run_optimizer(int tensors) {
    open("Optimizer.step#SGD.step", EventKind::kUserScope, trace::kNone, -1);
    for (int i = 0; i < tensors; ++i) {
      const int32_t at = stack(frame("sgd.py", "_multi_tensor_sgd", 372 + i % 3, 8), trace::kNone);
      leaf(i % 3 == 0   ? "aten::_foreach_add_.List"
           : i % 3 == 1 ? "aten::_foreach_mul_.Scalar"
                        : "aten::add_.Tensor",
           4000 + i % 7 * 500, {320, 1280}, at);
    }
    close();
  }

 private:
  struct Backward {
    std::string node;
    std::vector<std::pair<std::string, int64_t>> leaves;
    std::vector<int64_t> shape;
    int64_t sequence;
  };

  int32_t frame(const std::string& file, const std::string& function, int line, int column) {
    trace::FrameRow row;
    row.file = table_.strings.intern(file);
    row.function = table_.strings.intern(function);
    row.line = line;
    row.column = column;
    for (size_t i = 0; i < table_.frames.size(); ++i)
      if (table_.frames[i].file == row.file && table_.frames[i].line == line &&
          table_.frames[i].column == column)
        return static_cast<int32_t>(i);
    table_.frames.push_back(row);
    return static_cast<int32_t>(table_.frames.size()) - 1;
  }

  int32_t stack(int32_t frame_row, int32_t parent) {
    for (size_t i = 0; i < table_.stacks.size(); ++i)
      if (table_.stacks[i].frame == frame_row && table_.stacks[i].parent == parent)
        return static_cast<int32_t>(i);
    table_.stacks.push_back({frame_row, parent});
    return static_cast<int32_t>(table_.stacks.size()) - 1;
  }

  trace::ArgumentRow tensor(const std::vector<int64_t>& shape) {
    trace::ArgumentRow argument;
    argument.kind = trace::ArgumentKind::kTensor;
    for (size_t i = 0; i < table_.tensors.size(); ++i)
      if (table_.tensors[i].shape == shape) argument.tensors = {static_cast<int32_t>(i)};
    if (argument.tensors.empty()) {
      trace::TensorRow row;
      row.dtype = DType::kF32;
      row.shape_known = true;
      row.shape = shape;
      argument.tensors = {static_cast<int32_t>(table_.tensors.size())};
      table_.tensors.push_back(row);
    }
    return argument;
  }

  EventTable table_;
  std::string file_;
  bool replaced_;
  int32_t thread_ = 0, model_stack_ = trace::kNone;
  int64_t now_ = 1000000, sequence_ = 100;
  std::vector<int32_t> open_;
  std::vector<Backward> backward_;
};

}  // namespace

// 49 Swish: the stem, 15 expansions, 16 depthwise convolutions, 16 gates, the head.
trace::EventTable sample_step(const std::string& file, bool replaced, int extra) {
  StepWriter writer(file, replaced);
  int64_t channels = 32, size = 112;
  writer.conv({16, channels, size, size}, 9000000);
  writer.batch_norm({16, channels, size, size}, 4000000);
  writer.swish({16, channels, size, size});
  for (int block = 0; block < 16; ++block) {
    if (block == 1 || block == 3 || block == 5 || block == 11)
      size /= 2, channels = channels * 3 / 2;
    if (block > 0) {
      writer.conv({16, channels * 4, size, size}, 4000000);
      writer.batch_norm({16, channels * 4, size, size}, 2500000);
      writer.swish({16, channels * 4, size, size});
    }
    writer.conv({16, channels * 4, size, size}, 5200000);
    writer.batch_norm({16, channels * 4, size, size}, 2500000);
    writer.swish({16, channels * 4, size, size});
    writer.gate({16, channels * 4, size, size});
    writer.conv({16, channels, size, size}, 2100000);
    writer.batch_norm({16, channels, size, size}, 900000);
  }
  writer.conv({16, 1280, 7, 7}, 2600000);
  writer.batch_norm({16, 1280, 7, 7}, 400000);
  writer.swish({16, 1280, 7, 7});
  writer.run_backward();
  writer.run_optimizer(639 + extra);
  return writer.take();
}

TEST(SampleRun, TheSampleStepsCallSwishAsOftenAsEfficientNetB0) {
  int functions = 0, replaced = 0;
  const auto before = sample_step("utils.py", false);
  const auto after = sample_step("utils.py", true);
  for (const auto& event : before.events) functions += before.name(event) == "SwishImplementation";
  for (const auto& event : after.events) replaced += after.name(event) == "aten::silu";
  EXPECT_EQ(functions, 49);
  EXPECT_EQ(replaced, 49);
}

}  // namespace opfuse::report
