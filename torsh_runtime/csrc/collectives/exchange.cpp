#include "collectives/exchange.hpp"

#include "collectives/direct.hpp"
#include "collectives/steps.hpp"
#include "common/per_rank.hpp"

namespace torsh::in_node {
namespace {

// What the first round's payload begins with.
struct Head {
  std::uint32_t blocks = 0;  // that this rank's stream takes
  bool tiny = false;         // sizes and stream follow in the payload itself
  bool direct = false;       // some pieces are not in the stream
};

// What one receiver has to know of its piece.
struct Entry {
  std::uint64_t start, bytes;  // in the stream
  Place place;                 // if it is not in the stream
};

constexpr std::size_t lines(std::size_t bytes) { return (bytes + cache_line - 1) / cache_line * cache_line; }

// The pieces that a rank gives to others, that of the next rank first, are its stream, which goes
// through its slot in blocks. Large pieces are not in it if their receivers can get at them.
class Exchange {
 public:
  Exchange(shm::Channel& channel, Pieces taken, Pieces given)
      : channel_(channel),
        direct_(channel),
        taken_(taken),
        given_(given),
        others_(static_cast<std::size_t>(channel.ranks()) - 1),
        table_(lines((others_ + 1) * sizeof(Entry))),
        room_(shm::slot_bytes(channel.tuning()) - table_),
        offers_(channel.ranks()),
        found_(channel.ranks()),
        streams_(channel.ranks()) {}

  void run() {
    const int own = channel_.rank();
    lay_out();
    channel_.next_block();
    if (head_.tiny) post_tiny();
    else post_table();
    look_up();
    copy_own(of(taken_, own).data, of(given_, own).data, of(given_, own).bytes);
    take(0);
    for (std::uint32_t block = 1; block < most_blocks_; ++block) {
      channel_.next_block();
      fill(block);
      channel_.round();
      for_peers(channel_, [&](int peer) { streams_[peer] = channel_.slot(peer) + table_; });
      take(block);
    }
    if (any_direct_) copy_in_place();
  }

 private:
  void lay_out() {
    std::uint64_t end = 0;
    for_peers(channel_, [&](int peer) {
      const Piece& piece = of(given_, peer);
      offers_[peer] = {end, piece.bytes, direct_.place(piece, piece.bytes)};
      if (offers_[peer].place.kind == Place::Kind::nowhere) end += piece.bytes;
      else head_.direct = true;
    });
    head_.blocks = static_cast<std::uint32_t>((end + room_ - 1) / room_);
    head_.tiny = !head_.direct && sizeof head_ + others_ + end <= shm::tiny_bytes;
  }

  void post_tiny() {
    std::byte line[shm::tiny_bytes];
    std::memcpy(line, &head_, sizeof head_);
    std::byte *size = line + sizeof head_, *at = size + others_;
    for_peers(channel_, [&](int peer) {
      const Piece& piece = of(given_, peer);
      *size++ = static_cast<std::byte>(piece.bytes);
      std::memcpy(at, piece.data, piece.bytes);
      at += piece.bytes;
    });
    channel_.round(line, static_cast<std::size_t>(at - line));
  }

  void post_table() {
    std::byte* slot = channel_.slot(channel_.rank());
    std::memcpy(slot, offers_.data(), (others_ + 1) * sizeof(Entry));
    fill(0);
    channel_.round(&head_, sizeof head_);
  }

  void fill(std::uint32_t block) {
    std::byte* slot = channel_.slot(channel_.rank()) + table_;
    for_peers(channel_, [&](int peer) {
      for_part(offers_[peer], block, [&](std::size_t in_piece, std::size_t in_block, std::size_t bytes) {
        copy_shared(slot + in_block, of(given_, peer).data + in_piece, bytes);
      });
    });
  }

  // Calls body(offset in the piece, offset in the block, bytes) for what of the piece is in it.
  template <typename Body>
  void for_part(const Entry& entry, std::uint32_t block, Body body) const {
    if (entry.place.kind != Place::Kind::nowhere) return;
    const std::uint64_t first = std::max(entry.start, block * room_);
    const std::uint64_t last = std::min(entry.start + entry.bytes, (block + 1) * room_);
    if (first < last) body(first - entry.start, first - block * room_, last - first);
  }

  void look_up() {
    most_blocks_ = head_.blocks;
    any_direct_ = head_.direct;
    for_peers(channel_, [&](int peer) {
      Head head;
      std::memcpy(&head, channel_.payload(peer), sizeof head);
      most_blocks_ = std::max(most_blocks_, head.blocks);
      any_direct_ = any_direct_ || head.direct;
      if (head.tiny) find_tiny(peer);
      else find_in_table(peer);
      if (found_[peer].bytes != of(taken_, peer).bytes) channel_.disagree(peer);
    });
  }

  void find_tiny(int peer) {
    const std::byte* sizes = channel_.payload(peer) + sizeof(Head);
    const std::size_t ranks = others_ + 1;
    const std::size_t own = static_cast<std::size_t>(channel_.rank() - peer) + (channel_.rank() < peer ? ranks : 0) - 1;
    found_[peer] = {0, static_cast<std::uint64_t>(sizes[own]), {}};
    for (std::size_t before = 0; before < own; ++before) found_[peer].start += static_cast<std::uint64_t>(sizes[before]);
    streams_[peer] = sizes + others_;
  }

  void find_in_table(int peer) {
    const std::byte* slot = channel_.slot(peer);
    std::memcpy(&found_[peer], slot + static_cast<std::size_t>(channel_.rank()) * sizeof(Entry), sizeof(Entry));
    streams_[peer] = slot + table_;
  }

  void take(std::uint32_t block) {
    for_peers(channel_, [&](int peer) {
      for_part(found_[peer], block, [&](std::size_t in_piece, std::size_t in_block, std::size_t bytes) {
        copy_shared(of(taken_, peer).data + in_piece, streams_[peer] + in_block, bytes);
      });
    });
  }

  void copy_in_place() {
    for_peers(channel_, [&](int peer) {
      const Entry& theirs = found_[peer];
      if (theirs.place.kind == Place::Kind::nowhere) return;
      direct_.pull(peer, of(taken_, peer).data, theirs.place, 0, theirs.bytes);
    });
    channel_.close_round();  // from here on the pieces are their owners' again
  }

  shm::Channel& channel_;
  Direct direct_;
  const Pieces taken_, given_;
  const std::size_t others_, table_, room_;
  Head head_;
  PerRank<Entry> offers_, found_;         // to and from each peer
  PerRank<const std::byte*> streams_;     // the present block of each peer's
  std::uint32_t most_blocks_ = 0;
  bool any_direct_ = false;
};

}  // namespace

void exchange(shm::Channel& channel, Pieces taken, Pieces given) {
  Exchange(channel, taken, given).run();
}

}  // namespace torsh::in_node
