// Objects that a running operation keeps alive.
#pragma once

#include <tuple>
#include <utility>

namespace torsh::python {

struct Kept {
  virtual ~Kept() = default;
  virtual void finish() = 0;
};

// Views of arrays, of whatever kinds; finish() puts the results where they belong.
template <class... Views>
struct KeptViews final : Kept {
  explicit KeptViews(Views&&... given) : views(std::move(given)...) {}
  void finish() override {
    std::apply([](auto&... each) { (each.finish(), ...); }, views);
  }

  std::tuple<Views...> views;
};

}  // namespace torsh::python
