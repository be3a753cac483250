#include "schedule.hpp"

#include <algorithm>

#include "random.hpp"

namespace torsh::test {
namespace {

using across::Strategy;

constexpr auto kinds = {OpKind::all_reduce, OpKind::reduce,         OpKind::broadcast,  OpKind::all_gather, OpKind::gather,
                        OpKind::scatter,    OpKind::reduce_scatter, OpKind::all_to_all, OpKind::barrier};
constexpr auto strategies = {Strategy::adaptive, Strategy::standard, Strategy::ring, Strategy::tree};
// Bytes at which the core, with the tuning of Shape, goes from one way to another.
constexpr auto thresholds = {std::size_t{48}, std::size_t{1} << 10, std::size_t{4} << 10, std::size_t{8} << 10,
                             std::size_t{16} << 10, std::size_t{32} << 10, std::size_t{64} << 10, std::size_t{128} << 10};

bool may_be_uneven(OpKind kind) {
  return kind == OpKind::all_gather || kind == OpKind::gather || kind == OpKind::scatter || kind == OpKind::all_to_all;
}

// Elements of sizes around a threshold: one less, as many, one more.
std::vector<std::size_t> counts_around(std::size_t bytes, DType dtype) {
  const std::size_t count = bytes / size_of(dtype);
  return {count - 1, count, count + 1};
}

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const int ranks : {1, 2, 3, 4, 8}) all.push_back({.nodes = {ranks}});
  for (const int ranks : {2, 3, 8}) all.push_back({.nodes = {ranks}, .processors = 64});
  for (const int ranks : {3, 7}) {
    all.push_back({.nodes = {ranks}, .processors = 64, .tuning = {4 << 10, 4 << 10, 64 << 10, 2}});
  }
  all.push_back({.nodes = {5}, .processors = 64, .quota = 1, .tuning = {4 << 10, 4 << 10, 64 << 10, 32, 2, 2}});
  all.push_back({.nodes = {4}, .cross_memory = false});
  all.push_back({.nodes = {4}, .processors = 64, .regions = true});
  all.push_back({.nodes = {2}, .regions = true});
  for (const Strategy strategy : strategies) {
    all.push_back({.nodes = {1, 1}, .strategy = strategy});
    all.push_back({.nodes = {2, 3}, .strategy = strategy});
    all.push_back({.nodes = {2, 2, 1}, .scattered = true, .tcp = true, .streams = 2, .strategy = strategy});
  }
  all.push_back({.nodes = {1, 1, 1, 1, 1, 1}, .strategy = Strategy::tree});  // more nodes than are met at once
  all.push_back({.nodes = {1, 2, 1, 1, 2, 1}, .processors = 64});
  return all;
}

// All sizes, each with another dtype and reduction; which they are goes on from shape to shape.
std::vector<Step> all_sizes(OpKind kind, std::size_t& turn, int ranks) {
  std::vector<Step> steps;
  const auto add = [&](std::size_t bytes, std::size_t shift) {
    Step step{.kind = kind, .root = static_cast<int>(turn % static_cast<std::size_t>(ranks)), .seed = turn};
    do {
      ++turn;
      step.dtype = static_cast<DType>(turn % num_dtypes);
      step.op = static_cast<ReduceOp>(turn % num_reduce_ops);
    } while (!is_possible(step));
    step.uneven = may_be_uneven(kind) && turn % 3 == 0;
    step.count = counts_around(std::max<std::size_t>(bytes, 16), step.dtype)[shift];
    steps.push_back(step);
  };
  steps.push_back({.kind = kind, .count = 0, .seed = turn});
  for (const std::size_t bytes : thresholds) {
    for (std::size_t shift = 0; shift < 3; ++shift) add(bytes, shift);
  }
  return steps;
}

std::vector<Step> all_reductions(OpKind kind) {
  std::vector<Step> steps;
  for (std::size_t op = 0; op < num_reduce_ops; ++op) {
    for (std::size_t dtype = 0; dtype < num_dtypes; ++dtype) {
      const Step step{kind, static_cast<DType>(dtype), static_cast<ReduceOp>(op), 37, 0, false, op * 100 + dtype};
      if (is_possible(step)) steps.push_back(step);
    }
  }
  return steps;
}

Shape random_shape(Random& random) {
  Shape shape;
  const std::size_t nodes = random.among({1, 1, 1, 2, 2, 3, 5});
  shape.nodes.clear();
  for (std::size_t node = 0; node < nodes; ++node) {
    const std::size_t most = nodes == 1 ? 8 : nodes == 2 ? 4 : nodes == 3 ? 2 : 1;
    shape.nodes.push_back(static_cast<int>(1 + random.below(most)));
  }
  shape.scattered = random.one_in(2);
  shape.tcp = random.one_in(3);
  shape.streams = random.among({1, 1, 2, 3});
  shape.cross_memory = !random.one_in(4);
  shape.processors = random.among({0, 64});
  shape.regions = random.one_in(4);
  shape.strategy = random.among({Strategy::adaptive, Strategy::standard, Strategy::ring, Strategy::tree, Strategy::hierarchical});
  const auto whole = random.among<std::size_t>({256, 1 << 10, 4 << 10});
  shape.tuning = {whole, whole, random.among<std::size_t>({4 << 10, 16 << 10, 64 << 10}), random.among({3, 32}), random.among({2, 16}), random.among({2, 32})};
  shape.limits = {random.among<std::size_t>({0, 1 << 10}), random.among<std::size_t>({0, 2 << 10, 32 << 10}), 4 << 10,
                  random.among<std::size_t>({4 << 10, 32 << 10})};
  return shape;
}

