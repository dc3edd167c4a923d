// The TCP sockets of Gloo: finding them, limiting which hosts may connect, and closing them.
//
// Gloo does not expose its sockets. They are found among the open files of the process by the addresses at which they
// listen, which Gloo publishes.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <sys/socket.h>

#include "rust/cxx.h"

namespace kiln {

// Address and port as bytes; empty for other files than TCP sockets.
std::string end_of(const sockaddr_storage& address);

// The IP addresses of this host, 16 bytes each; those of version 4 are mapped to version 6.
rust::Vec<std::uint8_t> addresses();

// Makes the socket that listens at `own`, a sockaddr_storage, accept only `hosts`, addresses as above; it does not answer
// others. If the kernel does not support that, it accepts all hosts.
void admit(rust::Slice<const std::uint8_t> own, rust::Slice<const std::uint8_t> hosts);

// The connections from or to one of `ends`.
std::vector<int> connections(const std::set<std::string>& ends);

// How long each of the connections has had data on the way to a host that was ready to take it, in microseconds.
rust::Vec<std::uint64_t> sending(const std::vector<int>& connections);

// Closes every connection from or to one of `ends`, which ends all waits for it, here and at the other end.
void shut(const std::set<std::string>& ends);

}  // namespace kiln
