#include "faults.hpp"

#include <algorithm>
#include <deque>
#include <optional>
#include <thread>

#include "common/clock.hpp"
#include "group/operations.hpp"

namespace torsh::test {
namespace {

// Seconds, of operations to which a rank does not come. Between nodes ranks that disagree may all wait
// for a message that none of them sends: they learn no more than that it has not come in time.
constexpr double short_deadline = 0.1;

bool may_last(const Course& course) {
  return course.fault == Fault::absence || (course.fault == Fault::mismatch && course.shape.nodes.size() > 1);
}

FailureKind kind_of(Fault fault) {
  switch (fault) {
    case Fault::leave: return FailureKind::peer_left;
    case Fault::mismatch: return FailureKind::mismatch;
    case Fault::absence: return FailureKind::timeout;
    case Fault::death: return FailureKind::peer_lost;
    default: return FailureKind::aborted;
  }
}

// A call that no rank of the course makes.
Step other_step(const Step& step) {
  Step other = step;
  other.kind = step.kind == OpKind::all_reduce ? OpKind::all_gather : OpKind::all_reduce;
  other.dtype = DType::int64;
  other.op = ReduceOp::sum;
  other.uneven = false;
  other.count = step.count + 1;
  return other;
}

// One rank's way through a course.
class Walk {
 public:
  Walk(const Course& course, World& world, Member& member, Memory& memory, std::atomic<int>& over)
      : course_(course), world_(world), member_(member), memory_(memory), over_(over) {}
  ~Walk() { ++over_; }

  // What ended the group; none if nothing did.
  std::optional<Failure> run() {
    try {
      for (std::size_t i = 0; i < course_.steps.size() && !gone_; ++i) take(i);
      finish();
      if (!gone_ && course_.fault != Fault::none) linger();
    } catch (const Failure& failure) {
      release();
      return failure;
    } catch (const Interrupted&) {
      release();
      if (!is_victim() || course_.fault != Fault::interrupt) throw Wrong("a rank was interrupted that should not be");
    }
    if (!gone_) member_.group.close();
    return std::nullopt;
  }

 private:
  bool is_victim() const { return member_.rank == course_.victim; }
  double timeout() const { return step_ >= course_.when && may_last(course_) ? short_deadline : patience; }

  void take(std::size_t i) {
    step_ = i;
    if (course_.fault != Fault::none && i == course_.when && is_victim() && befall(i)) return;
    if (course_.fault == Fault::interrupt && i == course_.when && !is_victim()) wait_for(1);
    tasks_.emplace_back(course_.steps[i], member_.rank, member_.ranks, memory_);
    begin(tasks_.back());
    const bool has_mail = course_.mail.messages != 0 && member_.ranks > 1 && i % 2 == 1;
    Mail mail = course_.mail;
    mail.number = i;
    if (has_mail) exchange(member_, mail, timeout());
  }

  void begin(Task& task) {
    if (course_.in_background) return task.begin(member_.group, timeout());
    task.perform(member_.group, timeout());
    task.check();
    tasks_.clear();
    memory_.reset();
  }

  void finish() {
    for (Task& task : tasks_) {
      task.finish(member_.group);
      task.check();
    }
    tasks_.clear();
  }

  // Whether that was this rank's last step.
  bool befall(std::size_t i) {
    switch (course_.fault) {
      case Fault::abort: member_.group.abort(); return false;
      case Fault::interrupt: member_.interrupt = true; return false;
      case Fault::mismatch:
        Task(other_step(course_.steps[i]), member_.rank, member_.ranks, memory_).perform(member_.group, timeout());
        return false;
      case Fault::absence: stay_away(); return true;
      case Fault::leave: finish(); member_.group.close(); gone_ = true; return true;
      case Fault::death: finish(); world_.kill(member_.rank); stay_away(); return true;
      default: return false;
    }
  }

