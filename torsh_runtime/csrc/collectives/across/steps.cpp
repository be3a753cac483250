#include "collectives/across/steps.hpp"

namespace torsh::across {
namespace {

std::optional<Layout> flattened(const Team& team) {
  const bool in_nodes = team.strategy == Strategy::adaptive || team.strategy == Strategy::hierarchical;
  if (in_nodes || team.layout.is_flat()) return std::nullopt;
  return team.layout.flat();
}

}  // namespace

void Mail::tell_attendance() {
  if (!team_.local.recorded().is_under_way()) return;
  note_neighbours();
  team_.label.seen = team_.attendance.known();
}

void Mail::note_attendance(std::span<const TransferPtr> transfers) {
  for (const TransferPtr& each : transfers) {
    if (each->sending() || team_.attendance.is_complete()) continue;
    team_.attendance.learn(each->header().seen, each->matched_at());
    note_neighbours();
    if (team_.attendance.is_complete()) team_.local.all_came(team_.attendance.time());
  }
}

void Mail::note_neighbours() {
  if (const std::uint64_t time = team_.local.neighbours_came()) team_.attendance.note_neighbours(time);
}

View::View(const Team& team) : flat_(flattened(team)), layout_(flat_ ? *flat_ : team.layout) {}

Subgroup View::column(int index) const {
  Subgroup subgroup{{}, layout_.node};
  for (const auto& ranks : layout_.nodes) subgroup.ranks.push_back(ranks[static_cast<std::size_t>(index)]);
  return subgroup;
}

Subgroup View::leaders(int root) const {
  Subgroup subgroup = column(0);
  subgroup.ranks[static_cast<std::size_t>(layout_.node_of(root))] = root;
  return subgroup;
}

}  // namespace torsh::across
