#include "train/serve/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace lathe {
namespace {

/// After texts with this many prompt tokens have joined, no further text joins before the next
/// step. Many long prompts therefore do not hold up the texts that are already in the batch.
constexpr int64_t prompt_tokens_of_a_step = 1024;
constexpr std::chrono::milliseconds idle_time(50);

}  // namespace

Scheduler::Submitted Scheduler::submit(std::vector<ServedText> texts,
                                       std::shared_ptr<TextReceiver> receiver,
                                       Clock::time_point deadline) {
  const std::lock_guard lock(mutex_);
  if (is_stopping_) return Submitted::stopping;
  if (waiting_.size() >= queue_ + free_rows_) return Submitted::full;
  waiting_.push_back(std::make_shared<Request>(
      Request{.texts = std::move(texts), .receiver = std::move(receiver), .deadline = deadline}));
  changed_.notify_one();
  return Submitted::accepted;
}

void Scheduler::run(const std::function<bool()>& stops, double grace_s) {
  {
    const std::lock_guard lock(mutex_);
    free_rows_ = running_.size();
  }
  std::optional<Clock::time_point> stopped;
  for (;;) {
    if (!stopped && stops()) {
      stopped = Clock::now();
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    if (stopped && seconds_since(*stopped) > grace_s) break;

    drop_due();
    admit();
    if (batch_.size() > 0) {
      step();
      continue;
    }

    std::unique_lock lock(mutex_);
    if (!waiting_.empty()) continue;
    if (stopped) break;
    changed_.wait_for(lock, idle_time);
  }
  end_all(TextEnd::shutdown);
}

std::optional<TextEnd> Scheduler::due_end(const Request& request) {
  if (request.receiver->is_cancelled()) return TextEnd::cancelled;
  if (Clock::now() > request.deadline) return TextEnd::late;
  return std::nullopt;
}

void Scheduler::drop_due() {
  for (size_t row = 0; row < running_.size(); ++row) {
    if (running_[row].request == nullptr) continue;
    if (const auto reason = due_end(*running_[row].request)) end(row, *reason);
  }

  std::vector<std::pair<std::shared_ptr<Request>, TextEnd>> dropped;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(waiting_, [&](const std::shared_ptr<Request>& request) {
      const auto reason = due_end(*request);
      if (reason) dropped.emplace_back(request, *reason);
      return reason.has_value();
    });
  }
  for (const auto& [request, reason] : dropped) {
    for (size_t text = request->started; text < request->texts.size(); ++text)
      request->receiver->on_end(text, reason, "");
  }
}

void Scheduler::admit() {
  for (int64_t budget = prompt_tokens_of_a_step; budget > 0 && batch_.has_room();) {
    std::shared_ptr<Request> request;
    size_t text = 0;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty()) return;
      request = waiting_.front();
      text = request->started++;
      if (request->started == request->texts.size()) waiting_.pop_front();
      --free_rows_;
    }
    budget -= std::ssize(request->texts[text].ids);
    join(request, text);
  }
}

void Scheduler::join(const std::shared_ptr<Request>& request, size_t text) {
  const ServedText& t = request->texts[text];
  if (t.max_tokens == 0 && !t.scores_prompt) {
    free_row();
    request->receiver->on_end(text, TextEnd::length, "");
    return;
  }

  BatchText joins{.ids = t.ids, .sampling = t.sampling, .index = t.index};
  if (t.scores_prompt) {
    // The batch drops this function when the text leaves, so the function does not outlive the
    // request.
    joins.on_prompt = [request = request.get(), text, &t](size_t position,
                                                          const at::Tensor& logits) {
      request->receiver->on_prompt(text, position, score_token(logits, t.ids[position], t.top));
    };
  }
  const auto row = static_cast<size_t>(batch_.join(std::move(joins)));
  running_[row] = {.request = request, .text = text};
}

void Scheduler::step() {
  std::vector<NextToken> tokens;
  try {
    tokens = batch_.next();
  } catch (const std::exception& e) {
    for (size_t row = 0; row < running_.size(); ++row) {
      if (running_[row].request != nullptr) end(row, TextEnd::failed, e.what());
    }
    return;
  }
  for (const NextToken& token : tokens) receive(token);
}

void Scheduler::receive(const NextToken& token) {
  const auto row = static_cast<size_t>(token.row);
  if (!token.error.empty()) return end(row, TextEnd::failed, token.error);
  Running& r = running_[row];
  const ServedText& t = r.request->texts[r.text];
  // The token after a prompt that is only scored is not part of the text.
  if (t.max_tokens == 0) return end(row, TextEnd::length);

  const TokenScore score =
      t.scores
          ? score_token(token.logits_V, token.id, t.top)
          : TokenScore{.id = token.id, .log_probability = std::numeric_limits<double>::quiet_NaN()};
  ++r.tokens;
  if (!r.request->receiver->on_token(r.text, score)) return end(row, TextEnd::stop);
  if (r.tokens == t.max_tokens) end(row, TextEnd::length);
}

void Scheduler::free_row() {
  const std::lock_guard lock(mutex_);
  ++free_rows_;
}

void Scheduler::end(size_t row, TextEnd reason, const std::string& why) {
  batch_.leave(static_cast<int64_t>(row));
  free_row();
  const Running ended = std::exchange(running_[row], {});
  ended.request->receiver->on_end(ended.text, reason, why);
}

void Scheduler::end_all(TextEnd reason) {
  for (size_t row = 0; row < running_.size(); ++row) {
    if (running_[row].request != nullptr) end(row, reason);
  }
  std::deque<std::shared_ptr<Request>> waiting;
  {
    const std::lock_guard lock(mutex_);
    waiting.swap(waiting_);
  }
  for (const auto& request : waiting) {
    for (size_t text = request->started; text < request->texts.size(); ++text)
      request->receiver->on_end(text, reason, "");
  }
}

}  // namespace lathe
