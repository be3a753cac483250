#include <bit>

#include "collectives/across/steps.hpp"

namespace torsh::across {
namespace {

// A rank's exchanges in recursive doubling, each of the whole buffer.
class Doubling {
 public:
  Doubling(Team& team, const Piece& data)
      : mail_(team),
        data_(data),
        cuts_{data.bytes, team.limits.segment},
        slots_(team, std::min(ahead, cuts_.count()), std::min(data.bytes, cuts_.piece)) {}

  void give(int peer) {
    for (std::size_t i = 0; i < cuts_.count(); ++i) mail_.send(peer, piece(i));
    mail_.flush();
  }

  void take(int peer) {
    pipelined(
        cuts_.count(), ahead, [&](std::size_t i) { return mail_.receive(peer, piece(i)); },
        [&](std::size_t, const TransferPtr& received) { mail_.wait(received); });
  }

  void add(int peer, const Reduction& reduce) {
    pipelined(
        cuts_.count(), ahead, [&](std::size_t i) { return mail_.receive(peer, room(i)); },
        [&](std::size_t i, const TransferPtr& received) {
          mail_.wait(received);
          apply(reduce, piece(i), {room(i).data, piece(i).data});
        });
  }

  // Both ranks of a pair compute the same, so in the same order.
  void exchange(int peer, bool peer_first, const Reduction& reduce) {
    pipelined(
        cuts_.count(), ahead,
        [&](std::size_t i) {
          TransferPtr received = mail_.receive(peer, room(i));
          return std::array{std::move(received), mail_.start_send(peer, piece(i))};
        },
        [&](std::size_t i, const std::array<TransferPtr, 2>& both) {
          mail_.wait(both);
          const std::byte *own = piece(i).data, *other = room(i).data;
          apply(reduce, piece(i), {peer_first ? other : own, peer_first ? own : other});
        });
  }

 private:
  Piece piece(std::size_t i) const { return cuts_.of(data_, i); }
  Piece room(std::size_t i) const { return {slots_[i], piece(i).bytes}; }

