#include "recorded.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "group/operations.hpp"
#include "world.hpp"

namespace torsh::test {
namespace {

struct Noted {
  std::uint64_t number, state, kind, sequence, count, entered, came;
  int peer;

  bool is_message() const { return kind == static_cast<std::uint64_t>(OpKind::send) || kind == static_cast<std::uint64_t>(OpKind::recv); }
  bool is_collective() const { return kind < static_cast<std::uint64_t>(OpKind::send); }
};

std::vector<Noted> noted(const Recording& recording) {
  std::vector<Noted> found;
  for (const Entry& entry : recording.entries) {
    if (entry.mark == 0) continue;
    found.push_back({(entry.mark >> 2) - 1, entry.mark & 3, entry.call & 0xFF, entry.place, entry.count, entry.entered, entry.came,
                     static_cast<int>(entry.call >> 32)});
  }
  std::sort(found.begin(), found.end(), [](const Noted& one, const Noted& other) { return one.number < other.number; });
  return found;
}

// By number in the group, and from which on all are there.
struct Collectives {
  std::map<std::uint64_t, Noted> held;
  std::uint64_t first = 0;
};

Collectives collectives(const std::vector<Noted>& all) {
  Collectives found;
  for (const Noted& each : all) {
    if (each.is_collective()) found.held.emplace(each.sequence, each);
  }
  if (all.size() == Recording::entries_held && !found.held.empty()) found.first = found.held.begin()->first;
  return found;
}

// A clock may be read before what stands in front of it has been, by as much as a processor executes out of order; in
// ticks.
constexpr std::uint64_t out_of_order = 2000;

void check_collectives(const std::vector<std::vector<Noted>>& ranks) {
  std::vector<Collectives> by_rank;
  for (const auto& all : ranks) by_rank.push_back(collectives(all));
  for (const Collectives& own : by_rank) {
    for (const auto& [sequence, each] : own.held) {
      for (std::size_t peer = 0; each.came != 0 && peer < by_rank.size(); ++peer) {
        const auto other = by_rank[peer].held.find(sequence);
        const bool is_there = other != by_rank[peer].held.end();
        const bool has_entered = is_there ? other->second.entered <= each.came + out_of_order : sequence < by_rank[peer].first;
        if (has_entered) continue;
        const std::string when = is_there ? std::to_string(other->second.entered - each.came) + " ticks before it had" : "which it has not noted";
        throw Wrong("a rank has noted that rank " + std::to_string(peer) + " had come to operation " + std::to_string(sequence) + ", " + when);
      }
    }
  }
}

void check_messages(const std::vector<std::vector<Noted>>& ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const Noted& each : ranks[rank]) {
      if (each.kind != static_cast<std::uint64_t>(OpKind::recv) || each.came == 0) continue;
      const auto& sender = ranks.at(static_cast<std::size_t>(each.peer));
      const auto sent = std::find_if(sender.begin(), sender.end(), [&](const Noted& other) {
        return other.kind == static_cast<std::uint64_t>(OpKind::send) && other.peer == static_cast<int>(rank) && other.sequence == each.sequence;
      });
      if (sent == sender.end() && sender.size() == Recording::entries_held) continue;
      if (sent == sender.end() || sent->count != each.count || sent->entered > each.came + out_of_order) {
        throw Wrong("message " + std::to_string(each.sequence) + " from rank " + std::to_string(each.peer) + " is not noted as it was sent");
      }
    }
  }
}

