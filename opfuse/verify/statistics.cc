#include "opfuse/verify/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace opfuse::verify {
namespace {

// A side that waits for its partner longer than this many samples is stale: the machine has moved
// on.
constexpr int kPartnerWithin = 8;
// Steps that never pair must not keep the test open: this many samples per counted step at most.
constexpr int kSamplesPerStep = 4;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + middle, values.end());
  const double upper = values[middle];
  if (values.size() % 2 == 1) return upper;
  return (upper + *std::max_element(values.begin(), values.begin() + middle)) / 2;
}

// The largest r with 2 P(W <= r) <= alpha for Wilcoxon's signed rank sum W of n pairs under
// symmetry; -1 when even r = 0 is too likely (2 * 2^-n > alpha).
int signed_rank_cut(int n, double alpha) {
  const int top = n * (n + 1) / 2;
  std::vector<double> probability(top + 1, 0.0);
  probability[0] = 1;
  for (int rank = 1; rank <= n; ++rank) {
    for (int sum = top; sum >= 0; --sum)
      probability[sum] = (probability[sum] + (sum >= rank ? probability[sum - rank] : 0.0)) / 2;
  }
  double below = 0;
  int cut = -1;
  while (cut + 1 <= top && 2 * (below + probability[cut + 1]) <= alpha) below += probability[++cut];
  return cut;
}

