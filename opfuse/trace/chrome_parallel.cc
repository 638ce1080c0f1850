#include "opfuse/trace/chrome_parallel.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace opfuse::trace {
namespace {

// Text that is read before the columns are reserved by what it became.
constexpr int64_t kSample = 4 << 20;

// Bytes that are not filled with zeros before they are read, and what JsonWindow writes behind.
class Buffer {
 public:
  std::string_view text() const { return {bytes_.get(), size_}; }
  char* data() { return bytes_.get(); }
  size_t size() const { return size_; }
  void set_size(size_t size) { size_ = size; }
  void reserve(size_t size) {
    if (size <= capacity_) return;
    auto larger = std::make_unique_for_overwrite<char[]>(size + JsonWindow::kPadding);
    std::copy_n(bytes_.get(), size_, larger.get());
    bytes_ = std::move(larger);
    capacity_ = size;
  }

 private:
  std::unique_ptr<char[]> bytes_;
  size_t size_ = 0, capacity_ = 0;
};

class Reader;

// A piece of text and what was read from it. Used again, because the memory of a piece that the
// system takes back and gives anew costs a quarter of its reading.
struct Piece {
  Buffer text;
  int64_t offset = 0;
  JsonWalker::Place place = JsonWalker::Place::kEvents;
  bool last = false;

  Reader* reader = nullptr;  // whose ids the rows have
  TraceFile rows;
  // What is new to the reader since its last piece, and threads that got a name in this one.
  std::vector<std::string_view> texts;
  std::vector<std::pair<int32_t, FileThread>> threads;  // by the reader's row
  std::vector<StringId> categories;                     // all of the reader's
  bool between_events = false;
  bool done = false;
};

// What one thread reads with. It stays from piece to piece: texts, threads, categories and the
// layouts of events are learned once a thread.
class Reader {
 public:
  Reader() : walker_(&part_.losses, &part_.header, chrome_events_of(&part_)) {}

  void read(Piece* piece, bool bare) {
    walker_.run_piece(piece->text.data(), piece->text.size(), piece->offset, piece->place, bare,
                      piece->last);
    piece->reader = this;
    piece->between_events = walker_.between_events();
    for (; texts_ < part_.strings.size(); ++texts_)
      piece->texts.push_back(part_.strings.get(texts_));
    for (size_t i = 0; i < part_.threads.size(); ++i) {
      FileThread& thread = part_.threads[i];
      if (i >= threads_ || thread.process != 0 || thread.name != 0)
        piece->threads.emplace_back(static_cast<int32_t>(i), thread);
      thread.process = thread.name = 0;
    }
    threads_ = part_.threads.size();
    piece->categories = part_.categories;
    part_.swap_rows(&piece->rows);
    piece->rows.bytes = static_cast<int64_t>(piece->text.size());
  }

  // Of the thread that joins.
  RowsInFile in_file;

 private:
  TraceFile part_;
  JsonWalker walker_;
  StringId texts_ = 0;
  size_t threads_ = 0;
};

// The pieces that are left, then the rest of the source.
class RestSource : public ByteSource {
 public:
  RestSource(std::deque<std::unique_ptr<Piece>>* pieces, std::string tail, ByteSource* rest)
      : pieces_(*pieces), tail_(std::move(tail)), rest_(rest) {}
  size_t read(char* out, size_t size) override {
    while (!pieces_.empty()) {
      const size_t got = take(pieces_.front()->text.text(), out, size);
      if (got > 0) return got;
      pieces_.pop_front();
      used_ = 0;
    }
    if (const size_t got = take(tail_, out, size); got > 0) return got;
    return rest_->read(out, size);
  }

 private:
  size_t take(std::string_view text, char* out, size_t size) {
    size = std::min(size, text.size() - used_);
    std::copy_n(text.data() + used_, size, out);
    used_ += size;
    return size;
  }

  std::deque<std::unique_ptr<Piece>>& pieces_;
  std::string tail_;
  size_t used_ = 0;
  ByteSource* rest_;
};

// The text before which a new event begins, as the first event shows it: its line's indentation and
// brace, or, in a file without lines, the two bytes before it and its first member's name.
std::string boundary_of(std::string_view text) {
  size_t array = text.find_first_not_of(" \t\r\n");
  if (array == text.npos) return {};
  if (text[array] != '[') {
    const size_t key = text.find("\"traceEvents\"");
    array = key == text.npos ? key : text.find('[', key);
  }
  const size_t brace = array == text.npos ? array : text.find('{', array);
  if (brace == text.npos) return {};
  const size_t line = text.rfind('\n', brace);
  if (line != text.npos && line > array) return std::string(text.substr(line, brace + 1 - line));
  const size_t end = text.find("},", brace);
  const size_t next = end == text.npos ? end : text.find('{', end);
  const size_t key_end = next == text.npos ? next : text.find(':', next);
  if (key_end == text.npos || key_end - next > 20) return {};
  return std::string(text.substr(next - 1, key_end + 2 - next));
}

class ParallelReader {
 public:
  ParallelReader(ByteSource* source, const ChromeReadOptions& options, TraceFile* file)
      : source_(source), options_(options), file_(*file), joiner_(file) {}

  void run() {
    for (int i = 0; i < options_.threads; ++i) readers_.push_back(std::make_unique<Reader>());
    for (size_t i = 1; i < readers_.size(); ++i)
      workers_.emplace_back([this, reader = readers_[i].get()] { work(reader); });
    while (Piece* piece = next_piece()) {
      parse(piece, readers_[0].get());
      join_ready(outstanding() >= most_outstanding());
    }
    while (!broken_ && outstanding() > 0) join_ready(true);
    stop();
    if (broken_) read_rest();
    file_.losses.merge(source_->losses());
  }

