// Tests of instruction data: which parts of a conversation are learned, and that losses are divided
// by the exact number of learned tokens.
#include <cmath>

#include "core/io/json.h"
#include "data/loader.h"
#include "data/prepare/conversations.h"
#include "data/prepare/prepare_documents.h"
#include "data/tokenizers/chat_template.h"
#include "data/tokenizers/jinja.h"
#include "data/tokens/manifest.h"
#include "data/tokens/tokens.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "tests/support/tokenizers.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// Returns the text of a split, with brackets around the parts that are learned.
std::string marked_text(const fs::path& folder, const char* split) {
  const auto manifest = read_manifest(folder);
  const TokenFile file(folder, split, manifest);
  std::vector<int64_t> ids(static_cast<size_t>(file.size())), targets(ids.size());
  file.read(0, file.size(), manifest->vocab_size, ids.data());
  file.read_targets(0, file.size(), targets.data());
  std::string text;
  bool learned = false;
  for (size_t i = 0; i < ids.size(); ++i) {
    if ((targets[i] == ids[i]) != learned) text += learned ? "]" : "[";
    learned = targets[i] == ids[i];
    CHECK((learned || targets[i] == -100));
    text += manifest->tokenizer.decode({ids[i]});
  }
  return text + (learned ? "]" : "");
}

/// Returns options that prepare a.jsonl of `folder` into its subfolder "out", without a validation
/// split.
DocumentOptions instruction_options(const fs::path& folder) {
  DocumentOptions o{.source = {.files = {(folder / "a.jsonl").string()},
                               .format = "instructions",
                               .field = "messages"},
                    .out = folder / "out"};
  o.val_share = 0;
  return o;
}

const char* const chats =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be kind.\"}, {\"role\": \"user\", "
    "\"content\": \"Hi\"}, "
    "{\"role\": \"assistant\", \"content\": \"Hello!\"}, {\"role\": \"user\", \"content\": "
    "\"<|im_end|>?\"}, "
    "{\"role\": \"assistant\", \"content\": \"Yes.\"}]}\n\n"
    "{\"prompt\": \"2+2=\", \"completion\": \"4\"}\n";

