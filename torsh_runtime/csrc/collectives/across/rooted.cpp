#include <bit>

#include "collectives/across/steps.hpp"

namespace torsh::across {
namespace {

enum class Shape { star, binomial, chain };

// A chain takes the time of the data once and of a segment for each rank; a binomial tree that of
// the data log2(n) times.
Shape shape_of(const Team& team, int ranks, std::size_t bytes) {
  if (team.strategy == Strategy::standard) return Shape::star;
  if (team.strategy == Strategy::tree) return Shape::binomial;
  if (team.strategy == Strategy::ring) return Shape::chain;
  const std::size_t depth = std::bit_width(static_cast<unsigned>(ranks));
  return bytes <= team.limits.tree * static_cast<std::size_t>(ranks) / depth ? Shape::binomial : Shape::chain;
}

// Those that differ from a place in one bit below its lowest: the root, 0, has all others below it.
std::vector<int> binomial_children(int place, int ranks) {
  std::vector<int> children;
  for (int bit = 1; bit < ranks && (place & bit) == 0; bit *= 2) {
    if (place + bit < ranks) children.push_back(place + bit);
  }
  return children;
}

std::vector<int> children_of(Shape shape, int place, int ranks) {
  if (shape == Shape::binomial) return binomial_children(place, ranks);
  std::vector<int> children;
  const int last = shape == Shape::chain ? std::min(place + 2, ranks) : place == 0 ? ranks : 0;
  for (int child = place + 1; child < last; ++child) children.push_back(child);
  return children;
}

int parent_of(Shape shape, int place) {
  if (place == 0) return -1;
  return shape == Shape::star ? 0 : shape == Shape::chain ? place - 1 : place & (place - 1);
}

// What the children send at a time fits this, whatever their number.
constexpr std::size_t room = 4 << 20;
constexpr std::size_t least_segment = 4 << 10;

std::size_t segment_of(const Limits& limits, Shape shape, int ranks) {
  const std::size_t most = shape == Shape::chain ? 1
                           : shape == Shape::star ? static_cast<std::size_t>(ranks)
                                                  : std::bit_width(static_cast<unsigned>(ranks));
  return std::min(limits.segment, std::max(room / most / ahead / cache_line * cache_line, least_segment));
}

// A node's part in a rooted operation: one of its ranks speaks with other nodes.
struct Post {
  Post(const View& view, int root)
      : subgroup(view.leaders(root)),
        root_node(view->node_of(root)),
        leader(view->index_of(subgroup.rank(subgroup.own), view->node)),
        speaks(leader == view->index()) {}

  const Subgroup subgroup;
  const int root_node;
  const int leader;  // its place in its node
  const bool speaks;
};

// One rank's part in a reduction to a root, a segment at a time.
class GroupFormation {
 public:
  GroupFormation(Team& team, const View& view, const ReduceSpec& spec, const Piece& data, int root)
      : team_(team),
        view_(view),
        spec_(spec),
        sum_(spec, view->ranks()),
        data_(data),
        root_(root == view->rank),
        post_(view, root),
        tree_(in_order(Tree::of(team, post_.subgroup, post_.root_node, data.bytes))),
        cuts_{data.bytes, tree_.segment},
        children_(post_.speaks ? tree_.children.size() : 0),
        within_(sum_.part(view->num_local())),
        with_children_(root_ ? sum_.last(sources()) : sum_.part(sources())),
        own_(team, copies() ? ahead : 0, slot_bytes()),
        rooms_(team, children_ * ahead, slot_bytes()),
        sent_(std::min(ahead, cuts_.count())),
        mail_(team) {}

  void run() {
    pipelined(
        cuts_.count(), ahead, [&](std::size_t i) { return begin(i); },
        [&](std::size_t i, const std::vector<TransferPtr>& received) { end(i, received); });
    if (passes_on()) mail_.wait(sent_);
  }

 private:
  static Tree in_order(Tree tree) {
    std::sort(tree.children.begin(), tree.children.end());
    return tree;
  }
  int sources() const { return static_cast<int>(children_) + 1; }
  std::size_t slot_bytes() const { return std::min(data_.bytes, cuts_.piece); }
  // Only root's data may change, and a leader's is where its node's sum would go.
  bool copies() const { return !root_ && (needs_factor(spec_) || (post_.speaks && view_.shared())); }
  bool passes_on() const { return post_.speaks && tree_.parent >= 0; }
  Piece room_for(std::size_t i, std::size_t child) const {
    return {rooms_[i % ahead * children_ + child], cuts_.of(data_, i).bytes};
  }
  // This rank's, then its node's contribution.
  Piece own(std::size_t i) const {
    const Piece home = cuts_.of(data_, i);
    return copies() ? Piece{own_[i], home.bytes} : home;
  }

