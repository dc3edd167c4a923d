// Gloo's collectives as the Rust side sees them (the bridge is in mod.rs).
//
// Every call blocks, at most for its own limit of milliseconds, and throws what Gloo throws; cxx turns that into an
// error. Calls of different tags may run at the same time.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include <gloo/rendezvous/context.h>

#include "rust/cxx.h"

namespace kiln {

struct Keys;

// One process's connections to all others.
class Mesh {
 public:
  Mesh(std::shared_ptr<gloo::rendezvous::Context> context, std::set<std::string> ends);

  void all_reduce(rust::Slice<float> values, std::uint32_t tag, std::uint64_t limit) const;
  void all_reduce_bf16(rust::Slice<std::uint16_t> values, std::uint32_t tag, std::uint64_t limit) const;
  void all_gather(rust::Slice<const std::uint8_t> own, rust::Slice<const std::size_t> lengths,
                  rust::Slice<std::uint8_t> all, std::uint32_t tag, std::uint64_t limit) const;
  void broadcast(rust::Slice<std::uint8_t> values, std::size_t root, std::uint32_t tag, std::uint64_t limit) const;

  // Wakes every call, here and at the peers: their connections end.
  void close() const;

 private:
  std::shared_ptr<gloo::rendezvous::Context> context_;
  // The addresses that connections between the processes begin or end at.
  std::set<std::string> ends_;
};

// Connects process `rank` of `size` with all others. `host` is the address by which they reach this one; unless it is
// empty, `interface` names the network interface instead.
std::unique_ptr<Mesh> connect(std::size_t rank, std::size_t size, rust::Str host, rust::Str interface,
                              rust::Box<Keys> keys, std::uint64_t limit);

}  // namespace kiln
