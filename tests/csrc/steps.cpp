#include "steps.hpp"

#include <cstring>
#include <limits>

#include "group/operations.hpp"
#include "random.hpp"

namespace torsh::test {
namespace {

constexpr std::byte mark{0xA5};

bool reduces(OpKind kind) {
  return kind == OpKind::all_reduce || kind == OpKind::reduce || kind == OpKind::reduce_scatter;
}

// A small number as an element, so small that no sum of eight is rounded.
void put_number(std::byte* at, DType type, unsigned number) {
  static constexpr std::uint16_t half[] = {0, 0x3C00, 0x4000, 0x4200}, brain[] = {0, 0x3F80, 0x4000, 0x4040};
  const auto put = [at](auto value) { std::memcpy(at, &value, sizeof value); };
  switch (type) {
    case DType::float16: return put(half[number]);
    case DType::bfloat16: return put(brain[number]);
    case DType::float32: return put(static_cast<float>(number));
    case DType::float64: return put(static_cast<double>(number));
    case DType::complex64: put(static_cast<float>(number)); return put_number(at + 4, DType::float32, (number + 1) % 4);
    case DType::complex128: put(static_cast<double>(number)); return put_number(at + 8, DType::float64, (number + 1) % 4);
    case DType::boolean: return put(static_cast<std::uint8_t>(number % 2));
    default: std::memset(at, 0, size_of(type)); return put(static_cast<std::uint8_t>(number));
  }
}

// What rank `from` has for rank `to`, which is the same for all in most operations.
std::vector<std::byte> input(const Step& step, int from, int to, std::size_t count) {
  const std::size_t size = size_of(step.dtype);
  std::vector<std::byte> bytes(count * size);
  Random random(step.seed ^ mixed(static_cast<std::uint64_t>(from) << 20 | static_cast<std::uint64_t>(to)));
  for (std::size_t i = 0; i < count; ++i) {
    const unsigned number = static_cast<unsigned>(random.next() >> 62);
    put_number(bytes.data() + i * size, step.dtype, step.op == ReduceOp::product ? 1 + number % 2 : number);
  }
  return bytes;
}

double factor_of(const Step& step, int rank) {
  return step.op == ReduceOp::premul_sum ? 0.5 * (1 + rank % 3) : 1.0;
}

// The reduction of all ranks' arrays, by one thread.
std::vector<std::byte> reduced(const Step& step, int to, int ranks) {
  const std::size_t bytes = step.count * size_of(step.dtype);
  std::vector<std::vector<std::byte>> inputs;
  std::vector<const std::byte*> sources;
  const bool multiplies = step.op == ReduceOp::premul_sum;
  for (int rank = 0; rank < ranks; ++rank) {
    inputs.push_back(input(step, rank, to, step.count));
    std::byte* data = inputs.back().data();
    if (multiplies) Reduction(step.dtype, step.op, 1, 0, factor_of(step, rank))({&data, 1}, &data, step.count);
    sources.push_back(data);
  }
  std::vector<std::byte> result(bytes);
  std::byte* target = result.data();
  const std::size_t all = static_cast<std::size_t>(ranks);
  const Reduction sum(step.dtype, multiplies ? ReduceOp::sum : step.op, all, step.op == ReduceOp::avg ? all : 0);
  sum({&target, 1}, sources.data(), step.count);
  return result;
}

}  // namespace

std::string Step::words() const {
  constexpr const char* kinds[] = {"all_reduce", "reduce",     "broadcast", "all_gather", "gather",
                                   "scatter",    "reduce_scatter", "all_to_all", "barrier"};
  return std::string(kinds[static_cast<std::size_t>(kind)]) + " of " + std::to_string(count) + (uneven ? " uneven" : "") +
         " elements of dtype " + std::to_string(static_cast<int>(dtype)) + ", op " + std::to_string(static_cast<int>(op)) +
         ", root " + std::to_string(root) + ", seed " + std::to_string(seed);
}

bool is_possible(const Step& step) { return !reduces(step.kind) || is_reducible(step.dtype, step.op); }

std::byte* Memory::take(std::size_t bytes) {
  const std::size_t room = (bytes + 63) / 64 * 64;
  if (room <= mapped_.size() - used_) return mapped_.data() + std::exchange(used_, used_ + room);
  own_.push_back({std::make_unique<std::byte[]>(bytes), bytes});
  return own_.back().data.get();
}

void Memory::reset() {
  used_ = 0;
  own_.clear();
}

void Memory::mark() {
  for (const Block& block : own_) std::memset(block.data.get(), static_cast<int>(test::mark), block.bytes);
}

void Memory::check_marks() const {
  for (const Block& block : own_) {
    for (std::size_t i = 0; i < block.bytes; ++i) {
      if (block.data[i] != test::mark) throw Wrong("a buffer was written to after its operation had failed");
    }
  }
}

// Works out what a rank gives and is to get.
struct Preparation {
  Task& task;
  const Step& step;
  const int rank, ranks;
  Memory& memory;