  std::vector<TransferPtr> begin(std::size_t i) {
    if (passes_on() && i >= ahead) mail_.wait(sent_[i % ahead]);
    std::vector<TransferPtr> received;
    for (std::size_t child = 0; child < children_; ++child) {
      received.push_back(mail_.receive(post_.subgroup.rank(tree_.children[child]), room_for(i, child)));
    }
    const Piece mine = own(i);
    if (copies() || (root_ && needs_factor(spec_))) copy_scaled(spec_, mine, cuts_.of(data_, i).data);
    if (view_.shared()) in_node::reduce(team_.local, within_, mine.data, mine.bytes / within_.element(), post_.leader);
    return received;
  }

  void end(std::size_t i, const std::vector<TransferPtr>& received) {
    if (!post_.speaks) return;
    Piece total = own(i);
    if (children_ != 0 || root_) {
      mail_.wait(received);
      total = add(i);
    }
    if (passes_on()) sent_[i % ahead] = mail_.start_send(post_.subgroup.rank(tree_.parent), total);
  }

  // In the order of the places.
  Piece add(std::size_t i) {
    const std::size_t below = static_cast<std::size_t>(
        std::lower_bound(tree_.children.begin(), tree_.children.end(), post_.subgroup.own) - tree_.children.begin());
    std::vector<const std::byte*> sources;
    for (std::size_t child = 0; child < children_; ++child) sources.push_back(room_for(i, child).data);
    sources.insert(sources.begin() + static_cast<std::ptrdiff_t>(below), own(i).data);
    const Piece total = root_ || copies() ? own(i) : room_for(i, 0);
    with_children_({&total.data, 1}, sources.data(), total.bytes / with_children_.element());
    return total;
  }

  Team& team_;
  const View& view_;
  const ReduceSpec& spec_;
  const Sum sum_;
  const Piece data_;
  const bool root_;
  const Post post_;
  const Tree tree_;
  const Chunks cuts_;
  const std::size_t children_;
  const Reduction within_, with_children_;
  const Slots own_, rooms_;
  std::vector<TransferPtr> sent_;
  Mail mail_;
};

}  // namespace

Tree Tree::of(const Team& team, const Subgroup& subgroup, int root, std::size_t bytes) {
  const int ranks = subgroup.size();
  const Shape shape = shape_of(team, ranks, bytes);
  const int place = (subgroup.own - root + ranks) % ranks;  // the root's is 0
  const auto back = [&](int other) { return (other + root) % ranks; };
  Tree tree{place == 0 ? -1 : back(parent_of(shape, place)), {}, segment_of(team.limits, shape, ranks)};
  for (const int child : children_of(shape, place, ranks)) tree.children.push_back(back(child));
  return tree;
}

// Binomial trees, or a chain through which the segments follow each other.
void broadcast(Team& team, const View& view, const Piece& data, int root) {
  const Post post(view, root);
  const Tree tree = Tree::of(team, post.subgroup, post.root_node, data.bytes);
  const Chunks cuts{data.bytes, tree.segment};
  std::vector<int> children;
  if (post.speaks) children.assign(tree.children.rbegin(), tree.children.rend());
  Mail mail(team);
  const auto begin = [&](std::size_t i) {
    return post.speaks && tree.parent >= 0 ? mail.receive(post.subgroup.rank(tree.parent), cuts.of(data, i)) : nullptr;
  };
  const auto end = [&](std::size_t i, const TransferPtr& received) {
    if (received != nullptr) mail.wait(received);
    for (const int child : children) mail.send(post.subgroup.rank(child), cuts.of(data, i));
    if (view.shared()) in_node::broadcast(team.local, cuts.of(data, i), post.leader);
  };
  pipelined(cuts.count(), ahead, begin, end);
  mail.flush();
}

void reduce(Team& team, const View& view, const ReduceSpec& spec, const Piece& data, int root) {
  GroupFormation(team, view, spec, data, root).run();
}

void broadcast(Team& team, Piece data, int root) { broadcast(team, View(team), data, root); }

void reduce(Team& team, const ReduceSpec& spec, std::byte* data, std::size_t count, int root) {
  reduce(team, View(team), spec, {data, count * size_of(spec.type)}, root);
}

}  // namespace torsh::across
