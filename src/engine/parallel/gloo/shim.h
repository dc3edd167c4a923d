// Gloo's collectives for the Rust side (the bridge is in mod.rs).
//
// Every call blocks for at most its limit in milliseconds. cxx turns Gloo's exceptions into errors. Calls with different
// tags may run at the same time.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <gloo/rendezvous/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/unbound_buffer.h>

#include "rust/cxx.h"

namespace kiln {

struct Keys;
using Device = gloo::transport::Device;

// One process's connections to all others.
class Mesh {
 public:
  Mesh(std::shared_ptr<gloo::rendezvous::Context> context, std::set<std::string> ends);

  void all_reduce(rust::Slice<float> values, std::uint32_t tag, std::uint64_t limit) const;
  void all_gather(rust::Slice<const std::uint8_t> own, rust::Slice<const std::size_t> lengths,
                  rust::Slice<std::uint8_t> all, std::uint32_t tag, std::uint64_t limit) const;
  void all_to_all(rust::Slice<const std::uint8_t> own, rust::Slice<const std::size_t> sent,
                  rust::Slice<const std::size_t> received, rust::Slice<std::uint8_t> all, std::uint32_t tag,
                  std::uint64_t limit) const;
  void broadcast(rust::Slice<std::uint8_t> values, std::size_t root, std::uint32_t tag, std::uint64_t limit) const;

  // Sends a copy of `values`; waits only for the oldest of many messages.
  void send(rust::Slice<const std::uint8_t> values, std::size_t peer, std::uint64_t slot, std::uint64_t limit) const;
  void receive(rust::Slice<std::uint8_t> values, std::size_t peer, std::uint64_t slot, std::uint64_t limit) const;

  // Sends every process its token and checks that it sends this one's: `tokens` has those of all, in rank order.
  void identify(rust::Slice<const std::uint8_t> tokens, std::uint64_t limit) const;

  // See `sending` in sockets.h.
  rust::Vec<std::uint64_t> sending() const;

  // Closes all connections, which ends every call, here and on the peers.
  void close() const;

 private:
  // A message on its way.
  struct Message {
    std::vector<std::uint8_t> values;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  };

  std::shared_ptr<gloo::rendezvous::Context> context_;
  mutable std::mutex lock_;
  mutable std::deque<Message> sent_;
  // The endpoints of the connections between the processes.
  std::set<std::string> ends_;
  // Only asked: Gloo may have closed them.
  std::vector<int> connections_;
};

// The network interface at which the others reach this process: the one with the address `host` or, unless it is empty,
// with the name `interface`.
std::shared_ptr<Device> open(rust::Str host, rust::Str interface);

// Connects process `rank` of `size` with all others.
std::unique_ptr<Mesh> connect(std::size_t rank, std::size_t size, const std::shared_ptr<Device>& device,
                              rust::Box<Keys> keys, std::uint64_t limit);

}  // namespace kiln
