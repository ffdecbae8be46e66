// Declares the names of Gloo that PyTorch's c10d/ProcessGroupGloo.hpp mentions. Gloo is a part of
// libtorch_cpu, which is shipped without Gloo's headers. Lathe must never create, derive from or
// call anything declared here, because the layouts are not Gloo's. No test checks this.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace gloo {

namespace transport {
class Device;
class UnboundBuffer;
}  // namespace transport

class Context {
 public:
  void setTimeout(std::chrono::milliseconds);
};

namespace rendezvous {

class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string&, const std::vector<char>&) = 0;
  virtual std::vector<char> get(const std::string&) = 0;
  virtual void wait(const std::vector<std::string>&) = 0;
  virtual void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) = 0;
};

}  // namespace rendezvous
}  // namespace gloo