TEST_CASE("the answers of conversations and their end tokens are learned, in each template",
          "[conversations]") {
  const TempFolder f;
  write_file(f / "a.jsonl", chats);
  DocumentOptions o = instruction_options(f.path());
  o.tokenizer = byte_tokenizer_with({"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
  o.out = f / "chatml";
  prepare_documents(o);
  CHECK(marked_text(o.out, "train") ==
        "<|im_start|>system\nBe "
        "kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        "[Hello!<|im_end|>]\n<|im_start|>user\n<|im_end|>?<|im_end|>\n<|im_start|>assistant\n[Yes.<"
        "|im_end|>]\n"
        "<|endoftext|>2+2=[4<|endoftext|>]");
  const auto manifest = read_manifest(o.out);
  CHECK(manifest->marked);
  CHECK(manifest->largest_id == 258);
  CHECK(manifest->documents["learned_tokens"] == 7 + 5 + 2);
  CHECK(manifest->documents["kept"] == 2);
  TokenFile(o.out, "train", manifest).check_ids(259);
  CHECK_THAT(error_of([&] { TokenFile(o.out, "train", manifest).check_ids(258); }),
             ContainsSubstring("is 258") && ContainsSubstring("model.vocab_size"));
  CHECK(TokenFile(o.out, "train", manifest).largest_id() == 258);

  o.tokenizer = byte_tokenizer_with({"<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>",
                                     "<|end_header_id|>", "<|eot_id|>"});
  o.out = f / "llama3";
  prepare_documents(o);
  CHECK_THAT(marked_text(o.out, "train"),
             ContainsSubstring("<|start_header_id|>assistant<|end_header_id|>\n\n[Hello!<|eot_id|>]"
                               "<|start_header_id|>user"));
  // The prompt that a chat gives the model is the text that precedes an answer in the data.
  const auto asked =
      ChatTemplate(o.tokenizer, "", "").encode_prompt({{"system", "Be kind."}, {"user", "Hi"}});
  const TokenFile file(o.out, "train", read_manifest(o.out));
  std::vector<int64_t> begin(asked.size());
  file.read(0, std::ssize(asked), 1000, begin.data());
  CHECK(begin == asked);

  o.tokenizer = Tokenizer::byte();
  o.out = f / "bytes";
  CHECK_THAT(error_of([&] { prepare_documents(o); }), ContainsSubstring("a.jsonl") &&
                                                          ContainsSubstring("<|im_start|>") &&
                                                          ContainsSubstring("<|start_header_id|>"));
  write_file(f / "a.jsonl", "{\"prompt\": \"2+2=\", \"completion\": \"4\"}\n");
  prepare_documents(o);
  CHECK(marked_text(o.out, "train") == "2+2=[4\n]");
}

TEST_CASE("a completion's tokens are the tokens that generation appends to the prompt",
          "[conversations]") {
  const TempFolder f;
  write_file(f / "a.jsonl", "{\"prompt\": \"abc\", \"completion\": \"ab\"}\n");
  DocumentOptions o = instruction_options(f.path());
  for (const SpaceBefore rule :
       {SpaceBefore::each, SpaceBefore::each_without, SpaceBefore::first_without}) {
    Json json;
    json["kind"] = "bpe";
    BPEDefinition d = sentencepiece(rule);
    d.begin = 1;
    json["bpe"] = bpe_to_json(d);
    o.tokenizer = Tokenizer::from_json(json, "kind", "test");
    o.out = f / str("out", static_cast<int>(rule));
    prepare_documents(o);

    // These tokenizers put a space before a text, but not between a prompt and its completion.
    std::vector<int32_t> wanted{1};  // prompts begin with <s>
    BPE::Encoder encoder(*o.tokenizer.bpe());
    encoder.encode("abc", wanted, SpecialText::text);
    encoder.encode("ab", wanted, SpecialText::text, /*begins=*/false);
    const TokenFile file(o.out, "train", read_manifest(o.out));
    std::vector<int64_t> begin(wanted.size());
    file.read(0, std::ssize(wanted), 1000, begin.data());
    CHECK(begin == std::vector<int64_t>(wanted.begin(), wanted.end()));
  }
}

const char* const chatml_with_system = R"({%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- for tool in tools %}
        {{- tool | tojson }}
    {%- endfor %}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
{%- else %}
    {{- '<|im_start|>system\nBe a test.<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or
           (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
)";
const char* const llama3_that_trims =
    "{% set all = messages %}{% for m in all %}{% set text = '<|start_header_id|>' + m['role'] + "
    "'<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set text = bos_token + text %}{% endif %}{{ text }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    "{% endif %}";

Tokenizer with_template(Tokenizer tokenizer, const std::string& text, const std::string& bos = "") {
  tokenizer.set_settings({.chat_template = text, .has_special_tokens = true, .bos_token = bos});
  return tokenizer;
}
const Tokenizer& chatml_tokens() {
  static const Tokenizer made =
      byte_tokenizer_with({"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
  return made;
}
const Tokenizer& llama3_tokens() {
  static const Tokenizer made =
      byte_tokenizer_with({"<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>",
                           "<|end_header_id|>", "<|eot_id|>"});
  return made;
}

TEST_CASE("a chat template is followed if it writes ChatML or Llama 3's format",
          "[conversations]") {
  const std::vector<ChatMessage> one{{"user", " Hi"}},
      ruled{{"system", "Rule."}, {"user", "Hi"}, {"assistant", "Ho "}, {"user", "A"}};
  // `text` is the output of apply_chat_template, rendered by hand. In it, the text of a special
  // token is encoded as that token.
  const auto asks = [](const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages,
                       const std::string& text) {
    CHECK(ChatTemplate(tokenizer, "", "").encode_prompt(messages) == tokenizer.encode(text));
  };
  const Tokenizer chatml = with_template(chatml_tokens(), chatml_with_system);
  asks(chatml, one,
       "<|im_start|>system\nBe a test.<|im_end|>\n<|im_start|>user\n Hi<|im_end|>\n"
       "<|im_start|>assistant\n");
  const std::string with_rule =
      "<|im_start|>system\nRule.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
      "Ho <|im_end|>\n<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\n";
  asks(chatml, ruled, with_rule);

  const Tokenizer llama3 = with_template(llama3_tokens(), llama3_that_trims, "<|begin_of_text|>");
  asks(llama3, one,
       "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\n");
  asks(llama3, ruled,
       "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nRule.<|eot_id|>"
       "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant"
       "<|end_header_id|>\n\nHo<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nA<|eot_id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\n");

  // Python's strip() also removes these spaces: U+3000, U+00A0 and U+2003.
  asks(llama3, {{"user", "\xE3\x80\x80\xC2\xA0Hi\xE2\x80\x83\n"}},
       "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\n");

  // If a tokenizer has no chat template, no system message is added and no text is trimmed.
  asks(chatml_tokens(), one, "<|im_start|>user\n Hi<|im_end|>\n<|im_start|>assistant\n");
  asks(llama3_tokens(), one,
       "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n Hi<|eot_id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\n");

  // Both templates can be set by name.
  Tokenizer named = chatml_tokens();
  set_chat_template(named, "chatml");
  asks(named, ruled, with_rule);
  CHECK(named.settings().eos_token == "<|im_end|>");
  CHECK(named == chatml_tokens());
  named = llama3_tokens();
  set_chat_template(named, "llama3");
  asks(named, one,
       "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n Hi<|eot_id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\n");
  CHECK(named.settings().eos_token == "<|eot_id|>");
  CHECK_THAT(error_of([&] { set_chat_template(named, "chatml"); }),
             ContainsSubstring("chatml") && ContainsSubstring("<|im_start|> and <|im_end|>"));
  CHECK_THAT(error_of([&] { set_chat_template(named, "nowhere"); }),
             ContainsSubstring("--chat-template") && ContainsSubstring("nowhere"));

  // Templates are refused if they write another format, if they contain a date, an exception, a
  // macro or ChatML within a loop, or if they change an answer.
  for (const std::string& other :
       {std::string("{% for m in messages %}{{ '[INST] ' + m.content + ' [/INST]' }}{% endfor %}"),
        "{{ strftime_now('%d') }}" + std::string(chatml_template),
        std::string(chatml_template) + "{{ raise_exception('no') }}",
        "{% macro f() %}{% endmacro %}" + std::string(chatml_template),
        "{% for a in messages %}" + std::string(chatml_template) + "{% endfor %}",
        std::string("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
                    "('' if message.role == 'assistant' else message['content']) + '<|im_end|>\\n' "
                    "}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
                    "{% endif %}")}) {
    INFO(other);
    CHECK_THAT(
        error_of([&] { ChatTemplate(with_template(chatml_tokens(), other), "it", "act"); }),
        ContainsSubstring("it:") && ContainsSubstring("ChatML") && ContainsSubstring("Llama 3"));
  }
}

TEST_CASE("instructions are prepared with the tokenizer's chat template", "[conversations]") {
  const TempFolder f;
  write_file(f / "a.jsonl", chats);
  DocumentOptions o = instruction_options(f.path());
  o.tokenizer = with_template(llama3_tokens(), llama3_that_trims, "<|begin_of_text|>");
  write_file(f / "a.jsonl",
             "{\"messages\": [{\"role\": \"user\", \"content\": \" Hi \"}, "
             "{\"role\": \"assistant\", \"content\": \" Ho\"}]}\n");
  prepare_documents(o);
  CHECK(marked_text(o.out, "train") ==
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n[Ho<|eot_id|>]<|end_of_text|>");
  CHECK(read_manifest(o.out)->tokenizer.settings() == o.tokenizer.settings());

  o.tokenizer = with_template(chatml_tokens(), chatml_with_system);
  o.out = f / "chatml";
  prepare_documents(o);
  CHECK(marked_text(o.out, "train") ==
        "<|im_start|>system\nBe a test.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n"
        "<|im_start|>assistant\n[ Ho<|im_end|>]\n<|endoftext|>");
}

TEST_CASE("ShareGPT's and Alpaca's formats are read as chats", "[conversations]") {
  const TempFolder f;
  DocumentOptions o = instruction_options(f.path());
  o.tokenizer = chatml_tokens();
  const auto prepared = [&](const std::string& line) {
    write_file(f / "a.jsonl", line + "\n");
    remove_tree(o.out);
    prepare_documents(o);
    return marked_text(o.out, "train");
  };
  const std::string messages =
      R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"},
          {"role": "assistant", "content": "A"}]})";
  std::string one_line = messages;
  std::erase(one_line, '\n');
  const std::string wanted = prepared(one_line);
  CHECK_THAT(wanted, ContainsSubstring("user\nQ<|im_end|>\n<|im_start|>assistant\n[A<|im_end|>]"));
  for (
      const char* line :
      {R"({"conversations": [{"from": "system", "value": "S"}, {"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]})",
       R"({"system": "S", "conversations": [{"from": "user", "value": "Q"}, {"from": "assistant", "value": "A"}], "id": 7})",
       R"({"conversations": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]})",
       R"({"instruction": "Q", "input": "", "output": "A", "system": "S"})",
       R"({"instruction": "Q", "input": null, "output": "A", "system": "S"})"}) {
    INFO(line);
    CHECK(prepared(line) == wanted);
  }
  CHECK_THAT(
      prepared(R"({"instruction": "Add.", "input": "2+2", "output": "4"})"),
      ContainsSubstring("user\nAdd.\n\n2+2<|im_end|>\n<|im_start|>assistant\n[4<|im_end|>]"));
  CHECK_THAT(prepared(R"({"instruction": "Hi.", "output": "Ho"})"),
             ContainsSubstring("user\nHi.<"));

  for (const auto& [line, what] : std::vector<std::pair<std::string, std::string>>{
           {R"({"instruction": "a"})", "--field"},
           {R"({"instruction": "a", "output": 3})", "text in \"output\""},
           {R"({"instruction": "a", "output": "b", "input": 3})", "\"input\""},
           {R"({"conversations": [{"from": "human", "value": "a"}]})", "of the assistant"},
           {R"({"conversations": [{"from": "gpt"}]})", "\"value\""},
           {R"({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": 1}]}]})",
            "tool_calls"},
           {R"({"conversations": [{"from": "a|b", "value": ""}]})", "\"a|b\""}}) {
    INFO(line);
    CHECK_THAT(error_of([&] { prepared(line); }), ContainsSubstring("a.jsonl:1"));
    CHECK_THAT(error_of([&] { prepared(line); }), ContainsSubstring(what));
  }
}

