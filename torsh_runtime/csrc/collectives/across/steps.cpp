#include "collectives/across/steps.hpp"

namespace torsh::across {
namespace {

std::optional<Layout> flattened(const Team& team) {
  const bool in_nodes = team.strategy == Strategy::adaptive || team.strategy == Strategy::hierarchical;
  if (in_nodes || team.layout.is_flat()) return std::nullopt;
  return team.layout.flat();
}

}  // namespace

View::View(const Team& team) : flat_(flattened(team)), layout_(flat_ ? *flat_ : team.layout) {}

Party View::column(int index) const {
  Party party{{}, layout_.node};
  for (const auto& ranks : layout_.nodes) party.ranks.push_back(ranks[static_cast<std::size_t>(index)]);
  return party;
}

Party View::leaders(int root) const {
  Party party = column(0);
  party.ranks[static_cast<std::size_t>(layout_.node_of(root))] = root;
  return party;
}

}  // namespace torsh::across
