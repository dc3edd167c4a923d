#include "kiln-engine/parallel/gloo/shim.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/alltoallv.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/loop.h>

#include "kiln-engine/parallel/gloo/mod.rs.h"
#include "kiln-engine/parallel/gloo/sockets.h"

// The loop of Gloo's thread that reads from its connections. Gloo accepts any connection to the port of a peer, and throws
// in this thread at an invalid header: in Gloo's own version of the loop a foreign process could end this one. The library
// calls the loop by its name, so that a program can replace it. This one differs in two respects: a connection that cannot
// be read stays unread, as if its other end were silent, until the callers that wait for it close it. And it does not spin:
// a handler whose connection another thread is about to write to returns at once, to be called again at once. Where all
// processors are busy, that thread may be one that waits for this processor.
void gloo::transport::tcp::Loop::run() {
  constexpr std::chrono::milliseconds tick(10);
  // Rounds without an event that the round before had not, each within so short a time, that count as spinning.
  constexpr int most_rounds = 4;
  constexpr std::chrono::microseconds at_once(30);
  std::array<epoll_event, capacity_> events{};
  int rounds = 0, last_count = 0;
  void* last = nullptr;
  while (!done_) {
    // Other threads wait for the end of an iteration before they destroy a handler.
    cv_.notify_all();
    const auto start = std::chrono::steady_clock::now();
    const int count = epoll_wait(fd_, events.data(), capacity_, static_cast<int>(tick.count()));
    const bool is_same = count > 0 && count == last_count && events[0].data.ptr == last;
    rounds = is_same && std::chrono::steady_clock::now() - start < at_once ? rounds + 1 : 0;
    if (rounds > most_rounds) std::this_thread::sleep_for(at_once);
    last_count = count;
    last = events[0].data.ptr;
    if (count < 0 && errno != EINTR) throw std::runtime_error("cannot wait for the connections of Gloo");
    bool failed = false;
    for (int i = 0; i < count; ++i) {
      try {
        static_cast<Handler*>(events[i].data.ptr)->handleEvents(static_cast<int>(events[i].events));
      } catch (const std::exception&) {
        failed = true;
      }
    }
    // It will be retried, and fail again.
    if (failed) std::this_thread::sleep_for(tick);
  }
}

namespace kiln {
namespace {

std::chrono::milliseconds milliseconds(std::uint64_t limit) { return std::chrono::milliseconds(limit); }

// The Rust side's key-value store, in which Gloo publishes addresses. Its errors become exceptions.
class Store final : public gloo::rendezvous::Store {
 public:
  Store(rust::Box<Keys> keys, std::size_t peers) : keys_(std::move(keys)), peers_(peers) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    note(data);
    keys_->set(key, {reinterpret_cast<const std::uint8_t*>(data.data()), data.size()});
  }

  std::vector<char> get(const std::string& key) override {
    const rust::Vec<std::uint8_t> value = keys_->get(key);
    std::vector<char> data(value.begin(), value.end());
    note(data);
    return data;
  }

  // `get` waits itself, with its own limit; a second wait would double it.
  void wait(const std::vector<std::string>&) override {}

  // The addresses that were published or read.
  std::set<std::string> ends() const { return ends_; }

 private:
  // A process publishes one address per peer, which begins with a sockaddr_storage.
  void note(const std::vector<char>& data) {
    const std::size_t size = data.size() / peers_;
    if (size < sizeof(sockaddr_storage)) return;
    for (std::size_t start = 0; start + size <= data.size(); start += size) {
      sockaddr_storage address;
      std::memcpy(&address, data.data() + start, sizeof address);
      const std::string end = end_of(address);
      if (!end.empty()) ends_.insert(end);
    }
  }

  rust::Box<Keys> keys_;
  std::size_t peers_;
  std::set<std::string> ends_;
};

}  // namespace

Mesh::Mesh(std::shared_ptr<gloo::rendezvous::Context> context, std::set<std::string> ends)
    : context_(std::move(context)), ends_(std::move(ends)), connections_(connections(ends_)) {}

void Mesh::all_reduce(rust::Slice<float> values, std::uint32_t tag, std::uint64_t limit) const {
  void (*add)(void*, const void*, const void*, std::size_t) = gloo::sum<float>;
  gloo::AllreduceOptions options(context_);
  options.setInput(values.data(), values.size());
  options.setOutput(values.data(), values.size());
  options.setReduceFunction(add);
  options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  options.setTag(tag);
  options.setTimeout(milliseconds(limit));
  gloo::allreduce(options);
}

void Mesh::all_gather(rust::Slice<const std::uint8_t> own, rust::Slice<const std::size_t> lengths,
                      rust::Slice<std::uint8_t> all, std::uint32_t tag, std::uint64_t limit) const {
  gloo::AllgathervOptions options(context_);
  options.setInput(const_cast<std::uint8_t*>(own.data()), own.size());
  options.setOutput(all.data(), {lengths.begin(), lengths.end()});
  options.setTag(tag);
  options.setTimeout(milliseconds(limit));
  gloo::allgatherv(options);
}

