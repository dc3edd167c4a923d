// The TCP sockets of this process: which are Gloo's, who may connect to them, how they end.
//
// Gloo owns its sockets and shows none of them. It publishes the addresses that they listen at, and by these they are
// found among the open files of the process.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include <sys/socket.h>

#include "rust/cxx.h"

namespace kiln {

// Address and port as bytes; empty for what is no TCP socket.
std::string end_of(const sockaddr_storage& address);

// The IP addresses of this host, 16 bytes each, those of version 4 as version 6 maps them.
rust::Vec<std::uint8_t> addresses();

// Lets the socket that listens at `own`, a sockaddr_storage, hear only `hosts`, addresses as above: to all others it
// does not answer. Where the kernel cannot do that, it hears everybody.
void admit(rust::Slice<const std::uint8_t> own, rust::Slice<const std::uint8_t> hosts);

// Ends every connection from or to one of `ends`: whoever waits for it wakes, here and at the other end.
void shut(const std::set<std::string>& ends);

}  // namespace kiln