Step random_step(Random& random, int ranks) {
  Step step{.seed = random.next()};
  do {
    step.kind = kinds.begin()[random.below(kinds.size())];
    step.dtype = static_cast<DType>(random.below(num_dtypes));
    step.op = static_cast<ReduceOp>(random.below(num_reduce_ops));
  } while (!is_possible(step));
  const std::size_t most = random.among<std::size_t>({16, 100, 3000, 10000, random.one_in(8) ? 100000u : 20000u});
  step.count = random.below(most + 1);
  step.root = static_cast<int>(random.below(static_cast<std::size_t>(ranks)));
  step.uneven = may_be_uneven(step.kind) && random.one_in(2);
  return step;
}

Fault random_fault(Random& random) {
  if (random.one_in(2)) return Fault::none;
  return random.among({Fault::abort, Fault::leave, Fault::mismatch, Fault::absence, Fault::interrupt, Fault::death});
}

}  // namespace

std::vector<Course> collectives() {
  std::vector<Course> courses;
  std::size_t turn = 0;
  for (const Shape& shape : shapes()) {
    for (const OpKind kind : kinds) {
      courses.push_back({.shape = shape, .steps = all_sizes(kind, turn, shape.ranks()), .in_background = turn % 5 == 0});
    }
  }
  for (const std::vector<int>& nodes : {std::vector{3}, std::vector{2, 1, 2}}) {
    for (const OpKind kind : {OpKind::all_reduce, OpKind::reduce, OpKind::reduce_scatter}) {
      courses.push_back({.shape = {.nodes = nodes}, .steps = all_reductions(kind)});
    }
  }
  return courses;
}

std::vector<Course> messages() {
  std::vector<Course> courses;
  for (const Shape& shape : shapes()) {
    if (shape.ranks() == 1) continue;
    for (const bool any_source : {false, true}) {
      for (const bool unattended : {false, true}) {
        for (const std::size_t largest : {std::size_t{100}, std::size_t{2} << 20}) {
          const Mail mail{largest > 1000 ? 20u : 300u, largest, any_source, unattended, courses.size()};
          courses.push_back({.shape = shape, .steps = std::vector<Step>(2, Step{.kind = OpKind::barrier}), .mail = mail});
        }
      }
    }
  }
  return courses;
}

std::vector<Course> faults() {
  std::vector<Course> courses;
  for (const std::vector<int>& nodes : {std::vector{3}, std::vector{2, 2}, std::vector{4}, std::vector{5}}) {
    const bool two_levels = nodes.front() == 5;
    for (const Fault fault : {Fault::abort, Fault::leave, Fault::mismatch, Fault::absence, Fault::interrupt, Fault::death}) {
      for (const OpKind kind : kinds) {
        const Step step{.kind = kind, .count = 20000, .seed = courses.size()};
        courses.push_back({.shape = {.nodes = nodes, .processors = 64}, .steps = std::vector<Step>(4, step), .fault = fault,
                           .victim = static_cast<int>(courses.size() % (two_levels ? 5 : 3)), .when = 2});
        Shape& shape = courses.back().shape;
        if (two_levels) shape.tuning.two_levels_from = 2;
        if (nodes.front() == 4) shape.quota = 1, shape.tuning.broadcast_wake_from = shape.tuning.single_rank_from = 2;
      }
    }
  }
  return courses;
}

Course random_course(std::uint64_t seed) {
  Random random(seed);
  Course course{.shape = random_shape(random)};
  const int ranks = course.shape.ranks();
  for (std::size_t i = 1 + random.below(8); i != 0; --i) course.steps.push_back(random_step(random, ranks));
  if (random.one_in(2)) {
    course.mail = {1 + random.below(60), random.among<std::size_t>({100, 5000, 300000}), random.one_in(3), random.one_in(3), seed};
  }
  course.in_background = random.one_in(3);
  course.fault = ranks > 1 ? random_fault(random) : Fault::none;
  // Who receives from any source does without those that have left, and may wait for the others as long as it likes.
  if (course.fault == Fault::leave) course.mail.any_source = false;
  course.victim = static_cast<int>(random.below(static_cast<std::size_t>(ranks)));
  course.when = random.below(course.steps.size());
  return course;
}

}  // namespace torsh::test
