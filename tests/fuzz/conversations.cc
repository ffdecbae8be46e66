// Fuzzes conversations. The first byte of an input sets how the file is read.
#include "data/prepare/conversations.h"
#include "tests/fuzz/fuzz.h"

namespace lathe::fuzz {
std::vector<std::string> seeds() {
  return {
      "\x02{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
      "\"content\": \"b\"}]}\n",
      "\x03{\"prompt\": \"a\\u0041\", \"completion\": \"b\"}\n\n{\"prompt\": \"\", \"completion\": "
      "\"c\"}",
      "\x02{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\", "
      "\"value\": \"b\"}], \"system\": \"c\"}\n{\"instruction\": \"a\", \"input\": \"b\", "
      "\"output\": \"c\"}",
      "\x01{\"chat\": [{\"role\": \"system\", \"content\": \"\"}, {\"role\": \"assistant\", "
      "\"content\": \"b\"}]}"};
}
}  // namespace lathe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lathe;
  if (size == 0) return 0;
  static const fuzz::MemoryFile file;
  file.write(fuzz::text_of(data + 1, size - 1));
  const DocumentSource source{.files = {file.path()},
                              .format = "instructions",
                              .field = (data[0] & 1) != 0 ? "chat" : "messages"};
  try {
    PartReader reader(source, /*whole=*/(data[0] & 2) != 0, 1 + data[0] / 8, 512);
    size_t bytes = 0;
    for (Part part; reader.next(part);) {
      if ((bytes += part.text.size()) > (size_t{1} << 17)) return 0;  // a decompression bomb
      each_conversation(part, source, [&](const Conversation& c) {
        fuzz::must(!c.messages.empty(), "a conversation has messages");
        bool answered = !c.is_chat;
        for (const ChatMessage& m : c.messages) answered = answered || m.role == "assistant";
        fuzz::must(answered, "a chat has an answer");
        fuzz::must(c.is_chat || c.messages.size() == 2, "a prompt has its completion");
      });
    }
  } catch (const Error& e) {
    fuzz::must(e.code() == Exit::data, "invalid input gives Exit::data");
  }
  return 0;
}
