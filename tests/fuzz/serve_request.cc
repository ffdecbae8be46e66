// Fuzzes bodies of requests to `lathe serve`.
#include "train/serve/request.h"

#include "core/io/text.h"
#include "tests/fuzz/fuzz.h"

namespace lathe::fuzz {
std::vector<std::string> seeds() {
  return {
      R"({"model": "m", "prompt": ["a", "b"], "max_tokens": 5, "temperature": 0.5, "n": 3, "stop": ["x"], "best_of": 3})",
      R"({"prompt": [[1, 2], [3]], "logprobs": 3, "echo": true, "stream": true, "stream_options": {"include_usage": true}})",
      R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a\u00e9"}]}], "max_tokens": 5,
          "logprobs": true, "top_logprobs": 2, "tools": [], "response_format": {"type": "text"}})"};
}
}  // namespace lathe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lathe;
  for (const bool is_chat : {false, true}) {
    try {
      const std::string_view body = fuzz::text_of(data, size);
      const GenerationRequest r =
          is_chat ? parse_chat_request(body) : parse_completion_request(body);
      fuzz::must(is_chat ? !r.messages.empty() : !r.prompts.empty(), "there is a prompt");
      fuzz::must(r.n >= 1 && r.n <= 128 && r.top.value_or(0) <= 20, "numbers are in their range");
      fuzz::must(r.max_tokens.value_or(0) >= 0, "max_tokens is not negative");
      for (const std::string& stop : r.stops) fuzz::must(!stop.empty(), "a stop has a character");
    } catch (const ApiError& e) {
      fuzz::must(e.status() == 400 && is_utf8(e.body()), "an invalid request gives status 400");
    }
  }
  return 0;
}