uint64_t next_random(uint64_t* state) {  // splitmix64
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace

RatioInterval ratio_interval(const std::vector<double>& log_ratios, double alpha) {
  RatioInterval interval;
  const int n = static_cast<int>(log_ratios.size());
  interval.pairs = n;
  interval.high = std::numeric_limits<double>::infinity();
  if (n == 0) return interval;
  const double middle = median(log_ratios);
  interval.ratio = std::exp(middle);
  const int cut = signed_rank_cut(n, alpha);
  if (cut < 0) return interval;
  std::vector<double> walsh;
  walsh.reserve(static_cast<size_t>(n) * (n + 1) / 2);
  for (int i = 0; i < n; ++i)
    for (int j = i; j < n; ++j) walsh.push_back((log_ratios[i] + log_ratios[j]) / 2);
  std::sort(walsh.begin(), walsh.end());
  interval.low = std::exp(std::min(walsh[cut], middle));
  interval.high = std::exp(std::max(walsh[walsh.size() - 1 - cut], middle));
  return interval;
}

std::vector<int> look_schedule(int min_pairs, int max_pairs, double alpha) {
  std::vector<int> candidates;
  for (int n = std::max(1, min_pairs); n <= max_pairs;
       n = std::max(n + 2, static_cast<int>(std::lround(n * 1.25))))
    candidates.push_back(n);
  if (candidates.empty() || candidates.back() != max_pairs) {
    // The budget's last pair is always a look; one just before it would only cost error.
    if (!candidates.empty() && candidates.back() + 1 >= max_pairs) candidates.pop_back();
    if (max_pairs >= 1) candidates.push_back(max_pairs);
  }
  // A look that cannot decide at its share of the error is not a look.
  while (!candidates.empty()) {
    const double share = alpha / static_cast<double>(candidates.size());
    if (std::ldexp(2.0, -candidates.front()) <= share) break;
    candidates.erase(candidates.begin());
  }
  return candidates;
}

AbTest::AbTest(const AbOptions& options) : options_(options), random_state_(options.seed) {
  options_.headline_pairs = std::max(options_.headline_pairs, 1);
  options_.candidates = std::max(options_.candidates, 1);
  const int pairs = options_.max_steps / 2;
  max_choosing_ = std::max(pairs - options_.headline_pairs, 0);
  const double alpha = (1 - options_.confidence) / options_.candidates;
  looks_ = look_schedule(options_.min_pairs, max_choosing_, alpha);
  look_alpha_ = looks_.empty() ? alpha : alpha / static_cast<double>(looks_.size());
  if (looks_.empty()) {  // the budget cannot decide anything: the original stays
    phase_ = AbPhase::kDone;
    outcome_ = AbOutcome::kUndecided;
  }
  first_side_ = next_random(&random_state_) >> 63;
}

bool AbTest::next() {
  if (phase_ == AbPhase::kDone) return outcome_ == AbOutcome::kTuned;
  return position_ == 0 ? first_side_ : !first_side_;
}

void AbTest::discard() {
  // The same side runs again: a pair keeps its order.
}

void AbTest::add(const StepSample& sample) {
  if (phase_ == AbPhase::kDone) return;
  ++samples_;
  waiting_.push_back(sample);
  waiting_since_.push_back(samples_);
  if (sample.replaced == next()) {
    position_ = 1 - position_;
    if (position_ == 0) first_side_ = next_random(&random_state_) >> 63;
  }
  maybe_pair();
  decide();
}

void AbTest::maybe_pair() {
  const StepSample newest = waiting_.back();
  for (size_t i = waiting_.size() - 1; i-- > 0;) {
    const StepSample other = waiting_[i];
    if (other.replaced == newest.replaced || other.signature != newest.signature) continue;
    Pair pair{newest.replaced ? other : newest, newest.replaced ? newest : other};
    (phase_ == AbPhase::kChoosing ? choosing_ : headline_).push_back(pair);
    counted_seconds_ += newest.wall_s + other.wall_s;
    waiting_.pop_back();
    waiting_since_.pop_back();
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    waiting_since_.erase(waiting_since_.begin() + static_cast<std::ptrdiff_t>(i));
    break;
  }
  while (!waiting_since_.empty() && waiting_since_.front() + kPartnerWithin < samples_) {
    waiting_since_.erase(waiting_since_.begin());
    waiting_.erase(waiting_.begin());
  }
}

void AbTest::finish(AbOutcome outcome) {
  phase_ = AbPhase::kDone;
  outcome_ = outcome;
  waiting_.clear();
  waiting_since_.clear();
}

void AbTest::decide() {
  const bool out_of_time = counted_seconds_ >= options_.max_seconds ||
                           samples_ >= int64_t{kSamplesPerStep} * options_.max_steps;
  if (phase_ == AbPhase::kChoosing) {
    const int pairs = static_cast<int>(choosing_.size());
    if (next_look_ < looks_.size() && pairs >= looks_[next_look_]) {
      ++next_look_;
      const RatioInterval interval = choosing_wall();
      if (interval.high < 1) return finish(AbOutcome::kNotFaster);
      if (interval.low > 1) {
        phase_ = AbPhase::kHeadline;
        waiting_.clear();  // fresh pairs only
        waiting_since_.clear();
        position_ = 0;
        first_side_ = next_random(&random_state_) >> 63;
        return;
      }
    }
    if (pairs >= max_choosing_ || out_of_time) finish(AbOutcome::kUndecided);
    return;
  }
  if (phase_ != AbPhase::kHeadline) return;
  if (static_cast<int>(headline_.size()) < options_.headline_pairs && !out_of_time) return;
  const RatioInterval interval = headline_wall();
  finish(interval.low > 1    ? AbOutcome::kTuned
         : interval.high < 1 ? AbOutcome::kNotFaster
                             : AbOutcome::kUndecided);
}

namespace {

template <class Pairs>
std::vector<double> log_ratios(const Pairs& pairs, double StepSample::* time) {
  std::vector<double> logs;
  for (const auto& pair : pairs) {
    const double before = pair.old_side.*time, after = pair.new_side.*time;
    if (before > 0 && after > 0) logs.push_back(std::log(before / after));
  }
  return logs;
}

}  // namespace

RatioInterval AbTest::choosing_wall() const {
  return ratio_interval(log_ratios(choosing_, &StepSample::wall_s), look_alpha_);
}

RatioInterval AbTest::headline_wall() const {
  return ratio_interval(log_ratios(headline_, &StepSample::wall_s), 1 - options_.confidence);
}

RatioInterval AbTest::headline_cpu() const {
  return ratio_interval(log_ratios(headline_, &StepSample::cpu_s), 1 - options_.confidence);
}

int AbTest::counted_steps() const {
  return 2 * static_cast<int>(choosing_.size() + headline_.size());
}

}  // namespace opfuse::verify
