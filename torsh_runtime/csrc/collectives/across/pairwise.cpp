// all_gather and reduce_scatter: where the pieces are small packed, above that every rank exchanges
// its own with all other nodes, one node after the other (pairwise exchange: Thakur, Rabenseifner
// and Gropp 2005). On each node the ranks share the pieces of another node among themselves.
#include "collectives/across/steps.hpp"

namespace torsh::across {
namespace {

std::size_t total(Pieces pieces) {
  std::size_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.bytes;
  return bytes;
}

std::size_t largest(Pieces pieces) {
  std::size_t bytes = 0;
  for (const Piece& piece : pieces) bytes = std::max(bytes, piece.bytes);
  return bytes;
}

// Packing pays where it saves messages; those to a few nodes are all under way at the same time.
bool packs(const Team& team, const View& view, std::size_t bytes) {
  return bytes <= team.limits.tree && static_cast<std::size_t>(view->num_nodes()) > ahead;
}

// Steps and segments of a pairwise exchange: in each step a node sends to the one that is so many
// nodes further, and receives from the one that is so many back.
class Rotation {
 public:
  Rotation(const Team& team, const View& view, Pieces pieces)
      : view_(view),
        cuts_{largest(pieces), team.limits.segment},
        steps_(static_cast<std::size_t>(view->num_nodes()) - 1) {}

  std::size_t items() const { return steps_ * cuts_.count(); }
  bool is_first(std::size_t item) const { return item % steps_ == 0; }
  bool is_last(std::size_t item) const { return item % steps_ == steps_ - 1; }
  std::size_t segment(std::size_t item) const { return item / steps_; }
  std::size_t segment_bytes() const { return std::min(cuts_.bytes, cuts_.piece); }
  int to(std::size_t item) const { return (view_->node + step(item)) % view_->num_nodes(); }
  int from(std::size_t item) const { return (view_->node - step(item) + view_->num_nodes()) % view_->num_nodes(); }
  Piece cut(const Piece& piece, std::size_t item) const { return cuts_.of(piece, segment(item)); }

  // The rank of a node that takes care of what `rank`, on another node, sends or receives.
  int counterpart(int node, int rank_index) const {
    const auto& ranks = view_->on(node);
    return ranks[static_cast<std::size_t>(rank_index) % ranks.size()];
  }
  // Ranks of a node come to this one's care in layers, each of as many as this node has.
  int layers(int node) const {
    const int local = view_->num_local();
    return (static_cast<int>(view_->on(node).size()) + local - 1) / local;
  }
  // The rank in a layer of a node that the local rank `index` takes care of; -1 if there is none.
  int in_care(int node, int layer, int index) const {
    const std::size_t at = static_cast<std::size_t>(layer * view_->num_local() + index);
    return at < view_->on(node).size() ? view_->on(node)[at] : -1;
  }

 private:
  int step(std::size_t item) const { return static_cast<int>(item % steps_) + 1; }

