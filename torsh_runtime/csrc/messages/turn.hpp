// The turn of the thread that drives an engine.
#pragma once

#include "messages/engine.hpp"

namespace torsh {

// Create, change and destroy it with the engine's lock held.
struct Engine::Turn {
  Turn(Engine& its_engine, bool in_background)
      : engine(its_engine), background(in_background) {
    engine.driving_ = true;
    engine.eager_ = false;
  }
  ~Turn() {
    if (!lost) engine.driving_ = false;
    engine.settle();
    if (!background) engine.work_.notify_one();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  // While it sleeps, a background turn can be lost to a caller.
  void lend() {
    if (background) engine.driving_ = false;
  }
  void take_back() {
    if (!background) return;
    lost = engine.driving_;
    engine.driving_ = true;
  }

  Engine& engine;
  const bool background;
  bool lost = false;
  double polls_until = 0;  // polls instead of sleeping until then, counted from when it would have slept first
};

// A thread that waits.
class Engine::Waiter {
 public:
  explicit Waiter(Engine& engine) : engine_(engine) { engine_.waiters_.push_back(std::this_thread::get_id()); }
  ~Waiter() {
    std::erase(engine_.waiters_, std::this_thread::get_id());
    if (engine_.closing_) engine_.changed_.notify_all();
  }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

 private:
  Engine& engine_;
};

}  // namespace torsh
