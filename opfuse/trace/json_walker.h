#pragma once
// Walks over the outside of a trace file: the top-level members, and the objects of the array that
// holds the events, which a Reader takes one by one. Tolerant: what cannot be read is skipped to
// the next object, counted and located. Internal to trace/.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "opfuse/trace/json_window.h"

namespace opfuse::trace {

enum class Scan : uint8_t {
  kDone,
  kMore,  // the window ends inside
  kBad,   // not an event; nothing was added
};

// Reads the objects of the events' array.
class ObjectReader {
 public:
  virtual ~ObjectReader() = default;
  // `*at` points to the brace and, when done, behind the object.
  virtual Scan scan(const char** at) = 0;
  // Whether a text begins at `at` that can be an event: a brace and one of its members' names.
  virtual bool looks_like_event(const char* at) const = 0;
};

class JsonWalker {
 public:
  enum class Place : uint8_t { kStart, kObject, kEvents, kDone };

  // Makes the reader for the events of member `key` ("" for a bare array).
  using MakeReader =
      std::function<std::unique_ptr<ObjectReader>(std::string_view key, const JsonWindow* window)>;

  JsonWalker(ByteSource* source, int64_t offset, LossLog* losses,
             std::map<std::string, std::string>* header, MakeReader make_reader);
  // For pieces in memory; its reader stays for the next piece, with what it learned.
  JsonWalker(LossLog* losses, std::map<std::string, std::string>* header, MakeReader make_reader);

  // Reads to the end of the source. `place`: where it begins; `bare`: the events are the whole
  // file. `last`: the file ends with the source.
  void run(Place place, bool bare, bool last);
  // The same for the piece `text` of the file, as JsonWindow::show.
  void run_piece(char* text, size_t size, int64_t offset, Place place, bool bare, bool last);
  // At the end: nothing was lost and the source ended between two events.
  bool between_events() const { return place_ == Place::kEvents && clean_; }
  int64_t offset() const { return window_.offset_of(at_); }
  int64_t done_offset() const { return window_.offset_of(window_.end()); }
  // Called now and then with the bytes read so far.
  std::function<void(int64_t)> on_progress;

 private:
  bool more();  // reads on from at_; false at the end
  bool skip_space();
  void start();
  void top_member();
  void events();
  void event();
  void resync();
  void stray(const char* from);
  bool value(std::string* kept);
  bool read_key(std::string* key);

  JsonWindow window_;
  const char* at_;
  LossLog& losses_;
  std::map<std::string, std::string>& header_;
  MakeReader make_reader_;
  std::unique_ptr<ObjectReader> reader_;
  Place place_ = Place::kStart;
  bool bare_ = false, clean_ = true, comma_ = true;
};

}  // namespace opfuse::trace
