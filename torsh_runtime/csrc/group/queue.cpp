#include "group/queue.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/clock.hpp"
#include "common/threads.hpp"

namespace torsh {

bool Job::wait_until(double until) {
  std::unique_lock<std::mutex> lock(mutex_);
  const std::chrono::duration<double> left(std::max(until - now(), 0.0));
  return changed_.wait_for(lock, left, [this] { return over(); });
}

void Job::result() const {
  if (error_) std::rethrow_exception(error_);
}

void Job::run() {
  try {
    body_();
  } catch (...) {
    error_ = std::current_exception();
  }
  body_ = nullptr;
}

void Job::finish() {
  std::vector<std::function<void()>> then;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    over_.store(true, std::memory_order_release);
    then = std::exchange(then_, {});
  }
  changed_.notify_all();
  for (const auto& call : then) call();
}

void Job::when_over(std::function<void()> then) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!over()) {
      then_.push_back(std::move(then));
      return;
    }
  }
  then();
}

JobPtr Queue::submit(std::function<void()> body) {
  const JobPtr job(new Job(std::move(body)));
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!closing_) {
      if (!thread_.joinable()) thread_ = start_thread([this] { work(); });
      ++pending_;
      jobs_.push_back(job);
      changed_.notify_one();
      return job;
    }
  }
  job->run();
  job->finish();
  return job;
}

void Queue::note(std::uint64_t sequence, std::uint64_t entry) {
  if (!is_here()) return;
  under_way_->sequence_.store(sequence, std::memory_order_relaxed);
  under_way_->entry_.store(entry, std::memory_order_relaxed);
}

void Queue::close() {
  std::thread thread;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
    thread = std::move(thread_);
    changed_.notify_one();
  }
  if (thread.joinable()) thread.join();
}

void Queue::work() {
  worker_ = std::this_thread::get_id();
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closing_ || !jobs_.empty(); });
    if (jobs_.empty()) break;
    const JobPtr job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    under_way_ = job.get();
    job->run();
    under_way_ = nullptr;
    --pending_;  // before anybody can see that it is over: what comes next need not queue then
    job->finish();
    lock.lock();
  }
  worker_ = std::thread::id();  // a later thread may have this one's
}

}  // namespace torsh
