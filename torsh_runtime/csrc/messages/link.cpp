#include "messages/link.hpp"

#include <algorithm>
#include <cstring>

#include "transport/tcp/epoll.hpp"

namespace torsh {
namespace {

// Larger messages go over all lanes.
constexpr std::size_t split_limit = 256 << 10;
// Bytes that one lane moves before the others, and the other direction, have their turn. Smaller
// turns cost more calls: with 256 KiB TCP takes a fifth more processor time.
constexpr std::size_t turn_bytes = 2 << 20;
constexpr std::size_t ahead_bytes = 8 << 10;

}  // namespace

Link::Link(int peer, std::vector<std::unique_ptr<Stream>> streams) : peer_(peer) {
  for (auto& stream : streams) lanes_.push_back({std::move(stream), {}, {}});
  if (lanes_.empty()) end_ = "it is this rank itself";
  if (!lanes_.empty() && descriptor(0) >= 0) ahead_.resize(ahead_bytes);
}

void Link::send(const TransferPtr& transfer) {
  const std::size_t lanes = transfer->data_.size() > split_limit ? lanes_.size() : 1;
  Header& header = transfer->header_;
  header.purpose = transfer->label().purpose;
  header.lanes = static_cast<std::uint8_t>(lanes);
  header.tag = transfer->label().tag;
  header.bytes = transfer->data_.size();
  header.call = transfer->label().call;
  header.seen = transfer->label().seen;
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    const Part part = part_of(header.bytes, lane, lanes);
    const auto head = lane == 0 ? std::as_bytes(std::span(&header, 1)) : std::span<const std::byte>();
    queue(lane, {transfer, head, transfer->data_.subspan(part.offset, part.bytes)});
  }
}

void Link::queue(std::size_t lane, const Outgoing& piece) {
  if (piece.head.empty() && piece.body.empty()) return;
  ++piece.transfer->parts_;
  lanes_[lane].out.push_back(piece);
}

// Runs a step; a stream that ends in it ends the link.
template <typename Step>
bool Link::guarded(Step step) {
  try {
    return step();
  } catch (const StreamEnded& ended) {
    end_ = ended.what();
    return true;
  }
}

bool Link::push() {
  bool moved = false;
  for (Lane& lane : lanes_) {
    if (end_.empty() && !lane.out.empty()) moved |= guarded([&] { return push(lane); });
  }
  return moved;
}

bool Link::push(Lane& lane) {
  std::size_t total = 0;
  while (!lane.out.empty() && total < turn_bytes) {
    Outgoing& piece = lane.out.front();
    const std::size_t body = std::min(piece.body.size(), turn_bytes - total);
    const std::size_t taken = lane.stream->write(piece.head, piece.body.first(body));
    const std::size_t of_head = std::min(taken, piece.head.size());
    piece.head = piece.head.subspan(of_head);
    piece.body = piece.body.subspan(taken - of_head);
    total += taken;
    if (piece.head.empty() && piece.body.empty()) {
      if (--piece.transfer->parts_ == 0) piece.transfer->finish(Transfer::State::done);
      lane.out.pop_front();
    } else if (taken == 0) {
      break;
    }
  }
  return total != 0;
}

// The first lane's end is not yet that of what was sent on the others before it.
bool Link::pull_first(Matcher& box, bool eager) {
  try {
    return ending_.empty() && pull_frames(box, eager);
  } catch (const StreamEnded& ended) {
    ending_ = ended.what();
    if (is_open(lanes_.front())) end_ = ending_;
    return true;
  }
}

bool Link::pull(Matcher& box, bool eager) {
  if (!end_.empty()) return false;
  bool moved = pull_first(box, eager);
  for (std::size_t i = 1; i < lanes_.size(); ++i) {
    if (!end_.empty() || !is_open(lanes_[i])) continue;
    std::size_t budget = turn_bytes;
    moved |= guarded([&] { return pull_part(lanes_[i], box, budget); });
  }
  if (end_.empty() && !is_reading()) end_ = ending_;
  return moved;
}