TEST_CASE("chat templates are rendered as jinja2 renders them, and hostile ones are refused",
          "[conversations]") {
  const Json variables{{"messages",
                        {{{"role", "user"}, {"content", " u1 "}},
                         {{"role", "assistant"}, {"content", "a1"}},
                         {{"role", "user"}, {"content", "u2"}}}},
                       {"yes", true}};
  const std::optional<std::string> none;
  // Each row has a template and the output of jinja2 3.1 with trim_blocks and lstrip_blocks, or
  // nullopt if the template must be refused.
  const std::vector<std::pair<std::string, std::optional<std::string>>> table{
      {"a\n", "a"},
      {"a\n\n", "a\n"},
      {"{ x }{", "{ x }{"},
      {"  {# gone #}\nb", "b"},
      {"a\n  {% if yes %}\n  b\n  {% endif %}\nc", "a\n  b\nc"},
      {"a {%- if yes -%} \n b {%+ endif %}", "ab "},
      {"x {% if yes %} y{% endif %}", "x  y"},
      {"{{ 'a' }}\n{{- 'b' -}}\n c", "abc"},
      {"{{ '}}' ~ \"%}\" }}", "}}%}"},
      {"{{ 'a\\n\\'b' \"c\" }}", "a\n'bc"},
      {"{{ ' a' + messages[0].content | trim + 'b' }}", " au1b"},
      {"{{ (messages[1:] | length) * 2 - 1 }}{{ messages[-1]['content'] }}", "3u2"},
      {"{{ nothing }}{{ nothing | default('d') }}{{ none }}{{ not yes }}", "dNoneFalse"},
      {"{% if nothing is defined %}a{% elif 'q' not in 'cat' and 'c' in 'cat' %}b{% else %}c"
       "{% endif %}",
       "b"},
      {"{{ 'a' if 1 > 2 else 'b' if false else 'c' }}", "c"},
      {"{% for m in messages %}{{ loop.index }}{{ ',' if not loop.last }}{% endfor %}", "1,2,3"},
      {"{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% set x = 1 "
       "%}"
       "{% endfor %}{{ ns.n }}{{ x is defined }}",
       "3False"},
      {"{% if false %}{{ f(1) | title }}{% for a in b.c %}{% endfor %}{% endif %}ok", "ok"},
      {"{{ messages[0].content.strip() }}{{ messages[0].get('z') }}", "u1None"},
      {"{{ 1 == true }}{{ true == nothing is defined }}{{ not nothing is defined }}",
       "TrueFalseTrue"},
      {"{{ 3 > 2 > 1 }}{{ 1 < 3 < 2 }}{{ 1 < 2 < 3 }}{{ 3 < 2 < nothing.x }}",
       "TrueFalseTrueFalse"},
      {"{{ -1 | string ~ 'a' }}{{ yes | string is string }}", "-1aTrue"},
      {"{{ 'b' in ['a', 'b'] }}{{ 1 not in [] }}{{ (['a', 2] + [3]) | length }}", "TrueTrue3"},
      {"{% for x in ['a', 1] %}{{ x }}{% endfor %}", "a1"},
      {"{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ m.content }}{{ loop.last }}"
       "{% endfor %}",
       "1 u1 False2u2True"},
      {"{% for m in messages if false %}a{% endfor %}{{ m is defined }}", "False"},
      {"{% for m in messages %}{{ loop.revindex }}{{ loop.revindex0 }}{% endfor %}", "322110"},
      {"{% for m in messages %}{{ loop.depth }}{% for n in messages %}{{ loop.depth0 }}{% endfor %}"
       "{{ loop.previtem.role if loop.previtem is defined else '-' }},{% endfor %}",
       "1111-,1111user,1111assistant,"},
      {"{% for m in messages %}{{ loop.nextitem.content if not loop.last }},{% endfor %}",
       "a1,u2,,"},
      {"{% set x = [messages] %}", none},
      {"{{ nothing.x }}", none},
      {"{{ 1 + 'a' }}", none},
      {"{{ (1 }}", none},
      {"{{ 'a }}", none},
      {"{% if yes %}", none},
      {"{% endfor %}", none},
      {"{{ raise_exception('x') }}", none},
      {"{{ " + std::string(1000, '(') + " }}", none}};
  for (const auto& [text, wanted] : table) {
    INFO(text);
    CHECK(render_jinja(text, variables) == wanted);
  }

  // A downloaded template may be hostile, so its depth, time and memory are limited.
  const auto repeated = [](const std::string& text, int n) {
    std::string all;
    for (int i = 0; i < n; ++i) all += text;
    return all;
  };
  const auto numbered = [](const std::string& before, const std::string& after, int n) {
    std::string all;
    for (int i = 0; i < n; ++i) all += before + std::to_string(i) + after;
    return all;
  };
  // This template makes a text of 32 KB.
  const std::string large = "{% set x = 'a' %}" + repeated("{% set x = x ~ x %}", 15);
  const std::string set_text = " = '" + std::string(30000, 'a') + "' %}";
  for (const std::string& text :
       {"{{ 1" + repeated(" + 1", 100000) + " }}",
        "{{ yes" + repeated(".a", 100000) + " }}",
        "{{ " + repeated("not ", 100000) + "yes }}",
        repeated("{% for m in messages %}", 20) + "x" + repeated("{% endfor %}", 20),
        repeated("{% if yes %}", 100000) + repeated("{% endif %}", 100000),
        "{% set x = 'abcd' %}" + repeated("{% set x = x + x %}", 60),
        "{% set x = 'abcd' %}" + repeated("{% set x = x ~ x %}", 60),
        "{% set x = messages %}" + repeated("{% set x = x + x %}", 60),
        "{% set x = ['a', 'b'] %}" + repeated("{% set x = x + x %}", 60),
        "{{ " + repeated("[", 1000) + " }}",
        "{% for m in messages if" + repeated(" not", 1000) + " yes %}{% endfor %}",
        "{% set n = namespace(a=1) %}" + repeated("{% set n.a = n %}{% set n.b = n %}", 60),
        "{% set n = 1 %}" + repeated("{% set n = namespace(a=n, b=n) %}", 60),
        large + repeated("{% set y = x == x %}", 400),
        large + repeated("{% set y = x" + repeated("|trim", 100) + " %}", 10),
        large + repeated("{% set y = x" + repeated(".strip()", 100) + " %}", 10),
        large + repeated("{% if x in x ~ 'b' %}{% endif %}", 4),
        "{% set n = namespace(a=1) %}" + large + numbered("{% set n.v", " = x %}", 400),
        large + numbered("{% set v", " = x %}", 400),
        numbered("{% set v", set_text, 400),
        repeated("{% for m in messages %}", 5) + "{{ '" + repeated("a", 60000) + "' and 1 }}" +
            repeated("{% endfor %}", 5),
        std::string("{{ 50000*40000 + 50000*40000 + 1 }}"),
        repeated("{% for m in messages %}", 9) + "{% if false %}" + repeated("{{ 1 }}", 10000) +
            "{% endif %}" + repeated("{% endfor %}", 9)}) {
    INFO(text.substr(0, 60));
    CHECK(render_jinja(text, variables) == none);
  }
  CHECK(render_jinja("{{ 1" + repeated(" + 1", 100) + " }}", variables) == "101");
  CHECK(render_jinja(large + "{{ 'b' in x }}", variables) == "False");
  CHECK(render_jinja("{{ 50000*40000 + 50000*40000 }}", variables) == "4000000000");
}

