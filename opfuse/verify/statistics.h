#pragma once
// A/B statistics over alternating live steps: randomised pairs of equal input shapes, ratio =
// exp(median log(old/new)), an interval that stays valid under repeated looks, fresh pairs for the
// headline. Decides which side runs next.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace opfuse::verify {

struct StepSample {
  bool replaced = false;  // which side ran
  double wall_s = 0, cpu_s = 0, data_s = 0;
  uint64_t signature = 0;  // input shapes + operator-count class; pairs need equal ones
  int64_t step = 0;
};

struct RatioInterval {
  double ratio = 0, low = 0, high = 0;  // old / new: above 1 is faster
  int pairs = 0;
};

enum class AbPhase : uint8_t { kChoosing, kHeadline, kDone };
enum class AbOutcome : uint8_t { kRunning, kTuned, kNotFaster, kUndecided };

struct AbOptions {
  int max_steps = 64;        // counted steps: those that enter a pair
  double max_seconds = 180;  // of counted steps, whichever is first
  int headline_pairs = 12;
  int min_pairs = 4;
  double confidence = 0.95;
  int candidates = 1;  // the error is split over them
  uint64_t seed = 1;   // equal on all ranks
};

// Usage at every step boundary: add() the sample of the step that just ended (unless it must not be
// paired), then next() says whether the coming step runs replaced.
class AbTest {
 public:
  explicit AbTest(const AbOptions& options);
  bool next();  // side of the coming step; keeps giving the decided side when done
  void add(const StepSample& sample);
  void discard();  // the step cannot be used (skipped, odd operator count)
  AbPhase phase() const { return phase_; }
  AbOutcome outcome() const { return outcome_; }
  RatioInterval choosing_wall() const;
  RatioInterval headline_wall() const;
  RatioInterval headline_cpu() const;
  int counted_steps() const;

 private:
  struct Pair {
    StepSample old_side, new_side;
  };
  void maybe_pair();
  void decide();
  void finish(AbOutcome outcome);

  AbOptions options_;
  AbPhase phase_ = AbPhase::kChoosing;
  AbOutcome outcome_ = AbOutcome::kRunning;
  std::vector<Pair> choosing_, headline_;
  std::vector<StepSample> waiting_;     // sides without a partner yet, oldest first
  std::vector<int64_t> waiting_since_;  // samples_ when each arrived
  std::vector<int> looks_;              // choosing: numbers of pairs at which it may be decided
  size_t next_look_ = 0;
  double look_alpha_ = 0;  // error spent at each look
  int max_choosing_ = 0;
  int64_t samples_ = 0;
  uint64_t random_state_ = 0;
  int position_ = 0;
  bool first_side_ = false;
  double counted_seconds_ = 0;
};

// exp(median) with a 1 - alpha interval by inverting Wilcoxon's signed rank test (order statistics
// of the Walsh averages). Valid for any noise whose log ratio is symmetric about its centre, which
// randomising the order inside each pair gives; high is infinite when there are too few pairs.
RatioInterval ratio_interval(const std::vector<double>& log_ratios, double alpha);

// Numbers of pairs at which the choosing phase looks. The error is spent equally over the looks, so
// their union bound holds whatever the dependence; looks too early to decide anything are left out.
std::vector<int> look_schedule(int min_pairs, int max_pairs, double alpha);

}  // namespace opfuse::verify
