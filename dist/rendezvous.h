// Declares the key-value store through which the processes of a run find each other. The store is
// c10d's TCPStore.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "dist/placement.h"

namespace c10d {
class Store;
}

namespace lathe {

/// A connection to the store. Each process also stores its own state there, so that the other
/// processes can read it.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  /// Stores a value, and replaces any older value of the key.
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Returns the value; "" if the key is missing.
  virtual std::string get(const std::string& key) = 0;
  /// Returns the values of keys that all exist, in two requests however many keys there are.
  virtual std::vector<std::string> get_all(const std::vector<std::string>& keys) = 0;
  /// Returns the key under which a rank stores `what` about itself.
  static std::string key(const char* what, int rank) {
    return std::string(what) + "/" + std::to_string(rank);
  }
  /// Returns the keys under which each of `ranks` ranks stores `what`.
  static std::vector<std::string> keys(const char* what, int ranks) {
    std::vector<std::string> all;
    for (int r = 0; r < ranks; ++r) all.push_back(key(what, r));
    return all;
  }
  /// Adds 1 to a counter, which begins at 0, and returns the new value.
  virtual int64_t count(const std::string& key) = 0;
  /// Opens another connection to the store, for another thread. Requests over that connection fail
  /// after `timeout` seconds.
  virtual std::unique_ptr<Rendezvous> connect(double timeout) = 0;

  /// Returns the store itself, for c10d.
  virtual const c10::intrusive_ptr<c10d::Store>& store() const = 0;

  /// Connects to the store, which rank 0 serves unless torchrun's agent does. Throws
  /// Exit::peer_lost if the store can't be reached or does not answer within `timeout` seconds, and
  /// Exit::usage if rank 0 can't serve the store, for example because the port is in use.
  static std::unique_ptr<Rendezvous> open(const Placement& placement, double timeout);
};

/// Returns the message of an exception of c10d, without its stack trace.
std::string plain_message(const std::exception& e);

}  // namespace lathe
