#include "rpc/message.hpp"

#include <unistd.h>

#include <cstring>

#include "rpc/frame_mac.hpp"
#include "transport/shm/cross_memory.hpp"

namespace torsh::rpc {
namespace {

using Bytes = std::span<const std::byte>;

void append(std::vector<std::byte>& to, const void* from, std::size_t bytes) {
  const auto* const start = static_cast<const std::byte*>(from);
  to.insert(to.end(), start, start + bytes);
}

// Copied where that is less work than a piece of its own, in the order of the frame.
void add(OutgoingMessage& outgoing, Bytes bytes) {
  if (bytes.empty()) return;
  if (outgoing.pieces.empty() && bytes.size() <= Packing::copy_limit) {
    append(outgoing.head, bytes.data(), bytes.size());
  } else {
    outgoing.pieces.push_back(bytes);
  }
}

// Whether others can read it: they cannot where it is a device's. The first and the last byte stand for all.
bool is_shown(Bytes bytes) {
  std::byte found;
  const auto first = reinterpret_cast<std::uint64_t>(bytes.data());
  return shm::read_memory(getpid(), &found, first, 1) && shm::read_memory(getpid(), &found, first + bytes.size() - 1, 1);
}

}  // namespace

void OutgoingMessage::authenticate(const SipKey& key, std::uint64_t number) {
  FrameHeader header;
  std::memcpy(&header, head.data(), sizeof header);
  header.number = number;
  std::vector<TableEntry> table(buffers);
  if (!table.empty()) std::memcpy(table.data(), head.data() + sizeof header, buffers * sizeof(TableEntry));
  header.mac = mac_of(key, header, table, tag);
  std::memcpy(head.data(), &header, sizeof header);
}

bool Message::is_genuine() const {
  const std::span<const std::byte> body(pickle.block ? pickle.data() : nullptr, pickle.bytes);
  const SipTag right = mac_of(key, header, table, tag_of(key, body));
  return ((right[0] ^ header.mac[0]) | (right[1] ^ header.mac[1])) == 0;
}

bool Message::is_large() const {
  std::size_t bytes = pickle.bytes;
  for (const TableEntry& entry : table) bytes += entry.bytes;
  return bytes >= Packing::lend_limit;
}

OutgoingMessagePtr Packing::pack(FrameHeader header, Bytes pickle, std::span<const Bytes> buffers, bool may_lend, const SipKey& key, std::shared_ptr<void> keep) {
  auto outgoing = std::make_shared<OutgoingMessage>();
  header.buffers = static_cast<std::uint32_t>(buffers.size());
  header.bytes = pickle.size();
  outgoing->call = header.call;
  outgoing->kind = header.kind;
  outgoing->head.reserve(sizeof header + buffers.size() * sizeof(TableEntry) + (pickle.size() <= copy_limit ? pickle.size() : 0));
  append(outgoing->head, &header, sizeof header);
  outgoing->bytes = pickle.size();
  outgoing->buffers = buffers.size();
  if (header.has_pickle()) outgoing->tag = tag_of(key, pickle);
  std::vector<Bytes> sent;
  for (const Bytes buffer : buffers) {
    const bool is_lent = may_lend && buffer.size() >= lend_limit && is_shown(buffer);
    if (!is_lent) sent.push_back(buffer);
    const TableEntry entry{buffer.size(), is_lent ? reinterpret_cast<std::uint64_t>(buffer.data()) : 0};
    append(outgoing->head, &entry, sizeof entry);
    outgoing->bytes += buffer.size();
    outgoing->is_lent |= is_lent;
  }
  add(*outgoing, pickle);
  for (const Bytes buffer : sent) add(*outgoing, buffer);
  if (outgoing->is_lent || !outgoing->pieces.empty()) outgoing->keep = std::move(keep);
  return outgoing;
}

}  // namespace torsh::rpc
