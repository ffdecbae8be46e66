// Tests of .npy files: the bytes that NumPy writes, conversions of every type, which must agree
// with LibTorch, and malformed files.
#include <cstring>

#include "data/examples/arrays.h"
#include "data/examples/npy.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// Returns a .npy file with this header, without padding it.
std::string npy(int version, const std::string& header, const std::string& elements) {
  const auto length = static_cast<uint32_t>(header.size());
  return std::string("\x93NUMPY") + static_cast<char>(version) + '\0' +
         std::string(reinterpret_cast<const char*>(&length), version == 1 ? 2 : 4) + header +
         elements;
}

/// Returns the bytes of numpy.save(f, numpy.arange(6, dtype='<f4').reshape(2, 3)): 128 bytes and
/// the elements.
std::string from_numpy() {
  std::string head("\x93NUMPY\x01\x00v\x00", 10);
  head += "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  head.resize(127, ' ');
  return head + "\n" + packed<float>({0, 1, 2, 3, 4, 5});
}

TEST_CASE("NumPy's files are read, and written with the same bytes", "[npy]") {
  const TempFolder f;
  write_file(f / "a.npy", from_numpy());
  const NpyFile a(f / "a.npy");
  CHECK(a.type() == ArrayType::f32);
  CHECK(a.sizes() == std::vector<int64_t>{2, 3});
  CHECK(a.bytes().size() == 24);
  CHECK(std::memcmp(a.bytes().data(), from_numpy().data() + 128, 24) == 0);

  NpyWriter writer(f / "b.npy", ArrayType::f32, {2, 3});
  writer.write(a.bytes().data(), 8);
  CHECK_THAT(error_of([&] { writer.write(a.bytes().data(), 24); }),
             ContainsSubstring("b.npy") && ContainsSubstring("more elements"));
  CHECK_THAT(error_of([&] { writer.finish(); }),
             ContainsSubstring("b.npy") && ContainsSubstring("16 bytes"));
  writer.write(a.bytes().data() + 8, 16);
  CHECK(writer.finish() == file_checksum(f / "b.npy"));
  CHECK(slurp(f / "b.npy") == from_numpy());
}

TEST_CASE("headers of every version, spelling and type are read", "[npy]") {
  const TempFolder f;
  struct Row {
    int version;
    std::string header;
    ArrayType type;
    std::vector<int64_t> sizes;
  };
  const std::vector<Row> rows{
      {1, "{'descr': '<f2', 'fortran_order': False, 'shape': (3,), }\n", ArrayType::f16, {3}},
      {2,
       "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 2), }   \n",
       ArrayType::f64,
       {1, 2}},
      {3,
       "{\"shape\": (2,1,1), \"descr\": \"=i8\", \"fortran_order\": False}",
       ArrayType::i64,
       {2, 1, 1}},
      {1, "{'descr': '|i1', 'fortran_order': False, 'shape': (), }\n", ArrayType::i8, {}},
      {1, "{'descr': '>u1', 'fortran_order': True, 'shape': (5L,), }\n", ArrayType::u8, {5}},
      {1,
       "{'descr': '|b1', 'fortran_order': False, 'shape': (0, 7), }\n",
       ArrayType::boolean,
       {0, 7}},
      {1, "{'descr': '<i2', 'fortran_order': False, 'shape': (2,)}", ArrayType::i16, {2}},
      {1, "{'descr': '<i4', 'fortran_order': False, 'shape': (2,)}", ArrayType::i32, {2}},
      {1, "{'descr': '<u2', 'fortran_order': False, 'shape': (2,)}", ArrayType::u16, {2}},
      {1, "{'descr': '<u4', 'fortran_order': False, 'shape': (2,)}", ArrayType::u32, {2}},
  };

  for (const auto& row : rows) {
    INFO(row.header);
    int64_t bytes = array_type_bytes(row.type);
    for (const int64_t size : row.sizes) bytes *= size;
    write_file(f / "a.npy",
               npy(row.version, row.header, std::string(static_cast<size_t>(bytes), 'x')));
    const NpyFile a(f / "a.npy");
    CHECK(a.type() == row.type);
    CHECK(a.sizes() == row.sizes);

    // An array that is written again has the same type and sizes.
    NpyWriter again(f / "b.npy", row.type, row.sizes);
    again.write(a.bytes().data(), a.bytes().size());
    again.finish();
    const NpyFile b(f / "b.npy");
    CHECK(b.type() == row.type);
    CHECK(b.sizes() == row.sizes);
    CHECK(slurp(f / "b.npy").size() % 64 ==
          a.bytes().size() % 64);  // elements begin at a multiple of 64 bytes
  }
}

