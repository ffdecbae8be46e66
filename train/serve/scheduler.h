// Declares the scheduler for continuous batching: one model continues the texts of many requests as
// one batch. Requests wait in the order in which they arrived, and their texts join the batch when
// other texts leave it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/timing.h"
#include "train/tasks/text_batch.h"

namespace lathe {

/// Describes a text of a request.
struct ServedText {
  std::vector<int64_t> ids;  ///< the prompt, not empty
  Sampling sampling{};
  uint64_t index = 0;          ///< BatchText::index
  int64_t max_tokens = 0;      ///< largest number of new tokens; 0: the prompt is only scored
  bool scores = false;         ///< whether to report log probabilities of new tokens
  int64_t top = 0;             ///< number of likeliest tokens to report for each position
  bool scores_prompt = false;  ///< whether to also score the prompt, which must fit into the
                               ///< context
};

/// The reason for which a text ended.
enum class TextEnd {
  stop,       ///< on_token() returned false
  length,     ///< the text has max_tokens new tokens
  cancelled,  ///< the text's receiver is cancelled
  late,       ///< the text's request has passed its deadline
  failed,     ///< the model failed
  shutdown    ///< the server stops
};

/// Receives the texts of a request. All functions are called by the thread of Scheduler::run().
/// `text` is the index of the text in the request.
class TextReceiver {
 public:
  virtual ~TextReceiver() = default;
  /// Receives the score of the prompt's token at `position`. The position is at least 1, since the
  /// first token has no score.
  virtual void on_prompt(size_t text, size_t position, const TokenScore& score) = 0;
  /// Receives a token, with NaN as its log probability unless the text is scored. Returns whether
  /// the text continues.
  virtual bool on_token(size_t text, const TokenScore& score) = 0;
  /// Receives the end of a text, once. `why` is the message of the error if `end` is
  /// TextEnd::failed, otherwise empty.
  virtual void on_end(size_t text, TextEnd end, const std::string& why) = 0;
  /// Returns whether the texts may be dropped.
  virtual bool is_cancelled() const = 0;
};

/// The parameters of a scheduler.
struct SchedulerOptions {
  BatchOptions batch;  ///< limits of the batch; `capacity` and `context` limit the length of texts
  size_t queue = 64;   ///< largest number of requests that wait for a place in the batch
};

/// Generates the texts of requests. Each text equals the text that generate() would return without
/// any other text, whatever else is in the batch. TextBatch states how exactly this holds.
class Scheduler {
 public:
  /// The model must outlive the scheduler.
  Scheduler(const Model& model, const SchedulerOptions& options)
      : batch_(model, options.batch), queue_(options.queue) {
    running_.resize(static_cast<size_t>(options.batch.texts));
  }

  enum class Submitted { accepted, full, stopping };
  /// Adds a request from any thread. If the request is not complete at `deadline`, its texts end
  /// with TextEnd::late. The receiver is kept until the last text of the request has ended.
  Submitted submit(std::vector<ServedText> texts, std::shared_ptr<TextReceiver> receiver,
                   Clock::time_point deadline);
  /// Generates texts until `stops` returns true. Then accepts no further requests, and completes
  /// the accepted requests for up to `grace_s` seconds. Texts that are not complete after this time
  /// end with TextEnd::shutdown. `stops` is called between tokens, and several times a second while
  /// there are no texts. Call run() once, on the thread on which the number of CPU threads was set.
  void run(const std::function<bool()>& stops, double grace_s);

 private:
  struct Request {
    std::vector<ServedText> texts;
    std::shared_ptr<TextReceiver> receiver;
    Clock::time_point deadline;
    size_t started = 0;  // number of texts that have joined the batch
  };
  // Refers to the text in a row of the batch.
  struct Running {
    std::shared_ptr<Request> request;  // null: the row is free
    size_t text = 0;                   // index in the request
    int64_t tokens = 0;                // number of generated tokens
  };

  /// Returns the reason to end the texts of a request now; nullopt if there is no reason.
  static std::optional<TextEnd> due_end(const Request& request);
  void drop_due();
  void admit();
  void join(const std::shared_ptr<Request>& request, size_t text);
  void step();
  void receive(const NextToken& token);
  void free_row();
  void end(size_t row, TextEnd end, const std::string& why = "");
  /// Ends all texts, including texts that wait.
  void end_all(TextEnd reason);

  TextBatch batch_;
  size_t queue_;
  std::vector<Running> running_;  // for each row of the batch

  std::mutex mutex_;      // guards the members below
  size_t free_rows_ = 0;  // free rows of the batch; submit() accepts this many requests in addition
                          // to queue_
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Request>> waiting_;  // requests with texts that have not joined
  bool is_stopping_ = false;
};

}  // namespace lathe
