// Access control of a server: addresses, host names and the key. Includes no LibTorch header.
#pragma once

#include <string>

namespace lathe {

/// Returns whether an address is of this machine alone: localhost, ::1 or 127.0.0.0/8.
bool is_loopback(const std::string& host);
/// Returns the name in a Host header in lowercase letters, without its port: "[::1]:80" is "::1".
/// Names are the same in uppercase (RFC 9110, section 4.2.3).
std::string name_of_host(std::string header);
/// Returns whether a key that a client sent is the right one, in a time that depends on the length
/// of `given` only.
bool equals_key(const std::string& given, const std::string& key);

}  // namespace lathe
