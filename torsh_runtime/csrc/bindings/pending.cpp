#include "bindings/pending.hpp"

#include <sched.h>

#include <algorithm>
#include <limits>

#include "bindings/ndarray.hpp"
#include "bindings/rank.hpp"
#include "common/clock.hpp"

namespace torsh::python {

Pending::Pending(Rank& rank, JobPtr job, std::shared_ptr<Kept> kept)
    : rank_(rank), owner_(nb::find(rank)), job_(std::move(job)), kept_(std::move(kept)) {}

Pending::Pending(Rank& rank, TransferPtr transfer, std::shared_ptr<Kept> kept, double timeout)
    : rank_(rank), owner_(nb::find(rank)), transfer_(std::move(transfer)), kept_(std::move(kept)), timeout_(timeout), deadline_(now() + timeout) {}

bool Pending::wait(std::optional<double> timeout) {
  const double until = timeout ? now() + std::max(*timeout, 0.0) : std::numeric_limits<double>::infinity();
  if (kept_ && !is_over() && !rank_.guarded([&] { return wait_until(until); })) return false;
  settle();
  check();
  return true;
}

void Pending::check() {
  if (failure_) rank_.guarded([&] { std::rethrow_exception(failure_); });
}

bool Pending::wait_until(double until) {
  if (job_) return rank_.group().wait_for(job_, until);
  if (until < deadline_) return rank_.group().wait_for(transfer_, until);
  rank_.group().wait(transfer_, deadline_, timeout_);
  return true;
}

Pending::~Pending() {
  if (!kept_ || is_over()) return;
  if (job_) {
    rank_.keep([job = job_] { return job->over(); }, std::move(kept_));
  } else {
    rank_.keep([transfer = transfer_] { return transfer->over(); }, std::move(kept_));
  }
}

void Pending::go_on() {
  rank_.guarded([&] { rank_.group().go_on(transfer_, deadline_, timeout_); });
}

bool Pending::done() {
  if (kept_ && !is_over()) return false;
  settle();
  return true;
}

bool Pending::is_over() const { return job_ ? job_->over() : transfer_->over(); }

// Once it is over: results go where they belong, and what it held is let go. Another thread that
// comes meanwhile waits until they are there.
void Pending::settle() {
  while (settling_) {
    const WithoutGil unlocked;
    sched_yield();
  }
  if (!kept_) return;
  settling_ = true;
  const std::shared_ptr<Kept> kept = std::move(kept_);
  kept_.reset();
  try {
    const WithoutGil unlocked;
    job_ ? job_->result() : rank_.group().wait(transfer_, deadline_, timeout_);
  } catch (...) {
    failure_ = std::current_exception();
  }
  try {
    if (!failure_) kept->finish();
  } catch (...) {
    settling_ = false;
    throw;
  }
  settling_ = false;
}

int Pending::source() {
  if (!transfer_ || transfer_->sending() || !done() || failure_) return any_source;
  return transfer_->peer();
}

void Pending::when_over(std::shared_ptr<Completions> completions, std::uint64_t number) {
  const auto add = [completions = std::move(completions), number] { completions->add(number); };
  const WithoutGil unlocked;
  job_ ? job_->when_over(add) : rank_.group().when_over(transfer_, add);
}

nb::object Pending::message() {
  if (source() == any_source) return nb::none();
  const Header& header = transfer_->header();
  if (std::unique_ptr<std::byte[]> taken = transfer_->content()) content_ = as_array(std::move(taken), header.bytes);
  return nb::make_tuple(transfer_->peer(), header.tag, header.bytes, content_);
}

}  // namespace torsh::python
