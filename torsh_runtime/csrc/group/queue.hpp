// Operations that were begun and not waited for; one thread carries them out in order.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace torsh {

// One queued operation. Any thread.
class Job {
 public:
  bool over() const { return over_.load(std::memory_order_acquire); }
  // Waits until it is over or until `until` (as of now()); returns whether it is over.
  bool wait_until(double until);
  // Calls `then` once when it is over, perhaps now, on any thread.
  void when_over(std::function<void()> then);
  // Throws its error, if it failed. Only when it is over.
  void result() const;
  // Of the last operation that it is of: its number in the group, and 1 + its number in the recording; 0 is unknown.
  std::uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }
  std::uint64_t entry() const { return entry_.load(std::memory_order_relaxed); }

 private:
  friend class Queue;
  explicit Job(std::function<void()> body) : body_(std::move(body)) {}
  void run();
  void finish();

  std::function<void()> body_;
  std::vector<std::function<void()>> then_;
  std::exception_ptr error_;
  std::atomic<bool> over_{false};
  std::atomic<std::uint64_t> sequence_{0}, entry_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};
using JobPtr = std::shared_ptr<Job>;

class Queue {
 public:
  Queue() = default;
  ~Queue() { close(); }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Whether nothing is under way or waiting.
  bool idle() const { return pending_.load(std::memory_order_acquire) == 0; }
  // Whether this is the thread that carries the jobs out.
  bool is_here() const { return worker_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
  // Whether a thread waits for a job, of this or of a later turn.
  bool is_awaited() const { return awaited_.load(std::memory_order_relaxed) != 0; }
  // Marks a thread that waits, for the lifetime of this object.
  class Awaiting {
   public:
    explicit Awaiting(Queue& queue) : queue_(queue) { queue_.awaited_.fetch_add(1, std::memory_order_relaxed); }
    ~Awaiting() { queue_.awaited_.fetch_sub(1, std::memory_order_relaxed); }
    Awaiting(const Awaiting&) = delete;
    Awaiting& operator=(const Awaiting&) = delete;

   private:
    Queue& queue_;
  };
  // The thread starts with the first job. After close() the job is carried out at once, by the caller.
  JobPtr submit(std::function<void()> body);
  // Called only from that thread: the operation that its job belongs to.
  void note(std::uint64_t sequence, std::uint64_t entry);
  // Returns when everything submitted is over and the thread has ended.
  void close();

 private:
  void work();

  std::atomic<std::size_t> pending_{0};
  std::atomic<unsigned> awaited_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<JobPtr> jobs_;
  std::thread thread_;
  std::atomic<std::thread::id> worker_{};
  Job* under_way_ = nullptr;  // that thread's
  bool closing_ = false;
};

}  // namespace torsh
