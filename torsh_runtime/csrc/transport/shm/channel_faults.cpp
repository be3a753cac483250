// Finds which ranks are missing, dead or in disagreement, and reports it to all ranks of the node.
#include <algorithm>

#include "common/clock.hpp"
#include "transport/shm/channel.hpp"
#include "transport/shm/futex.hpp"

namespace torsh::shm {

void Channel::check(int awaited) {
  check_abort();
  check_peers(awaited);
  compare_past(awaited);
  if (awaits_release_ && has_posted(awaited)) compare(awaited);  // a leader that called something else releases no rank
  if (hooks_.look_around) hooks_.look_around();
  check_wait();
  if (now() >= deadline()) check_deadline(awaited);
}

// Blames ranks that have not begun this operation, not those that wait in it.
void Channel::check_deadline(int awaited) {
  if (posted(awaited)) return;
  std::vector<int> waited = not_posted();
  if (waited.empty()) waited.push_back(awaited);  // the leader that should release this rank
  Failure late = failure(FailureKind::timeout, rank_);
  late.seconds = timeout_;
  late.missing = absent();
  if (late.missing.empty()) {
    for (const int peer : waited) late.missing.push_back(group_ranks_[static_cast<std::size_t>(peer)]);
  }
  fail(late);
}

std::vector<int> Channel::absent() {
  const std::uint64_t current = sequence();
  std::vector<int> found;
  for (int peer = 0; peer < ranks_; ++peer) {
    if (segment_.area(peer).own.sequence.load(std::memory_order_acquire) < current || peers_.is_stopped(peer)) {
      found.push_back(group_ranks_[static_cast<std::size_t>(peer)]);
    }
  }
  if (hooks_.absent) {
    const std::vector<int> elsewhere = hooks_.absent(current);
    found.insert(found.end(), elsewhere.begin(), elsewhere.end());
    std::sort(found.begin(), found.end());
  }
  return found;
}

void Channel::check_wait() {
  check_abort();
  if (!hooks_.interrupted()) return;
  abort();
  throw Interrupted();
}

std::vector<int> Channel::dead() const { return peers_.find_dead(); }

std::vector<Watched> Channel::watched() {
  std::vector<Watched> others;
  for (int peer = 0; peer < ranks_; ++peer) {
    if (auto process = peers_.process(peer)) others.push_back({std::move(process), &segment_.area(peer).liveness});
  }
  return others;
}

std::optional<Failure> Channel::gone(int peer) {
  if (has_ended(peer) || is_ending(peer)) return failure(FailureKind::peer_lost, peer);
  if (has_left(peer)) return failure(FailureKind::peer_left, peer);
  return std::nullopt;
}

// A process may end after its last collective. It is lost only if a flag of this round is still missing after it was
// seen dead, because then it cannot have passed the round. In earlier rounds its own flag must be missing. The
// awaited process is examined more closely. A leader is also lost if it has not released its members, though its own
// flag may be there.
void Channel::check_peers(int awaited) {
  std::vector<int> ended = dead();
  if (is_ending(awaited)) ended.push_back(awaited);
  if (posted(awaited)) return;
  const std::vector<int> missing = not_posted();
  for (const int peer : ended) {
    const bool has_done_its_part = missing.empty() ? peer != awaited : awaited_ != round_ && has_posted(peer);
    if (has_done_its_part) continue;
    check_abort();  // perhaps another rank aborted, and this one ended because of it
    fail(failure(FailureKind::peer_lost, peer));
  }
  for (const int peer : missing) {
    if (has_left(peer) && !has_posted(peer)) {
      fail(failure(FailureKind::peer_left, peer));
    }
  }
}

std::vector<int> Channel::not_posted() {
  std::vector<int> missing;
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer != rank_ && !has_posted(peer)) missing.push_back(peer);
  }
  return missing;
}

void Channel::compare(int peer) {
  if (flag(peer, round_).fingerprint.load(std::memory_order_relaxed) != fingerprint_) disagree(peer);
}

// For rounds in which this rank did not wait for the peer. A peer whose flag never comes may have called something
// else and wait in it. A rank that overwrites such a flag has passed the awaited round.
void Channel::compare_past(int peer) {
  for (std::uint64_t past = round_ - std::min<std::uint64_t>(round_, num_flags_) + 1; past < round_; ++past) {
    const Flag &own = flag(rank_, past), &other = flag(peer, past);
    const auto is_shown = [past](const Flag& each) { return each.round.load(std::memory_order_acquire) == static_cast<std::uint32_t>(past); };
    if (!is_shown(own) || !is_shown(other)) continue;
    const std::uint64_t shown = other.fingerprint.load(std::memory_order_relaxed);
    if (shown == own.fingerprint.load(std::memory_order_relaxed)) continue;
    std::atomic_thread_fence(std::memory_order_acquire);
    if (!has_posted(peer)) disagree(peer);  // otherwise the flag may have been overwritten meanwhile
  }
}