  // Takes no part in anything until all others have given up.
  void stay_away() {
    wait_for(member_.ranks - 1);
    gone_ = true;
  }
  // Until so many ranks have come to their end.
  void wait_for(int ranks) const {
    const double until = now() + patience;
    while (over_ < ranks && now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  // The last steps may have been such as do not wait for the victim.
  void linger() {
    const double until = now() + 2 * patience;
    while (now() < until) member_.group.perform(Call{.kind = OpKind::barrier}, Barrier{}, timeout());
  }

  // Operations that were begun end before their buffers are anybody else's.
  void release() {
    for (Task& task : tasks_) {
      try {
        task.finish(member_.group);
      } catch (const Failure&) {
      } catch (const Interrupted&) {
      }
    }
    memory_.mark();
  }

  const Course& course_;
  World& world_;
  Member& member_;
  Memory& memory_;
  std::atomic<int>& over_;  // ranks that have come to their end
  std::deque<Task> tasks_;
  std::size_t step_ = 0;
  bool gone_ = false;
};

// Of a rank that does not come others may be late, too; and of a message that is late its other end is named.
bool blames(const Failure& failure, const Course& course) {
  const bool is_message = failure.op == OpKind::recv || failure.op == OpKind::send;
  if (failure.kind == FailureKind::timeout && is_message) return !failure.missing.empty();
  if (course.fault != Fault::absence) return failure.rank == course.victim;
  return std::find(failure.missing.begin(), failure.missing.end(), course.victim) != failure.missing.end();
}

// Judges what the ranks have learnt.
void judge(const Course& course, const std::vector<std::optional<Failure>>& learnt) {
  for (int rank = 0; rank < course.shape.ranks(); ++rank) {
    const std::optional<Failure>& failure = learnt[static_cast<std::size_t>(rank)];
    const std::string who = "rank " + std::to_string(rank);
    if (course.fault == Fault::none || (rank == course.victim && course.fault != Fault::mismatch)) {
      // What was begun before the victim stays away may not be over when the others give up.
      const bool is_cut_short = course.fault == Fault::absence && course.in_background;
      const bool may_fail = course.fault == Fault::abort || course.fault == Fault::interrupt || is_cut_short;
      if (failure && !may_fail) throw Wrong(who + " ended with " + describe(*failure));
      continue;
    }
    if (!failure) throw Wrong(who + " did not learn of it");
    const bool is_late = failure->kind == FailureKind::timeout && may_last(course);
    if (failure->kind != kind_of(course.fault) && !is_late) throw Wrong(who + " took it for " + describe(*failure));
    if (course.fault == Fault::mismatch) continue;  // either side may be the one that reports
    if (!blames(*failure, course)) throw Wrong(who + " blames another: " + describe(*failure));
  }
}

}  // namespace

const char* name(Fault fault) {
  constexpr const char* names[] = {"no fault", "abort", "leave", "mismatch", "absence", "interrupt", "death"};
  return names[static_cast<std::size_t>(fault)];
}

std::string Course::words() const {
  std::string text = shape.words() + (in_background ? ", in the background" : "");
  if (fault != Fault::none) {
    text += ", " + std::string(name(fault)) + " of rank " + std::to_string(victim) + " at step " + std::to_string(when);
  }
  for (const Step& step : steps) text += "\n  " + step.words();
  if (mail.messages != 0) text += "\n  mail of " + std::to_string(mail.messages) + ", up to " + std::to_string(mail.largest) + " bytes";
  return text;
}

void run(const Course& course) {
  World world(course.shape);
  if (course.fault == Fault::death) world.give_process(course.victim);
  const auto ranks = static_cast<std::size_t>(course.shape.ranks());
  std::vector<std::optional<Failure>> learnt(ranks);
  std::deque<Memory> memories;  // stay until no rank can write into another's any more
  for (std::size_t rank = 0; rank < ranks; ++rank) memories.emplace_back();
  std::atomic<int> over{0};
  world.run([&](Member& member) {
    const auto at = static_cast<std::size_t>(member.rank);
    memories[at].use(member.mapped);
    learnt[at] = Walk(course, world, member, memories[at], over).run();
  });
  judge(course, learnt);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (learnt[rank]) memories[rank].check_marks();
  }
}

}  // namespace torsh::test
