// Declares the access control of a server: addresses, host names and the key. Includes no LibTorch
// header.
#pragma once

#include <string>

namespace lathe {

/// Returns whether `host` is a loopback address: localhost, ::1 or an address in 127.0.0.0/8.
bool is_loopback(const std::string& host);
/// Returns the name in a Host header, in lowercase and without the port: "::1" for "[::1]:80".
/// Lowercase is safe because the case of a name has no meaning (RFC 9110, section 4.2.3).
std::string host_without_port(std::string header);
/// Returns whether the key `given` that a client sent equals `key`. The time that this function
/// takes depends only on the length of `given`, so that it does not reveal how many characters are
/// right.
bool equals_key(const std::string& given, const std::string& key);

}  // namespace lathe
