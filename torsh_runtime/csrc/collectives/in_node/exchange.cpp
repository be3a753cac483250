#include "collectives/in_node/exchange.hpp"

#include "collectives/in_node/direct.hpp"
#include "collectives/in_node/exposure.hpp"
#include "collectives/in_node/limits.hpp"
#include "collectives/in_node/steps.hpp"
#include "common/pages.hpp"
#include "common/per_rank.hpp"

namespace torsh::in_node {
namespace {

// The beginning of the first round's payload.
struct Head {
  std::uint32_t blocks = 0;  // blocks of this rank's stream
  bool tiny = false;         // sizes and stream follow in the payload itself
  bool direct = false;       // some pieces are not in the stream
};

// What a rank tells one peer, of the piece for it and of the piece from it.
struct Entry {
  std::uint64_t start, bytes;  // in the stream
  Place place;                 // if it is not in the stream
  std::uint64_t wanted;        // bytes of the piece from it
  Place room;  // where that may be written
};


std::size_t table_bytes(int ranks) {
  return (static_cast<std::size_t>(ranks) * sizeof(Entry) + cache_line - 1) / cache_line * cache_line;
}

// The pieces that a rank sends, beginning with the next rank's, form a stream, which goes through its slot in blocks.
// Large pieces that their receivers can access are not in it.
class Exchange {
 public:
  Exchange(shm::Channel& channel, Pieces taken, Pieces given, int pulled)
      : channel_(channel),
        direct_(channel, total(taken) * taken.size(), limits(channel).cross_memory_pair, limits(channel).array),
        taken_(taken),
        given_(given),
        pulled_(static_cast<std::size_t>(pulled)),
        others_(static_cast<std::size_t>(channel.ranks()) - 1),
        table_(table_bytes(channel.ranks())),
        room_(shm::slot_bytes(channel.tuning()) - table_),
        offers_(channel.ranks()),
        found_(channel.ranks()),
        streams_(channel.ranks()) {}

  void run() {
    const Exposed exposed(channel_);
    const int own = channel_.rank();
    lay_out();
    channel_.next_block();
    if (head_.tiny) post_tiny();
    else post_table();
    look_up();
    direct_.copy(of(taken_, own).data, of(given_, own).data, of(given_, own).bytes);
    take(0);
    for (std::uint32_t block = 1; block < most_blocks_; ++block) {
      channel_.next_block();
      fill(block);
      channel_.barrier();
      for_peers(channel_, [&](int peer) { streams_[peer] = channel_.slot(peer) + table_; });
      take(block);
    }
    if (any_direct_) copy_in_place();
  }

 private:
  void lay_out() {
    std::uint64_t end = 0;
    bool rooms = false;
    offers_[channel_.rank()] = {};
    for_peers(channel_, [&](int peer) {
      const Piece &piece = of(given_, peer), &room = of(taken_, peer);
      const Place from = direct_.place(piece, piece.bytes), to = direct_.place(room, room.bytes);
      offers_[peer] = {end, piece.bytes, from, room.bytes, to};
      if (from.kind == Place::Kind::nowhere) end += piece.bytes;
      else head_.direct = true;
      rooms = rooms || to.kind != Place::Kind::nowhere;
    });
    written_ = table_ + std::min<std::size_t>(end, room_);
    head_.blocks = static_cast<std::uint32_t>((end + room_ - 1) / room_);
    head_.tiny = !head_.direct && !rooms && sizeof head_ + others_ + end <= shm::tiny_bytes;
  }

  void post_tiny() {
    std::byte line[shm::tiny_bytes];
    std::memcpy(line, &head_, sizeof head_);
    std::byte *size = line + sizeof head_, *at = size + others_;
    for_peers(channel_, [&](int peer) {
      const Piece& piece = of(given_, peer);
      *size++ = static_cast<std::byte>(piece.bytes);
      copy_bytes(at, piece.data, piece.bytes);
      at += piece.bytes;
    });
    channel_.round(line, static_cast<std::size_t>(at - line));
  }

