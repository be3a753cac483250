// Which ranks of a group share a node.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace torsh {

struct Layout {
  int rank = 0;
  int node = 0;                         // this rank's
  std::vector<std::vector<int>> nodes;  // the ranks of each node, ascending; ordered by their first

  int ranks() const {
    int total = 0;
    for (const auto& node_ranks : nodes) total += static_cast<int>(node_ranks.size());
    return total;
  }
  int num_nodes() const { return static_cast<int>(nodes.size()); }
  const std::vector<int>& on(int which) const { return nodes[static_cast<std::size_t>(which)]; }
  const std::vector<int>& local() const { return on(node); }
  int num_local() const { return static_cast<int>(local().size()); }
  // This rank's place among those of its node: its rank in their channel.
  int index() const { return index_of(rank, node); }
  int index_of(int of, int its_node) const {
    const std::vector<int>& its = on(its_node);
    return static_cast<int>(std::lower_bound(its.begin(), its.end(), of) - its.begin());
  }
  int node_of(int of) const {
    int which = 0;
    while (!std::binary_search(on(which).begin(), on(which).end(), of)) ++which;
    return which;
  }
  // Ranks of the smallest node.
  int least() const {
    std::size_t ranks = local().size();
    for (const auto& node_ranks : nodes) ranks = std::min(ranks, node_ranks.size());
    return static_cast<int>(ranks);
  }
  // Whether every rank has a node of its own.
  bool is_flat() const {
    return std::all_of(nodes.begin(), nodes.end(), [](const auto& node_ranks) { return node_ranks.size() == 1; });
  }
  // The same ranks, each on a node of its own.
  Layout flat() const {
    Layout result{rank, rank, {}};
    for (int each = 0; each < ranks(); ++each) result.nodes.push_back({each});
    return result;
  }
};

}  // namespace torsh