  Mail mail_;
  const Piece data_;
  const Chunks cuts_;
  const Slots slots_;
};

// Small enough to stay in the cache, large enough to be worth a message, and several to a part.
std::size_t ring_segment(const Limits& limits, std::size_t part) {
  constexpr std::size_t least = 64 << 10;
  return std::clamp(part / 4 / cache_line * cache_line, std::min(least, limits.segment), limits.segment);
}

// Between nodes, of what the node's ranks have summed up.
void between(Team& team, const Subgroup& subgroup, const Sum& sum, const Piece& data) {
  // Two ranks exchange the same bytes either way, and the ring waits twice for them.
  const std::size_t limit = team.limits.tree * (subgroup.size() == 2 ? 4 : 1);
  const bool small = data.bytes <= limit || team.strategy == Strategy::tree;
  if (subgroup.size() == 1) return apply(sum.last(1), data, {data.data});
  if (small && team.strategy != Strategy::ring) return recursive_doubling(team, subgroup, sum, data);
  ring_all_reduce(team, subgroup, sum, data);
}

// One rank speaks for its node, which may be all there is of it.
void by_leaders(Team& team, const View& view, const Sum& sum, const Piece& data) {
  const Reduction within = sum.part(view->num_local());
  if (view.shared()) in_node::reduce(team.local, within, data.data, data.bytes / within.element(), 0);
  if (view->index() == 0) between(team, view.column(0), sum, data);
  if (view.shared()) in_node::broadcast(team.local, data, 0);
  // The other ranks of the node learn of it by the result, which comes as soon if it is small.
  if (data.bytes <= team.limits.leader) team.local.all_came();
}

// Every rank speaks for its shard. Ranks beyond the smallest node's number have none.
void by_shards(Team& team, const View& view, const Sum& sum, const Piece& data) {
  const int index = view->index(), shards = view->least();
  const Parts parts(data.data, data.bytes, shards);
  std::vector<Piece> pieces;
  for (int rank = 0; rank < view->num_local(); ++rank) {
    pieces.push_back(rank < shards ? parts[rank] : Piece{data.data + data.bytes, 0});
  }
  const Piece& own = pieces[static_cast<std::size_t>(index)];
  in_node::reduce_scatter(team.local, sum.part(view->num_local()), own, pieces);
  if (index < shards) between(team, view.column(index), sum, own);
  in_node::all_gather(team.local, pieces, own);
}

// The block that is reduced at a time. The nodes' sums should be sent while they are in the cache, but every node's
// part of a shard should be worth its messages. Without shared memory it only limits their number.
std::size_t block_of(const Limits& limits, const View& view, int shards) {
  const int messages = view->is_flat() ? 32 : 1;
  return limits.block * static_cast<std::size_t>(view->num_nodes() * shards * messages);
}

void star(Team& team, const View& view, const ReduceSpec& spec, const Piece& data) {
  reduce(team, view, spec, data, 0);
  broadcast(team, view, data, 0);
}

}  // namespace

// Recursive doubling (Thakur, Rabenseifner and Gropp 2005): log2(n) exchanges of everything. Of the
// ranks beyond a power of two each gives its data to a neighbour first and gets the result last.
void recursive_doubling(Team& team, const Subgroup& subgroup, const Sum& sum, const Piece& data) {
  Doubling doubling(team, data);
  const int even = static_cast<int>(std::bit_floor(static_cast<unsigned>(subgroup.size())));
  const int extra = subgroup.size() - even, own = subgroup.own;
  const bool paired = own < 2 * extra;
  if (paired && own % 2 == 0) {
    doubling.give(subgroup.rank(own + 1));
    return doubling.take(subgroup.rank(own + 1));
  }
  if (paired) doubling.add(subgroup.rank(own - 1), sum.part(2));
  const int place = paired ? own / 2 : own - extra;
  for (int distance = 1; distance < even; distance *= 2) {
    const int other = place ^ distance;
    const int peer = subgroup.rank(other < extra ? 2 * other + 1 : other + extra);
    doubling.exchange(peer, other < place, 2 * distance == even ? sum.last(2) : sum.part(2));
  }
  if (paired) doubling.give(subgroup.rank(own - 1));
}

// Ring (Patarasuk and Yuan 2009): every part goes round once to be summed up and once as the result,
// a segment at a time. In step s a rank receives the part own - 1 - s, and passes it on in the next.
// A result comes only after the rank's own value in that place has been sent: both may share it.
void ring_all_reduce(Team& team, const Subgroup& subgroup, const Sum& sum, const Piece& data) {
  const int ranks = subgroup.size();
  const Parts parts(data.data, data.bytes, ranks);
  const Chunks cuts{parts.largest(), ring_segment(team.limits, parts.largest())};
  const std::size_t per_step = cuts.count(), steps = 2 * static_cast<std::size_t>(ranks) - 2;
  const Slots slots(team, ahead, std::min(cuts.bytes, cuts.piece));
  const int left = subgroup.rank(subgroup.own - 1), right = subgroup.rank(subgroup.own + 1);
  const Reduction add = sum.part(2), finish = sum.last(2);
  Mail mail(team);
  const auto step = [&](std::size_t item) { return static_cast<int>(item / per_step); };
  const auto adds = [&](std::size_t item) { return step(item) < ranks - 1; };
  const auto piece = [&](std::size_t item) {
    return cuts.of(parts[(subgroup.own + 2 * ranks - 1 - step(item)) % ranks], item % per_step);
  };
  const auto begin = [&](std::size_t item) {
    const Piece home = piece(item);
    return mail.receive(left, adds(item) ? Piece{slots[item], home.bytes} : home);
  };
  const auto end = [&](std::size_t item, const TransferPtr& received) {
    const Piece home = piece(item);
    mail.wait(received);
    if (adds(item)) apply(step(item) == ranks - 2 ? finish : add, home, {slots[item], home.data});
    if (item + per_step < steps * per_step) mail.send(right, home);
  };
  for (std::size_t i = 0; i < per_step; ++i) mail.send(right, cuts.of(parts[subgroup.own], i));
  pipelined(steps * per_step, ahead, begin, end);
  mail.flush();
}

void all_reduce(Team& team, const ReduceSpec& spec, std::byte* data, std::size_t count) {
  const View view(team);
  const Piece whole{data, count * size_of(spec.type)};
  if (team.strategy == Strategy::standard) return star(team, view, spec, whole);
  if (needs_factor(spec)) copy_scaled(spec, whole, data);
  const Sum sum(spec, view->ranks());
  const int shards = whole.bytes <= team.limits.leader ? 1 : view->least();
  const Chunks blocks{whole.bytes, block_of(team.limits, view, shards)};
  for (std::size_t i = 0; i < blocks.count(); ++i) {
    shards == 1 ? by_leaders(team, view, sum, blocks.of(whole, i)) : by_shards(team, view, sum, blocks.of(whole, i));
  }
}

}  // namespace torsh::across