  void post_table() {
    std::byte* slot = channel_.own_slot(written_);
    std::memcpy(slot, offers_.data(), (others_ + 1) * sizeof(Entry));
    fill(0);
    channel_.round(&head_, sizeof head_);
  }

  void fill(std::uint32_t block) {
    std::byte* slot = channel_.own_slot(written_) + table_;
    for_peers(channel_, [&](int peer) {
      for_part(offers_[peer], block, [&](std::size_t in_piece, std::size_t in_block, std::size_t bytes) {
        copy_shared(slot + in_block, of(given_, peer).data + in_piece, bytes);
      });
    });
  }

  // Calls body(offset in the piece, offset in the block, bytes) for the part of the piece that is in the block.
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
      const Entry& found = found_[peer];
      const std::size_t taken = of(taken_, peer).bytes, given = of(given_, peer).bytes;
      if (found.bytes != taken) channel_.disagree_on_size(peer, taken, found.bytes);
      if (found.wanted != given) channel_.disagree_on_size(peer, given, found.wanted);
    });
  }

  // A rank that sends this short form expects no large piece either, and says no more about that.
  void find_tiny(int peer) {
    const std::byte* sizes = channel_.payload(peer) + sizeof(Head);
    const int ranks = channel_.ranks();
    const int own = (channel_.rank() - peer + ranks) % ranks - 1;
    std::uint64_t start = 0;
    for (int before = 0; before < own; ++before) start += static_cast<std::uint64_t>(sizes[before]);
    found_[peer] = {start, static_cast<std::uint64_t>(sizes[own]), {}, of(given_, peer).bytes, {}};
    streams_[peer] = sizes + others_;
  }

  void find_in_table(int peer) {
    const std::byte* slot = channel_.slot(peer);
    count_lines(sizeof(Entry));
    std::memcpy(&found_[peer], slot + static_cast<std::size_t>(channel_.rank()) * sizeof(Entry), sizeof(Entry));
    streams_[peer] = slot + table_;
  }

  void take(std::uint32_t block) {
    for_peers(channel_, [&](int peer) {
      for_part(found_[peer], block, [&](std::size_t in_piece, std::size_t in_block, std::size_t bytes) {
        copy_fetched(of(taken_, peer).data + in_piece, streams_[peer] + in_block, bytes);
      });
    });
  }

  void copy_in_place() {
    for_peers(channel_, [&](int peer) { push(peer); });
    for_peers(channel_, [&](int peer) { pull(peer); });
    channel_.close_round();  // from here on the pieces are their owners' again
  }

  void pull(int peer) {
    const Entry &theirs = found_[peer], &own = offers_[peer];
    if (theirs.place.kind == Place::Kind::nowhere) return;
    const std::size_t first = given_part(theirs.bytes, own.room);
    direct_.pull(peer, of(taken_, peer).data + first, theirs.place, first, theirs.bytes - first);
  }

  void push(int peer) {
    const Entry &theirs = found_[peer], &own = offers_[peer];
    if (own.place.kind == Place::Kind::nowhere) return;
    direct_.push(peer, theirs.room, 0, of(given_, peer).data, given_part(own.bytes, theirs.room));
  }

  // How much of a piece its sender copies, if it can.
  std::size_t given_part(std::size_t bytes, const Place& room) const {
    const std::size_t ranks = others_ + 1;
    return room.kind == Place::Kind::nowhere ? 0 : bytes / ranks * (ranks - pulled_) / least_page * least_page;
  }

  shm::Channel& channel_;
  Direct direct_;
  const Pieces taken_, given_;
  const std::size_t pulled_, others_, table_, room_;
  std::size_t written_ = 0;  // bytes of the slot that this rank uses
  Head head_;
  PerRank<Entry> offers_, found_;      // to and from each peer
  PerRank<const std::byte*> streams_;  // the present block of each peer's
  std::uint32_t most_blocks_ = 0;
  bool any_direct_ = false;
};

}  // namespace

void exchange(shm::Channel& channel, Pieces taken, Pieces given, int pulled) {
  Exchange(channel, taken, given, pulled).run();
}

}  // namespace torsh::in_node