TEST_CASE("elements of every type are converted to the same values as in LibTorch", "[npy]") {
  const TempFolder f;
  const auto check = [&](const at::Tensor& t, ArrayType type, const char* safetensors) {
    INFO(array_type_name(type));
    const auto bytes = std::as_bytes(std::span(static_cast<const char*>(t.const_data_ptr()),
                                               static_cast<size_t>(t.numel() * t.element_size())));
    if (safetensors != nullptr) {
      write_safetensors(f / "a.safetensors", {{"x", safetensors, {t.numel()}, bytes}});
    } else {
      NpyWriter writer(f / "a.npy", type, {t.numel()});
      writer.write(bytes.data(), bytes.size());
      writer.finish();
    }

    const ExampleArray a(f / (safetensors != nullptr ? "a.safetensors" : "a.npy"), "");
    REQUIRE(a.type() == type);
    REQUIRE(a.examples() == t.numel());

    const at::Tensor wanted = t.to(at::kDouble), got = torch::empty({t.numel()}, at::kDouble);
    for (int64_t i = 0; i < a.examples(); ++i) a.read(i, got.mutable_data_ptr<double>() + i);
    CHECK(torch::equal(got.isnan(), wanted.isnan()));
    CHECK(torch::equal(got.nan_to_num(), wanted.nan_to_num()));
  };

  const at::Tensor bits = torch::arange(65536).to(at::kShort);  // every pattern
  check(bits.view(at::kHalf), ArrayType::f16, nullptr);
  check(bits.view(at::kHalf), ArrayType::f16, "F16");
  check(bits.view(at::kBFloat16), ArrayType::bf16, "BF16");
  check(bits, ArrayType::i16, nullptr);
  check(bits.to(at::kChar), ArrayType::i8, "I8");
  check(bits.to(at::kByte), ArrayType::u8, nullptr);
  check(bits.to(at::kInt) * 40000, ArrayType::i32, nullptr);
  check(bits.to(at::kLong) * 40000000, ArrayType::i64, "I64");
  check(bits.to(at::kFloat) / 3, ArrayType::f32, nullptr);
  check(bits.to(at::kDouble) / 3, ArrayType::f64, "F64");
  check(bits.gt(7), ArrayType::boolean, "BOOL");
  check(bits.view(at::kUInt16), ArrayType::u16, nullptr);
  check((bits.to(at::kLong) * 65537).bitwise_and(0xFFFFFFFF).to(at::kUInt32), ArrayType::u32,
        nullptr);
}

