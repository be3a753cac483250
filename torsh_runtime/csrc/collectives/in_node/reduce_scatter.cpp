#include "collectives/in_node/direct.hpp"
#include "collectives/in_node/in_node.hpp"
#include "collectives/in_node/limits.hpp"
#include "collectives/in_node/steps.hpp"

namespace torsh::in_node {
namespace {

class ReduceScatter {
 public:
  ReduceScatter(shm::Channel& channel, const Reduction& reduce, Piece output, Pieces inputs)
      : channel_(channel),
        reduce_(reduce),
        own_(channel.rank()),
        output_(output),
        inputs_(inputs),
        sources_(channel.ranks()),
        places_(channel.ranks()) {}

  void run() {
    if (total(inputs_) <= shm::tiny_bytes) return tiny();
    if (!in_place()) staged();
  }

 private:
  // All inputs, one after the other, in the flag's line.
  void tiny() {
    std::byte line[shm::tiny_bytes];
    std::size_t end = 0, part = 0;
    for (int peer = 0; peer < channel_.ranks(); ++peer) {
      if (peer == own_) part = end;
      copy_bytes(line + end, of(inputs_, peer).data, of(inputs_, peer).bytes);
      end += of(inputs_, peer).bytes;
    }
    channel_.round(line, end);
    for (int peer = 0; peer < channel_.ranks(); ++peer) {
      sources_[peer] = (peer == own_ ? line : channel_.payload(peer)) + part;
    }
    reduce_sources(0, output_.bytes);
  }

  // A block of every input goes through the slot at a time.
  void staged() {
    const std::size_t limit = share_of_slot(channel_);
    const auto part = [&](int rank) { return static_cast<std::size_t>(rank) * limit; };
    for_blocks(longest(inputs_), limit, [&](std::size_t at, std::size_t) {
      channel_.next_block();
      std::byte* slot = channel_.own_slot(part(channel_.ranks()));
      for_peers(channel_, [&](int peer) {
        const Piece& given = of(inputs_, peer);
        copy_shared(slot + part(peer), given.data + at, within(given.bytes, at, limit));
      });
      channel_.barrier();
      for (int peer = 0; peer < channel_.ranks(); ++peer) sources_[peer] = channel_.slot(peer) + part(own_);
      for_peers(channel_, [&](int) { count_lines(within(output_.bytes, at, limit)); });
      sources_[own_] = of(inputs_, own_).data + at;
      reduce_sources(at, within(output_.bytes, at, limit));
    });
  }

  // Reduces the other inputs in place, or fetches them piece by piece.
  bool in_place() {
    Direct direct(channel_, 0, limits(channel_).cross_memory, limits(channel_).array);
    if (!can_exchange(direct)) return false;
    for_blocks(output_.bytes, direct.piece_bytes(), [&](std::size_t at, std::size_t length) {
      for_peers(channel_, [&](int peer) { sources_[peer] = direct.fetch(peer, places_[peer], at, length); });
      sources_[own_] = of(inputs_, own_).data + at;
      reduce_sources(at, length);
    });
    channel_.close_round();  // from here on the peers may change their inputs
    return true;
  }

  // Exchanges the locations of all inputs. Returns whether all can be accessed.
  bool can_exchange(Direct& direct) {
    const std::size_t most = longest(inputs_), ranks = static_cast<std::size_t>(channel_.ranks());
    if (!direct.pays(most) || (most < limits(channel_).fetch_piece && !direct.regions_pay(most))) return false;
    channel_.next_block();
    for (int peer = 0; peer < channel_.ranks(); ++peer) places_[peer] = direct.place(of(inputs_, peer), most);
    std::memcpy(channel_.own_slot(ranks * sizeof(Place)), places_.data(), ranks * sizeof(Place));
    channel_.barrier();
    bool all = true;
    for (int peer = 0; peer < channel_.ranks(); ++peer) {
      const Place* told = reinterpret_cast<const Place*>(channel_.slot(peer));
      all = all && std::none_of(told, told + ranks, [](const Place& p) { return p.kind == Place::Kind::nowhere; });
      places_[peer] = told[own_];
    }
    return all;
  }

  void reduce_sources(std::size_t at, std::size_t bytes) {
    std::byte* target = output_.data + at;  // perhaps a source
    reduce_({&target, 1}, sources_.data(), bytes / reduce_.element());
  }

  shm::Channel& channel_;
  const Reduction& reduce_;
  const int own_;
  const Piece output_;
  const Pieces inputs_;
  PerRank<const std::byte*> sources_;
  PerRank<Place> places_;  // of what each peer has for this rank
};

}  // namespace

void reduce_scatter(shm::Channel& channel, const Reduction& reduce, Piece output, Pieces inputs) {
  ReduceScatter(channel, reduce, output, inputs).run();
}

}  // namespace torsh::in_node