TEST_CASE("a role that the template writes under another name is refused", "[conversations]") {
  const TempFolder f;
  write_file(f / "a.jsonl",
             R"({"messages": [{"role": "user", "content": "Q"}, {"role": "tool", "content": "T"},)"
             R"( {"role": "assistant", "content": "A", "tool_calls": []}]})"
             "\n");
  DocumentOptions o = instruction_options(f.path());
  o.tokenizer = chatml_tokens();
  TokenizerSettings settings;
  settings.chat_template = chatml_template;
  o.tokenizer.set_settings(settings);
  prepare_documents(o);
  CHECK_THAT(marked_text(o.out, "train"), ContainsSubstring("<|im_start|>tool\nT<|im_end|>"));

  settings.chat_template =
      "{% for m in messages %}{% set role = 'user' if m['role'] == 'tool' else m['role'] %}"
      "{{ '<|im_start|>' + role + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
  o.tokenizer.set_settings(settings);
  o.out = f / "other";
  const std::string error = error_of([&] { prepare_documents(o); });
  CHECK_THAT(error, ContainsSubstring("a.jsonl:1"));
  CHECK_THAT(error, ContainsSubstring("\"tool\""));
  CHECK(!fs::exists(f / "other"));
}

TEST_CASE("the validation split at the end begins with a conversation", "[conversations]") {
  const TempFolder f;
  std::string text, all;
  for (int i = 0; i < 40; ++i) {
    text += str(R"({"prompt": "p)", i, R"(", "completion": "c)", i, "\"}\n");
    all += str("p", i, "[c", i, "<|endoftext|>]");
  }
  write_file(f / "a.jsonl", text);
  DocumentOptions o = instruction_options(f.path());
  o.tokenizer = byte_tokenizer_with({"<|endoftext|>"});
  int64_t cut = 0;
  for (const double share : {0.1, 0.11, 0.12, 0.13, 0.5}) {
    INFO(share);
    o.val_share = share;
    o.out = f / str("out", share);
    prepare_documents(o);
    const std::string train = marked_text(o.out, "train"), val = marked_text(o.out, "val");
    CHECK(train + val == all);
    CHECK(val.starts_with("p"));
    // No split has the bit that marks the beginnings of rows.
    const auto manifest = read_manifest(o.out);
    CHECK(manifest->largest_id == 256);
    const TokenFile file(o.out, "val", manifest);
    cut += file.size();
    for (const fs::path& shard : list_folder(o.out)) {
      if (shard.extension() != ".bin") continue;
      const std::string bytes = slurp(shard);
      for (size_t at = 3; at < bytes.size(); at += 4)
        CHECK((static_cast<unsigned char>(bytes[at]) & 0x40) == 0);
    }
  }
  CHECK(cut > 0);
}

