#include "kiln-engine/parallel/gloo/sockets.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

namespace kiln {
namespace {

constexpr std::size_t host_size = sizeof(in6_addr);

template <typename T>
std::string bytes(const T& part) {
  return std::string(reinterpret_cast<const char*>(&part), sizeof part);
}

// The IP address of an endpoint, 16 bytes; empty for other addresses.
std::string host_of(const sockaddr* address) {
  if (address != nullptr && address->sa_family == AF_INET) {
    const std::string mapped("\0\0\0\0\0\0\0\0\0\0\xff\xff", 12);
    return mapped + bytes(reinterpret_cast<const sockaddr_in*>(address)->sin_addr);
  }
  if (address != nullptr && address->sa_family == AF_INET6) {
    return bytes(reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  }
  return {};
}

bool is_mapped(const std::string& host) {
  in6_addr address;
  std::memcpy(&address, host.data(), sizeof address);
  return IN6_IS_ADDR_V4MAPPED(&address);
}

// A program for the kernel's packet filter that accepts packets of IP version 4 or 6 from one of `hosts`.
std::vector<sock_filter> from(const std::vector<std::string>& hosts, bool four) {
  // The offset of the source in a header, its length, and its offset in the 16 bytes of a host.
  const std::uint32_t source = SKF_NET_OFF + (four ? 12 : 8), size = four ? 4 : 16, start = host_size - size;
  std::vector<sock_filter> program;
  for (const std::string& host : hosts) {
    for (std::uint32_t at = 0; at < size; at += 4) {
      std::uint32_t word;
      std::memcpy(&word, host.data() + start + at, sizeof word);
      // Past the other words of this host, and the instruction that accepts the packet.
      const auto next_host = static_cast<std::uint8_t>(2 * ((size - at) / 4 - 1) + 1);
      program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, source + at));
      program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(word), 0, next_host));
    }
    program.push_back(BPF_STMT(BPF_RET | BPF_K, 0xffffffff));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, 0));
  return program;
}

// Calls `act` with every open file of this process.
void for_each_file(const std::function<void(int)>& act) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir("/proc/self/fd"), closedir);
  if (directory == nullptr) return;
  while (const dirent* entry = readdir(directory.get())) act(std::atoi(entry->d_name));
}

// The own or the other endpoint of a file; empty if it has none.
std::string ask(int (*which)(int, sockaddr*, socklen_t*), int file) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (which(file, reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  return end_of(address);
}

}  // namespace

std::string end_of(const sockaddr_storage& address) {
  const std::string host = host_of(reinterpret_cast<const sockaddr*>(&address));
  // The port has the same offset in both versions.
  return host.empty() ? host : host + bytes(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

rust::Vec<std::uint8_t> addresses() {
  rust::Vec<std::uint8_t> all;
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return all;
  for (const ifaddrs* interface = interfaces; interface != nullptr; interface = interface->ifa_next) {
    for (const char byte : host_of(interface->ifa_addr)) all.push_back(static_cast<std::uint8_t>(byte));
  }
  freeifaddrs(interfaces);
  return all;
}

void admit(rust::Slice<const std::uint8_t> own, rust::Slice<const std::uint8_t> hosts) {
  sockaddr_storage address{};
  std::memcpy(&address, own.data(), std::min(own.size(), sizeof address));
  const std::string end = end_of(address);
  if (end.empty()) return;
  const bool four = is_mapped(end.substr(0, host_size));
  std::vector<std::string> admitted;
  for (std::size_t at = 0; at + host_size <= hosts.size(); at += host_size) {
    std::string host(reinterpret_cast<const char*>(hosts.data()) + at, host_size);
    if (is_mapped(host) == four) admitted.push_back(std::move(host));
  }
  if (admitted.empty()) return;
  std::vector<sock_filter> program = from(admitted, four);
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  for_each_file([&](int file) {
    if (ask(getsockname, file) == end) setsockopt(file, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter);
  });
}

std::vector<int> connections(const std::set<std::string>& ends) {
  std::vector<int> found;
  for_each_file([&](int file) {
    const std::string peer = ask(getpeername, file);
    const bool ours = ends.count(ask(getsockname, file)) > 0 || ends.count(peer) > 0;
    if (ours && !peer.empty()) found.push_back(file);
  });
  return found;
}

rust::Vec<std::uint64_t> sending(const std::vector<int>& connections) {
  rust::Vec<std::uint64_t> all;
  for (const int connection : connections) {
    tcp_info known{};
    socklen_t length = sizeof known;
    // Older kernels know less, and leave the rest zero, as an error does.
    getsockopt(connection, IPPROTO_TCP, TCP_INFO, &known, &length);
    all.push_back(known.tcpi_busy_time - known.tcpi_rwnd_limited);
  }
  return all;
}

void shut(const std::set<std::string>& ends) {
  for_each_file([&](int file) {
    // The descriptor may be reused for another file at any time; a duplicate keeps this one.
    const int held = fcntl(file, F_DUPFD_CLOEXEC, 0);
    if (held < 0) return;
    const bool ours = ends.count(ask(getsockname, held)) > 0 || ends.count(ask(getpeername, held)) > 0;
    if (ours) shutdown(held, SHUT_RDWR);
    ::close(held);
  });
}

}  // namespace kiln
