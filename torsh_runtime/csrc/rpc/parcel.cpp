#include "rpc/parcel.hpp"

#include <cstring>

namespace torsh::rpc {
namespace {

using Bytes = std::span<const std::byte>;

void append(std::vector<std::byte>& to, const void* from, std::size_t bytes) {
  const auto* const start = static_cast<const std::byte*>(from);
  to.insert(to.end(), start, start + bytes);
}

// Copied where that is less work than a piece of its own, in the order of the frame.
void add(Parcel& parcel, Bytes bytes) {
  if (bytes.empty()) return;
  if (parcel.pieces.empty() && bytes.size() <= Packing::copy_limit) {
    append(parcel.head, bytes.data(), bytes.size());
  } else {
    parcel.pieces.push_back(bytes);
  }
}

}  // namespace

ParcelPtr Packing::pack(FrameHeader header, Bytes pickle, std::span<const Bytes> buffers, bool may_lend, std::shared_ptr<void> keep) {
  auto parcel = std::make_shared<Parcel>();
  header.buffers = static_cast<std::uint32_t>(buffers.size());
  header.bytes = pickle.size();
  parcel->call = header.call;
  parcel->kind = header.kind;
  parcel->head.reserve(sizeof header + buffers.size() * sizeof(TableEntry) + (pickle.size() <= copy_limit ? pickle.size() : 0));
  append(parcel->head, &header, sizeof header);
  parcel->bytes = pickle.size();
  for (const Bytes buffer : buffers) {
    const bool is_lent = may_lend && buffer.size() >= lend_limit;
    const TableEntry entry{buffer.size(), is_lent ? reinterpret_cast<std::uint64_t>(buffer.data()) : 0};
    append(parcel->head, &entry, sizeof entry);
    parcel->bytes += buffer.size();
    parcel->is_lent |= is_lent;
  }
  add(*parcel, pickle);
  for (const Bytes buffer : buffers) {
    if (!(may_lend && buffer.size() >= lend_limit)) add(*parcel, buffer);
  }
  if (parcel->is_lent || !parcel->pieces.empty()) parcel->keep = std::move(keep);
  return parcel;
}

}  // namespace torsh::rpc
