// Direct exchanges between ranks: gather, scatter, all_to_all and the barrier.
#include "collectives/across/steps.hpp"

namespace torsh::across {
namespace {

std::vector<Piece> chosen(Pieces pieces, const std::vector<int>& ranks) {
  std::vector<Piece> result;
  for (const int rank : ranks) result.push_back(of(pieces, rank));
  return result;
}

bool on_node(const Layout& layout, int rank, int node) {
  return std::binary_search(layout.on(node).begin(), layout.on(node).end(), rank);
}

// Calls start(rank) for the ranks of all other nodes, from this one's on, and waits for each
// transfer with only so many under way.
template <typename Start>
void for_remote(Team& team, Mail& mail, Start start) {
  const Layout& layout = team.layout;
  std::vector<int> remote;
  for (int step = 1; step < layout.num_nodes(); ++step) {
    for (const int rank : layout.on((layout.node + step) % layout.num_nodes())) remote.push_back(rank);
  }
  pipelined(
      remote.size(), 4 * ahead, [&](std::size_t i) { return start(remote[i]); },
      [&](std::size_t, const TransferPtr& transfer) { mail.wait(transfer); });
}

void exchange_in_node(Team& team, Pieces outputs, Pieces inputs) {
  const std::vector<int>& local = team.layout.local();
  const std::vector<Piece> to = chosen(outputs, local), from = chosen(inputs, local);
  if (local.size() > 1) return in_node::all_to_all(team.local, to, from);
  copy(to[0], from[0].data);
}

}  // namespace

void gather(Team& team, Pieces outputs, Piece input, int root) {
  const Layout& layout = team.layout;
  Mail mail(team);
  if (!on_node(layout, root, layout.node)) {
    mail.send(root, input);
    return mail.flush();
  }
  const bool is_root = root == layout.rank;
  const std::vector<Piece> local = is_root ? chosen(outputs, layout.local()) : std::vector<Piece>();
  in_node::gather(team.local, local, input, layout.index_of(root, layout.node));
  if (!is_root) return;
  for_remote(team, mail, [&](int rank) { return mail.receive(rank, of(outputs, rank)); });
}

void scatter(Team& team, Piece output, Pieces inputs, int root) {
  const Layout& layout = team.layout;
  Mail mail(team);
  if (!on_node(layout, root, layout.node)) return mail.wait(mail.receive(root, output));
  const bool is_root = root == layout.rank;
  const std::vector<Piece> local = is_root ? chosen(inputs, layout.local()) : std::vector<Piece>();
  in_node::scatter(team.local, output, local, layout.index_of(root, layout.node));
  if (!is_root) return;
  for_remote(team, mail, [&](int rank) { return mail.start_send(rank, of(inputs, rank)); });
}

// Pairwise exchange: in each step a rank sends to the one that is so many ranks further, and
// receives from the one that is so many back.
void all_to_all(Team& team, Pieces outputs, Pieces inputs) {
  const Layout& layout = team.layout;
  const int ranks = layout.ranks();
  Mail mail(team);
  const auto begin = [&](std::size_t step) {
    const int further = static_cast<int>(step) + 1;
    const int to = (layout.rank + further) % ranks, from = (layout.rank - further + ranks) % ranks;
    std::vector<TransferPtr> both;
    if (!on_node(layout, from, layout.node)) both.push_back(mail.receive(from, of(outputs, from)));
    if (!on_node(layout, to, layout.node)) both.push_back(mail.start_send(to, of(inputs, to)));
    return both;
  };
  exchange_in_node(team, outputs, inputs);
  pipelined(static_cast<std::size_t>(ranks) - 1, ahead, begin,
            [&](std::size_t, const std::vector<TransferPtr>& both) { mail.wait(both); });
}

// Dissemination (Hensgen, Finkel and Manber 1988): in round k each rank receives from the one 2^k places before it,
// and so learns of all before that.
void barrier(Team& team) {
  const View view(team);
  std::byte none{};
  const Piece nothing{&none, 0};
  if (team.strategy == Strategy::standard) {
    reduce(team, view, {DType::uint8, ReduceOp::bor}, nothing, 0);
    return broadcast(team, view, nothing, 0);
  }
  if (view.shared()) in_node::barrier(team.local);
  const Subgroup subgroup = view.column(0);
  for (int distance = 1; view->index() == 0 && distance < subgroup.size(); distance *= 2) {
    Mail mail(team);
    const TransferPtr heard = mail.receive(subgroup.rank(subgroup.own - distance), nothing);
    mail.wait(std::array{heard, mail.start_send(subgroup.rank(subgroup.own + distance), nothing)});
  }
  if (view.shared()) in_node::barrier(team.local);
  team.local.all_came();
}

}  // namespace torsh::across