  std::size_t count(int from, int to) const {
    if (!step.uneven) return step.count;
    return static_cast<std::size_t>(mixed(step.seed + static_cast<std::uint64_t>(from * 64 + to)) % (step.count + 1));
  }
  Piece place(const std::vector<std::byte>& content) const {
    const Piece piece{memory.take(content.size()), content.size()};
    if (!content.empty()) std::memcpy(piece.data, content.data(), content.size());
    return piece;
  }
  Piece given(int from, int to) const { return place(input(step, from, to, count(from, to))); }
  // Room for what is to come there.
  Piece wanted(std::vector<std::byte> bytes) const {
    const Piece piece = place(std::vector<std::byte>(bytes.size(), std::byte{0x5A}));
    task.expected_.push_back({piece, std::move(bytes)});
    return piece;
  }
  Piece wanted(int from, int to) const { return wanted(input(step, from, to, count(from, to))); }
  template <typename Make>
  std::vector<Piece> each(Make make) const {
    std::vector<Piece> pieces;
    for (int peer = 0; peer < ranks; ++peer) pieces.push_back(make(peer));
    return pieces;
  }
  across::ReduceSpec spec() const { return {step.dtype, step.op, factor_of(step, rank)}; }

  void all_reduce() const {
    const Piece data = given(rank, 0);
    task.expected_.push_back({data, reduced(step, 0, ranks)});
    task.operation_ = AllReduce{spec(), data.data, step.count};
  }
  void reduce() const {
    const Piece data = given(rank, 0);
    const bool is_root = rank == step.root;
    task.expected_.push_back({data, is_root ? reduced(step, 0, ranks) : input(step, rank, 0, step.count)});
    task.operation_ = Reduce{spec(), data.data, step.count, step.root};
  }
  void broadcast() const {
    const Piece data = rank == step.root ? given(rank, 0) : wanted(input(step, step.root, 0, count(rank, 0)));
    task.operation_ = Broadcast{data, step.root};
  }
  void all_gather() const {
    const std::vector<Piece> outputs = each([&](int peer) { return wanted(peer, 0); });
    task.operation_ = AllGather{Parts(outputs), given(rank, 0)};
  }
  void gather() const {
    std::vector<Piece> outputs;
    if (rank == step.root) outputs = each([&](int peer) { return wanted(peer, 0); });
    task.operation_ = Gather{Parts(outputs), given(rank, 0), step.root};
  }
  void scatter() const {
    std::vector<Piece> inputs;
    if (rank == step.root) inputs = each([&](int peer) { return given(rank, peer); });
    task.operation_ = Scatter{wanted(step.root, rank), Parts(inputs), step.root};
  }
  void reduce_scatter() const {
    const std::vector<Piece> inputs = each([&](int peer) { return given(rank, peer); });
    task.operation_ = ReduceScatter{spec(), wanted(reduced(step, rank, ranks)), Parts(inputs)};
  }
  void all_to_all() const {
    const std::vector<Piece> outputs = each([&](int peer) { return wanted(peer, rank); });
    task.operation_ = AllToAll{Parts(outputs), Parts(each([&](int peer) { return given(rank, peer); }))};
  }

  void run() const {
    switch (step.kind) {
      case OpKind::all_reduce: return all_reduce();
      case OpKind::reduce: return reduce();
      case OpKind::broadcast: return broadcast();
      case OpKind::all_gather: return all_gather();
      case OpKind::gather: return gather();
      case OpKind::scatter: return scatter();
      case OpKind::reduce_scatter: return reduce_scatter();
      case OpKind::all_to_all: return all_to_all();
      default: task.operation_ = Barrier{};
    }
  }
};

Task::Task(const Step& step, int rank, int ranks, Memory& memory) : step_(step) {
  call_ = {.kind = step.kind, .dtype = step.dtype, .op = step.op, .root = step.root};
  const bool same_everywhere = !step.uneven && step.kind != OpKind::barrier;
  if (same_everywhere) call_ = call_.of_size(step.count * size_of(step.dtype));
  Preparation{*this, step, rank, ranks, memory}.run();
}

void Task::finish(Group& group) {
  if (!job_) return;
  group.wait_for(job_, std::numeric_limits<double>::infinity());
  job_->result();
}

void Task::check() const {
  for (std::size_t i = 0; i < expected_.size(); ++i) {
    const Expected& expected = expected_[i];
    for (std::size_t at = 0; at < expected.bytes.size(); ++at) {
      if (expected.place.data[at] == expected.bytes[at]) continue;
      throw Wrong(step_.words() + ": byte " + std::to_string(at) + " of result " + std::to_string(i) + " is " +
                  std::to_string(static_cast<int>(expected.place.data[at])) + " and not " +
                  std::to_string(static_cast<int>(expected.bytes[at])));
    }
  }
}

}  // namespace torsh::test
