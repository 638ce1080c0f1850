#include "opfuse/trace/byte_source.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "opfuse/trace/inflater.h"

namespace opfuse::trace {
namespace {

class FileSource : public ByteSource {
 public:
  FileSource(int file, bool owned) : file_(file), owned_(owned) {}
  ~FileSource() override {
    if (owned_) ::close(file_);
  }
  size_t read(char* out, size_t size) override {
    ssize_t got;
    do got = ::read(file_, out, size);
    while (got < 0 && errno == EINTR);
    return got > 0 ? static_cast<size_t>(got) : 0;
  }

 private:
  int file_;
  bool owned_;
};

class TextSource : public ByteSource {
 public:
  explicit TextSource(std::string text) : text_(std::move(text)) {}
  size_t read(char* out, size_t size) override {
    size = std::min(size, text_.size() - used_);
    std::memcpy(out, text_.data() + used_, size);
    used_ += size;
    return size;
  }

 private:
  std::string text_;
  size_t used_ = 0;
};

// What was read to look at it, then the rest.
class PrefixedSource : public ByteSource {
 public:
  PrefixedSource(std::string prefix, std::unique_ptr<ByteSource> rest)
      : prefix_(std::move(prefix)), rest_(std::move(rest)) {}
  size_t read(char* out, size_t size) override {
    if (used_ == prefix_.size()) return rest_->read(out, size);
    size = std::min(size, prefix_.size() - used_);
    std::memcpy(out, prefix_.data() + used_, size);
    used_ += size;
    return size;
  }

 private:
  std::string prefix_;
  size_t used_ = 0;
  std::unique_ptr<ByteSource> rest_;
};

class InflatedSource : public ByteSource {
 public:
  explicit InflatedSource(std::unique_ptr<ByteSource> compressed)
      : compressed_(std::move(compressed)), in_(kIn) {}

  size_t read(char* out, size_t size) override {
    while (!done_) {
      // What was taken in may still hold output, when the last call filled all of `out`.
      if (used_ == have_ && !pending_ && !refill()) break;
      size_t taken = have_ - used_, made = size;
      const Inflater::State state = inflater_.run(in_.data() + used_, &taken, out, &made);
      used_ += taken;
      offset_ += static_cast<int64_t>(taken);
      pending_ = made == size;
      switch (state) {
        case Inflater::State::kMore:
          if (made == 0 && taken == 0 && used_ < have_) return damage(0);
          break;
        case Inflater::State::kMemberEnd:
          begun_ = false;
          if (!starts_member()) done_ = true;
          break;
        case Inflater::State::kDamaged:
          return damage(made);
      }
      if (made > 0) return made;
    }
    if (!done_ && begun_) {
      losses_.add(LossKind::kStreamCut, offset_);
      done_ = true;
    }
    return 0;
  }

 private:
  static constexpr size_t kIn = 128 << 10;

  bool refill() {
    if (used_ == have_) used_ = have_ = 0;
    const size_t got = compressed_->read(in_.data() + have_, in_.size() - have_);
    have_ += got;
    return got > 0;
  }

  // After a member: another one, the end, or bytes that are neither.
  bool starts_member() {
    if (have_ - used_ < 2) {
      std::memmove(in_.data(), in_.data() + used_, have_ - used_);
      have_ -= used_;
      used_ = 0;
      while (have_ < 2 && refill()) {
      }
    }
    if (have_ == used_) return false;
    if (have_ - used_ >= 2 && in_[used_] == '\x1f' && in_[used_ + 1] == '\x8b') {
      inflater_.reset();
      begun_ = true;
      return true;
    }
    // Zeros pad the last block of a tape.
    const bool padding =
        std::all_of(in_.data() + used_, in_.data() + have_, [](char c) { return c == '\0'; });
    if (!padding) losses_.add(LossKind::kStreamTail, offset_);
    return false;
  }

  size_t damage(size_t made) {
    losses_.add(LossKind::kStreamDamaged, offset_);
    done_ = true;
    return made;
  }

  std::unique_ptr<ByteSource> compressed_;
  Inflater inflater_;
  std::vector<char> in_;
  size_t used_ = 0, have_ = 0;
  int64_t offset_ = 0;  // in the compressed file
  bool begun_ = true;   // inside a member
  bool pending_ = false, done_ = false;
};

// Another thread reads blocks while the caller works on the ones before.
class AheadSource : public ByteSource {
 public:
  explicit AheadSource(std::unique_ptr<ByteSource> source)
      : source_(std::move(source)), blocks_(kBlocks), worker_([this] { work(); }) {}
  ~AheadSource() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

  size_t read(char* out, size_t size) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return made_ > taken_ || ended_; });
    if (made_ == taken_) {
      losses_ = source_->losses();
      return 0;
    }
    lock.unlock();
    Block& block = blocks_[taken_ % kBlocks];
    size = std::min(size, block.size - used_);
    std::memcpy(out, block.bytes.data() + used_, size);
    used_ += size;
    if (used_ == block.size) {
      used_ = 0;
      lock.lock();
      ++taken_;
      lock.unlock();
      changed_.notify_all();
    }
    return size;
  }

 private:
  static constexpr size_t kBlocks = 4, kBlock = 512 << 10;
  struct Block {
    std::vector<char> bytes = std::vector<char>(kBlock);
    size_t size = 0;
  };

  void work() {
    while (true) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return made_ - taken_ < kBlocks || stop_; });
        if (stop_) return;
      }
      Block& block = blocks_[made_ % kBlocks];
      block.size = read_fully(source_.get(), block.bytes.data(), block.bytes.size());
      {
        std::lock_guard lock(mutex_);
        if (block.size > 0) ++made_;
        if (block.size < block.bytes.size()) ended_ = true;
      }
      changed_.notify_all();
      if (block.size < block.bytes.size()) return;
    }
  }

  std::unique_ptr<ByteSource> source_;
  std::vector<Block> blocks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t made_ = 0, taken_ = 0, used_ = 0;
  bool ended_ = false, stop_ = false;
  std::thread worker_;
};

}  // namespace

size_t read_fully(ByteSource* source, char* out, size_t size) {
  size_t have = 0;
  while (have < size) {
    const size_t got = source->read(out + have, size - have);
    if (got == 0) break;
    have += got;
  }
  return have;
}

std::unique_ptr<ByteSource> bytes_of(std::string text) {
  return std::make_unique<TextSource>(std::move(text));
}

std::unique_ptr<ByteSource> inflate(std::unique_ptr<ByteSource> compressed) {
  return std::make_unique<InflatedSource>(std::move(compressed));
}

std::unique_ptr<ByteSource> read_ahead(std::unique_ptr<ByteSource> source) {
  return std::make_unique<AheadSource>(std::move(source));
}

Result<std::unique_ptr<ByteSource>> open_bytes(const std::string& path, int threads) {
  const bool standard_input = path == "-";
  const int file = standard_input ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return Error{fmt::format("{}: {}", path, std::strerror(errno))};
  std::unique_ptr<ByteSource> source = std::make_unique<FileSource>(file, !standard_input);
  std::string head(2, '\0');
  head.resize(read_fully(source.get(), head.data(), head.size()));
  const bool is_gzip = head == "\x1f\x8b";
  source = std::make_unique<PrefixedSource>(std::move(head), std::move(source));
  if (!is_gzip) return source;
  source = inflate(std::move(source));
  if (threads > 1) source = read_ahead(std::move(source));
  return source;
}

}  // namespace opfuse::trace
