#pragma once
// Numbers and names as every form of the report writes them. Internal to report/.

#include <cstdint>
#include <string>
#include <string_view>

#include "opfuse/report/report.h"

namespace opfuse::report {

std::string format_count(int64_t count);      // "1,901"
std::string format_seconds(double seconds);   // "2.43 s", "12.3 ms", "41 us"
std::string format_duration(double seconds);  // "1 h 03 min", "4 min 12 s", "12 s"
std::string format_rate(double per_second);   // "6.6", "1,502"
std::string format_ratio(double ratio);       // "1.27x"
std::string format_interval(const verify::RatioInterval& interval);  // "1.27x [1.21, 1.32]"
std::string format_error(double error);                              // "3.6e-07", "0"
std::string format_bytes(int64_t bytes);                             // "23.5 GiB"
std::string plural(int64_t count, std::string_view noun);            // "1 call", "1,901 operators"
std::string file_name(std::string_view path);                        // the part after the last '/'
std::string shell_quoted(const std::vector<std::string>& command);
std::string utc_time(double unix_s);  // "2026-03-01 14:12 UTC"; "" for 0

bool is_inference(const Report& report);
std::string place_of(const Site& site);          // "utils.py:80 (via :67)"
std::string equivalence_text(const Site& site);  // "same formula, other roundings (E1)"
const verify::SiteVerdict* verdict_of(const Report& report, int site);
// "proved, E1", "refused", "not proved".
std::string proof_text(const Report& report, const Site& site);
// Largest error of the new code over the largest of the old, on captured inputs: "1.0x old".
std::string error_text(const Report& report, const Site& site);

}  // namespace opfuse::report
