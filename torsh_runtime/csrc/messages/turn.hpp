// Being the one that moves an engine's bytes.
#pragma once

#include "messages/engine.hpp"

namespace torsh {

// With the engine's lock held whenever it is made, changed or gone.
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

  // While it sleeps, a turn in the background can be lost to a caller.
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
  double looks_until = 0;  // instead of sleeping, where it may; from when it would have slept first
};

// A thread that waits.
class Engine::Inside {
 public:
  explicit Inside(Engine& engine) : engine_(engine) { engine_.inside_.push_back(std::this_thread::get_id()); }
  ~Inside() {
    std::erase(engine_.inside_, std::this_thread::get_id());
    if (engine_.closing_) engine_.changed_.notify_all();
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  Engine& engine_;
};

}  // namespace torsh