bool Link::pull_frames(Matcher& box, bool eager) {
  bool moved = false;
  for (std::size_t budget = turn_bytes; budget != 0;) {
    Lane& lane = lanes_.front();
    if (!lane.in.empty()) {
      if (!pull_part(lane, box, budget)) break;
    } else if (!(eager || box.wants(peer_)) || !read_header(box)) {
      break;
    }
    moved = true;
  }
  return moved;
}

// The message's bytes go straight to where they are wanted.
bool Link::pull_part(Lane& lane, Matcher& box, std::size_t& budget) {
  bool moved = false;
  while (is_open(lane) && budget != 0) {
    Incoming& part = lane.in.front();
    const std::size_t bytes = fill(lane, {part.arrival->target + part.offset, std::min(part.left, budget)});
    if (bytes == 0) break;
    moved = true;
    budget -= bytes;
    part.offset += bytes;
    part.left -= bytes;
    if (part.left != 0) continue;
    const ArrivalPtr arrival = std::move(part.arrival);
    lane.in.pop_front();
    if (--arrival->parts == 0) box.complete(*arrival);
  }
  return moved;
}

bool Link::read_header(Matcher& box) {
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(&header_, 1));
  const std::size_t come = fill(lanes_.front(), bytes.subspan(header_bytes_));
  header_bytes_ += come;
  if (header_bytes_ != sizeof header_) return false;
  header_bytes_ = 0;
  if (!header_.is_valid(lanes_.size())) throw StreamEnded("it has sent what is no message of this library");
  begin(box, header_);
  return true;
}

void Link::begin(Matcher& box, const Header& header) {
  const auto arrival = std::make_shared<Arrival>();
  arrival->peer = peer_;
  arrival->header = header;
  for (std::size_t lane = 0; lane < header.lanes; ++lane) {
    const Part part = part_of(header.bytes, lane, header.lanes);
    if (part.bytes == 0) continue;
    lanes_[lane].in.push_back({arrival, part.offset, part.bytes});
    ++arrival->parts;
  }
  box.arrive(arrival);
}

std::size_t Link::fill(Lane& lane, std::span<std::byte> room) {
  if (ahead_.empty() || &lane != &lanes_.front()) return lane.stream->read(room);
  if (ahead_from_ == ahead_to_) {
    if (room.size() >= ahead_.size()) return lane.stream->read(room);
    ahead_from_ = 0;
    ahead_to_ = lane.stream->read(ahead_);
  }
  const std::size_t bytes = std::min(room.size(), ahead_to_ - ahead_from_);
  std::memcpy(room.data(), ahead_.data() + ahead_from_, bytes);
  ahead_from_ += bytes;
  return bytes;
}

bool Link::is_sending() const {
  return std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return !lane.out.empty(); });
}

bool Link::is_through() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.stream->is_through(); });
}

bool Link::is_reading() const { return std::any_of(lanes_.begin(), lanes_.end(), is_open); }

bool Link::is_receiving() const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [](const Lane& lane) { return !lane.in.empty() && lane.in.front().arrival->receiver; });
}

unsigned Link::events(std::size_t lane, bool eager) const {
  if (!end_.empty()) return 0;
  const Lane& at = lanes_[lane];
  const bool may_begin = lane == 0 && at.in.empty() && eager && ending_.empty();
  return (is_open(at) || may_begin ? tcp::Epoll::readable : 0u) | (at.out.empty() ? 0u : tcp::Epoll::writable);
}

void Link::expect(std::size_t lane) {
  const Lane& at = lanes_[lane];
  at.stream->expect(at.in.empty() ? 1 : at.in.front().left);
}

const Transfer* Link::pending() const {
  for (const Lane& lane : lanes_) {
    if (!lane.out.empty()) return lane.out.front().transfer.get();
    if (!lane.in.empty() && lane.in.front().arrival->receiver) return lane.in.front().arrival->receiver.get();
  }
  return nullptr;
}

void Link::fail_all() {
  for (Lane& lane : lanes_) {
    for (const Outgoing& piece : lane.out) piece.transfer->finish(Transfer::State::failed);
    for (const Incoming& part : lane.in) {
      if (part.arrival->receiver) part.arrival->receiver->finish(Transfer::State::failed);
    }
    lane.out.clear();
    lane.in.clear();
  }
}

}  // namespace torsh