 private:
  // A thread reads the text that it takes: it is in this core's caches then.
  Piece* next_piece() {
    std::lock_guard reading(source_mutex_);
    return ended_ || broken_ ? nullptr : add_piece();
  }

  size_t most_outstanding() const { return 4 * static_cast<size_t>(options_.threads); }
  size_t outstanding() {
    std::lock_guard lock(mutex_);
    return pieces_.size();
  }

  // Reads on until there is a cut; nullptr where none is found.
  Piece* add_piece() {
    std::unique_ptr<Piece> piece = spare();
    Buffer& buffer = piece->text;
    const size_t have = tail_.size(), wanted = std::max(options_.piece_bytes, have * 2);
    buffer.reserve(wanted);
    std::ranges::copy(tail_, buffer.data());
    tail_.clear();
    const size_t got = read_fully(source_, buffer.data() + have, wanted - have);
    buffer.set_size(have + got);
    ended_ = have + got < wanted;
    const std::string_view text = buffer.text();
    if (first_) {
      boundary_ = boundary_of(text);
      const size_t begin = text.find_first_not_of(" \t\r\n");
      bare_ = begin != text.npos && text[begin] == '[';
    }
    if (!ended_) {
      size_t cut = boundary_.empty() ? text.npos : text.rfind(boundary_);
      if (cut == text.npos || cut == 0) {
        broken_ = true;
        tail_ = text;
        return nullptr;
      }
      ++cut;  // behind the newline or comma
      tail_ = text.substr(cut);
      buffer.set_size(cut);
    }
    piece->offset = offset_;
    piece->place = first_ ? JsonWalker::Place::kStart : JsonWalker::Place::kEvents;
    piece->last = ended_;
    offset_ += static_cast<int64_t>(buffer.size());
    first_ = false;
    std::lock_guard lock(mutex_);
    pieces_.push_back(std::move(piece));
    return pieces_.back().get();
  }

  // A piece that is joined already, without what it held but with its memory.
  std::unique_ptr<Piece> spare() {
    std::lock_guard lock(mutex_);
    if (spares_.empty()) return std::make_unique<Piece>();
    std::unique_ptr<Piece> piece = std::move(spares_.back());
    spares_.pop_back();
    piece->text.set_size(0);
    piece->between_events = piece->done = false;
    return piece;
  }

  void parse(Piece* piece, Reader* reader) {
    reader->read(piece, bare_);
    {
      std::lock_guard lock(mutex_);
      piece->done = true;
    }
    changed_.notify_all();
  }

  void work(Reader* reader) {
    while (true) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || pieces_.size() < most_outstanding(); });
        if (stop_) return;
      }
      Piece* piece = next_piece();
      if (piece == nullptr) return;
      parse(piece, reader);
    }
  }

  void join(Piece* piece) {
    RowsInFile& rows = piece->reader->in_file;
    joiner_.add_texts(piece->texts, &rows);
    for (const auto& [row, thread] : piece->threads) joiner_.add_thread(row, thread, &rows);
    joiner_.add_categories(piece->categories, &rows);
    joiner_.append(&piece->rows, rows);
    piece->texts.clear();
    piece->threads.clear();
    if (reserved_ || file_.bytes < kSample) return;
    reserve_columns(&file_, file_.bytes, options_.expected_bytes);
    reserved_ = true;
  }

  // Joins what is done, in order. `wait`: for the first piece.
  void join_ready(bool wait) {
    while (true) {
      Piece* piece = nullptr;
      {
        std::unique_lock lock(mutex_);
        if (pieces_.empty()) return;
        piece = pieces_.front().get();
        if (wait) changed_.wait(lock, [&] { return piece->done; });
        if (!piece->done) return;
      }
      wait = false;
      if (!piece->last && !piece->between_events) {
        broken_ = true;
        return;
      }
      join(piece);
      {
        std::lock_guard lock(mutex_);
        spares_.push_back(std::move(pieces_.front()));
        pieces_.pop_front();
      }
      changed_.notify_all();
    }
  }

  void stop() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
  }

  void read_rest() {
    const int64_t offset = pieces_.empty() ? offset_ : pieces_.front()->offset;
    const bool at_start = pieces_.empty() ? first_ : pieces_.front()->offset == 0;
    RestSource rest(&pieces_, std::move(tail_), source_);
    JsonWalker walker(&rest, offset, &file_.losses, &file_.header, chrome_events_of(&file_));
    walker.run(at_start ? JsonWalker::Place::kStart : JsonWalker::Place::kEvents, bare_, true);
    file_.bytes += walker.done_offset() - offset;
  }

  ByteSource* source_;
  const ChromeReadOptions& options_;
  TraceFile& file_;
  std::string boundary_, tail_;
  FileJoiner joiner_;
  int64_t offset_ = 0;
  bool reserved_ = false, first_ = true, bare_ = false, ended_ = false;
  std::atomic<bool> broken_ = false;

  std::mutex source_mutex_;  // of what add_piece() uses
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Reader>> readers_;  // one a thread; pieces refer to them
  std::deque<std::unique_ptr<Piece>> pieces_;
  std::vector<std::unique_ptr<Piece>> spares_;
  std::vector<std::thread> workers_;
  bool stop_ = false;
};

}  // namespace

void read_chrome_parallel(ByteSource* source, const ChromeReadOptions& options, TraceFile* file) {
  ParallelReader(source, options, file).run();
}

}  // namespace opfuse::trace