  const View& view_;
  const Chunks cuts_;
  const std::size_t steps_;
};

// Bruck's all_gather (Bruck et al. 1997): a rank that knows the blocks of 2^k places from its own on
// hands them to the one 2^k places before it. `blocks` has room for all, own first.
void double_known(Team& team, const Subgroup& subgroup, std::span<const std::size_t> sizes, std::byte* blocks) {
  const int ranks = subgroup.size();
  const auto bytes = [&](int places) {
    std::size_t sum = 0;
    for (int place = 0; place < places; ++place) sum += sizes[static_cast<std::size_t>((subgroup.own + place) % ranks)];
    return sum;
  };
  Mail mail(team);
  for (int known = 1; known < ranks; known *= 2) {
    const int after = std::min(2 * known, ranks);
    const Piece more{blocks + bytes(known), bytes(after) - bytes(known)};
    const TransferPtr received = mail.receive(subgroup.rank(subgroup.own + known), more);
    const TransferPtr sent = mail.start_send(subgroup.rank(subgroup.own - known), {blocks, bytes(after - known)});
    mail.wait(std::array{received, sent});
  }
}

void gather_packed(Team& team, const View& view, Pieces outputs, const Piece& input) {
  const Scratch::Loan memory = team.scratch.take(total(outputs));
  std::vector<std::size_t> sizes;
  for (const auto& ranks : view->nodes) {
    std::size_t bytes = 0;
    for (const int rank : ranks) bytes += of(outputs, rank).bytes;
    sizes.push_back(bytes);
  }
  // Node after node, from this one on.
  std::vector<Piece> packed(outputs.size());
  std::byte* at = memory.data();
  for (int step = 0; step < view->num_nodes(); ++step) {
    for (const int rank : view->on((view->node + step) % view->num_nodes())) {
      packed[static_cast<std::size_t>(rank)] = {at, of(outputs, rank).bytes};
      at += of(outputs, rank).bytes;
    }
  }
  if (view.shared()) {
    std::vector<Piece> local;
    for (const int rank : view->local()) local.push_back(of(packed, rank));
    in_node::gather(team.local, view->index() == 0 ? Pieces(local) : Pieces(), input, 0);
  } else {
    copy(of(packed, view->rank), input.data);
  }
  if (view->index() == 0) double_known(team, view.column(0), sizes, memory.data());
  if (view.shared()) in_node::broadcast(team.local, {memory.data(), total(outputs)}, 0);
  for (std::size_t rank = 0; rank < outputs.size(); ++rank) copy(outputs[rank], packed[rank].data);
}

// All ranks' pieces travel round the ring, and each rank keeps a copy of what passes.
void gather_round(Team& team, const View& view, Pieces outputs, const Piece& input) {
  const Subgroup subgroup = view.column(0);
  const int ranks = subgroup.size();
  copy(of(outputs, view->rank), input.data);
  const Chunks cuts{largest(outputs), team.limits.segment};
  const std::size_t per_step = cuts.count(), items = static_cast<std::size_t>(ranks - 1) * per_step;
  const auto piece = [&](std::size_t item) {  // what was received `item` segments before comes by
    const int place = subgroup.own + ranks - 1 - static_cast<int>(item / per_step);
    return cuts.of(of(outputs, subgroup.rank(place)), item % per_step);
  };
  Mail mail(team);
  for (std::size_t i = 0; items != 0 && i < per_step; ++i) {
    mail.send(subgroup.rank(subgroup.own + 1), cuts.of(of(outputs, view->rank), i));
  }
  pipelined(
      items, ahead, [&](std::size_t item) { return mail.receive(subgroup.rank(subgroup.own - 1), piece(item)); },
      [&](std::size_t item, const TransferPtr& received) {
        mail.wait(received);
        if (item + per_step < items) mail.send(subgroup.rank(subgroup.own + 1), piece(item));
      });
  mail.flush();
}

// Every rank sends its piece to one rank of each other node, which shares it with its neighbours.
void gather_pairwise(Team& team, const View& view, Pieces outputs, const Piece& input) {
  const Rotation rotation(team, view, outputs);
  std::vector<Piece> pieces(static_cast<std::size_t>(view->num_local()));
  Mail mail(team);
  const auto begin = [&](std::size_t item) {
    std::vector<TransferPtr> both;
    const int node = rotation.from(item);
    for (int layer = 0; layer < rotation.layers(node); ++layer) {
      const int rank = rotation.in_care(node, layer, view->index());
      if (rank >= 0) both.push_back(mail.receive(rank, rotation.cut(of(outputs, rank), item)));
    }
    both.push_back(mail.start_send(rotation.counterpart(rotation.to(item), view->index()), rotation.cut(input, item)));
    return both;
  };
  const auto end = [&](std::size_t item, const std::vector<TransferPtr>& both) {
    mail.wait(both);
    const int node = rotation.from(item);
    for (int layer = 0; view.shared() && layer < rotation.layers(node); ++layer) {
      for (int index = 0; index < view->num_local(); ++index) {
        const int rank = rotation.in_care(node, layer, index);
        pieces[static_cast<std::size_t>(index)] = rank < 0 ? Piece{nullptr, 0} : rotation.cut(of(outputs, rank), item);
      }
      in_node::all_gather(team.local, pieces, pieces[static_cast<std::size_t>(view->index())]);
    }
  };
  if (view.shared()) {
    for (std::size_t i = 0; i < pieces.size(); ++i) pieces[i] = of(outputs, view->local()[i]);
    in_node::all_gather(team.local, pieces, input);
  } else {
    copy(of(outputs, view->rank), input.data);
  }
  pipelined(rotation.items(), ahead, begin, end);
}

void gather_star(Team& team, const View& view, Pieces outputs, const Piece& input) {
  copy(of(outputs, view->rank), input.data);
  for (int rank = 0; rank < view->ranks(); ++rank) broadcast(team, view, of(outputs, rank), rank);
}

// One rank's part in a pairwise reduce_scatter.
class Scattering {
 public:
  Scattering(Team& team, const View& view, const ReduceSpec& spec, const Piece& output, Pieces inputs)
      : team_(team),
        view_(view),
        spec_(spec),
        output_(output),
        inputs_(inputs),
        rotation_(team, view, inputs),
        within_(Sum(spec, view->ranks()).part(view->num_local())),
        add_(Sum(spec, view->ranks()).part(2)),
        finish_(Sum(spec, view->ranks()).last(2)),
        pieces_(static_cast<std::size_t>(view->num_local())),
        multiplied_(team, needs_factor(spec) ? pieces_.size() : 0, rotation_.segment_bytes()),
        layers_(most_layers()),
        outgoing_(team, makes() ? ahead * layers_ : 0, rotation_.segment_bytes()),
        incoming_(team, ahead, rotation_.segment_bytes()),
        mail_(team) {}

  void run() {
    pipelined(
        rotation_.items(), ahead, [&](std::size_t item) { return begin(item); },
        [&](std::size_t item, const std::vector<TransferPtr>& both) { end(item, both); });
  }