// If the current calls are equal, the ranks disagreed about an earlier one, in which they did not wait for each
// other.
void Channel::disagree(int peer) {
  Failure found = failure(FailureKind::mismatch, peer);
  const auto &own = segment_.area(rank_).own, &other = segment_.area(peer).own;
  const bool earlier = own.call.look().fingerprint() == other.call.look().fingerprint() &&
                       own.unchecked_sequence == other.unchecked_sequence;
  found.own = (earlier ? own.unchecked : own.call).look();
  found.other = (earlier ? other.unchecked : other.call).look();
  if (earlier) found.sequence = own.unchecked_sequence;
  fail(found);
}

void Channel::disagree_on_size(int peer, std::size_t own, std::size_t theirs) {
  Failure found = failure(FailureKind::mismatch, peer);
  const Call call = segment_.area(rank_).own.call.look();
  found.own = call.of_size(own);
  found.other = call.of_size(theirs);
  fail(found);
}

Failure Channel::failure(FailureKind kind, int culprit) const {
  Failure found;
  found.kind = kind;
  found.rank = group_ranks_[static_cast<std::size_t>(culprit)];
  found.reporter = group_ranks_[static_cast<std::size_t>(rank_)];
  found.op = op_.load(std::memory_order_relaxed);
  found.sequence = sequence_.load(std::memory_order_relaxed);
  return found;
}

void Channel::end(const Failure& found) {
  bool first = false;
  {
    const std::lock_guard<std::mutex> stay(life_);
    first = !closed_ && !is_fork() && record(found);
  }
  if (first && hooks_.announce) hooks_.announce(found);
}

void Channel::fail(const Failure& found) {
  end(found);
  check_abort();  // the first cause counts, whoever found it
  throw found;
}

void Channel::adopt(const Failure& found) {
  const std::lock_guard<std::mutex> stay(life_);
  if (!closed_) record(found);
}

// Whether this is the first failure of the group on this node.
bool Channel::record(const Failure& found) {
  std::atomic<std::uint32_t>& aborted_by = segment_.header().aborted_by;
  if (aborted_by.load(std::memory_order_acquire) != 0) return false;
  AbortRecord& account = segment_.area(rank_).abort;
  account.kind = found.kind;
  account.rank = found.rank;
  account.reporter = found.reporter;
  account.op = found.op;
  account.sequence = found.sequence;
  account.seconds = found.seconds;
  account.own = found.own;
  account.other = found.other;
  account.num_missing = static_cast<std::uint32_t>(std::min(found.missing.size(), AbortRecord::most_missing));
  std::copy_n(found.missing.begin(), account.num_missing, account.missing);
  std::uint32_t none = 0;
  const bool first =
      aborted_by.compare_exchange_strong(none, static_cast<std::uint32_t>(rank_) + 1, std::memory_order_seq_cst);
  for (int peer = 0; peer < ranks_; ++peer) wake(peer);
  return first;
}

void Channel::wake(int peer) {
  futex_wake(segment_.header().opened);
  if (segment_.area(peer).sleepers.count.load(std::memory_order_seq_cst) == 0) return;
  for (Flag& each : segment_.flags(peer)) {
    futex_wake(each.round);
    futex_wake(each.released);
  }
}

std::optional<Failure> Channel::cause() {
  const std::uint32_t by = segment_.header().aborted_by.load(std::memory_order_acquire);
  if (by == 0) return std::nullopt;
  const AbortRecord& account = segment_.area(static_cast<int>(by) - 1).abort;
  Failure found;
  found.kind = account.kind;
  found.rank = account.rank;
  found.reporter = account.reporter;
  found.op = account.op;
  found.sequence = account.sequence;
  found.seconds = account.seconds;
  found.own = account.own;
  found.other = account.other;
  found.missing.assign(account.missing, account.missing + account.num_missing);
  return found;
}

void Channel::check_abort() {
  if (segment_.header().aborted_by.load(std::memory_order_acquire) != 0) throw *cause();
  if (closed_.load(std::memory_order_relaxed)) throw bare(FailureKind::closed);
}

}  // namespace torsh::shm