void Mesh::all_to_all(rust::Slice<const std::uint8_t> own, rust::Slice<const std::size_t> sent,
                      rust::Slice<const std::size_t> received, rust::Slice<std::uint8_t> all, std::uint32_t tag,
                      std::uint64_t limit) const {
  gloo::AlltoallvOptions options(context_);
  options.setInput(const_cast<std::uint8_t*>(own.data()), {sent.begin(), sent.end()});
  options.setOutput(all.data(), {received.begin(), received.end()});
  options.setTag(tag);
  options.setTimeout(milliseconds(limit));
  gloo::alltoallv(options);
}

void Mesh::broadcast(rust::Slice<std::uint8_t> values, std::size_t root, std::uint32_t tag,
                     std::uint64_t limit) const {
  gloo::BroadcastOptions options(context_);
  options.setOutput(values.data(), values.size());
  options.setRoot(static_cast<int>(root));
  options.setTag(tag);
  options.setTimeout(milliseconds(limit));
  gloo::broadcast(options);
}

void Mesh::send(rust::Slice<const std::uint8_t> values, std::size_t peer, std::uint64_t slot,
                std::uint64_t limit) const {
  // A buffer can only be waited for, not asked. The last ones stay under way: their receiver may send first.
  constexpr std::size_t under_way = 64, least = 4, most_bytes = 64 << 20;
  Message message{{values.begin(), values.end()}, nullptr};
  message.buffer = context_->createUnboundBuffer(message.values.data(), message.values.size());
  message.buffer->send(static_cast<int>(peer), slot);
  std::lock_guard<std::mutex> guard(lock_);
  sent_.push_back(std::move(message));
  std::size_t bytes = 0;
  for (const auto& each : sent_) bytes += each.values.size();
  while (sent_.size() > under_way || (sent_.size() > least && bytes > most_bytes)) {
    sent_.front().buffer->waitSend(milliseconds(limit));
    bytes -= sent_.front().values.size();
    sent_.pop_front();
  }
}

void Mesh::receive(rust::Slice<std::uint8_t> values, std::size_t peer, std::uint64_t slot, std::uint64_t limit) const {
  const auto buffer = context_->createUnboundBuffer(values.data(), values.size());
  buffer->recv(static_cast<int>(peer), slot);
  buffer->waitRecv(milliseconds(limit));
}

void Mesh::identify(rust::Slice<const std::uint8_t> tokens, std::uint64_t limit) const {
  // No collective uses this slot.
  constexpr std::uint64_t slot = 0;
  const std::size_t size = context_->size, rank = context_->rank, width = tokens.size() / size;
  std::vector<std::uint8_t> shown(tokens.begin(), tokens.end()), seen(tokens.size());
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> sent, received;
  for (std::size_t peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    received.push_back(context_->createUnboundBuffer(seen.data() + peer * width, width));
    received.back()->recv(static_cast<int>(peer), slot);
    sent.push_back(context_->createUnboundBuffer(shown.data() + peer * width, width));
    sent.back()->send(static_cast<int>(peer), slot);
  }
  for (const auto& buffer : sent) buffer->waitSend(milliseconds(limit));
  for (const auto& buffer : received) buffer->waitRecv(milliseconds(limit));
  const auto own = tokens.begin() + rank * width;
  for (std::size_t peer = 0; peer < size; ++peer) {
    if (peer != rank && !std::equal(own, own + width, seen.begin() + peer * width)) {
      throw std::runtime_error("a stranger answered in the place of process " + std::to_string(peer));
    }
  }
}

rust::Vec<std::uint64_t> Mesh::sending() const { return kiln::sending(connections_); }

// Gloo's own functions to close a connection leave a blocked caller waiting until its limit; closing the socket does not.
void Mesh::close() const { shut(ends_); }

std::shared_ptr<Device> open(rust::Str host, rust::Str interface) {
  gloo::transport::tcp::attr address;
  if (interface.empty()) {
    address.hostname = std::string(host);
  } else {
    address.iface = std::string(interface);
  }
  return gloo::transport::tcp::CreateDevice(address);
}

std::unique_ptr<Mesh> connect(std::size_t rank, std::size_t size, const std::shared_ptr<Device>& device,
                              rust::Box<Keys> keys, std::uint64_t limit) {
  // Gloo may write to closed sockets.
  signal(SIGPIPE, SIG_IGN);
  auto context = std::make_shared<gloo::rendezvous::Context>(static_cast<int>(rank), static_cast<int>(size));
  context->setTimeout(milliseconds(limit));
  Store store(std::move(keys), std::max<std::size_t>(size - 1, 1));
  auto shared = device;
  context->connectFullMesh(store, shared);
  return std::make_unique<Mesh>(std::move(context), store.ends());
}

}  // namespace kiln