 private:
  // Whether what is sent has to be computed.
  bool makes() const { return view_.shared() || needs_factor(spec_); }
  std::size_t most_layers() const {
    int most = 1;
    for (int node = 0; node < view_->num_nodes(); ++node) most = std::max(most, rotation_.layers(node));
    return static_cast<std::size_t>(most);
  }
  Piece incoming(std::size_t item) const { return {incoming_[item], rotation_.cut(output_, item).bytes}; }

  std::vector<TransferPtr> begin(std::size_t item) {
    const int from = rotation_.counterpart(rotation_.from(item), view_->index());
    std::vector<TransferPtr> both{mail_.receive(from, incoming(item))};
    if (rotation_.is_first(item) && makes()) within(view_->node, 0, item, rotation_.cut(output_, item));
    const int node = rotation_.to(item);
    for (int layer = 0; layer < rotation_.layers(node); ++layer) {
      const Piece partial = summed(node, layer, item);
      const int rank = rotation_.in_care(node, layer, view_->index());
      if (rank >= 0) both.push_back(mail_.start_send(rank, partial));
    }
    return both;
  }

  void end(std::size_t item, const std::vector<TransferPtr>& both) {
    mail_.wait(both);
    const Piece home = rotation_.cut(output_, item);
    const bool untouched = rotation_.is_first(item) && !makes();
    const Piece so_far = untouched ? rotation_.cut(of(inputs_, view_->rank), item) : home;
    apply(rotation_.is_last(item) ? finish_ : add_, home, {so_far.data, incoming(item).data});
  }

  // This node's contribution to the rank of a layer that this one takes care of.
  Piece summed(int node, int layer, std::size_t item) {
    const int rank = rotation_.in_care(node, layer, view_->index());
    const Piece given = rank < 0 ? Piece{nullptr, 0} : rotation_.cut(of(inputs_, rank), item);
    if (!makes()) return given;
    const Piece result{outgoing_[item * layers_ + static_cast<std::size_t>(layer)], given.bytes};
    within(node, layer, item, result);
    return result;
  }

  void within(int node, int layer, std::size_t item, const Piece& result) {
    for (int index = 0; index < view_->num_local(); ++index) {
      const int rank = rotation_.in_care(node, layer, index);
      pieces_[static_cast<std::size_t>(index)] = rank < 0 ? Piece{nullptr, 0} : given(rank, index, item);
    }
    if (view_.shared()) return in_node::reduce_scatter(team_.local, within_, result, pieces_);
    copy(result, pieces_[0].data);
  }

  // What this rank gives for another, times its factor where there is one.
  Piece given(int rank, int index, std::size_t item) {
    const Piece plain = rotation_.cut(of(inputs_, rank), item);
    if (!needs_factor(spec_)) return plain;
    const Piece multiplied{multiplied_[static_cast<std::size_t>(index)], plain.bytes};
    copy_scaled(spec_, multiplied, plain.data);
    return multiplied;
  }

  Team& team_;
  const View& view_;
  const ReduceSpec& spec_;
  const Piece output_;
  const Pieces inputs_;
  const Rotation rotation_;
  const Reduction within_, add_, finish_;
  std::vector<Piece> pieces_;
  const Slots multiplied_;
  const std::size_t layers_;
  const Slots outgoing_, incoming_;
  Mail mail_;
};

void scatter_packed(Team& team, const ReduceSpec& spec, const Piece& output, Pieces inputs) {
  const Scratch::Loan memory = team.scratch.take(total(inputs));
  std::byte* at = memory.data();
  const std::byte* own = nullptr;
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    copy({at, inputs[rank].bytes}, inputs[rank].data);
    if (static_cast<int>(rank) == team.layout.rank) own = at;
    at += inputs[rank].bytes;
  }
  all_reduce(team, spec, memory.data(), total(inputs) / size_of(spec.type));
  copy(output, own);
}

void scatter_star(Team& team, const View& view, const ReduceSpec& spec, const Piece& output, Pieces inputs) {
  const Scratch::Loan memory = team.scratch.take(output.bytes);  // output may be one of the inputs
  const Piece result{memory.data(), output.bytes};
  copy(result, of(inputs, view->rank).data);
  for (int rank = 0; rank < view->ranks(); ++rank) {
    reduce(team, view, spec, rank == view->rank ? result : of(inputs, rank), rank);
  }
  copy(output, result.data);
}

}  // namespace

void all_gather(Team& team, Pieces outputs, Piece input) {
  const View view(team);
  if (team.strategy == Strategy::ring) return gather_round(team, view, outputs, input);
  if (team.strategy == Strategy::standard) return gather_star(team, view, outputs, input);
  if (packs(team, view, total(outputs))) return gather_packed(team, view, outputs, input);
  gather_pairwise(team, view, outputs, input);
}

void reduce_scatter(Team& team, const ReduceSpec& spec, Piece output, Pieces inputs) {
  const View view(team);
  if (team.strategy == Strategy::standard) return scatter_star(team, view, spec, output, inputs);
  const bool packed = team.strategy != Strategy::ring && packs(team, view, total(inputs));
  if (packed || view->num_nodes() == 1) return scatter_packed(team, spec, output, inputs);
  Scattering(team, view, spec, output, inputs).run();
}

}  // namespace torsh::across