TEST_CASE("a line that is not a conversation is refused with its line number", "[conversations]") {
  const TempFolder f;
  const auto refusal = [&](const std::string& line) {
    write_file(f / "a.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n" + line + "\n");
    const DocumentOptions o = instruction_options(f.path());
    const std::string what = error_of([&] { prepare_documents(o); });
    CHECK(!fs::exists(f / "out"));
    return what;
  };

  const std::string place = "a.jsonl:2";
  for (const auto& [line, what] : std::vector<std::pair<std::string, std::string>>{
           {"{\"text\": \"a\"}", "--field"},
           {"[1]", "--field"},
           {"{\"prompt\": \"a\"}", "--field"},
           {"{\"prompt\": \"a\", \"completion\": 3}", "--field"},
           {"{\"system\": \"s\", \"prompt\": \"a\", \"completion\": \"b\"}", "\"system\""},
           {"{\"messages\": []}", "of the assistant"},
           {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", "of the assistant"},
           {"{\"messages\": [3]}", "not an object"},
           {"{\"messages\": [{\"role\": \"assistant\"}]}", "\"content\""},
           {"{\"messages\": [{\"role\": \"assistant\", \"content\": [1]}]}", "\"content\""},
           {"{\"messages\": [{\"content\": \"a\"}]}", "\"role\""},
           {"{\"messages\": [{\"role\": \"<|im_end|>\", \"content\": \"a\"}]}",
            "\"<|im_end|>\""}}) {
    INFO(line);
    CHECK_THAT(refusal(line), ContainsSubstring(place));
    CHECK_THAT(refusal(line), ContainsSubstring(what));
  }
}

TEST_CASE("a warning reports steps without a target, and `find lr` leaves them out",
          "[conversations]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  std::string lines;
  for (int i = 0; i < 300; ++i)
    lines += Json{{"prompt", std::string(60, 'a')}, {"completion", "bbbbbbbb"}}.dump() + "\n";
  write_file(f / "long.jsonl", lines);
  REQUIRE(
      lathe_in(f, {"prepare", "long.jsonl", "--format", "instructions", "--out", "long"}).code ==
      0);

  // A window has 16 tokens, so most windows are within a prompt.
  const std::vector<std::string> keys{"--data.dir=long", "--train.batch_size=1",
                                      "--train.grad_accum=1", "--train.eval_interval=0"};
  const auto lathe = [&](std::vector<std::string> words) {
    words.insert(words.end(), keys.begin(), keys.end());
    const Finished r = lathe_in(f, words);
    INFO(r.out << r.err);
    CHECK(r.code == 0);
    return r;
  };

  const std::string warned = lathe({"train", "tiny.toml", "--train.steps=12"}).err;
  const size_t at = warned.find("no target");
  REQUIRE(at != std::string::npos);
  CHECK(warned.find("no target", at + 1) == std::string::npos);  // the warning appears once

  const std::string out = lathe({"find", "lr", "tiny.toml", "--steps=60"}).out;
  const Json found = parse_json(out.substr(out.rfind('{')), "", Exit::internal);
  // Only steps with a target have a loss.
  CHECK(found["steps"].get<int64_t>() > 5);
  CHECK(found["steps"].get<int64_t>() < 60);
}

TEST_CASE(
    "a run learns only completions, and its losses do not depend on how a step is split into "
    "micro-batches",
    "[conversations]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  std::string lines;
  for (int i = 0; i < 900; ++i) {
    const std::string question = std::to_string(i) + "*3=";
    lines += Json{{"prompt", question}, {"completion", std::to_string(3 * i)}}.dump() + "\n";
  }
  write_file(f / "sums.jsonl", lines);
  const Finished made =
      lathe_in(f, {"prepare", "sums.jsonl", "--format", "instructions", "--out", "sums"});
  INFO(made.err);
  REQUIRE(made.code == 0);

  const auto train = [&](const std::string& out, std::vector<std::string> more, int code = 0) {
    std::vector<std::string> args{"train", "tiny.toml", "--data.dir=sums", "--model.dropout=0",
                                  "--train.out_dir=" + out};
    args.insert(args.end(), more.begin(), more.end());
    const Finished done = lathe_in(f, args);
    INFO(done.err);
    CHECK(done.code == code);
    return done;
  };

  const auto losses = [&](const std::string& out) {
    std::vector<double> all;
    std::istringstream text(slurp(f / out / "metrics.jsonl"));
    for (std::string line; std::getline(text, line);) {
      const Json json = parse_json(line, out, Exit::internal);
      if (json.contains("loss")) all.push_back(json["loss"].get<double>());
    }
    return all;
  };

  train("whole", {});
  train("parts", {"--train.pause_at=9"}, 75);
  train("parts", {});
  CHECK(difference(f / "whole", f / "parts").empty());

  // Split the 6 windows of a step as 3 x 2, 1 x 6 and 6 x 1. Micro-batches have different numbers
  // of targets. If a step's loss were the mean of the micro-batches' mean losses, the runs would
  // differ by several percent.
  const auto wanted = losses("whole");
  REQUIRE(wanted.size() == 40);
  for (const auto& [batch, accumulate] : {std::pair("1", "6"), std::pair("6", "1")}) {
    const std::string out = std::string("by") + batch;
    train(out, {std::string("--train.batch_size=") + batch,
                std::string("--train.grad_accum=") + accumulate});
    const auto got = losses(out);
    REQUIRE(got.size() == wanted.size());
    for (size_t i = 0; i < 10; ++i)
      CHECK(got[i] == Approx(wanted[i]).epsilon(1e-5));  // float32 rounding over ten updates
  }

  // The loss is a mean over the learned targets. At first it is about the logarithm of the
  // vocabulary size, as for any untrained model.
  CHECK(wanted[0] == Approx(std::log(256.0)).epsilon(0.1));
  const Finished eval = lathe_in(f, {"eval", "whole"});
  REQUIRE(eval.code == 0);
  const Json json = parse_json(eval.out.substr(eval.out.rfind('\n', eval.out.size() - 2) + 1),
                               "eval", Exit::internal);

  DataConfig c;
  c.dir = (f / "sums").string();
  const auto data = open_data(c);
  int64_t learned = 0;
  const BatchSizes sizes{.batch_size = 4, .block_size = 16, .vocab_size = 256};
  const auto windows = data->evaluation(sizes, 0, at::kCPU);
  for (Batch b; windows->next(b);) learned += count_targets(b);
  CHECK(json["tokens"] == learned);
  CHECK((learned > data->val_size() / 4 && learned < data->val_size()));

  const auto training = data->training(sizes, 3);
  int64_t n = 0;
  for (const Batch& b : draw_batches(*data, sizes, 3, 0, 9, at::kCPU)) {
    CHECK(training->targets(n++) == count_targets(b));
    const at::Tensor read = b.targets.slice(1, 0, 15), next = b.inputs.slice(1, 1, 16);
    CHECK((read.eq(next) | read.eq(-100)).all().item<bool>());
    CHECK(b.inputs.lt(256).all().item<bool>());
  }
}

}  // namespace
