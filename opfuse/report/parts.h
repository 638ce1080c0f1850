#pragma once
// The parts of a Report that report.json and a process's RESULT write in the same way.
// Internal to report/.

#include "opfuse/report/fields.h"
#include "opfuse/report/report.h"

namespace opfuse::report {

void read_costs(const Fields& from, Costs* to);
void read_speed(const Fields& from, Speed* to);
void read_versus(const Fields& from, Versus* to);
void read_levers(const Fields& from, const char* key, std::vector<Lever>* to);
void read_sites(const Fields& from, const char* key, std::vector<Site>* to);
void read_near_misses(const Fields& from, const char* key, std::vector<NearMiss>* to);
void read_candidates(const Fields& from, const char* key, std::vector<Candidate>* to);
void read_verdict(const Fields& from, verify::Verdict* to);
void read_steps(const Fields& from, const char* key, std::vector<StepTime>* to);
void read_events(const Fields& from, const char* key, std::vector<Event>* to);
void read_diffs(const Fields& from, const char* key, std::vector<Diff>* to);
void read_counts(const Fields& from, const char* key, std::map<std::string, int64_t>* to);
void read_texts(const Fields& from, const char* key, std::map<std::string, std::string>* to);

Json json_of(const Costs& costs);
Json json_of(const Speed& speed);
Json json_of(const Lever& lever);
Json json_of(const Versus& versus);
Json json_of(const Site& site);
Json json_of(const NearMiss& miss);
Json json_of(const Candidate& candidate);
Json json_of(const verify::Verdict& verdict);
Json json_of(const StepTime& step);
Json json_of(const Event& event);
Json json_of(const Diff& diff);
Json json_of(const ChainOperator& op);
Json json_of(const verify::TensorError& error);
Json json_of(const verify::SiteVerdict& site);

template <class T>
Json json_array(const std::vector<T>& list) {
  Json array = Json::array();
  for (const T& element : list) array.push_back(json_of(element));
  return array;
}

}  // namespace opfuse::report