TEST_CASE("files that are not arrays are refused with an error that names the file", "[npy]") {
  const TempFolder f;
  const auto problem = [&](const std::string& bytes) {
    write_file(f / "a.npy", bytes);
    try {
      NpyFile(f / "a.npy");
    } catch (const Error& e) {
      CHECK(e.code() == Exit::data);
      CHECK_THAT(e.what(), ContainsSubstring("a.npy"));
      return std::string(e.what());
    }
    return std::string();
  };

  const auto header = [&](const std::string& text, size_t bytes = 24) {
    return problem(npy(1, text, std::string(bytes, 'x')));
  };

  CHECK(problem(from_numpy()).empty());  // the complete file is accepted
  for (size_t n = 0; n < from_numpy().size(); ++n)
    CHECK(!problem(from_numpy().substr(0, n)).empty());
  CHECK_THAT(problem(from_numpy() + "x"),
             ContainsSubstring("24 bytes") && ContainsSubstring("has 25"));
  CHECK_THAT(problem("a,b\n1,2\n"), ContainsSubstring("not a .npy"));
  CHECK_THAT(problem(npy(4, "{}", "")), ContainsSubstring(".npy version 4"));
  CHECK_THAT(problem(std::string("\x93NUMPY\x02\x00\xFF\xFF\xFF\xFF", 12)),
             ContainsSubstring("4294967295 bytes"));

  // These headers are well-formed, but their arrays are not supported.
  CHECK_THAT(header("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }"),
             ContainsSubstring("Fortran") && ContainsSubstring("numpy.ascontiguousarray"));
  CHECK_THAT(header("{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }"),
             ContainsSubstring("big-endian"));
  CHECK_THAT(header("{'descr': '<c8', 'fortran_order': False, 'shape': (3,), }"),
             ContainsSubstring("\"<c8\""));
  CHECK_THAT(header("{'descr': '|O', 'fortran_order': False, 'shape': (3,), }"),
             ContainsSubstring("\"|O\""));
  CHECK_THAT(header("{'descr': '', 'fortran_order': False, 'shape': (3,), }"),
             ContainsSubstring("type \"\""));
  CHECK_THAT(header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,), }"),
             ContainsSubstring("records"));
  CHECK_THAT(
      header("{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 3), }"),
      ContainsSubstring("too large"));

  // These headers are malformed.
  for (const char* text :
       {"", "{", "{}", "{'descr': '<f4'}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 3), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, -3), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3.0), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 6, }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'descr': '<f4'}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'more': '<f4'}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } x",
        "{'descr: <f4, 'fortran_order': False, 'shape': (2, 3), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }",
        ("{'descr': '<f4', 'fortran_order': False, 'shape': "
         "(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2,3), }")}) {
    INFO(text);
    CHECK_THAT(header(text), ContainsSubstring("malformed"));
  }
}

TEST_CASE("arrays of examples need a first dimension, and safetensors need the named tensor",
          "[npy]") {
  const TempFolder f;
  write_file(f / "one.npy",
             npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': ()}", "xxxx"));
  CHECK_THAT(error_of([&] { ExampleArray(f / "one.npy", ""); }),
             ContainsSubstring("one.npy") && ContainsSubstring("single number"));

  write_file(f / "none.npy",
             npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 0)}", ""));
  CHECK_THAT(error_of([&] { ExampleArray(f / "none.npy", ""); }),
             ContainsSubstring("none.npy") && ContainsSubstring("empty"));

  // If a file has two tensors, the name of one must be given.
  const std::string bytes(16, 'x');
  const auto span = std::as_bytes(std::span(bytes));
  write_safetensors(f / "two.safetensors", {{"a", "F32", {2, 1, 1}, span.subspan(0, 8)},
                                            {"b", "I64", {1}, span.subspan(0, 8)}});
  CHECK(ExampleArray(f / "two.safetensors", "b").type() == ArrayType::i64);
  CHECK(ExampleArray(f / "two.safetensors", "a").sizes() == std::vector<int64_t>{1, 1});
  CHECK_THAT(error_of([&] { ExampleArray(f / "two.safetensors", ""); }),
             ContainsSubstring("two.safetensors") && ContainsSubstring("\"inputs\""));

  write_file(f / "bad.safetensors", "abc");
  try {
    const ExampleArray bad(f / "bad.safetensors", "");
    FAIL("the malformed file was read");
  } catch (const Error& e) {
    CHECK(e.code() == Exit::data);
  }
}

}  // namespace