// In a group of several nodes ranks know when all had come to these, whatever the algorithm.
void all_know_who_has_come() {
  const across::Strategy strategies[] = {across::Strategy::adaptive, across::Strategy::ring, across::Strategy::tree};
  for (const std::vector<int>& nodes : {std::vector{1, 1}, std::vector{1, 1, 1}, std::vector{2, 2}, std::vector{2, 3}}) {
    for (const across::Strategy strategy : strategies) {
      std::atomic<int> unknown{0};
      World({.nodes = nodes, .strategy = strategy}).run([&](Member& member) {
        const auto ranks = static_cast<std::size_t>(member.ranks);
        std::vector<std::byte> own(ranks * 3000), others(own.size());
        const Piece part{own.data(), 3000}, all{others.data(), others.size()}, mine{own.data(), own.size()};
        const auto look = [&](OpKind kind, auto operation) {
          member.group.perform(Call{.kind = kind}, operation, patience);
          unknown += noted(member.recording).back().came == 0;
        };
        const across::ReduceSpec sum{.type = DType::uint8, .op = ReduceOp::sum, .factor = 1.0};
        look(OpKind::barrier, Barrier{});
        look(OpKind::all_reduce, AllReduce{sum, own.data(), 500});
        look(OpKind::all_to_all, AllToAll{Parts(all), Parts(mine)});
        if (nodes.front() != nodes.back()) return;  // some ranks leave the rest to their neighbours
        look(OpKind::all_reduce, AllReduce{sum, own.data(), own.size()});
        look(OpKind::all_gather, AllGather{Parts(all), part});
      });
      if (unknown != 0) throw Wrong("a rank does not know that all had come");
    }
  }
}

// Ranks that only wait for others to send are told of nobody.
void a_root_alone_knows_who_has_come() {
  std::atomic<int> known{0};
  World({.nodes = {1, 1, 1}}).run([&](Member& member) {
    std::vector<std::byte> data(100);
    const across::ReduceSpec sum{.type = DType::uint8, .op = ReduceOp::sum, .factor = 1.0};
    member.group.perform(Call{.kind = OpKind::reduce, .root = 1}, Reduce{sum, data.data(), data.size(), 1}, patience);
    if (noted(member.recording).back().came != 0) known += member.rank == 1 ? 1 : 10;
  });
  if (known != 1) throw Wrong("not the root alone knows who has come to a reduce");
}

// Several threads enter and leave at the same time, in groups that share a tally; what is under way stays.
void many_threads_note_at_the_same_time() {
  constexpr int threads = 4, turns = 5000;
  const auto recording = std::make_unique<Recording>();
  recording->open();
  const Recorder first(recording.get(), 0, 1, 2);
  Recorded under_way;
  under_way.enter(first, {0, 1, 8, 1, Path::network, true});
  std::vector<std::thread> started;
  for (int thread = 0; thread < threads; ++thread) {
    started.emplace_back([&recording, thread] {
      const Recorder recorder(recording.get(), static_cast<std::size_t>(6 + thread), 2, 2);
      for (int turn = 0; turn < turns; ++turn) {
        Recorded each;
        each.enter(recorder, {0, 1, 8, 1, Path::network, false});
        each.tell(0, 1, 8, 2);
        each.all_came();
        each.leave(false);
      }
    });
  }
  for (std::thread& thread : started) thread.join();
  const Tally::Cell& cell = recording->tallies[6].cells[0][4];
  if (cell.calls != threads * turns || cell.bytes != 8 * threads * turns) throw Wrong("some were not counted");
  const std::vector<Noted> held = noted(*recording);
  if (held.front().number != 0 || held.front().state != Recording::inside) throw Wrong("what is under way was lost");
  under_way.leave(false);
}

}  // namespace

void check(const Recordings& recordings) {
  std::vector<std::vector<Noted>> ranks;
  for (const auto& each : recordings) {
    ranks.push_back(noted(*each));
    for (const Noted& one : ranks.back()) {
      if (one.state == Recording::inside || one.state == Recording::writing) throw Wrong("operation " + std::to_string(one.number) + " was never left");
    }
  }
  check_collectives(ranks);
  check_messages(ranks);
}

std::vector<Scene> recorded_scenes() {
  return {
      {"all know who has come", all_know_who_has_come},
      {"a root alone knows who has come", a_root_alone_knows_who_has_come},
      {"many threads note at the same time", many_threads_note_at_the_same_time},
  };
}

}  // namespace torsh::test
